"""Tests whether the clouds differ in scale or shape: they fit a similarity, an affine map and a bend beside the pose.

A wrong unit, a reconstruction without scale or a bad calibration changes a scan's shape; a rigid pose that fits part
of it looks right. Noise leaves heights between the surfaces that differ from point to point; a change of shape leaves
heights that neighbours have in common, called systematic here. Lengths are voxels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fullfield.ops.neighbors import radius_search
from fullfield.registration.contacts import Planes, find_contacts, plane_residuals, plane_step, rotation_about
from fullfield.registration.descriptors import Floats
from fullfield.registration.observability import CORRELATED
from fullfield.registration.ransac import apply
from fullfield.registration.result import Cause
from fullfield.registration.scan import Scan

_REACHES = (3.0, 2.5, 2.0, 2.0, 2.0, 2.0)
_SAMPLED = 2500  # points of the source
_MIN_SCALE, _SCALE_ERRORS = 0.015, 4.0  # difference of scale, and the same in standard errors, that is reported
_MIN_STRAIN, _MAX_STRAIN_ERROR = 0.025, 0.015
_MAX_STRAIN, _STRAIN_ERRORS, _MAX_LARGE_STRAIN_ERROR = 0.06, 3.5, 0.02  # strain that no reconstruction reaches
_AFFINE_GAIN, _SIMILAR_GAIN = 0.42, 0.35  # share of the residuals' squares that a change of shape must explain
_MIN_GROWTH, _MIN_GROWN_GAIN = 1.2, 0.15  # or of touching points that it must bring together, explaining less
_MIN_SYSTEMATIC, _MAX_SYSTEMATIC = 0.06, 0.25  # RMS heights: in need of an explanation, and of no reconstruction
_MIN_EXPLAINED, _MIN_EXPLAINED_BY_BEND = 0.9, 0.988  # share of their squares that a simple change of shape explains
_MIN_BEND, _MAX_LEFT_BY_BEND = 0.1, 0.015  # RMS heights: that a bend explains, and that it leaves
_NEIGHBORHOOD, _MIN_NEIGHBORS, _QUERIES = 6.0, 12, 625
_BEND_REACHES, _BEND_PRIOR = (4.0, 3.5, 3.0, 2.5, 2.0, 2.0, 2.0, 2.0), 3.0
_REFITS = (8.0, 6.0, 5.0, 4.0, 3.0, 2.0, 2.0, 2.0)  # distances beyond which a match counts little
_MIN_GAIN, _MIN_GAINED = 1.35, 20  # matches that a change of shape brings together, over those of the pose; and more
_MIN_FRACTION = 0.1  # of all matches
_MAX_CREDIBLE = 0.7  # logarithm of a stretch
_MIN_SIMILAR_RATIO = 0.9  # share of an affine map's matches with which a similarity is the simpler explanation
UNITS = {1000.0: "millimetres against metres", 100.0: "centimetres against metres", 10.0: "millimetres against "
         "centimetres", 25.4: "millimetres against inches", 39.37: "inches against metres", 3.28: "feet against metres",
         12.0: "inches against feet", 304.8: "millimetres against feet"}  # fmt: skip
"""Larger cloud's unit against the smaller one's, by the factor between the numbers."""
_SAME_UNIT, _LIKELY_UNIT = 0.05, 0.35  # logarithms of factors: measured ones, and those of the extents

_ISOTROPIC = np.eye(3)[None]
_STRAINS = np.zeros((6, 3, 3))
for _row, (_i, _j) in enumerate(((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))):
    _STRAINS[_row, _i, _j] = _STRAINS[_row, _j, _i] = 1.0 if _i == _j else 0.5


class Explanation(NamedTuple):
    """A difference between the clouds, in words, and its kind."""

    reason: str
    cause: Cause


class Deformation(NamedTuple):
    """Size and shape of the source against the target's."""

    scale: float  # 1 where the sizes agree, 2 where the source is twice as large
    explanation: Explanation | None  # how the clouds differ; None where they do not


def describe_scale(scale: float, *, exact: bool = True) -> str:
    """Return which cloud is larger, and the units that fit; the source is ``scale`` times as large as the target."""
    larger = max(scale, 1 / scale)
    factor = min(UNITS, key=lambda factor: abs(np.log(larger / factor)))
    tolerance = _SAME_UNIT if exact else _LIKELY_UNIT
    hint = f" ({UNITS[factor]}?)" if abs(np.log(larger / factor)) < tolerance else ""
    larger_cloud, smaller_cloud = ("source", "target") if scale >= 1 else ("target", "source")
    digits = f"{larger:.4g}" if exact else f"{larger:.2g}"
    number = f"{float(digits):,.0f}" if larger >= 100 else digits
    return f"the {larger_cloud} seems {'' if exact else 'about '}{number} times as large as the {smaller_cloud}{hint}"


