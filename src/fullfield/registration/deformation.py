"""Tests whether the clouds differ in scale or shape: they fit a similarity, an affine map and a bend beside the pose.

A wrong unit, a reconstruction without scale or a bad calibration changes a scan's shape; a rigid pose that fits part
of it looks right. Noise leaves heights between the surfaces that differ from point to point; a change of shape leaves
heights that neighbours have in common, called systematic here. Real reconstructions are bent too, so a significant
change of shape alone is no objection: it must be larger than theirs, or explain all that is systematic, which an affine
map never does for them. Lengths are voxels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fullfield.ops.neighbors import radius_search
from fullfield.registration.contacts import (
    PlaneEquations,
    Planes,
    build_plane_equations,
    convert_to_rotation_matrix,
    find_contacts,
)
from fullfield.registration.descriptors import Floats
from fullfield.registration.ransac import apply_transform
from fullfield.registration.result import Cause
from fullfield.registration.scan import Scan

_REACHES = (3.0, 2.5, 2.0, 2.0)
_MORE_STEPS, _SETTLED = 12, 0.02  # steps until a fit changes less, voxels
_RIGID_REACHES = (2.0, 2.0)  # the pose is refined already
_SAMPLED = 2500  # points of the source
_CELL = 8.0  # edge within which heights err together
_MAX_STRAIN_ERROR = 0.02  # standard error of a strain that counts as determined
_SIGNIFICANT, _MIN_STRAIN = 100.0, 0.05  # squared strains over their covariance, and strain, from which it is looked at
_EXPLAINING = 200.0  # the same that a change of shape needs
_MAX_LEFT, _MAX_LEFT_SHARE = 0.03, 0.5  # RMS systematic heights that a map leaves that explains all, share of squares
_EXTREME = 1000.0  # significance of no reconstruction
_MIN_REDUCED = 0.012  # RMS systematic heights that a map must remove, without which its strains are a bias
_MAX_STRAIN, _STRAIN_ERRORS, _MAX_LARGE_STRAIN_ERROR = 0.08, 4.0, 0.03  # strain that no reconstruction reaches
_MIN_SCALE, _SCALE_ERRORS = 0.015, 4.0  # difference of scale, and the same in standard errors, that is reported
_SIMILAR_GAIN = 0.35  # share of the residuals' squares that a change of scale must explain
_MAX_SYSTEMATIC = 0.2  # RMS heights of no reconstruction
_MIN_EXPLAINED_BY_BEND = 0.988  # share of their squares that a bend explains
_MIN_BEND, _MAX_LEFT_BY_BEND = 0.1, 0.015  # RMS heights: that a bend explains, and that it leaves
_MIN_BENT, _MIN_EXPLAINED_OF_BENT = 0.06, 0.85  # the same of clouds that may be reconstructions
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
    """Change of shape between two clouds in a pose."""

    explanation: Explanation | None  # how the clouds differ; None where they may be scans of one scene
    is_bent: bool  # whether a bend explains most of what the pose leaves between the surfaces


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
    """Fit an affine map, a similarity and a bend to the touching surfaces, starting from a pose."""
    planes = Planes.from_scan(target)
    step = max(1, len(source.points) // _SAMPLED)
    points, normals = source.points[::step], source.normals[::step] @ transform[:3, :3].T
    rigid = _fit_deformation_to_surfaces(planes, points, normals, transform, _STRAINS[:0], _RIGID_REACHES)
    affine = _fit_deformation_to_surfaces(planes, points, normals, transform, _STRAINS, _REACHES)
    explanation = None
    if (
        affine.measure_strain_significance(1.0) > _SIGNIFICANT
        or _find_largest_strain(affine, 1.0).certain > _MIN_STRAIN
    ):
        similar = _fit_deformation_to_surfaces(planes, points, normals, transform, _ISOTROPIC, _REACHES)
        explanation = _explain_by_scale(similar, affine, rigid) or _explain_by_shape(affine, rigid, similar.scale)
    if explanation is not None or rigid.systematic < _MIN_BENT**2:
        return Deformation(explanation, is_bent=False)
    left = _measure_systematic_after_bend(planes, points, normals, transform)
    return Deformation(
        _explain_by_bend(rigid.systematic, left), is_bent=left < (1 - _MIN_EXPLAINED_OF_BENT) * rigid.systematic
    )


class _SurfaceFit(NamedTuple):
    """Map of the source onto the target's planes."""

    linear_map: Floats  # [3, 3]
    covariance: Floats  # [S, S] of the strains
    residuals: Floats  # [N], NaN beyond the planes
    systematic: float  # mean square of the residuals' part that neighbours have in common

    @property
    def scale(self) -> float:
        """Return the side of the cube that the map makes of a unit cube, by volume."""
        return float(np.cbrt(np.linalg.det(self.linear_map)))

    def list_strains_beside_scale(self, scale: float) -> Floats:
        """Return the strains [6] beside a change of scale: along x, y, z, and between xy, xz, yz."""
        components = (_extract_symmetric_stretch(self.linear_map) - scale * np.eye(3))[
            (0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)
        ]
        return np.asarray(components * (1, 1, 1, 2, 2, 2), np.float64)

    def measure_strain_significance(self, scale: float) -> float:
        """Return the squares of the strains beside a scale over their covariance, in the directions it determines."""
        variances, directions = np.linalg.eigh(self.covariance)
        is_determined = variances <= _MAX_STRAIN_ERROR**2
        components = directions.T[is_determined] @ self.list_strains_beside_scale(scale)
        return float((components**2 / np.maximum(variances[is_determined], 1e-12)).sum())


