"""Tests whether the clouds differ in scale or shape: they fit a similarity, an affine map and a bend beside the pose.

A wrong unit, a reconstruction without scale or a bad calibration changes a scan's shape; a rigid pose that fits part
of it looks right. Noise leaves heights between the surfaces that differ from point to point; a change of shape leaves
heights that neighbours have in common, called systematic here. Real reconstructions are bent too, so a significant
change of shape alone is no objection: it must be larger than theirs, or explain all that is systematic, which an affine
map never does for them, or bring surfaces together that contradict each other in the pose. Lengths are voxels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fullfield.ops.neighbors import radius_search
from fullfield.registration.contacts import (
    Agreement,
    Contacts,
    PlaneEquations,
    Planes,
    SurfaceComparison,
    build_plane_equations_if_possible,
    convert_to_rotation_matrix,
    find_contacts_with_planes,
    find_nearest_in_tree,
    measure_significance,
    transform_normals,
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
_MIN_MUTUAL_COSINE, _MAX_HEIGHT_DIFFERENCE = 0.9, 0.6  # of normals, and of heights seen from either scan
_SIGNIFICANT, _MIN_STRAIN = 60.0, 0.05  # squared strains over their covariance, and strain, from which it is looked at
_EXPLAINING = 200.0  # the same that a change of shape needs
_MAX_LEFT, _MAX_LEFT_SHARE = 0.03, 0.5  # RMS systematic heights that a map leaves that explains all, share of squares
_EXTREME = 1500.0  # significance of no reconstruction
_DECISIVE = 2.0  # significance of the points that a map confirms and the pose contradicts, less the reverse
_MAX_LEFT_BY_SCALE = 0.1  # share of the squares of systematic heights that such a similarity leaves
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

_RIGID, _ISOTROPIC = np.zeros((0, 3, 3)), np.eye(3)[None]
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
    is_deformed: bool  # whether strains are significant, or a bend explains most of what the pose leaves


def describe_scale(source_over_target: float, *, exact: bool = True) -> str:
    """Return which cloud is larger, and the units that fit, from the source's size over the target's."""
    larger = max(source_over_target, 1 / source_over_target)
    factor = min(UNITS, key=lambda factor: abs(np.log(larger / factor)))
    tolerance = _SAME_UNIT if exact else _LIKELY_UNIT
    hint = f" ({UNITS[factor]}?)" if abs(np.log(larger / factor)) < tolerance else ""
    larger_cloud, smaller_cloud = ("source", "target") if source_over_target >= 1 else ("target", "source")
    digits = f"{larger:.4g}" if exact else f"{larger:.2g}"
    number = f"{float(digits):,.0f}" if larger >= 100 else digits
    return f"the {larger_cloud} seems {'' if exact else 'about '}{number} times as large as the {smaller_cloud}{hint}"


def _explain_strain(strain: float, axis: Floats) -> Explanation:
    words = ", ".join(f"{value + 0.0:.2g}" for value in np.round(axis, 2))
    return Explanation(f"the source seems sheared or stretched: {strain:+.1%} along ({words})", "shape")


def measure_deformation(
    transform: Floats,
    source: Scan,
    target: Scan,
    matched_points: Floats,
    comparison: SurfaceComparison,
    agreement: Agreement,
) -> Deformation:
    """Fit an affine map, a similarity and a bend to the touching surfaces, starting from a pose with its agreement.

    ``matched_points`` [M, 2, 3] give the affine map another start: a pose may fit most surfaces far from the true map.
    """
    surfaces = _Surfaces(Planes.from_scan(source), Planes.from_scan(target), max(1, len(source.points) // _SAMPLED))
    rigid = _fit_deformation_to_surfaces(surfaces, transform, _RIGID, _RIGID_REACHES)
    affine = _fit_deformation_to_surfaces(surfaces, transform, _STRAINS, _REACHES)
    is_affine_decisive = _is_fit_favored_by_surfaces(affine, comparison, agreement)
    start = fit_deformation_to_matches(transform, matched_points[:, 0], matched_points[:, 1], "shape")
    if not is_affine_decisive and _has_credible_stretch(start):
        other = _fit_deformation_to_surfaces(surfaces, start, _STRAINS, _REACHES)
        is_affine_decisive = _is_fit_favored_by_surfaces(other, comparison, agreement)
        affine = other if is_affine_decisive else affine
    explanation = None
    is_strained = (
        affine.measure_strain_significance(1.0) > _SIGNIFICANT
        or _find_largest_certain_strain(affine, 1.0).certain > _MIN_STRAIN
    )
    if is_strained:
        similar = _fit_deformation_to_surfaces(surfaces, transform, _ISOTROPIC, _REACHES)
        explanation = _explain_by_scale(
            similar, affine, rigid, is_decisive=_is_fit_favored_by_surfaces(similar, comparison, agreement)
        ) or _explain_by_shape(affine, rigid, similar.scale, is_decisive=is_affine_decisive)
    if explanation is not None:
        return Deformation(explanation, is_deformed=True)
    before, after = _fit_bend_and_measure_systematic_squares(surfaces, rigid.transform)
    is_bent = before >= _MIN_BENT**2 and after < (1 - _MIN_EXPLAINED_OF_BENT) * before
    return Deformation(_explain_by_bend(before, after), is_deformed=is_strained or is_bent)


class _Surfaces(NamedTuple):
    """Planes of both scans, each in its own coordinates."""

    source: Planes
    target: Planes
    sampling_step: int  # every such point of the source is fitted

    def transform_sampled_points_and_normals(self, transform: Floats) -> tuple[Floats, Floats]:
        """Return the moved points [N, 3] of the source that are fitted, and their normals [N, 3]."""
        points, normals = self.source.points[:: self.sampling_step], self.source.normals[:: self.sampling_step]
        return apply_transform(transform, points), transform_normals(transform, normals)

    def find_mutual_contacts(self, transform: Floats, points: Floats, normals: Floats, max_distance: float) -> Contacts:
        """Find moved points that touch a plane of the target at the height at which it touches the source.

        Where a nearest point lies on another surface, the two heights differ. Such contacts bias the strains.
        """
        contacts = find_contacts_with_planes(self.target, points, normals, max_distance, _MIN_MUTUAL_COSINE)
        goals, goal_normals = self.target.points[contacts.partner], self.target.normals[contacts.partner]
        inverse = np.asarray(np.linalg.inv(transform), np.float64)
        nearest = find_nearest_in_tree(self.source.tree, apply_transform(inverse, goals))[1]
        heights = ((apply_transform(transform, self.source.points[nearest]) - goals) * goal_normals).sum(1)
        is_mutual = np.abs(heights - contacts.heights) < _MAX_HEIGHT_DIFFERENCE
        return Contacts(*(values[is_mutual] for values in contacts))


class _SurfaceFit(NamedTuple):
    """Map of the source onto the target's planes."""

    transform: Floats  # [4, 4], affine
    covariance: Floats  # [S, S] of the strains
    residuals: Floats  # [N], NaN beyond the planes
    systematic: float  # mean square of the residuals' part that neighbours have in common

    @property
    def linear_map(self) -> Floats:
        """Return the map [3, 3] of directions."""
        return self.transform[:3, :3]

    @property
    def scale(self) -> float:
        """Return the side of the cube that the map makes of a unit cube, by volume."""
        return float(np.cbrt(np.linalg.det(self.linear_map)))

    def list_strains_without_scale(self, scale: float) -> Floats:
        """Return the strains [6] beside a change of scale: along x, y, z, and between xy, xz, yz."""
        components = (_extract_symmetric_stretch(self.linear_map) - scale * np.eye(3))[
            (0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)
        ]
        return np.asarray(components * (1, 1, 1, 2, 2, 2), np.float64)

    def measure_strain_significance(self, scale: float) -> float:
        """Return the squares of the strains beside a scale over their covariance, in the directions it determines."""
        variances, directions = np.linalg.eigh(self.covariance)
        is_determined = variances <= _MAX_STRAIN_ERROR**2
        components = directions.T[is_determined] @ self.list_strains_without_scale(scale)
        return float((components**2 / np.maximum(variances[is_determined], 1e-12)).sum())


