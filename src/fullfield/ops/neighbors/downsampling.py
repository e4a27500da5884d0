"""Grid downsampling that keeps original points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.neighbors import cpu, cuda
from fullfield.ops.neighbors.ragged import Cloud, check_finite, check_shape_and_build_cloud, compute_max_magnitude

# Clouds with more points are downsampled one cell size at a time, each with a wait for its size.
_CHAINED = 1 << 19


class DownsampledPoints(NamedTuple):
    """Indices of the points that are kept."""

    indices: Tensor  # [K] int64, ascending
    offsets: Tensor  # [B + 1] int64, on the CPU: the kept points of each cloud


def grid_downsample(
    points: Tensor,  # [N, 3] float32 or float64
    cell: float,
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
) -> DownsampledPoints:
    """Keep in every cubic cell the point nearest to its centre, the first one of equally near points.

    Cells begin at multiples of ``cell``, so clouds in the same coordinates share them. The computation is in float64 on
    the points' device, with the same result on every device.

    Raises:
        InputError: if coordinates are not finite, ``cell`` is not above 0, offsets do not fit, or the cells are so
            small that their numbers along an axis exceed 2⁵².
    """
    _check.check_number(cell, "cell", above=0.0)
    (thinned_cloud,) = check_and_downsample_repeatedly(check_shape_and_build_cloud(points, offsets), [float(cell)])[1]
    return DownsampledPoints(thinned_cloud.kept, thinned_cloud.cloud.offsets)


def check_and_downsample_repeatedly(cloud: Cloud, cells: Sequence[float]) -> tuple[Cloud, list[cuda.DownsampledCloud]]:
    """Apply :func:`grid_downsample` repeatedly, each time to the kept points, with at least one cell size.

    GPUs wait once for all sizes, except for large clouds. The cloud's coordinates need no check before.

    Raises:
        InputError: as :func:`grid_downsample`.
    """
    fast = cuda.explain_unsupported(cloud.points.device) is None and cloud.points.shape[0] > 0
    results: list[cuda.DownsampledCloud] = []
    if not fast:
        cloud = _check_cells_and_copy_with_magnitude(cloud, compute_max_magnitude(cloud.points), cells)
    last = cloud
    while len(results) < len(cells):
        left = cells[len(results) :]
        if fast:
            some = left if last.points.shape[0] <= _CHAINED else left[:1]
            max_magnitude, thinner = cuda.downsample_repeatedly_and_get_max_magnitude(last, some)
            if not results:
                cloud = _check_cells_and_copy_with_magnitude(cloud, max_magnitude, cells)
            if last.points.shape[0] > _CHAINED:  # frees the memory of the points that were dropped
                thinner = [
                    cuda.DownsampledCloud(indices.clone(), c._replace(points=c.points.clone()))
                    for indices, c in thinner
                ]
            results += thinner
        else:
            results.append(_downsample_with_one_cell_size(last, left[0]))
        last = results[-1].cloud
    return cloud, results


def _check_cells_and_copy_with_magnitude(cloud: Cloud, max_magnitude: float, cells: Sequence[float]) -> Cloud:
    check_finite(cloud, max_magnitude)
    for cell in cells:
        _check.require(
            max_magnitude / cell < 2.0**52, "cell", "cells whose numbers fit 2⁵²", f"{cell:g} for these coordinates"
        )
    return cloud._replace(max_magnitude=max_magnitude)


def _downsample_with_one_cell_size(cloud: Cloud, cell: float) -> cuda.DownsampledCloud:
    if not cloud.points.shape[0]:
        return cuda.DownsampledCloud(torch.zeros(0, dtype=torch.int64, device=cloud.points.device), cloud)
    on_cpu = cpu.explain_unsupported(cloud.points.device) is None
    indices = (
        cpu.select_nearest_to_cell_centers(cloud.points, cloud.offsets, cell)
        if on_cpu
        else _select_nearest_to_cell_centers(cloud, cell)
    )
    offsets = torch.searchsorted(indices, cloud.offsets.to(indices.device)).cpu()
    return cuda.DownsampledCloud(indices, Cloud(cloud.points.index_select(0, indices), offsets, cloud.max_magnitude))


def _select_nearest_to_cell_centers(cloud: Cloud, cell: float) -> Tensor:
    points = cloud.points.to(torch.float64)
    # A tensor, because CUDA would multiply by the reciprocal of a number.
    scaled = points / torch.tensor(cell, dtype=torch.float64, device=points.device).expand(points.shape)
    corner = scaled.floor()
    x, y, z = (scaled - corner - 0.5).square().unbind(1)
    distance, batch = (x + y) + z, cloud.compute_batch_index()
    low = corner.amin(0)
    shape: list[float] = (corner.amax(0) - low + 1).tolist()
    if math.prod([*shape, float(cloud.batches)]) < 2.0**62:  # one number for a cell and its cloud
        step = (corner - low).to(torch.int64)
        key = ((batch * int(shape[0]) + step[:, 0]) * int(shape[1]) + step[:, 1]) * int(shape[2]) + step[:, 2]
        key, order = torch.sort(key, stable=True)
        group = torch.nn.functional.pad((key[1:] != key[:-1]).cumsum(0), (1, 0))
        distance = distance[order]
        nearest_distance = distance.new_full((int(group[-1]) + 1,), torch.inf).scatter_reduce_(
            0, group, distance, "amin"
        )
        nearest = torch.nonzero(distance == nearest_distance[group])[:, 0]
        group = group[nearest]
        first = torch.ones(group.numel(), dtype=torch.bool, device=points.device)
        first[1:] = group[1:] != group[:-1]
        return order[nearest[first]].sort().values
    order = torch.argsort(distance, stable=True)
    for column in (*corner.unbind(1), batch):
        order = order[torch.argsort(column[order], stable=True)]
    first = torch.ones(order.numel(), dtype=torch.bool, device=points.device)
    first[1:] = (corner[order[1:]] != corner[order[:-1]]).any(1) | (batch[order[1:]] != batch[order[:-1]])
    return order[first].sort().values
