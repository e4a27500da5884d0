"""The search for a factor between the sizes of two clouds that explains why no pose of them was accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fullfield.registration.deformation import UNITS, describe_scale, fit_deformation_to_matches
from fullfield.registration.descriptors import Floats
from fullfield.registration.ransac import estimate_scale_from_matches
from fullfield.registration.result import Registration
from fullfield.registration.scan import choose_voxel
from fullfield.registration.search import Report, Search, register_at_voxel_size_and_check_retry
from fullfield.registration.verdict import MAX_INLIER_DISTANCE

_MIN_RATIO = 1.015  # of sizes that differ
_MIN_EXTENTS = 1.05  # ratio of the extents from which it is tried as a factor
_MAX_RATIO = 2.5  # of sizes at which descriptors at one voxel may still match; above, units may differ
_OTHER_UNIT = 8.0  # ratio of the extents from which it is the likely cause by itself
_ROUNDS = 3  # registrations in which a factor is made exact
_MIN_GAIN = 1.35  # matches that agree at the other size, over those of the pose that was refused
_MIN_BEFORE_REFINEMENT = 0.5  # share of these that a pose needs before it is refined


def replace_refusal_if_scale_explains(
    refused: Registration, clouds: list[Floats], search: Search, report: Report
) -> Registration:
    """Return ``refused`` with the factor between the sizes of centred ``clouds`` as its reason, where it is the cause.

    The source is registered again in the target's size; ``report`` receives the steps. A factor is the cause where that
    pose is accepted and far more matches agree in it. A ratio of the extents that no registration confirms is only a
    hint, unless too few points were left at the voxel that fits the other cloud.
    """
    both_extents = [_measure_core_box_diagonal(points) for points in clouds]
    if min(both_extents) <= 0:
        return refused
    extent_ratio = both_extents[0] / both_extents[1]
    factors = _list_plausible_factors(refused, extent_ratio, search)
    for number, factor in enumerate(factors):
        report(number / len(factors), f"trying a size {factor:.4g} times the target's")
        scale = _refine_factor_if_confirmed(factor, refused, clouds, search)
        if scale is not None:
            return _build_refusal_for_scale(refused, describe_scale(scale))
    larger = max(extent_ratio, 1 / extent_ratio)
    if larger <= _MAX_RATIO or refused.cause in ("free", "mirror", "repetition", "scale", "shape"):
        return refused
    if larger >= _OTHER_UNIT and refused.cause == "points":
        return _build_refusal_for_scale(refused, describe_scale(extent_ratio, exact=False))
    return replace(refused, reason=f"{refused.reason}; the extents of the clouds differ by a factor of {larger:.2g}")


def _build_refusal_for_scale(refused: Registration, reason: str) -> Registration:
    """Return ``refused`` because of its size, without what was concluded from a pose in the wrong size."""
    return replace(refused, reason=reason, cause="scale", untried=(), free_directions=(), alternatives=())


def _refine_factor_if_confirmed(
    factor: float, refused: Registration, clouds: list[Floats], search: Search
) -> float | None:
    """Return the size of the source over the target's, near ``factor``, at which a pose is accepted; None without."""
    min_inliers = _MIN_GAIN * refused.inliers
    search = search._replace(start=None, min_inliers=_MIN_BEFORE_REFINEMENT * min_inliers)
    for _ in range(_ROUNDS):
        scaled = [clouds[0] / factor, clouds[1]]
        edge = choose_voxel(*scaled)
        if edge <= 0.0:
            return None
        result, _ = register_at_voxel_size_and_check_retry(scaled, edge, search, lambda *_: None)
        pose = result.transform if result.success else result.candidate
        if pose is None or result.matched is None or result.inliers < min_inliers:
            return None
        source, target = np.moveaxis(result.matched / edge, 1, 0)
        start = pose.copy()
        start[:3, 3] /= edge
        similar = fit_deformation_to_matches(start, source, target, "scale")
        factor /= float(np.cbrt(np.linalg.det(similar[:3, :3])))
        if result.success:
            return factor if max(factor, 1 / factor) >= _MIN_RATIO else None
        if result.cause != "scale":
            return None
    return None


def _list_plausible_factors(refused: Registration, extent_ratio: float, search: Search) -> list[float]:
    """Return the sizes of the source over the target's that are worth a registration."""
    larger = max(extent_ratio, 1 / extent_ratio)
    factors = list[float]()
    if larger > _MAX_RATIO:
        unit = min(UNITS, key=lambda unit: abs(np.log(larger / unit)))
        factors = [unit if extent_ratio > 1 else 1 / unit, extent_ratio]
    else:
        if refused.matched is not None:
            source, target = np.moveaxis(refused.matched / refused.voxel, 1, 0)
            scale = estimate_scale_from_matches(
                source,
                target,
                MAX_INLIER_DISTANCE,
                max_scale=_MAX_RATIO,
                iterations=search.iterations,
                seed=search.seed,
            )
            factors += [] if scale is None else [1 / scale]
        factors += [extent_ratio] if larger > _MIN_EXTENTS else []
    return [factor for factor in factors if max(factor, 1 / factor) >= _MIN_RATIO]


def _measure_core_box_diagonal(points: Floats) -> float:
    """Return the diagonal of the box around most of the points."""
    return float(np.linalg.norm(np.ptp(np.quantile(points, (0.05, 0.95), axis=0), axis=0)))