def _is_fit_favored_by_surfaces(fit: _SurfaceFit, comparison: SurfaceComparison, agreement: Agreement) -> bool:
    """Return whether the surfaces decide for the map, against the pose with this agreement."""
    mapped = comparison(fit.transform)
    return (
        measure_significance(mapped.confirmed & agreement.contradicted, mapped.contradicted & agreement.confirmed)
        > _DECISIVE
    )


def _explain_by_scale(
    similar: _SurfaceFit, affine: _SurfaceFit, rigid: _SurfaceFit, *, is_decisive: bool
) -> Explanation | None:
    """Return the sentence for another size, None where it does not explain what a rigid pose leaves."""
    difference, error = abs(np.log(similar.scale)), float(np.sqrt(similar.covariance[0, 0]))
    if difference <= max(_MIN_SCALE, _SCALE_ERRORS * error):
        return None
    if is_decisive and similar.systematic < _MAX_LEFT_BY_SCALE * rigid.systematic:
        return Explanation(describe_scale(1 / similar.scale), "scale")
    is_simplest = similar.systematic < max(_MAX_LEFT**2, 1.5 * affine.systematic)
    explains = (difference / max(error, 1e-9)) ** 2 > _EXPLAINING and similar.systematic < _MAX_LEFT**2
    if is_simplest and (explains or _measure_explained_share(similar, rigid) >= _SIMILAR_GAIN):
        return Explanation(describe_scale(1 / similar.scale), "scale")
    return None


