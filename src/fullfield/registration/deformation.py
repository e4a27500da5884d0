"""Whether the clouds differ in scale or shape: a similarity and an affine map are fitted beside the pose.

A wrong unit, a reconstruction without scale or a bad calibration changes a scan's shape; a rigid pose that fits part
of it looks right. Lengths are voxels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fullfield.registration.contacts import Planes, plane_residuals, plane_step, rotation_about
from fullfield.registration.descriptors import Floats
from fullfield.registration.observability import CORRELATED
from fullfield.registration.ransac import apply
from fullfield.registration.scan import Scan

_REACHES = (3.0, 2.5, 2.0, 2.0, 2.0, 2.0)
_SAMPLED = 2500  # points of the source
_MIN_SCALE, _SCALE_ERRORS = 0.015, 4.0  # difference of scale, and the same in standard errors, that is reported
_MIN_STRAIN, _MAX_BEND, _MAX_STRAIN_ERROR = 0.025, 0.08, 0.015  # no reconstruction bends by more than the second
_AFFINE_GAIN, _SIMILAR_GAIN = 0.42, 0.35  # share of the residuals' squares that a change of shape must explain
_MIN_GROWTH, _MIN_GROWN_GAIN = 1.2, 0.15  # or of touching points that it must bring together, explaining less
_REFITS = (8.0, 6.0, 5.0, 4.0, 3.0, 2.0, 2.0, 2.0)  # distances beyond which a match counts little
_MIN_GAIN, _MIN_GAINED = 1.35, 20  # matches that a change of shape brings together, over those of the pose; and more
_MIN_FRACTION = 0.1  # of all matches
_MIN_SIMILAR_RATIO = 0.9  # share of an affine map's matches with which a similarity is the simpler explanation
UNITS = {1000.0: "millimetres against metres", 100.0: "centimetres against metres", 10.0: "millimetres against "
         "centimetres", 25.4: "millimetres against inches", 39.37: "inches against metres", 3.28: "feet against metres",
         12.0: "inches against feet", 304.8: "millimetres against feet"}  # fmt: skip
"""Larger cloud's unit against the smaller one's, by the factor between the numbers."""
_SAME_UNIT, _LIKELY_UNIT = 0.02, 0.35  # logarithms of factors: measured ones, and those of the extents

_ISOTROPIC = np.eye(3)[None]
_STRAINS = np.zeros((6, 3, 3))
for _row, (_i, _j) in enumerate(((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))):
    _STRAINS[_row, _i, _j] = _STRAINS[_row, _j, _i] = 1.0 if _i == _j else 0.5


class Deformation(NamedTuple):
    """Size and shape of the source against the target's."""

    scale: float  # 1 where the sizes agree, 2 where the source is twice as large
    explanation: str | None  # how the clouds differ; None where they do not


def describe_scale(scale: float, *, exact: bool = True) -> str:
    """Return the sentence for a source that is ``scale`` times as large as the target, with the unit that fits."""
    larger = max(scale, 1 / scale)
    factor = min(UNITS, key=lambda factor: abs(np.log(larger / factor)))
    tolerance = _SAME_UNIT if exact else _LIKELY_UNIT
    hint = f": {UNITS[factor]}?" if abs(np.log(larger / factor)) < tolerance else ""
    number = f"{scale:.4g}" if exact else f"about {scale:.2g}"
    return f"the source seems {number} times as large as the target{hint}"


def _describe_strain(strain: float, axis: Floats) -> str:
    words = ", ".join(f"{value + 0.0:.2g}" for value in np.round(axis, 2))
    return f"the source seems sheared or stretched: {strain:+.1%} along ({words})"


