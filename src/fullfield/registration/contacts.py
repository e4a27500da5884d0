"""Touching surfaces of two scans in a pose: nearest points, agreement, contradiction, and fits along normals.

Lengths are voxels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield.ops.neighbors import radius_search
from fullfield.registration.descriptors import Floats, Ints
from fullfield.registration.packages import import_module_of_extra
from fullfield.registration.ransac import apply_transform
from fullfield.registration.scan import Scan

Flags = NDArray[np.bool_]

_MAX_HEIGHT, _MAX_ALONG = 1.0, 1.5  # over the plane of the nearest point, and along it, of a point that agrees
_MIN_COSINE = 0.85  # of the normals of a point that agrees
_HOVER, _MAX_HOVER = 1.2, 4.0  # heights over the other cloud's surface where there is nothing
_CROSSING = 0.6  # cosine of normals below which touching surfaces cross
_HUBER = 0.5
_END_RADIUS, _MIN_END_OFFSET = 4.0, 0.27  # of a point's neighbours, and the offset of their middle over it, at an end
_NEAR_END = 3.0  # distance from an end within which descriptors are those of the window, not of the scene
_CORRELATED = 8.0  # points that contradict a pose together, as those of one surface do
_DISTINCTIVE_FRACTION, _MEDIAN_STEP = 0.3, 4
_MIN_CONTACTS = 20


def find_nearest_points(points: Floats, queries: Floats) -> tuple[Floats, Ints]:
    """Return distances and indices [M] of the points [N, 3] that are nearest to ``queries`` [M, 3]."""
    return find_nearest_in_tree(import_module_of_extra("small_gicp").KdTree(points), queries)


def find_nearest_in_tree(tree: Any, queries: Floats) -> tuple[Floats, Ints]:
    """Return :func:`find_nearest_points` of the points in a small_gicp.KdTree."""
    indices, squares = tree.batch_nearest_neighbor_search(queries)
    return np.sqrt(np.asarray(squares).reshape(-1)), np.asarray(indices, np.int64).reshape(-1)


class Agreement(NamedTuple):
    """Which points of both clouds, the source's first, the other cloud confirms or contradicts in a pose.

    The others are beyond the other cloud's window, or hidden there.
    """

    confirmed: Flags  # [N + M]: the other cloud has the same surface there
    contradicted: Flags  # [N + M]: it has a surface closely behind or in front, or one across
    unlikeness: Floats  # [N + M]: distance of the descriptor from that of the nearest point
    is_at_end: Flags  # [N + M]: the point or the nearest one lies where its cloud's surface ends
    is_surrounded: Flags  # [N + M]: neither the point nor the nearest one is near such an end
    partner: Ints  # [N + M]: the nearest point of the other cloud

    def select_points(self, indices: Ints) -> Agreement:
        """Return the agreement of some points."""
        return Agreement(
            self.confirmed[indices],
            self.contradicted[indices],
            self.unlikeness[indices],
            self.is_at_end[indices],
            self.is_surrounded[indices],
            self.partner[indices],
        )

    @property
    def contradicted_fraction(self) -> float:
        """Return the share of contradicted points among those that the other cloud confirms or contradicts."""
        contradicted, confirmed = int(self.contradicted.sum()), int(self.confirmed.sum())
        return contradicted / max(contradicted + confirmed, 1)


def measure_significance(is_against: Flags, is_in_favor: Flags, points_per_flag: int = 1) -> float:
    """Return the difference of the numbers of points in two sets over its standard error."""
    against, favor = (points_per_flag * np.count_nonzero(flags) for flags in (is_against, is_in_favor))
    return float((against - favor) / np.sqrt(_CORRELATED * (against + favor + _CORRELATED)))


def measure_unusual_contradicted_fraction(agreement: Agreement, source: Scan, target: Scan) -> float:
    """Return the share of contradicted points among those that look least like the others.

    Walls and floors of two rooms agree; what stands in them does not.
    """
    features = np.concatenate((source.features, target.features))
    unusual = np.linalg.norm(features - np.median(features[::_MEDIAN_STEP], axis=0), axis=1)
    rows = np.flatnonzero(agreement.confirmed | agreement.contradicted)
    if not len(rows):
        return 0.0
    rows = rows[unusual[rows] >= np.quantile(unusual[rows], 1 - _DISTINCTIVE_FRACTION)]
    return float(agreement.contradicted[rows].mean())


class _Surface(NamedTuple):
    """Scan with a search tree of its points, and where its surface ends."""

    scan: Scan
    tree: Any  # small_gicp.KdTree of the points
    is_end: Flags  # [N]
    is_surrounded: Flags  # [N]

    @classmethod
    def from_scan(cls, scan: Scan) -> _Surface:
        """Find the ends of a scan's surface."""
        is_end = find_points_at_surface_ends(scan)
        is_surrounded = np.ones(len(is_end), bool)
        if is_end.any():
            is_surrounded = find_nearest_points(scan.points[is_end], scan.points)[0] > _NEAR_END
        return cls(scan, import_module_of_extra("small_gicp").KdTree(scan.points), is_end, is_surrounded)


