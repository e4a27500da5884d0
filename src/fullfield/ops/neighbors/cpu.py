"""Compiled search on the CPU; ``torch.set_num_threads`` sets the threads, and results do not depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fullfield._kernels.numba_cache import KernelModule, explain_missing_numba
from fullfield._kernels.threads import run_task_on_ranges_and_wait
from fullfield.ops.neighbors.ragged import Neighbors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GRAIN = 64
_MAX_CELLS = 1 << 62
# Cells are slightly wider than the radius, because a float32 distance may be rounded down to the radius.
_MARGIN = 1.0 + 1e-5


def explain_unsupported(device: torch.device) -> str | None:
    """Return None for the CPU with numba, else the reason."""
    if device.type != "cpu":
        return f"runs on the CPU, the points are on {device.type}"
    return explain_missing_numba()


_kernels = KernelModule(f"{__package__}._cpu_kernels", "neighbour kernels")


def _run_range_task_in_threads(item_count: int, range_task: Any) -> None:
    run_task_on_ranges_and_wait(item_count, _GRAIN, torch.get_num_threads(), range_task)


def _convert_to_writable_array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.numpy()
    return array if array.flags.writeable else array.copy()


def _compute_batch_index(offsets: Tensor) -> NDArray[np.int64]:
    return np.repeat(np.arange(offsets.numel() - 1), offsets.diff().numpy())


def _compute_cloud_and_cell_zyx(
    xyz_rows: NDArray[np.float32], offsets: Tensor, low: Any, cell: float
) -> NDArray[np.int64]:
    """Return cells [4, M] of ``xyz_rows`` [3, M]: cloud, z, y, x. Positions far outside are clipped to just outside."""
    cells = np.empty((4, xyz_rows.shape[1]), np.int64)
    cells[0] = _compute_batch_index(offsets)
    for axis, row in enumerate(xyz_rows):
        cell_index = np.clip((row.astype(np.float64) - low[axis]) / cell, -4.0, 2.0**60)
        np.floor(cell_index, out=cells[3 - axis], casting="unsafe")
    return cells


def _compute_flat_cell_indices(cells: NDArray[np.int64], shape: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each cell of the grid; x runs fastest."""
    numbers: NDArray[np.int64] = ((cells[0] * shape[0] + cells[1]) * shape[1] + cells[2]) * shape[2] + cells[3]
    return numbers


def radius_search(
    points: Tensor, queries: Tensor, offsets: Tensor, query_offsets: Tensor, radius: float, *, sort_indices: bool = True
) -> Neighbors:
    """Find the points within a radius; see :func:`fullfield.ops.neighbors.radius_search`.

    Without ``sort_indices`` the points of a query are in no particular order.
    """
    kernel = _kernels().count_or_write_neighbors_within_radius
    spots, query_spots = _convert_to_writable_array(points), _convert_to_writable_array(queries)
    rows = np.zeros(len(query_spots) + 1, np.int64)
    if not len(spots) or not len(query_spots):
        return Neighbors(torch.from_numpy(rows), torch.zeros(0, dtype=torch.int32))
    xyz_rows = np.ascontiguousarray(spots.T)
    low, high = xyz_rows.min(1).astype(np.float64), xyz_rows.max(1).astype(np.float64)
    cell = radius * _MARGIN
    while np.prod(np.floor((high - low) / cell) + 1.0) * (offsets.numel() - 1) > _MAX_CELLS:
        cell *= 2.0
    shape = (np.floor((high - low) / cell).astype(np.int64) + 1)[::-1].copy()  # z, y, x

    cells = _compute_cloud_and_cell_zyx(xyz_rows, offsets, low, cell)
    keys = _compute_flat_cell_indices(cells, shape)
    order = np.argsort(keys, kind="stable")
    used, first = np.unique(keys[order], return_index=True)
    starts = np.append(first, len(spots)).astype(np.int64)
    around, visit = cells, order
    if queries is not points:
        around = _compute_cloud_and_cell_zyx(np.ascontiguousarray(query_spots.T), query_offsets, low, cell)
        np.minimum(around, np.append(2**62, shape + 2)[:, None], out=around)
        visit = np.argsort(_compute_flat_cell_indices(around, shape), kind="stable")  # queries of a cell together
    limit = torch.tensor(radius, dtype=torch.float32).square().item()
    common = (
        spots,
        xyz_rows.take(order, 1),
        order.astype(np.int32),
        used,
        starts,
        shape,
        query_spots,
        around,
        visit,
        np.float32(limit),
    )

    nothing = np.empty(0, np.int32)
    _run_range_task_in_threads(len(query_spots), lambda a, b: kernel(*common, False, sort_indices, rows, nothing, a, b))
    np.cumsum(rows, out=rows)
    indices = np.empty(rows[-1], np.int32)
    _run_range_task_in_threads(len(query_spots), lambda a, b: kernel(*common, True, sort_indices, rows, indices, a, b))
    return Neighbors(torch.from_numpy(rows), torch.from_numpy(indices))


def knn_search(points: Tensor, queries: Tensor, offsets: Tensor, query_offsets: Tensor, k: int) -> Neighbors:
    """Find the k nearest points; see :func:`fullfield.ops.neighbors.knn_search`."""
    kernels = _kernels()
    spots, query_spots = _convert_to_writable_array(points), _convert_to_writable_array(queries)
    bounds = offsets.numpy()
    order = np.arange(len(spots), dtype=np.int32)
    axes, cuts = np.zeros(len(spots), np.int8), np.zeros(len(spots), np.float32)
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        kernels.build_kd_tree(spots, order, axes, cuts, first, last)
    sizes = np.minimum(np.diff(bounds), k)
    batches = _compute_batch_index(query_offsets)
    rows = np.zeros(len(query_spots) + 1, np.int64)
    np.cumsum(sizes[batches], out=rows[1:])
    indices = np.empty(rows[-1], np.int32)
    common = (spots[order], order, axes, cuts, bounds, query_spots, batches, k, rows, indices)
    _run_range_task_in_threads(len(query_spots), lambda a, b: kernels.find_k_nearest(*common, a, b))
    return Neighbors(torch.from_numpy(rows), torch.from_numpy(indices))


def select_nearest_to_cell_centers(points: Tensor, offsets: Tensor, cell: float) -> Tensor:
    """Return the kept points [K]; see :func:`fullfield.ops.neighbors.grid_downsample`."""
    spots = _convert_to_writable_array(points.to(torch.float64).contiguous())
    mask = np.zeros(len(spots), bool)
    slots = np.full(1 << (len(spots) + len(spots) // 2).bit_length(), -1, np.int32)
    _kernels().mark_points_nearest_to_cell_centers(spots, offsets.numpy(), cell, slots, mask)
    return torch.from_numpy(np.flatnonzero(mask))
