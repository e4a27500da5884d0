"""Clouds prepared for matching, in voxels around their own middle, and the choice of the voxel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from fullfield import _check
from fullfield.io.pointcloud import read_or_convert_point_cloud
from fullfield.ops.neighbors import grid_downsample
from fullfield.ops.neighbors.ragged import Neighbors
from fullfield.registration.descriptors import (
    BINS,
    Floats,
    Ints,
    compute_fpfh_histograms,
    compute_plane_normals,
    find_nearest,
)

NORMAL_RADIUS = 3.0
FEATURE_RADIUS = 8.0


class Descriptors(NamedTuple):
    """Normals and features of points; their shapes and meaning are those of :class:`Scan`."""

    normals: Floats
    features: Floats


Describe = Callable[[Floats, Ints], Descriptors]
"""Computes normals and features of ``fine_points[rows]``; ``fine_points`` [F, 3] has one point per half voxel."""


class Scan(NamedTuple):
    """Points, normals and features of one cloud; all lengths are voxels."""

    fine: Floats  # [F, 3], one point per half voxel, for refinement
    points: Floats  # [N, 3], one point per voxel, for matching
    normals: Floats  # [N, 3], of either sign
    features: Floats  # [N, C], alike where their Euclidean distance is small

    @property
    def thickness(self) -> float:
        """Standard deviation of the points across the plane that fits them best."""
        if len(self.points) < 3:
            return 0.0
        return float(np.sqrt(max(np.linalg.eigvalsh(np.cov(self.points.T))[0], 0.0)))


def take_finite_points(value: Any, name: str, min_count: int = 0) -> Floats:
    """Return the finite points [N, 3] of anything that is a cloud.

    Raises:
        InputError: if ``value`` is no cloud, or has fewer than ``min_count`` finite points.
    """
    points = read_or_convert_point_cloud(value, name).points.astype(np.float64)
    finite: Floats = points[np.isfinite(points).all(1)]
    number = f"{len(finite)} of {len(points)}"
    _check.require(len(finite) >= min_count, name, f"at least {min_count} finite point{'s' * (min_count != 1)}", number)
    return finite


def compute_median_point(points: Floats) -> Floats:
    """Return the median [3] by axis, on which a few distant points have no effect; 0 without points."""
    return np.median(_sample_points(points), axis=0) if len(points) else np.zeros(3)


def express_relative_to_origins(transform: Floats, source_origin: Floats, target_origin: Floats) -> Floats:
    """Express ``transform`` in coordinates relative to these origins."""
    shifted = transform.copy()
    shifted[:3, 3] += transform[:3, :3] @ source_origin - target_origin
    return shifted


def thin_and_describe_scan(points: Floats, describe: Describe | None = None) -> Scan:
    """Thin out, and describe, finite ``points`` [N, 3] in voxels.

    :func:`compute_root_fpfh` describes them where ``describe`` is None.
    """
    fine, rows = thin_points_and_list_voxel_rows(points)
    coarse = fine[rows]
    if not len(coarse):
        return Scan(fine, coarse, coarse, np.empty((0, 3 * BINS)))
    if describe is not None:
        return Scan(fine, coarse, *describe(fine, rows))
    normals = compute_plane_normals(fine, coarse, NORMAL_RADIUS)
    return Scan(fine, coarse, normals, compute_root_fpfh(coarse, normals))


def thin_points_and_list_voxel_rows(points: Floats) -> tuple[Floats, Ints]:
    """Keep one of ``points`` per half voxel [F, 3]; also return the rows [N] that remain at one per voxel."""
    fine = points[select_one_index_per_cell(points, 0.5)]
    return fine, select_one_index_per_cell(fine, 1.0)


def compute_root_fpfh(points: Floats, normals: Floats, neighbors: Neighbors | None = None) -> Floats:
    """Return the square roots of the histograms [N, 33]; so their distances give rare angles more weight.

    ``neighbors`` has the points within :data:`FEATURE_RADIUS`, if known.
    """
    return np.sqrt(compute_fpfh_histograms(points, normals, FEATURE_RADIUS, neighbors))


def select_one_index_per_cell(points: Floats, cell_size: float) -> Ints:
    """Return the indices of ``points`` that remain when each cubic cell of that edge keeps one."""
    indices: Ints = grid_downsample(torch.from_numpy(np.ascontiguousarray(points)), cell_size).indices.numpy()
    return indices


CELLS = 5000
"""Occupied voxels of the larger cloud: enough for distinctive descriptors, few enough to take seconds."""
SPACINGS = 1.5
"""Smallest width of a voxel, in typical spacings of the sparser cloud."""
_SAMPLE, _SPACING_SAMPLE = 100_000, 2000
_COPIES, _BOUND_QUANTILE = 8, 0.75
_HASH_BITS, _HASHED = 22, 1_000_000  # size of the table of cells, and points that are looked up at once
_ROUNDS = 8


def choose_voxel(source: Floats, target: Floats) -> float:
    """Return the edge of a voxel, in the clouds' units; 0 where all the points of a cloud are one.

    ``source`` and ``target`` are finite, [N, 3] and [M, 3]. The larger cloud then has about :data:`CELLS` occupied
    voxels, or as many as its spacing allows.
    """
    clouds = [_sample_points(points) for points in (source, target)]
    widths = [float(np.ptp(points, axis=0).max()) if len(points) else 0.0 for points in clouds]
    if min(widths) <= 0.0:
        return 0.0
    voxel = max(widths) / 64
    for _ in range(_ROUNDS):
        occupied = max(_count_occupied_voxels(points, voxel) for points in clouds)
        step = float(np.sqrt(occupied / CELLS))
        voxel *= step
        if abs(step - 1.0) < 0.03:
            break
    return max(voxel, SPACINGS * max(_compute_median_spacing(source), _compute_median_spacing(target)))


def _count_occupied_voxels(points: Floats, voxel: float) -> int:
    cells = np.floor((points - points.min(0)) / voxel).astype(np.int64)
    shape = cells.max(0) + 1
    return len(np.unique((cells[:, 0] * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]))


def _sample_points(points: Floats, max_points: int = _SAMPLE) -> Floats:
    if len(points) <= max_points:
        return points
    return points[np.sort(np.random.default_rng(0).choice(len(points), max_points, replace=False))]


def _compute_median_spacing(points: Floats) -> float:
    """Return the median distance from a point to the nearest other one."""
    sampled = _sample_points(points, _SPACING_SAMPLE)
    if len(points) > _SAMPLE:
        # A tree of millions of points takes seconds, and the neighbours in a part of them bound the distances.
        bounds = _measure_distances_to_distinct_points(_sample_points(points), sampled)
        radius = float(np.sort(bounds)[int(_BOUND_QUANTILE * len(bounds))])
        if np.isfinite(radius):
            distances = _measure_distances_to_distinct_points(
                _select_points_roughly_within(sampled, points, radius), sampled
            )
            distances = distances[np.isfinite(distances)]
            if (distances <= radius).sum() > len(distances) / 2 + 1:  # those beyond are wrong, but not in the middle
                return float(np.median(distances))
    distances = _measure_distances_to_distinct_points(points, sampled)
    distances = distances[np.isfinite(distances)]
    return float(np.median(distances)) if len(distances) else 0.0


def _select_points_roughly_within(centers: Floats, points: Floats, radius: float) -> Floats:
    """Return all of ``points`` within ``radius`` of a center, and some others: cells are told apart by a hash."""
    table, offsets = np.zeros(1 << _HASH_BITS, bool), np.indices((3, 3, 3)).reshape(3, -1).T - 1
    chunks = np.array_split(points, -(-len(points) // _HASHED))
    with np.errstate(over="ignore", invalid="ignore"):  # points at no distance that makes sense
        table[_hash_cells((np.floor(centers / radius).astype(np.int64)[:, None] + offsets).reshape(-1, 3))] = True
        selected = [chunk[table[_hash_cells(np.floor(chunk / radius).astype(np.int64))]] for chunk in chunks]
    return np.concatenate(selected)


def _hash_cells(cells: Ints) -> Ints:
    mixed: Ints = cells @ np.array((73_856_093, 19_349_663, 83_492_791))
    return mixed & ((1 << _HASH_BITS) - 1)


def _measure_distances_to_distinct_points(points: Floats, sampled: Floats) -> Floats:
    """Return the distance [M] from each sampled point to the nearest at another place, infinite with eight copies."""
    distances, _ = find_nearest(points, sampled, min(len(points), _COPIES))
    distances[distances <= 0.0] = np.inf
    nearest: Floats = distances.min(1)
    return nearest