def find_points_at_surface_ends(scan: Scan) -> Flags:
    """Return the points [N] at which the surface ends, at a window's border or an edge of something thin.

    The middle of the neighbours then lies beside the point, along its surface. At corners of a room or a box it lies
    there as well, but only half as far, because of the neighbours on the other faces.
    """
    points = torch.from_numpy(np.ascontiguousarray(scan.points))
    neighbors = radius_search(points, _END_RADIUS, points, sort_indices=False)
    columns, counts = neighbors.indices.numpy(), np.diff(neighbors.offsets.numpy())
    rows = np.repeat(np.arange(len(counts)), counts)
    sums = np.stack([np.bincount(rows, column[columns], len(counts)) for column in scan.points.T], 1)
    offsets = sums / counts[:, None] - scan.points
    offsets -= (offsets * scan.normals).sum(1)[:, None] * scan.normals
    is_end: Flags = np.linalg.norm(offsets, axis=1) > _MIN_END_OFFSET * _END_RADIUS
    return is_end


def transform_normals(affine: Floats, normals: Floats) -> Floats:
    """Return the unit normals [N, 3] of surfaces that an affine map [4, 4] moves."""
    moved = normals @ np.linalg.inv(affine[:3, :3])
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), np.float64)


class SurfaceComparison:
    """Comparison of the surfaces of two clouds, where they are near each other, in any pose or affine map."""

    def __init__(self, source: Scan, target: Scan) -> None:
        self._source, self._target = _Surface.from_scan(source), _Surface.from_scan(target)

    def __call__(self, transform: Floats, sampling_step: int = 1) -> Agreement:
        """Compare the surfaces in a pose, by every ``sampling_step``-th point of each cloud."""
        inverse = np.asarray(np.linalg.inv(transform), np.float64)
        sides = (
            _find_agreement_with_surface(self._source, transform, sampling_step, self._target),
            _find_agreement_with_surface(self._target, inverse, sampling_step, self._source),
        )
        return Agreement(*(np.concatenate(values) for values in zip(*sides, strict=True)))

    def list_sampled_indices(self, sampling_step: int) -> Ints:
        """Return the positions, in a comparison of all points, of every ``sampling_step``-th point of each cloud."""
        source_count, target_count = len(self._source.scan.points), len(self._target.scan.points)
        return np.concatenate(
            (np.arange(0, source_count, sampling_step), source_count + np.arange(0, target_count, sampling_step))
        )


def _find_agreement_with_surface(
    surface: _Surface, transform: Floats, sampling_step: int, other_surface: _Surface
) -> Agreement:
    """Return which of every ``sampling_step``-th moved point the other cloud confirms or contradicts."""
    scan = surface.scan
    points = apply_transform(transform, scan.points[::sampling_step])
    normals = transform_normals(transform, scan.normals[::sampling_step])
    distance, partner = find_nearest_in_tree(other_surface.tree, points)
    normal = other_surface.scan.normals[partner]
    height = np.abs(((points - other_surface.scan.points[partner]) * normal).sum(1))
    is_above = distance**2 - height**2 <= _MAX_ALONG**2
    cosine = np.abs((normals * normal).sum(1))
    return Agreement(
        confirmed=is_above & (height <= _MAX_HEIGHT) & (cosine >= _MIN_COSINE),
        contradicted=is_above & (height <= _MAX_HOVER) & ((height > _HOVER) | (cosine < _CROSSING)),
        unlikeness=np.linalg.norm(scan.features[::sampling_step] - other_surface.scan.features[partner], axis=1),
        is_at_end=surface.is_end[::sampling_step] | other_surface.is_end[partner],
        is_surrounded=surface.is_surrounded[::sampling_step] & other_surface.is_surrounded[partner],
        partner=partner,
    )


class Planes(NamedTuple):
    """Planes of a cloud, to which another cloud is fitted."""

    tree: Any  # small_gicp.KdTree of the points
    points: Floats  # [N, 3]
    normals: Floats  # [N, 3]

    @classmethod
    def from_scan(cls, scan: Scan) -> Planes:
        """Prepare the points of a scan."""
        return cls(import_module_of_extra("small_gicp").KdTree(scan.points), scan.points, scan.normals)


class Contacts(NamedTuple):
    """Points that touch planes."""

    rows: Ints  # [K], of the points
    partner: Ints  # [K], of the planes
    heights: Floats  # [K], over the planes


