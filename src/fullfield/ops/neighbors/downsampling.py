"""Grid downsampling that keeps points as they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.neighbors import cuda
from fullfield.ops.neighbors.ragged import Cloud, check_cloud


class Downsampled(NamedTuple):
    """Which points are kept."""

    indices: Tensor  # [K] int64, rising
    offsets: Tensor  # [B + 1] int64, on the CPU: the kept points of each cloud


def grid_downsample(
    points: Tensor,  # [N, 3] float32 or float64
    cell: float,
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
) -> Downsampled:
    """Keep in every cubic cell the point nearest to its centre, the first of equally near ones.

    Cells begin at multiples of ``cell``, so that clouds in the same coordinates share them. Computed in float64, on the
    points' device, with the same result on every one.

    Raises:
        InputError: for anything but finite coordinates, a cell above 0, fitting offsets; for cells so small that
            their numbers along an axis do not fit 2⁵².
    """
    _check.number(cell, "cell", above=0.0)
    return thin(check_cloud(points, offsets), float(cell))


def thin(cloud: Cloud, cell: float) -> Downsampled:
    """:func:`grid_downsample` of a cloud that is checked."""
    points = cloud.points
    if not points.shape[0]:
        return Downsampled(torch.zeros(0, dtype=torch.int64, device=points.device), cloud.offsets)
    _check.require(
        cloud.largest / cell < 2.0**52, "cell", "cells whose numbers fit 2⁵²", f"{cell:g} for these coordinates"
    )
    kept = cuda.nearest_to_centres(cloud, cell) if cuda.supports(points.device) is None else _plain(cloud, cell)
    if cloud.batches == 1:
        return Downsampled(kept, torch.tensor([0, kept.numel()]))
    return Downsampled(kept, torch.searchsorted(kept, cloud.offsets.to(kept.device)).cpu())


def _plain(cloud: Cloud, cell: float) -> Tensor:
    points = cloud.points.to(torch.float64)
    # A tensor, for CUDA would multiply by the reciprocal of a number.
    scaled = points / torch.tensor(cell, dtype=torch.float64, device=points.device).expand(points.shape)
    corner = scaled.floor()
    x, y, z = (scaled - corner - 0.5).square().unbind(1)
    batch = cloud.batch_of_point()
    order = torch.argsort((x + y) + z, stable=True)
    for column in (*corner.unbind(1), batch):
        order = order[torch.argsort(column[order], stable=True)]
    first = torch.ones(order.numel(), dtype=torch.bool, device=points.device)
    first[1:] = (corner[order[1:]] != corner[order[:-1]]).any(1) | (batch[order[1:]] != batch[order[:-1]])
    return order[first].sort().values
