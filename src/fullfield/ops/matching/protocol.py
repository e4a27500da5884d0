"""What a backend is asked, and how much of the matrix may be there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fullfield.ops.positions import positions

HALVES = (torch.float16, torch.bfloat16)
ELEMENTS = 1 << 24
"""Of the matrix, that are there at a time."""


@dataclass(frozen=True)
class Request:
    """One call."""

    channels: int
    dtype: torch.dtype
    device: torch.device
    eager: bool = True
    """Neither traced nor transformed."""


def rows_at_a_time(key: Tensor) -> int:
    """Rows of the matrix that belong to ``key`` [..., M, C]."""
    return max(ELEMENTS // max(key.shape[-2] * key.shape[:-2].numel(), 1), 1)


def rows_of(fmap: Tensor) -> Tensor:
    """[B, H·W, C] of [B, C, H, W]."""
    return fmap.flatten(2).transpose(1, 2)


def map_of(rows: Tensor, like: Tensor) -> Tensor:
    """[B, C, H, W] of [B, H·W, C]."""
    return torch.unflatten(rows.transpose(1, 2), 2, (like.shape[2], like.shape[3]))


def size_of(fmap: Tensor) -> tuple[int, int]:
    """Height, width."""
    return int(fmap.shape[2]), int(fmap.shape[3])


def positions_of(fmap: Tensor) -> Tensor:
    """[2, H, W], (x, y), float32 or float64."""
    exact = torch.float64 if fmap.dtype == torch.float64 else torch.float32
    return positions(size_of(fmap), fmap.device, exact)


def flow_of(found: Tensor, fmap1: Tensor) -> Tensor:
    """[B, 2, H1, W1] of the positions [B, H1·W1, 2] that pixels were matched with."""
    return map_of(found, fmap1) - positions_of(fmap1)
