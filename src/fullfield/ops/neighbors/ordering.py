"""Order of points in which neighbours in space are near in memory."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fullfield.ops.neighbors.ragged import check_cloud

_BITS = 21  # bits of a coordinate in a Morton code


def spatial_order(
    points: Tensor,  # [N, 3] float32 or float64
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
) -> Tensor:  # [N] int64
    """Return the indices that sort each cloud's points along a Morton curve; clouds stay in their order.

    Searches and convolutions read ``points[order]`` and ``features[order]`` faster than unsorted points.

    Raises:
        InputError: if coordinates are not finite or offsets do not fit.
    """
    cloud = check_cloud(points, offsets)
    edges = cloud.offsets.tolist()
    parts = [_along(cloud.points[first:last]) + first for first, last in pairwise(edges)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=points.device)


def _along(points: Tensor) -> Tensor:
    if not points.shape[0]:
        return torch.zeros(0, dtype=torch.int64, device=points.device)
    low, high = points.amin(0).double(), points.amax(0).double()
    cells = ((points.double() - low) / (high - low).amax().clamp(min=1e-30) * (2**_BITS - 1)).to(torch.int64)
    return torch.argsort(morton_code(cells), stable=True)


def morton_code(cells: Tensor) -> Tensor:
    """Return the codes [N] int64 of numbers [N, 3] from 0 to 2²¹ − 1; x is the most significant."""
    x, y, z = (_spaced_bits(cells[:, axis]) for axis in range(3))
    return x << 2 | y << 1 | z


def _spaced_bits(x: Tensor) -> Tensor:
    """Insert two zero bits between the bits of int64 numbers."""
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        x = (x | x << shift) & mask
    return x