def _explain_by_scale(similar: _SurfaceFit, affine: _SurfaceFit, rigid: _SurfaceFit) -> Explanation | None:
    """Return the sentence for another size, None where it does not explain what a rigid pose leaves."""
    difference, error = abs(np.log(similar.scale)), float(np.sqrt(similar.covariance[0, 0]))
    if difference <= max(_MIN_SCALE, _SCALE_ERRORS * error):
        return None
    is_simplest = similar.systematic < max(_MAX_LEFT**2, 1.5 * affine.systematic)
    explains = (difference / max(error, 1e-9)) ** 2 > _EXPLAINING and similar.systematic < _MAX_LEFT**2
    if is_simplest and (explains or _measure_explained_share(similar, rigid) >= _SIMILAR_GAIN):
        return Explanation(describe_scale(1 / similar.scale), "scale")
    return None


def _explain_by_shape(affine: _SurfaceFit, rigid: _SurfaceFit, scale: float) -> Explanation | None:
    """Return the sentence for the affine map, None where it is too weak to be more than a bend of a reconstruction."""
    left, significance = max(affine.systematic, 0.0), affine.measure_strain_significance(scale)
    if significance <= _EXPLAINING or rigid.systematic - left <= _MIN_REDUCED**2:
        return None
    strain = _find_largest_strain(affine, scale)
    explains = left < _MAX_LEFT**2 or strain.certain > _MAX_STRAIN
    if significance > _EXTREME or (explains and left < _MAX_LEFT_SHARE * rigid.systematic):
        return _describe_strain(-strain.value, strain.axis)
    return None


class _Strain(NamedTuple):
    """Change of length along an axis."""

    value: float
    certain: float  # its size less some standard errors; 0 where it is not determined
    axis: Floats  # [3]


def _find_largest_strain(affine: _SurfaceFit, scale: float) -> _Strain:
    """Return the strain beside a scale that is largest for certain."""
    values, axes = np.linalg.eigh(np.einsum("s,sij->ij", affine.list_strains_beside_scale(scale), _STRAINS))
    weights = np.einsum("in,sij,jn->ns", axes, _STRAINS, axes)
    errors = np.sqrt(np.einsum("ns,st,nt->n", weights, affine.covariance, weights))
    certain = np.where(errors < _MAX_LARGE_STRAIN_ERROR, np.maximum(np.abs(values) - _STRAIN_ERRORS * errors, 0.0), 0.0)
    largest = int((certain + 1e-9 * np.abs(values)).argmax())
    return _Strain(float(values[largest]), float(certain[largest]), axes[:, largest])


