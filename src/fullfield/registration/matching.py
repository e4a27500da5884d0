"""Pairs of points whose descriptors are each other's nearest."""

from __future__ import annotations

import numpy as np
import torch

from fullfield.registration.arrays import Floats, Ints

_BLOCK = 2048


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def mutual_matches(first: Floats, second: Floats) -> Ints:
    """Return [M, 2] rows of ``first`` [A, C] and ``second`` [B, C] that are each other's nearest (Euclidean)."""
    if not len(first) or not len(second):
        return np.empty((0, 2), np.int64)
    a, b = (torch.from_numpy(np.ascontiguousarray(rows, np.float32)) for rows in (first, second))
    own, other = (part.square().sum(1, keepdim=True) / 2 for part in (a, b))
    # One product gives |a - b|² / 2, a block of rows at a time.
    left, right = torch.cat([a, own, torch.ones_like(own)], 1), torch.cat([-b, torch.ones_like(other), other], 1)
    least, chosen = list[torch.Tensor](), list[torch.Tensor]()
    back = torch.full((len(b),), torch.inf, dtype=torch.float32)
    for part in torch.split(left, _BLOCK):
        apart = part @ right.T
        for into, found in zip((least, chosen), apart.min(1), strict=True):
            into.append(found)
        back = torch.minimum(back, apart.amin(0))
    forth = torch.cat(chosen)
    rows = torch.nonzero(torch.cat(least) == back[forth])[:, 0].numpy()
    columns = forth[rows].numpy()
    _, once = np.unique(columns, return_index=True)  # of rows that are equally near, the first
    once.sort()
    return np.stack((rows[once], columns[once]), 1)
