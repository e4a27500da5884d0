"""Lookup positions recorded from a network: reading, interpolation between updates, resizing."""

from __future__ import annotations

import os
import tokenize
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError

RECORDED = (0, 1, 2, 4, 8, 12, 20, 31)
"""Updates of a 32-update run whose positions a recording holds."""
_BROKEN = (
    ValueError, TypeError, SyntaxError, EOFError, OverflowError, MemoryError, RecursionError, tokenize.TokenError,
)  # fmt: skip


def load_recorded(path: str | os.PathLike[str]) -> Tensor:
    """Read positions minus pixel grid, float32 [U, 2, H, W], (x, y), from a ``.npy`` file, never a pickle.

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
    """Interpolate the first ``updates`` updates [updates, 2, H, W] linearly from a recording [8, 2, H, W].

    After the last recorded update they stay where they are.

    Raises:
        InputError: if the recording does not hold the updates ``RECORDED``.
    """
    _check.check_number(updates, "updates", integer=True, low=1)
    if recorded.shape[0] != len(RECORDED):
        listed = ", ".join(map(str, RECORDED))
        raise InputError(
            f"updates: interpolation needs a recording of updates {listed}, got one of {recorded.shape[0]} updates"
        )
    result = []
    for update in range(updates):
        before = max(i for i, known in enumerate(RECORDED) if known <= update)
        after = min(before + 1, len(RECORDED) - 1)
        step = RECORDED[after] - RECORDED[before]
        part = (update - RECORDED[before]) / step if step else 0.0
        result.append(torch.lerp(recorded[before], recorded[after], part))
    return torch.stack(result)


def resized(offsets: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample offsets [U, 2, H, W] to a map of another height and width, and scale their values."""
    height, width = offsets.shape[-2:]
    if (height, width) == size:
        return offsets
    scale = torch.tensor([size[1] / width, size[0] / height], device=offsets.device).view(2, 1, 1)
    shrinks = size[0] < height
    return torch.nn.functional.interpolate(offsets, size, mode="bilinear", antialias=shrinks) * scale
