"""Pairs of points whose descriptors are each other's nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 2048


def mutual_matches(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.int64]:
    """[M, 2] rows of ``first`` [A, C] and ``second`` [B, C] that are each other's nearest, by Euclidean distance."""
    if not len(first) or not len(second):
        return np.empty((0, 2), np.int64)
    a, b = (torch.from_numpy(np.ascontiguousarray(rows, np.float32)) for rows in (first, second))
    forth, back = _nearest(a, b), _nearest(b, a)
    rows = torch.arange(len(a))
    mutual = back[forth] == rows
    return torch.stack((rows[mutual], forth[mutual]), 1).numpy()


def _nearest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """For each row of ``a`` the nearest of ``b``."""
    halves = b.square().sum(1) / 2
    # |a - b|² / 2 less |a|² / 2, a block of rows at a time.
    return torch.cat([torch.addmm(halves, part, b.T, alpha=-1.0).argmin(1) for part in torch.split(a, _BLOCK)])
