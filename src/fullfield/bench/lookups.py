"""Where lookups go: positions recorded from a network, or made up, for any size and number of updates."""

from __future__ import annotations

import math
import os
import tokenize
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.ops.correlation.analysis import recorded_positions, window_statistics

RECORDED = (0, 1, 2, 4, 8, 12, 20, 31)
"""The updates of a 32-update run whose positions a recording holds."""
KINDS = ("smooth", "random")
_BROKEN = (
    ValueError, TypeError, SyntaxError, EOFError, OverflowError, MemoryError, RecursionError, tokenize.TokenError,
)  # fmt: skip


def load_recorded(path: str | os.PathLike[str]) -> Tensor:
    """Positions minus pixel grid, float32 [U, 2, H, W], (x, y), from a ``.npy`` file. Pickles are never opened.

    Raises:
        InputError: naming the file, if it holds something else.
    """
    name = Path(path)
    if not name.is_file():
        raise InputError(f"{name}: no such file, expected recorded lookups (.npy)")
    with name.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise InputError(f"{name}: not a .npy file, expected recorded lookups [U, 2, H, W]")
    try:
        # Mapped, so that a header's claim is compared with the file before memory is taken.
        values = np.load(name, mmap_mode="r", allow_pickle=False)
    except _BROKEN as error:
        raise InputError(f"{name}: not a readable .npy array ({_first_line(error)})") from error
    if values.ndim != 4 or values.shape[1] != 2 or 0 in values.shape:
        raise InputError(f"{name}: expected lookups [U, 2, H, W], got shape {list(values.shape)}")
    if values.dtype.kind != "f":
        raise InputError(f"{name}: expected floating point lookups, got {values.dtype}")
    return torch.from_numpy(np.array(values, np.float32))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def between(recorded: Tensor, updates: int) -> Tensor:
    """Offsets of the first ``updates`` updates [updates, 2, H, W] from a recording [8, 2, H, W], linear in between.

    After the last recorded update they stay where they are.

    Raises:
        InputError: if the recording does not hold the updates ``RECORDED``.
    """
    _check.number(updates, "updates", integer=True, low=1)
    if recorded.shape[0] != len(RECORDED):
        listed = ", ".join(map(str, RECORDED))
        raise InputError(
            f"updates: interpolation needs a recording of updates {listed}, got one of {recorded.shape[0]} updates"
        )
    found = []
    for update in range(updates):
        before = max(i for i, known in enumerate(RECORDED) if known <= update)
        after = min(before + 1, len(RECORDED) - 1)
        step = RECORDED[after] - RECORDED[before]
        part = (update - RECORDED[before]) / step if step else 0.0
        found.append(torch.lerp(recorded[before], recorded[after], part))
    return torch.stack(found)


def resized(offsets: Tensor, size: tuple[int, int]) -> Tensor:
    """Offsets [U, 2, H, W] for a map of another height and width: resampled, and their values scaled."""
    height, width = offsets.shape[-2:]
    if (height, width) == size:
        return offsets
    scale = torch.tensor([size[1] / width, size[0] / height], device=offsets.device).view(2, 1, 1)
    shrinks = size[0] < height
    return torch.nn.functional.interpolate(offsets, size, mode="bilinear", antialias=shrinks) * scale


def smooth(size: tuple[int, int], updates: int, seed: int = 0) -> Tensor:
    """Made-up offsets [updates, 2, H, W]: from zero towards a smooth flow of up to a tenth of the width."""
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
    """Offsets [updates, 2, H, W] to positions that are uniform over the whole map."""
    generator = torch.Generator().manual_seed(seed)
    extent = torch.tensor([size[1], size[0]]).view(2, 1, 1)
    target = torch.rand((updates, 2, *size), generator=generator) * extent
    grid = recorded_positions(torch.zeros(1, 2, *size))
    return target - grid


@dataclass(frozen=True)
class Scene:
    """One source of lookups."""

    name: str
    recorded: Tensor | None = None
    """[8, 2, H, W]; None for made-up positions of the kind that ``name`` says."""

    def positions(self, size: tuple[int, int], updates: int, batch: int, device: torch.device) -> list[Tensor]:
        """Positions of every update, each [batch, 2, H, W] float32; recorded ones are the same in the whole batch."""
        if self.recorded is not None:
            offsets = between(resized(self.recorded, size), updates)
            found = recorded_positions(offsets)[None].expand(batch, -1, -1, -1, -1)
        else:
            make = random if self.name == "random" else smooth
            found = torch.stack([recorded_positions(make(size, updates, seed)) for seed in range(batch)])
        return [found[:, update].contiguous().to(device) for update in range(updates)]


def coherence(coords: list[Tensor], radius: int, levels: int) -> dict[str, float]:
    """Mean window of 8×8 source pixels in target pixels, and the share of positions in the map, over all lookups."""
    each = [window_statistics(x, radius, levels=levels) for x in coords]
    return {
        "mean_window": sum(s.mean_columns for s in each) / len(each),
        "inside": sum(s.inside for s in each) / len(each),
    }