def find_contacts_with_planes(
    planes: Planes, points: Floats, normals: Floats, max_distance: float, min_cosine: float = 0.8
) -> Contacts:
    """Find the points [N, 3] that have a plane of their own orientation within ``max_distance``."""
    distance, partner = find_nearest_in_tree(planes.tree, points)
    is_parallel = np.abs((normals * planes.normals[partner]).sum(1)) >= min_cosine
    rows = np.flatnonzero((distance <= max_distance) & is_parallel)
    partner = partner[rows]
    return Contacts(rows, partner, ((points[rows] - planes.points[partner]) * planes.normals[partner]).sum(1))


class PlaneEquations(NamedTuple):
    """Linear equations of the small affine change around ``center`` that brings points onto planes."""

    contacts: Contacts
    places: Floats  # [K, 3], of the points
    normals: Floats  # [K, 3], of the planes
    center: Floats  # [3]
    radius: float
    rows: Floats  # [K, 6 + S], of a turn over ``radius``, a shift, and strains over ``radius``
    weights: Floats  # [K], less for distant planes

    @property
    def normal_matrix(self) -> Floats:
        """Return the matrix [6 + S, 6 + S] of the normal equations, with a weak prior: no change."""
        matrix: Floats = self.rows.T @ (self.weights[:, None] * self.rows) + np.eye(self.rows.shape[1])
        return matrix

    @property
    def scaled_change(self) -> Floats:
        """Return the change [6 + S] that solves the equations best."""
        right = self.rows.T @ (self.weights * -self.contacts.heights)
        return np.asarray(np.linalg.solve(self.normal_matrix, right), np.float64)

    def estimate_scaled_change_covariance(self, cell_size: float) -> Floats:
        """Return the covariance [6 + S, 6 + S] of the change, where points of one cubic cell err together.

        Cells, not points, are taken as independent (the sandwich estimator of White, Econometrica 1980, with clusters).
        """
        _, numbers = np.unique(np.floor(self.places / cell_size), axis=0, return_inverse=True)
        count, size = int(numbers.max()) + 1, self.rows.shape[1]
        pulls = (self.weights * -self.contacts.heights)[:, None] * self.rows
        sums = np.stack([np.bincount(numbers.ravel(), column, count) for column in pulls.T], 1)
        inverse = np.linalg.inv(self.normal_matrix)
        covariance: Floats = inverse @ (sums.T @ sums) @ inverse * (count / max(count - size, 1))
        return covariance


def build_plane_equations_if_possible(
    planes: Planes, points: Floats, contacts: Contacts, strain_basis: Floats
) -> PlaneEquations | None:
    """Return the equations of those ``points`` [N, 3] that touch planes; None with too few.

    ``strain_basis`` [S, 3, 3] are the symmetric changes of shape that are allowed.
    """
    if len(contacts.rows) < _MIN_CONTACTS:
        return None
    touching_points, plane_normals = points[contacts.rows], planes.normals[contacts.partner]
    center = touching_points.mean(0)
    radius = float(np.sqrt(((touching_points - center) ** 2).sum(1).mean()))
    arm = (touching_points - center) / radius
    stretches = np.einsum("ni,sij,nj->ns", arm, strain_basis, plane_normals)
    rows = np.hstack((np.cross(arm, plane_normals), plane_normals, stretches))
    weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(contacts.heights), 1e-9))
    return PlaneEquations(contacts, touching_points, plane_normals, center, radius, rows, weights)


def refine_pose_on_planes(
    planes: Planes, points: Floats, normals: Floats, transform: Floats, max_distances: tuple[float, ...]
) -> Floats:
    """Refine a rigid pose of ``points`` [N, 3] by one step for each reach."""
    none = np.zeros((0, 3, 3))
    for max_distance in max_distances:
        turned = normals @ transform[:3, :3].T
        moved = apply_transform(transform, points)
        equations = build_plane_equations_if_possible(
            planes, moved, find_contacts_with_planes(planes, moved, turned, max_distance, 0.7), none
        )
        if equations is None:
            break
        change, center = equations.scaled_change, equations.center
        rotation = convert_to_rotation_matrix(change[:3] / equations.radius)
        motion = np.eye(4)
        motion[:3, :3], motion[:3, 3] = rotation, center - rotation @ center + change[3:6]
        transform = motion @ transform
    return transform


def convert_to_rotation_matrix(rotation_vector: Floats) -> Floats:
    """Return the rotation [3, 3] about a vector [3] by its length in radians (Rodrigues)."""
    angle = float(np.linalg.norm(rotation_vector))
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = rotation_vector / angle
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    rotation: Floats = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return rotation