def _describe_strain(strain: float, axis: Floats) -> Explanation:
    words = ", ".join(f"{value + 0.0:.2g}" for value in np.round(axis, 2))
    return Explanation(f"the source seems sheared or stretched: {strain:+.1%} along ({words})", "shape")


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
    min_scale = max(_MIN_SCALE, _SCALE_ERRORS * float(np.sqrt(similar.covariance[0, 0])))
    explanation = _explain_by_shape(affine, rigid, scale)
    if explanation is None and abs(np.log(scale)) > min_scale and _explains(similar, rigid, _SIMILAR_GAIN):
        explanation = Explanation(describe_scale(1 / scale), "scale")
    if explanation is None and rigid.systematic > _MIN_BEND**2:
        explanation = _explain_by_bend(planes, points, normals, transform, rigid)
    return Deformation(1 / scale, explanation)


def _explain_by_shape(affine: _SurfaceFit, rigid: _SurfaceFit, scale: float) -> Explanation | None:
    """Return the sentence for the affine map, None where it is too weak to be more than a bend of a reconstruction."""
    components = (_extract_stretch(affine.linear) - scale * np.eye(3))[(0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)]
    components = components * (1, 1, 1, 2, 2, 2)
    values, axes = np.linalg.eigh(np.einsum("s,sij->ij", components, _STRAINS))
    weights = np.einsum("in,sij,jn->ns", axes, _STRAINS, axes)
    errors = np.sqrt(np.einsum("ns,st,nt->n", weights, affine.covariance, weights))
    is_certain = (np.abs(values) > _STRAIN_ERRORS * errors) & (errors < _MAX_LARGE_STRAIN_ERROR)
    certain = np.where(is_certain, values, 0.0)
    largest = int(np.abs(certain).argmax())
    if abs(float(certain[largest])) > _MAX_STRAIN:
        return _describe_strain(-float(certain[largest]), axes[:, largest])
    variances, directions = np.linalg.eigh(affine.covariance)
    determined = directions[:, variances <= _MAX_STRAIN_ERROR**2]
    components = determined @ (determined.T @ components)
    values, axes = np.linalg.eigh(np.einsum("s,sij->ij", components, _STRAINS))
    largest = int(np.abs(values).argmax())
    if abs(float(values[largest])) > _MIN_STRAIN and _explains(affine, rigid, _AFFINE_GAIN):
        return _describe_strain(-float(values[largest]), axes[:, largest])
    return None


def _explain_by_bend(
    planes: Planes, points: Floats, normals: Floats, transform: Floats, rigid: _SurfaceFit
) -> Explanation | None:
    """Return the sentence for clouds that are bent against each other; None where they may be reconstructions."""
    before, left = np.sqrt(rigid.systematic), _fit_bend(planes, points, normals, transform).systematic
    if before > _MAX_SYSTEMATIC or (
        before > _MIN_BEND and left < _MAX_LEFT_BY_BEND**2 and left < (1 - _MIN_EXPLAINED_BY_BEND) * rigid.systematic
    ):
        reason = f"the clouds seem bent against each other: the best pose leaves {before:.2g} voxels between surfaces"
        return Explanation(reason, "shape")
    return None


class _SurfaceFit(NamedTuple):
    """Map of the source onto the target's planes."""

    linear: Floats  # [3, 3]
    covariance: Floats  # [S, S] of the strains
    residuals: Floats  # [N], NaN beyond the planes
    systematic: float  # mean square of the residuals' part that neighbours have in common


def _explains(deformed: _SurfaceFit, rigid: _SurfaceFit, min_gain: float) -> bool:
    """Return whether a change of shape explains what a rigid pose leaves."""
    is_touching = np.isfinite(rigid.residuals) & np.isfinite(deformed.residuals)
    before, after = (
        float((np.minimum(np.abs(fit.residuals[is_touching]), 1.0) ** 2).mean()) for fit in (rigid, deformed)
    )
    gain = 1 - after / max(before, 1e-12)
    growth = np.isfinite(deformed.residuals).sum() / max(np.isfinite(rigid.residuals).sum(), 1)
    is_simple = rigid.systematic > _MIN_SYSTEMATIC**2 and deformed.systematic < (1 - _MIN_EXPLAINED) * rigid.systematic
    return bool(gain >= min_gain or is_simple or (growth >= _MIN_GROWTH and gain >= _MIN_GROWN_GAIN))


def _fit_surfaces(planes: Planes, points: Floats, normals: Floats, transform: Floats, strains: Floats) -> _SurfaceFit:
    linear, shift = transform[:3, :3], transform[:3, 3]
    covariance = np.eye(len(strains))
    for max_distance in _REACHES:
        step = plane_step(planes, points @ linear.T + shift, normals, max_distance, strains)
        if step is None:
            return _SurfaceFit(transform[:3, :3], np.eye(len(strains)), np.full(len(points), np.nan), 0.0)
        change = rotation_about(step.change[:3] / step.radius)
        change = change + np.einsum("s,sij->ij", step.change[6:], strains) / step.radius
        linear, shift = change @ linear, change @ (shift - step.center) + step.center + step.change[3:6]
        covariance = step.covariance[6:, 6:] * CORRELATED / step.radius**2
    mapped = points @ linear.T + shift
    residuals = plane_residuals(planes, mapped, normals, _REACHES[-1])
    return _SurfaceFit(linear, covariance, residuals, _measure_systematic(planes, mapped, normals))


