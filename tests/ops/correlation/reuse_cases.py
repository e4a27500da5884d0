"""Positions that tests of lookups look up one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield.testing.correlation import Case


def journey(case: Case) -> list[Tensor]:
    """Positions as a network's, then as none would have them: small steps, jumps, borders, and what is no number."""
    start = case.coords
    height, width = case.fmap2.shape[-2:]
    generator = torch.Generator().manual_seed(3)
    found = [start, start.clone()]
    for step in range(5):  # every pixel by itself, in all directions
        found.append(found[-1] + torch.randn(start.shape, generator=generator) * (0.4 + 0.4 * step))
    found += [start + torch.tensor([d, -d]).view(1, 2, 1, 1) for d in (0.6, 1.7, 2.5, -1.2, -3.9)]
    found.append(torch.rand(start.shape, generator=generator) * torch.tensor([width, height]).view(1, 2, 1, 1))
    found.append(found[-1] + 1.3)  # windows far apart that move, too
    found.append(found[-1] - torch.tensor([2.1, 0.4]).view(1, 2, 1, 1))
    found.append(start * 0 + torch.tensor([-4.5, height + 2.5]).view(1, 2, 1, 1))  # partly outside
    broken = start.clone()
    broken[..., ::2] = torch.nan
    broken[..., :1, 1::3] = torch.inf
    far = torch.where(torch.rand(start.shape, generator=generator) < 0.5, start, -1e9)
    return [*found, broken, start, far, start + 0.25, start]