def _explain_by_shape(
    affine: _SurfaceFit, rigid: _SurfaceFit, scale: float, *, is_decisive: bool
) -> Explanation | None:
    """Return the sentence for the affine map, None where it is too weak to be more than a bend of a reconstruction."""
    left, significance = max(affine.systematic, 0.0), affine.measure_strain_significance(scale)
    if significance <= _EXPLAINING:
        return None
    strain = _find_largest_certain_strain(affine, scale)
    reduces = rigid.systematic - left > _MIN_REDUCED**2
    explains = left < min(_MAX_LEFT**2, _MAX_LEFT_SHARE * rigid.systematic)
    if (is_decisive and strain.certain > _MAX_STRAIN) or (reduces and (explains or significance > _EXTREME)):
        return _explain_strain(-strain.value, strain.axis)
    return None


class _Strain(NamedTuple):
    """Change of length along an axis."""

    value: float
    certain: float  # its size less some standard errors; 0 where it is not determined
    axis: Floats  # [3]


def _find_largest_certain_strain(affine: _SurfaceFit, scale: float) -> _Strain:
    """Return the strain beside a scale that is largest for certain."""
    values, axes = np.linalg.eigh(np.einsum("s,sij->ij", affine.list_strains_without_scale(scale), _STRAINS))
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
    surfaces: _Surfaces, transform: Floats, strain_basis: Floats, max_distances: tuple[float, ...]
) -> _SurfaceFit:
    """Fit a pose with strains; a large one brings further points together, so steps go on until it settles."""
    start = transform
    extra = (max_distances[-1],) * (_MORE_STEPS if len(strain_basis) else 0)
    for number, max_distance in enumerate((*max_distances, *extra)):
        equations, _ = _build_mutual_equations_and_get_normals(surfaces, transform, strain_basis, max_distance)
        if equations is None:
            break
        change, center = equations.scaled_change, equations.center
        motion = np.eye(4)
        motion[:3, :3] = convert_to_rotation_matrix(change[:3] / equations.radius)
        motion[:3, :3] += np.einsum("s,sij->ij", change[6:], strain_basis) / equations.radius
        motion[:3, 3] = center - motion[:3, :3] @ center + change[3:6]
        transform = motion @ transform
        if number + 1 >= len(max_distances) and np.abs(change).max() < _SETTLED:
            break
    last, normals = _build_mutual_equations_and_get_normals(surfaces, transform, strain_basis, max_distances[-1])
    residuals = np.full(len(normals), np.nan)
    if last is None:
        return _SurfaceFit(start, np.eye(len(strain_basis)), residuals, 0.0)
    residuals[last.contacts.rows] = last.contacts.heights
    covariance = last.estimate_scaled_change_covariance(_CELL)[6:, 6:] / last.radius**2
    return _SurfaceFit(transform, covariance, residuals, _measure_systematic_mean_square(last, normals))


