"""Distance to the nearest occlusion boundary, for Sintel's d bands."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fullfield import _check
from fullfield.metrics.pixels import iterate_row_blocks

_MAX_RADIUS = 181  # its square still fits 16 bits


def compute_boundary_distance(occluded: Tensor, *, radius: int = 140) -> Tensor:
    """Return the Euclidean distance from every pixel to the nearest occlusion boundary.

    The boundary is the set of pixels, occluded or not, that have a pixel of the other kind above, below, left or
    right of them; they are at distance 0. The edge of the image is no boundary.

    Sintel describes its d0-10, d10-60 and d60-140 as the error over pixels closer than 10, from 10 to 60 and from
    60 to 140 pixels to the nearest occlusion boundary; its own code is not public.

    Args:
        occluded: bool ``[H, W]``.
        radius: smallest distance that is not measured, 1 to 181 px.

    Returns:
        ``[H, W]`` float32, pixels; inf where the distance is ``radius`` or more, or where there is no boundary.
    """
    _check.check_tensor(occluded, "occluded", ("H", "W"), dtypes=(torch.bool,))
    _check.check_number(radius, "radius", integer=True, low=1, high=_MAX_RADIUS)
    height, width = occluded.shape
    beyond = radius * radius
    down = _compute_squared_column_distance(mark_boundary_pixels(occluded), radius)
    result = torch.empty(height, width, device=occluded.device, dtype=torch.float32)
    for rows in iterate_row_blocks(height, width, occluded.device):
        # 16-bit squares, shifted below zero: the sum of two would overflow otherwise.
        start = down[rows] - beyond
        padded = torch.nn.functional.pad(start, (radius, radius), value=0)
        nearest, other = start.clone(), torch.empty_like(start)
        for step in range(1, radius):
            left, right = (padded[:, radius + s : radius + s + width] for s in (-step, step))
            torch.minimum(left, right, out=other)
            other += step * step
            torch.minimum(nearest, other, out=nearest)
        squared = nearest.to(torch.float32) + beyond
        result[rows] = torch.where(squared < beyond, squared.sqrt(), math.inf)
    return result


def mark_boundary_pixels(occluded: Tensor) -> Tensor:
    """Return the pixels of bool ``[H, W]`` with a 4-neighbour of the other kind: bool ``[H, W]``."""
    result = torch.zeros_like(occluded)
    across = occluded[:, 1:] != occluded[:, :-1]
    result[:, 1:] |= across
    result[:, :-1] |= across
    along = occluded[1:] != occluded[:-1]
    result[1:] |= along
    result[:-1] |= along
    return result


def _compute_squared_column_distance(marked: Tensor, radius: int) -> Tensor:
    """Return the squared distance to the nearest marked pixel of the same column.

    int16 ``[H, W]``, at most ``radius``².
    """
    height, width = marked.shape
    result = torch.empty(height, width, dtype=torch.int16, device=marked.device)
    row = torch.arange(height, dtype=torch.int32, device=marked.device)
    never = height + radius
    for columns in iterate_row_blocks(width, height, marked.device):
        block = marked[:, columns].T.contiguous()
        above = row - torch.where(block, row, -never).cummax(1).values
        below = torch.where(block, row, height + never).flip(1).cummin(1).values.flip(1) - row
        nearest = torch.minimum(above, below).clamp_(max=radius)
        result[:, columns] = (nearest * nearest).to(torch.int16).T
    return result