def _explain_by_bend(systematic_before: float, systematic_after: float) -> Explanation | None:
    """Return the sentence for clouds that are bent against each other; None where they may be reconstructions.

    Arguments are the mean squares of systematic heights in the pose, and after a bend is fitted.
    """
    explains = (
        systematic_after < _MAX_LEFT_BY_BEND**2 and systematic_after < (1 - _MIN_EXPLAINED_BY_BEND) * systematic_before
    )
    if systematic_before > _MAX_SYSTEMATIC**2 or (systematic_before > _MIN_BEND**2 and explains):
        reason = "the clouds seem bent against each other: the best pose leaves"
        return Explanation(f"{reason} {np.sqrt(systematic_before):.2g} voxels between surfaces", "shape")
    return None


def _measure_explained_share(deformed: _SurfaceFit, rigid: _SurfaceFit) -> float:
    """Return the share of the squares that a rigid pose leaves which a change of shape explains."""
    is_touching = np.isfinite(rigid.residuals) & np.isfinite(deformed.residuals)
    before, after = (
        float((np.minimum(np.abs(fit.residuals[is_touching]), 1.0) ** 2).mean()) for fit in (rigid, deformed)
    )
    return 1 - after / max(before, 1e-12)


def _fit_deformation_to_surfaces(
    planes: Planes,
    points: Floats,
    normals: Floats,
    transform: Floats,
    strains: Floats,
    max_distances: tuple[float, ...],
) -> _SurfaceFit:
    """Fit a pose with ``strains``; a large one brings further points together, so steps go on until it settles."""
    linear_map, shift = transform[:3, :3], transform[:3, 3]
    extra = (max_distances[-1],) * (_MORE_STEPS if len(strains) else 0)
    for number, max_distance in enumerate((*max_distances, *extra)):
        equations = build_plane_equations(planes, points @ linear_map.T + shift, normals, max_distance, strains)
        if equations is None:
            break
        change, center = equations.change, equations.center
        motion = convert_to_rotation_matrix(change[:3] / equations.radius)
        motion = motion + np.einsum("s,sij->ij", change[6:], strains) / equations.radius
        linear_map, shift = motion @ linear_map, motion @ (shift - center) + center + change[3:6]
        if number + 1 >= len(max_distances) and np.abs(change).max() < _SETTLED:
            break
    last = build_plane_equations(planes, points @ linear_map.T + shift, normals, max_distances[-1], strains)
    residuals = np.full(len(points), np.nan)
    if last is None:
        return _SurfaceFit(transform[:3, :3], np.eye(len(strains)), residuals, 0.0)
    residuals[last.contacts.rows] = last.contacts.heights
    covariance = last.estimate_covariance(_CELL)[6:, 6:] / last.radius**2
    return _SurfaceFit(linear_map, covariance, residuals, _measure_systematic_heights(last, normals))


def _measure_systematic_after_bend(planes: Planes, points: Floats, normals: Floats, transform: Floats) -> float:
    """Fit a displacement that is quadratic in the place; return the systematic mean square that it leaves."""
    start = apply_transform(transform, points)
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
    left = build_plane_equations(planes, mapped, normals, _BEND_REACHES[-1], _STRAINS[:0])
    return 0.0 if left is None else _measure_systematic_heights(left, normals)


