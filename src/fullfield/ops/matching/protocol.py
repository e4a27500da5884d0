"""Backend interface and memory limit of the matching matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fullfield.ops._positions import create_pixel_grid

HALVES = (torch.float16, torch.bfloat16)
ELEMENTS = 1 << 24
"""Elements of the matrix in memory at a time."""


@dataclass(frozen=True)
class MatchingRequest:
    """Request of one call."""

    dtype: torch.dtype
    device: torch.device
    eager: bool = True
    """True if the call is neither traced nor transformed."""
    channels: int = 1
    """Channels of the features or the values, whichever are more; attention alone sets it."""


def count_rows_per_chunk(key: Tensor) -> int:
    """Return the number of rows of the matrix at a time for ``key`` [..., M, C]."""
    return max(ELEMENTS // max(key.shape[-2] * key.shape[:-2].numel(), 1), 1)


def flatten_pixels_to_rows(fmap: Tensor) -> Tensor:
    """Return [B, C, H, W] as rows [B, H·W, C]."""
    return fmap.flatten(2).transpose(1, 2)


def unflatten_rows_to_map(rows: Tensor, like: Tensor) -> Tensor:
    """Return rows [B, H·W, C] as a map [B, C, H, W]."""
    return torch.unflatten(rows.transpose(1, 2), 2, (like.shape[2], like.shape[3]))


def get_height_and_width(fmap: Tensor) -> tuple[int, int]:
    """Return height and width."""
    return int(fmap.shape[2]), int(fmap.shape[3])


def create_pixel_grid_like(fmap: Tensor) -> Tensor:
    """Return the positions [2, H, W], (x, y), float32 or float64."""
    exact = torch.float64 if fmap.dtype == torch.float64 else torch.float32
    return create_pixel_grid(get_height_and_width(fmap), fmap.device, exact)


def convert_matched_positions_to_flow(matches: Tensor, fmap1: Tensor) -> Tensor:
    """Return the flow [B, 2, H1, W1] to the matched positions [B, H1·W1, 2]."""
    return unflatten_rows_to_map(matches, fmap1) - create_pixel_grid_like(fmap1)
