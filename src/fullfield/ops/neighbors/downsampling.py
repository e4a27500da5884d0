"""Grid downsampling that keeps points as they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.neighbors.ragged import check_cloud


class Downsampled(NamedTuple):
    """Which points are kept."""

    indices: Tensor  # [K] int64, rising
    offsets: Tensor  # [B + 1] int64: the kept points of each cloud


def grid_downsample(
    points: Tensor,  # [N, 3] float32 or float64
    cell: float,
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
) -> Downsampled:
    """Keep in every cubic cell the point nearest to its centre, the first of equally near ones.

    Cells begin at multiples of ``cell``, so that clouds in the same coordinates share them. Computed in float64, on the
    points' device.

    Raises:
        InputError: for anything but finite coordinates, a cell above 0, fitting offsets; for cells so small that
            their numbers along an axis do not fit 2⁵².
    """
    _check.number(cell, "cell", above=0.0)
    cloud = check_cloud(points, offsets)
    if not points.shape[0]:
        return Downsampled(torch.zeros(0, dtype=torch.int64, device=points.device), cloud.offsets.to(points.device))
    scaled = cloud.points.to(torch.float64) / cell
    _check.require(
        float(scaled.abs().max()) < 2.0**52, "cell", "cells whose numbers fit 2⁵²", f"{cell:g} for these coordinates"
    )
    corner = scaled.floor()
    x, y, z = (scaled - corner - 0.5).square().unbind(1)
    batch = cloud.batch_of_point()
    order = torch.argsort((x + y) + z, stable=True)
    for column in (*corner.unbind(1), batch):
        order = order[torch.argsort(column[order], stable=True)]
    first = torch.ones(order.numel(), dtype=torch.bool, device=points.device)
    first[1:] = (corner[order[1:]] != corner[order[:-1]]).any(1) | (batch[order[1:]] != batch[order[:-1]])
    kept = order[first].sort().values
    counts = torch.bincount(batch[kept], minlength=cloud.batches)
    return Downsampled(kept, torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