def measure_deformation(transform: Floats, source: Scan, target: Scan) -> Deformation:
    """Fit a similarity and an affine map to the touching surfaces, starting from a pose.

    Reconstructions are bent by some per cent, so a change of shape is only reported where it explains much of what the
    pose leaves between the surfaces, or brings many more of them together.
    """
    planes = Planes.from_scan(target)
    step = max(1, len(source.points) // _SAMPLED)
    points, normals = source.points[::step], source.normals[::step] @ transform[:3, :3].T
    rigid, similar, affine = (
        _fit_surfaces(planes, points, normals, transform, strains) for strains in (_STRAINS[:0], _ISOTROPIC, _STRAINS)
    )
    scale = float(np.cbrt(np.linalg.det(similar.linear)))
    strains = (_extract_stretch(affine.linear) - scale * np.eye(3))[(0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)]
    errors, directions = np.linalg.eigh(affine.covariance)
    determined = directions[:, errors <= _MAX_STRAIN_ERROR**2]
    strains = determined @ (determined.T @ (strains * (1, 1, 1, 2, 2, 2)))
    values, axes = np.linalg.eigh(np.einsum("s,sij->ij", strains, _STRAINS))
    largest = int(np.abs(values).argmax())
    min_scale = max(_MIN_SCALE, _SCALE_ERRORS * float(np.sqrt(similar.covariance[0, 0])))
    explanation = None
    strain = abs(float(values[largest]))
    if strain > _MAX_BEND or (strain > _MIN_STRAIN and _explains(affine, rigid, _AFFINE_GAIN)):
        explanation = _describe_strain(-float(values[largest]), axes[:, largest])
    elif abs(np.log(scale)) > min_scale and _explains(similar, rigid, _SIMILAR_GAIN):
        explanation = describe_scale(1 / scale)
    return Deformation(1 / scale, explanation)


class _SurfaceFit(NamedTuple):
    """Map of the source onto the target's planes."""

    linear: Floats  # [3, 3]
    covariance: Floats  # [S, S] of the strains
    residuals: Floats  # [N], NaN beyond the planes


def _explains(deformed: _SurfaceFit, rigid: _SurfaceFit, min_gain: float) -> bool:
    """Return whether a change of shape explains what a rigid pose leaves."""
    is_touching = np.isfinite(rigid.residuals) & np.isfinite(deformed.residuals)
    before, after = (
        float((np.minimum(np.abs(fit.residuals[is_touching]), 1.0) ** 2).mean()) for fit in (rigid, deformed)
    )
    gain = 1 - after / max(before, 1e-12)
    growth = np.isfinite(deformed.residuals).sum() / max(np.isfinite(rigid.residuals).sum(), 1)
    return bool(gain >= min_gain or (growth >= _MIN_GROWTH and gain >= _MIN_GROWN_GAIN))


def _fit_surfaces(planes: Planes, points: Floats, normals: Floats, transform: Floats, strains: Floats) -> _SurfaceFit:
    linear, shift = transform[:3, :3], transform[:3, 3]
    covariance = np.eye(len(strains))
    for max_distance in _REACHES:
        step = plane_step(planes, points @ linear.T + shift, normals, max_distance, strains)
        if step is None:
            return _SurfaceFit(transform[:3, :3], np.eye(len(strains)), np.full(len(points), np.nan))
        change = rotation_about(step.change[:3] / step.radius)
        change = change + np.einsum("s,sij->ij", step.change[6:], strains) / step.radius
        linear, shift = change @ linear, change @ (shift - step.center) + step.center + step.change[3:6]
        covariance = step.covariance[6:, 6:] * CORRELATED / step.radius**2
    return _SurfaceFit(linear, covariance, plane_residuals(planes, points @ linear.T + shift, normals, _REACHES[-1]))


def _extract_stretch(linear: Floats) -> Floats:
    """Return the symmetric factor [3, 3] of a linear map that follows its rotation."""
    axes, sizes, _ = np.linalg.svd(linear)
    stretch: Floats = (axes * sizes) @ axes.T
    return stretch


def explain_matches(transform: Floats, source: Floats, target: Floats, max_distance: float) -> str | None:
    """Return the change of shape that brings far more matches [M, 3] together than the pose; None without one."""
    rigid, similar, affine = (_refit(transform, source, target, freedom) for freedom in ("pose", "scale", "shape"))
    counts = [
        int((np.linalg.norm(apply(fit, source) - target, axis=1) <= max_distance).sum())
        for fit in (rigid, similar, affine)
    ]
    if counts[2] < max(_MIN_GAIN * counts[0], counts[0] + _MIN_GAINED, _MIN_FRACTION * len(source)):
        return None
    if counts[1] >= _MIN_SIMILAR_RATIO * counts[2]:
        return describe_scale(1 / float(np.cbrt(np.linalg.det(similar[:3, :3]))))
    values, axes = np.linalg.eigh(_extract_stretch(affine[:3, :3]))
    largest = int(np.abs(np.log(values)).argmax())
    return _describe_strain(1 / float(values[largest]) - 1, axes[:, largest])


def _refit(transform: Floats, source: Floats, target: Floats, freedom: str) -> Floats:
    """Fit a "pose", a similarity ("scale") or an affine map ("shape") [4, 4] to matches, closer ones counting more."""
    for tolerance in _REFITS:
        squared = ((apply(transform, source) - target) ** 2).sum(1)
        weights = 1 / (1 + squared / tolerance**2) ** 2
        weights /= weights.sum()
        from_middle, to_middle = weights @ source, weights @ target
        points, goals = source - from_middle, target - to_middle
        covariance = goals.T @ (weights[:, None] * points)
        if freedom == "shape":
            spread = points.T @ (weights[:, None] * points) + 1e-6 * np.eye(3)
            linear = covariance @ np.linalg.inv(spread)
        else:
            left, sizes, right = np.linalg.svd(covariance)
            sizes = sizes * (1, 1, np.sign(np.linalg.det(left @ right)))
            linear = (left * np.where(sizes < 0, -1.0, 1.0)) @ right
            if freedom == "scale":
                linear = linear * sizes.sum() / float(weights @ (points**2).sum(1))
        transform = np.eye(4)
        transform[:3, :3], transform[:3, 3] = linear, to_middle - linear @ from_middle
    return transform