def _measure_systematic_heights(equations: PlaneEquations, normals: Floats) -> float:
    """Return the mean square of the heights over the planes that neighbours of one orientation have in common.

    ``normals`` [N, 3] are those of the points, of which the equations have some.
    """
    contacts, touching_points = equations.contacts, equations.places
    own = normals[contacts.rows]
    step = max(1, len(touching_points) // _QUERIES)
    queries = np.arange(0, len(touching_points), step)
    neighbors = radius_search(
        torch.from_numpy(touching_points), _NEIGHBORHOOD, torch.from_numpy(touching_points[queries]), sort_indices=False
    )
    row = np.repeat(np.arange(len(queries)), np.diff(neighbors.offsets.numpy()))
    column = neighbors.indices.numpy()
    is_parallel = np.abs((own[column] * own[queries[row]]).sum(1)) > 0.9
    row, column = row[is_parallel], column[is_parallel]
    vectors = np.clip(contacts.heights, -1.0, 1.0)[:, None] * equations.normals
    heights = (vectors[column] * own[queries[row]]).sum(1)
    count = np.bincount(row, minlength=len(queries))
    usable = count >= _MIN_NEIGHBORS
    if not usable.any():
        return 0.0
    mean, square = (np.bincount(row, values, len(queries))[usable] / count[usable] for values in (heights, heights**2))
    return float((mean**2 - (square - mean**2) / (count[usable] - 1)).mean())


def _extract_symmetric_stretch(linear_map: Floats) -> Floats:
    """Return the symmetric factor [3, 3] of a linear map that follows its rotation."""
    axes, sizes, _ = np.linalg.svd(linear_map)
    stretch: Floats = (axes * sizes) @ axes.T
    return stretch


def find_shape_change_of_matches(
    transform: Floats, source: Floats, target: Floats, max_distance: float
) -> Explanation | None:
    """Return the change of shape that brings far more matches [M, 3] together than the pose; None without one."""
    rigid, similar, affine = (
        fit_deformation_to_matches(transform, source, target, freedom) for freedom in ("pose", "scale", "shape")
    )
    counts = [
        int((np.linalg.norm(apply_transform(fit, source) - target, axis=1) <= max_distance).sum())
        for fit in (rigid, similar, affine)
    ]
    if counts[2] < max(_MIN_GAIN * counts[0], counts[0] + _MIN_GAINED, _MIN_FRACTION * len(source)):
        return None
    values, axes = np.linalg.eigh(_extract_symmetric_stretch(affine[:3, :3]))
    if counts[1] >= _MIN_SIMILAR_RATIO * counts[2]:
        scale = 1 / float(np.cbrt(np.linalg.det(similar[:3, :3])))
        return Explanation(describe_scale(scale), "scale")
    largest = int(np.abs(np.log(values)).argmax())
    if abs(np.log(values[largest])) > _MAX_CREDIBLE:
        return None  # few matches in a plane, or on a line
    return _describe_strain(1 / float(values[largest]) - 1, axes[:, largest])


def fit_deformation_to_matches(transform: Floats, source: Floats, target: Floats, freedom: str) -> Floats:
    """Fit a "pose", a similarity ("scale") or an affine map ("shape") [4, 4] to matches, closer ones counting more."""
    for tolerance in _REFITS:
        squared = ((apply_transform(transform, source) - target) ** 2).sum(1)
        weights = 1 / (1 + squared / tolerance**2) ** 2
        weights /= weights.sum()
        from_middle, to_middle = weights @ source, weights @ target
        points, goals = source - from_middle, target - to_middle
        covariance = goals.T @ (weights[:, None] * points)
        if freedom == "shape":
            spread = points.T @ (weights[:, None] * points) + 1e-6 * np.eye(3)
            linear_map = covariance @ np.linalg.inv(spread)
        else:
            left, sizes, right = np.linalg.svd(covariance)
            sizes = sizes * (1, 1, np.sign(np.linalg.det(left @ right)))
            linear_map = (left * np.where(sizes < 0, -1.0, 1.0)) @ right
            if freedom == "scale":
                linear_map = linear_map * sizes.sum() / float(weights @ (points**2).sum(1))
        transform = np.eye(4)
        transform[:3, :3], transform[:3, 3] = linear_map, to_middle - linear_map @ from_middle
    return transform
