"""Lookup positions: recorded from a network or synthetic, for any size and number of updates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.cases.correlation.analysis import recorded_positions, window_statistics
from benchmarks.cases.correlation.recorded import RECORDED, between, resized

KINDS = ("smooth", "random")


def smooth(size: tuple[int, int], updates: int, seed: int = 0) -> Tensor:
    """Sample offsets [updates, 2, H, W] from zero towards a smooth flow of up to a tenth of the width."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size
    y, x = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij")
    flow = torch.zeros(2, height, width)
    for _ in range(4):
        phase, direction, strength = (torch.rand(2, generator=generator) for _ in range(3))
        wave = torch.sin(2 * math.pi * (direction[0] * 2 * x + direction[1] * 2 * y + phase[0]))
        flow += (strength - 0.5).view(2, 1, 1) * wave
    flow *= 0.05 * width
    return torch.stack([flow * (1 - 0.6**update) for update in range(updates)])


def random(size: tuple[int, int], updates: int, seed: int = 0) -> Tensor:
    """Sample offsets [updates, 2, H, W] to positions that are uniform over the whole map."""
    generator = torch.Generator().manual_seed(seed)
    extent = torch.tensor([size[1], size[0]]).view(2, 1, 1)
    target = torch.rand((updates, 2, *size), generator=generator) * extent
    grid = recorded_positions(torch.zeros(1, 2, *size))
    return target - grid


@dataclass(frozen=True)
class Scene:
    """Source of lookup positions."""

    name: str
    recorded: Tensor | None = None
    """[U, 2, H, W]: all updates from the first on, or the eight of ``RECORDED``, between which positions are
    interpolated; None for synthetic positions of the kind ``name``."""

    def positions(self, size: tuple[int, int], updates: int, batch: int, device: torch.device) -> list[Tensor]:
        """Return the positions of every update, [batch, 2, H, W] float32; recorded ones are the same in the batch."""
        if self.recorded is not None:
            few = self.recorded.shape[0] == len(RECORDED)
            recorded = resized(self.recorded if few else self.recorded[:updates], size)
            offsets = between(recorded, updates) if few else recorded
            result = recorded_positions(offsets)[None].expand(batch, -1, -1, -1, -1)
        else:
            make = random if self.name == "random" else smooth
            result = torch.stack([recorded_positions(make(size, updates, seed)) for seed in range(batch)])
        return [result[:, update].contiguous().to(device) for update in range(updates)]


def coherence(coords: list[Tensor], radius: int, levels: int) -> dict[str, float]:
    """Return the mean window of 8×8 source pixels in target pixels and the share of positions in the map."""
    each = [window_statistics(x, radius, levels=levels) for x in coords]
    return {
        "mean_window": sum(s.mean_columns for s in each) / len(each),
        "inside": sum(s.inside for s in each) / len(each),
    }