def _fit_bend(planes: Planes, points: Floats, normals: Floats, transform: Floats) -> _SurfaceFit:
    """Fit a displacement that is a quadratic function of the place."""
    start = apply(transform, points)
    arm = start - start.mean(0)
    arm /= np.sqrt((arm**2).sum(1).mean())
    x, y, z = arm.T
    terms = np.stack((np.ones(len(arm)), x, y, z, x * x, y * y, z * z, x * y, x * z, y * z), 1)
    mapped = start
    for max_distance in _BEND_REACHES:
        contacts = find_contacts(planes, mapped, normals, max_distance)
        goal_normals = planes.normals[contacts.partner]
        rows = (terms[contacts.rows, :, None] * goal_normals[:, None]).reshape(len(contacts.rows), -1)
        weights = np.minimum(1.0, 0.5 / np.maximum(np.abs(contacts.heights), 1e-9))
        matrix = rows.T @ (weights[:, None] * rows) + _BEND_PRIOR * np.eye(rows.shape[1])
        change = np.linalg.solve(matrix, rows.T @ (weights * -contacts.heights))
        mapped = mapped + terms @ change.reshape(-1, 3)
    residuals = plane_residuals(planes, mapped, normals, _BEND_REACHES[-1])
    return _SurfaceFit(np.eye(3), np.eye(0), residuals, _measure_systematic(planes, mapped, normals))


def _measure_systematic(planes: Planes, points: Floats, normals: Floats) -> float:
    """Return the mean square of the heights over the planes that neighbours of one orientation have in common."""
    contacts = find_contacts(planes, points, normals, _REACHES[-1])
    if len(contacts.rows) < _MIN_NEIGHBORS:
        return 0.0
    places, own = points[contacts.rows], normals[contacts.rows]
    step = max(1, len(places) // _QUERIES)
    queries = np.arange(0, len(places), step)
    neighbors = radius_search(torch.from_numpy(places), _NEIGHBORHOOD, torch.from_numpy(places[queries]), sort=False)
    row = np.repeat(np.arange(len(queries)), np.diff(neighbors.offsets.numpy()))
    column = neighbors.indices.numpy()
    is_parallel = np.abs((own[column] * own[queries[row]]).sum(1)) > 0.9
    row, column = row[is_parallel], column[is_parallel]
    vectors = np.clip(contacts.heights, -1.0, 1.0)[:, None] * planes.normals[contacts.partner]
    heights = (vectors[column] * own[queries[row]]).sum(1)
    count = np.bincount(row, minlength=len(queries))
    usable = count >= _MIN_NEIGHBORS
    if not usable.any():
        return 0.0
    mean, square = (np.bincount(row, values, len(queries))[usable] / count[usable] for values in (heights, heights**2))
    return float((mean**2 - (square - mean**2) / (count[usable] - 1)).mean())


def _extract_stretch(linear: Floats) -> Floats:
    """Return the symmetric factor [3, 3] of a linear map that follows its rotation."""
    axes, sizes, _ = np.linalg.svd(linear)
    stretch: Floats = (axes * sizes) @ axes.T
    return stretch


def explain_matches(transform: Floats, source: Floats, target: Floats, max_distance: float) -> Explanation | None:
    """Return the change of shape that brings far more matches [M, 3] together than the pose; None without one."""
    rigid, similar, affine = (
        fit_to_matches(transform, source, target, freedom) for freedom in ("pose", "scale", "shape")
    )
    counts = [
        int((np.linalg.norm(apply(fit, source) - target, axis=1) <= max_distance).sum())
        for fit in (rigid, similar, affine)
    ]
    if counts[2] < max(_MIN_GAIN * counts[0], counts[0] + _MIN_GAINED, _MIN_FRACTION * len(source)):
        return None
    values, axes = np.linalg.eigh(_extract_stretch(affine[:3, :3]))
    if counts[1] >= _MIN_SIMILAR_RATIO * counts[2]:
        scale = 1 / float(np.cbrt(np.linalg.det(similar[:3, :3])))
        return Explanation(describe_scale(scale), "scale")
    largest = int(np.abs(np.log(values)).argmax())
    if abs(np.log(values[largest])) > _MAX_CREDIBLE:
        return None  # few matches in a plane, or on a line
    return _describe_strain(1 / float(values[largest]) - 1, axes[:, largest])


def fit_to_matches(transform: Floats, source: Floats, target: Floats, freedom: str) -> Floats:
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