def _build_mutual_equations_and_get_normals(
    surfaces: _Surfaces, transform: Floats, strain_basis: Floats, max_distance: float
) -> tuple[PlaneEquations | None, Floats]:
    """Return the equations of the contacts that both scans confirm, and the normals [N, 3] of the moved points."""
    points, normals = surfaces.transform_sampled_points_and_normals(transform)
    contacts = surfaces.find_mutual_contacts(transform, points, normals, max_distance)
    return build_plane_equations_if_possible(surfaces.target, points, contacts, strain_basis), normals


def _fit_bend_and_measure_systematic_squares(surfaces: _Surfaces, transform: Floats) -> tuple[float, float]:
    """Fit a displacement that is quadratic in the place; return the systematic mean squares before and after it."""
    planes = surfaces.target
    start, normals = surfaces.transform_sampled_points_and_normals(transform)

    def measure(points: Floats) -> float:
        contacts = find_contacts_with_planes(planes, points, normals, _BEND_REACHES[-1])
        equations = build_plane_equations_if_possible(planes, points, contacts, _RIGID)
        return 0.0 if equations is None else _measure_systematic_mean_square(equations, normals)

    before = measure(start)
    if before < _MIN_BENT**2:
        return before, before
    arm = start - start.mean(0)
    arm /= np.sqrt((arm**2).sum(1).mean())
    x, y, z = arm.T
    terms = np.stack((np.ones(len(arm)), x, y, z, x * x, y * y, z * z, x * y, x * z, y * z), 1)
    mapped = start
    for max_distance in _BEND_REACHES:
        contacts = find_contacts_with_planes(planes, mapped, normals, max_distance)
        goal_normals = planes.normals[contacts.partner]
        rows = (terms[contacts.rows, :, None] * goal_normals[:, None]).reshape(len(contacts.rows), -1)
        weights = np.minimum(1.0, 0.5 / np.maximum(np.abs(contacts.heights), 1e-9))
        matrix = rows.T @ (weights[:, None] * rows) + _BEND_PRIOR * np.eye(rows.shape[1])
        change = np.linalg.solve(matrix, rows.T @ (weights * -contacts.heights))
        mapped = mapped + terms @ change.reshape(-1, 3)
    return before, measure(mapped)


def _measure_systematic_mean_square(equations: PlaneEquations, normals: Floats) -> float:
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


def _has_credible_stretch(transform: Floats) -> bool:
    """Return whether an affine map stretches no direction so much that only few or flat matches explain it."""
    sizes = np.linalg.svd(transform[:3, :3], compute_uv=False)
    return bool(np.exp(-_MAX_CREDIBLE) <= sizes.min() and sizes.max() <= np.exp(_MAX_CREDIBLE))


def explain_matches_by_shape_change(
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
    if counts[1] >= _MIN_SIMILAR_RATIO * counts[2]:
        scale = 1 / float(np.cbrt(np.linalg.det(similar[:3, :3])))
        return Explanation(describe_scale(scale), "scale")
    if not _has_credible_stretch(affine):
        return None
    values, axes = np.linalg.eigh(_extract_symmetric_stretch(affine[:3, :3]))
    largest = int(np.abs(np.log(values)).argmax())
    return _explain_strain(1 / float(values[largest]) - 1, axes[:, largest])


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
