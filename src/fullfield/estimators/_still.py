"""Areas where both frames agree bit for bit: there a network's flow is replaced by what the frames prove.

Agreement proves that nothing moves only where the picture has structure in both directions. Along a straight edge and
in a flat area any motion would agree as well. These keep the network's flow, which continues the motion around them.
Only flat areas far from all differences, where it sees nothing, take the flow at their border.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_CELL = 8  # pixels of a cell's side; a cell is judged together with its neighbours
# Mean squared gradient of frames in 0 ... 1: below the first an area is flat. Above it, the smaller eigenvalue of the
# structure tensor must be this share of the larger one.
_FLAT, _ISOTROPY = 1e-10, 0.05
_MIN_DISTANCE_CELLS = 8  # cells between a flat area without support and the nearest difference


class StillAreas(NamedTuple):
    """Areas of a pair that agree bit for bit."""

    still: Tensor
    """[B, 1, H, W] bool: nothing moves here."""
    flat_cells: Tensor
    """[B, 1, h, w] bool: cells of 8×8 pixels without structure, which agree with their neighbours."""
    distant_cells: Tensor
    """[B, 1, h, w] bool: flat cells that are far from every difference."""

    @property
    def flat(self) -> Tensor:
        """[B, 1, H, W] bool: pixels of the flat cells."""
        return _expand_cells_to_pixels(self.flat_cells, *self.still.shape[-2:])

    def zero_still_flow(self, flow: Tensor) -> Tensor:
        """Return a flow [B, 2, H, W] with zeros where nothing moves; NaN stays NaN."""
        return flow * (~self.still) + 0.0

    def zero_still_and_fill_flat_flow(self, flow: Tensor) -> Tensor:
        """Return :meth:`zero_still_flow` of a flow; flat areas far from differences get the flow at their border."""
        flow = self.zero_still_flow(flow)
        cells = functional.avg_pool2d(_pad_to_cells(flow), _CELL)
        distant = self.distant_cells.to(flow.dtype)
        border = functional.max_pool2d(distant, 3, 1, 1) * (1 - distant)
        cells = torch.where(self.distant_cells, _fill_unweighted_cells(cells, border), cells)
        height, width = flow.shape[-2:]
        size = (_CELL * cells.shape[-2], _CELL * cells.shape[-1])
        fine = functional.interpolate(cells, size, mode="bilinear", align_corners=False)[..., :height, :width]
        return torch.where(_expand_cells_to_pixels(self.distant_cells, height, width) & ~self.still, fine, flow)


def find_still_areas(frame1: Tensor, frame2: Tensor) -> StillAreas | None:  # [B, C, H, W] twice
    """Return the areas of a pair that agree; None if there are none. One flag is copied to the host."""
    differs = (frame1 != frame2).any(1, keepdim=True).to(torch.float32)
    cells = functional.max_pool2d(_pad_to_cells(differs), _CELL)
    agrees = functional.max_pool2d(cells, 3, 1, 1) == 0
    if not bool(agrees.any()):
        return None
    largest, smallest = _compute_structure_eigenvalues(frame1)
    flat = agrees & (largest <= _FLAT)
    still_cells = agrees & ~flat & (smallest >= _ISOTROPY * largest)
    is_same = ~differs.flatten(1).any(1).view(-1, 1, 1, 1)  # the whole frame
    still = _expand_cells_to_pixels(still_cells | is_same, *frame1.shape[-2:])
    distant = flat & (functional.max_pool2d(cells, 2 * _MIN_DISTANCE_CELLS + 1, 1, _MIN_DISTANCE_CELLS) == 0)
    return StillAreas(still, flat, distant)


def _compute_structure_eigenvalues(frame: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues [B, 1, h, w] of the structure tensor over 3×3 cells, the larger one first."""
    grey = frame.to(torch.float32).mean(1, keepdim=True)
    # Differences over the border are zero, so the border is no structure.
    x = functional.pad(grey[..., 1:] - grey[..., :-1], (0, 1))
    y = functional.pad(grey[..., 1:, :] - grey[..., :-1, :], (0, 0, 0, 1))
    products = torch.cat((x * x, x * y, y * y), 1)
    means = functional.avg_pool2d(
        functional.avg_pool2d(_pad_to_cells(products), _CELL), 3, 1, 1, count_include_pad=False
    )
    xx, xy, yy = means[:, :1], means[:, 1:2], means[:, 2:]
    middle, radius = (xx + yy) / 2, torch.sqrt(((xx - yy) / 2).square() + xy.square())
    return middle + radius, middle - radius


def _fill_unweighted_cells(values: Tensor, weights: Tensor) -> Tensor:
    """Spread values [B, C, h, w] from cells of weight 1 to all others by averages of ever coarser grids; else zeros."""
    sums, levels = values * weights, [(values * weights, weights)]
    while max(weights.shape[-2:]) > 1:
        sums = functional.avg_pool2d(sums, 2, ceil_mode=True, count_include_pad=False)
        weights = functional.avg_pool2d(weights, 2, ceil_mode=True, count_include_pad=False)
        levels.append((sums, weights))
    filled = torch.zeros_like(levels[-1][0])
    for sums, weights in reversed(levels):
        coarse = functional.interpolate(filled, weights.shape[-2:], mode="bilinear", align_corners=False)
        has_values = weights > 0
        filled = torch.where(has_values, sums / weights.clamp(min=1e-20), coarse)
    return filled


def _pad_to_cells(planes: Tensor) -> Tensor:
    """Return [B, C, H, W] with sides of whole cells; the border is repeated."""
    rows, columns = (-planes.shape[-2]) % _CELL, (-planes.shape[-1]) % _CELL
    return functional.pad(planes, (0, columns, 0, rows), mode="replicate") if rows or columns else planes


def _expand_cells_to_pixels(cells: Tensor, height: int, width: int) -> Tensor:
    """Return a mask [B, 1, h, w] of cells as one of pixels [B, 1, H, W]."""
    return cells.repeat_interleave(_CELL, -2).repeat_interleave(_CELL, -1)[..., :height, :width]
