"""Normals, and histograms of the angles between them: FPFH (Rusu, Blodow, Beetz, ICRA 2009) without oriented normals.

The sign of a PCA normal means nothing, and a cloud does not say where its sensor stood. So a neighbour's normal is
turned to the side of the point's own, and of the two mirror images of (phi, theta) that are left the one with phi >= 0
counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield._kernels.numba_cache import KernelModule
from fullfield._kernels.threads import run_task_on_ranges_and_wait
from fullfield.ops.neighbors import knn_search, radius_search
from fullfield.ops.neighbors.ragged import Neighbors

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


BINS = 11
_GRAIN = 16  # points of a part, at the least
_FINENESS, _MAX_CELLS = 4, 10_000_000  # of around: cells within its reach, and in all


def find_nearest(points: Floats, queries: Floats, k: int = 1) -> tuple[Floats, Ints]:
    """Return distances and indices [M, k] of the nearest points; there must be at least ``k``."""
    neighbors = knn_search(_convert_to_contiguous_tensor(points), k, _convert_to_contiguous_tensor(queries))
    indices = neighbors.indices.numpy().astype(np.int64).reshape(len(queries), k)
    return np.linalg.norm(points[indices] - queries[:, None], axis=2), indices


def find_nearest_within(points: Floats, queries: Floats, radius: float) -> tuple[Floats, Ints]:
    """Return distances and indices [M] of the nearest points, infinite and -1 where none is within ``radius``.

    For a radius with few points, queries that are far from all of them cost next to nothing.
    """
    neighbors = radius_search(_convert_to_contiguous_tensor(points), radius, _convert_to_contiguous_tensor(queries))
    rows, indices = neighbors.offsets.numpy(), neighbors.indices.numpy()
    counts = np.diff(rows)
    some, query = counts > 0, np.repeat(np.arange(len(queries)), counts)
    closest_distances, closest = np.full(len(queries), np.inf), np.full(len(queries), -1)
    if some.any():
        distances = np.linalg.norm(points[indices] - queries[query], axis=1)
        closest_distances[some] = np.minimum.reduceat(distances, rows[:-1][some])
        at = np.flatnonzero(distances == closest_distances[query])[::-1]
        closest[query[at]] = indices[at]  # the first of equals is written last
    return closest_distances, closest


def is_close_to_any(points: Floats, queries: Floats, radius: float) -> NDArray[np.bool_]:
    """Return [M], true for each query within ``radius`` of a point.

    Whole cells are compared, so a few queries slightly beyond ``radius`` are true as well.
    """
    low, high = points.min(0), points.max(0)
    cell = radius / _FINENESS
    while np.prod((high - low) / cell + 2 * _FINENESS + 1) > _MAX_CELLS:
        cell *= 2.0
    shape = ((high - low) / cell).astype(np.int64) + 2 * _FINENESS + 1
    filled = np.zeros(shape, bool)
    filled[tuple(((points - low) / cell).astype(np.int64).T + _FINENESS)] = True
    for axis in range(3):
        occupied = filled.copy()
        for step in range(1, _FINENESS + 1):
            ahead, behind = [slice(None)] * 3, [slice(None)] * 3
            ahead[axis], behind[axis] = slice(step, None), slice(None, -step)
            filled[tuple(ahead)] |= occupied[tuple(behind)]
            filled[tuple(behind)] |= occupied[tuple(ahead)]
    at = np.floor((queries - low) / cell + _FINENESS)
    inside = ((at >= 0) & (at < shape)).all(1)
    is_filled = np.zeros(len(queries), bool)
    is_filled[inside] = filled[tuple(at[inside].astype(np.int64).T)]
    return is_filled


def _convert_to_contiguous_tensor(points: Floats) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(points))


def compute_plane_normals(points: Floats, queries: Floats, radius: float) -> Floats:
    """Return unit normals [M, 3] of the planes through the points around each query, which must be one of them.

    Their sign is arbitrary.
    """
    return compute_normals_and_shapes(points, queries, radius, None)[0]


def compute_normals_and_shapes(
    points: Floats, queries: Floats, radius: float, shape_radius: float | None
) -> tuple[Floats, Floats]:
    """Return plane normals, and shapes [M, 4] of the points within ``shape_radius`` <= ``radius``; None: no shapes.

    A shape has four numbers in 0 to 1: curvature (three times the least variance's share), planarity and linearity
    (differences of deviations over the largest), and the query's height over the plane through them, over
    ``shape_radius``.
    """
    kernel = kernels().compute_local_surfaces
    cloud, centres = np.ascontiguousarray(points), np.ascontiguousarray(queries)
    neighbors = radius_search(
        _convert_to_contiguous_tensor(cloud), radius, _convert_to_contiguous_tensor(centres), sort_indices=False
    )
    pairs = neighbors.offsets.numpy(), neighbors.indices.numpy()
    normals, shapes = np.empty((len(centres), 3)), np.empty((0 if shape_radius is None else len(centres), 4))
    limit = float(radius if shape_radius is None else shape_radius)
    run_ranges_on_all_threads(len(centres), lambda a, b: kernel(cloud, centres, *pairs, limit, normals, shapes, a, b))
    return normals, shapes


kernels = KernelModule(f"{__package__}._cpu_kernels", "descriptor kernels")


def run_ranges_on_all_threads(item_count: int, run_range: Any) -> None:
    """Run ``task(first row, last row)`` on all threads."""
    run_task_on_ranges_and_wait(item_count, _GRAIN, torch.get_num_threads(), run_range)


def compute_fpfh_histograms(
    points: Floats, normals: Floats, radius: float, neighbors: Neighbors | None = None
) -> Floats:
    """Return [N, 33]: 11 bins each of alpha, phi and theta, averaged over the points within ``radius``.

    Each 11 sum to 1, or to 0 where there is no neighbour. ``neighbors`` has the points within ``radius``, if known.
    """
    compiled = kernels()
    neighbors = (
        radius_search(_convert_to_contiguous_tensor(points), radius, sort_indices=False)
        if neighbors is None
        else neighbors
    )
    pairs = neighbors.offsets.numpy(), neighbors.indices.numpy()
    surface = pack_points_and_normals(points, normals)
    own, averaged = (np.zeros((len(points), width), np.float32) for width in (compiled.ROW, 3 * BINS))
    run_ranges_on_all_threads(len(points), lambda a, b: compiled.compute_pair_histograms(surface, *pairs, own, a, b))
    run_ranges_on_all_threads(
        len(points), lambda a, b: compiled.average_neighbor_histograms(surface, *pairs, own, averaged, a, b)
    )
    return averaged.astype(np.float64)


def pack_points_and_normals(points: Any, normals: Any) -> NDArray[np.float32]:
    """Return the kernels' flat array of points [N, 3] and normals [N, 3]: eight numbers for each, the last two zero."""
    rows = np.zeros((len(points), 8), np.float32)
    rows[:, :3], rows[:, 3:6] = points, normals
    return rows.ravel()


_BLOCK = 128  # rows whose products with 5000 others stay in the cache


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def find_mutual_matches(first: Floats, second: Floats) -> Ints:
    """Return [M, 2] rows of ``first`` [A, C] and ``second`` [B, C] that are each other's nearest (Euclidean)."""
    if not len(first) or not len(second):
        return np.empty((0, 2), np.int64)
    a, b = (torch.from_numpy(np.ascontiguousarray(rows, np.float32)) for rows in (first, second))
    own, other = (block.square().sum(1, keepdim=True) / 2 for block in (a, b))
    # One product gives |a - b|² / 2, a block of rows at a time.
    left = torch.cat([a, own, torch.ones_like(own)], 1)
    right = torch.cat([-b, torch.ones_like(other), other], 1).T.contiguous()
    nearest_columns, smallest = np.empty(len(a), np.int64), np.empty(len(a), np.float32)
    smallest_by_column = torch.full((len(b),), torch.inf, dtype=torch.float32)
    for start in range(0, len(a), _BLOCK):
        half_squares = left[start : start + _BLOCK] @ right
        columns = half_squares.numpy().argmin(1)  # NumPy's is several times as fast as PyTorch's
        nearest_columns[start : start + _BLOCK] = columns
        smallest[start : start + _BLOCK] = np.take_along_axis(half_squares.numpy(), columns[:, None], 1)[:, 0]
        smallest_by_column = torch.minimum(smallest_by_column, half_squares.amin(0))
    rows = np.flatnonzero(smallest == smallest_by_column.numpy()[nearest_columns])
    columns = nearest_columns[rows]
    _, first_rows = np.unique(columns, return_index=True)  # of rows that are equally near, the first
    first_rows.sort()
    return np.stack((rows[first_rows], columns[first_rows]), 1)
