"""Detection of cuts and of held frames.

All of it in NumPy, in the thread that asks: these pictures are too small for PyTorch's threads, which take all cores
and wait for each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_COLUMNS = 48
_SHIFT = 6  # pixels of the small pictures that anything may have moved by
_BLOCK = 9
_UNLIKE = 0.41  # frames of a shot are below 0.36 on Sintel's fastest scenes, two shots' above 0.42
_LOOKS = 16  # rows that nearly always tell two frames apart

Small = NDArray[np.float64]
"""[h, w]: a frame's grey."""


def small(frame: Tensor) -> Small:  # [C, H, W] -> [h, w]
    """Return the frame's grey averaged to about 48 columns, for :func:`is_cut`."""
    height, width = frame.shape[-2:]
    rows = max(1, min(height, round(_COLUMNS * height / width), 4 * _COLUMNS))
    columns = min(_COLUMNS, width)
    planes = frame.numpy()
    lines = [planes[:, i * height // rows : -(-(i + 1) * height // rows)].mean((0, 1)) for i in range(rows)]
    left = np.arange(columns) * width // columns
    right = -(-np.arange(1, columns + 1) * width // columns)
    summed = np.zeros((rows, width + 1))
    np.cumsum(lines, axis=1, out=summed[:, 1:])
    means: Small = (summed[:, right] - summed[:, left]) / (right - left)
    return means


def is_cut(first: Small, second: Small) -> bool:
    """Return whether two small pictures show different shots.

    Every block of the first looks for its like in the second, an eighth of the width around it; both are brought to
    the same mean and contrast before, so that a change of exposure is none of the shot.
    """
    if first.shape != second.shape:
        return True
    contrasts = [float(picture.std()) for picture in (first, second)]
    if min(contrasts) < 2e-3:
        return max(contrasts) > 2e-2 or float(np.abs(first - second).mean()) > 0.2
    first, second = ((p - p.mean()) / c for p, c in zip((first, second), contrasts, strict=True))
    height, width = first.shape
    around = np.pad(second, _SHIFT, mode="edge")
    best = np.full_like(first, np.inf)
    shifts = [(dy, dx) for dy in range(-_SHIFT, _SHIFT + 1) for dx in range(-_SHIFT, _SHIFT + 1)]
    for dy, dx in sorted(shifts, key=lambda shift: shift[0] ** 2 + shift[1] ** 2):
        there = around[dy + _SHIFT : dy + _SHIFT + height, dx + _SHIFT : dx + _SHIFT + width]
        np.minimum(best, _blocks(np.abs(first - there)), out=best)
        if best.mean() <= _UNLIKE:
            return False
    return True


def _blocks(values: Small) -> Small:
    """Return the mean of the block around every pixel, cut at the borders."""
    for axis in (0, 1):
        at = np.arange(values.shape[axis])
        low, high = np.maximum(at - _BLOCK // 2, 0), np.minimum(at + _BLOCK // 2 + 1, len(at))
        summed = np.insert(np.cumsum(values, axis=axis), 0, 0.0, axis=axis)
        values = (summed.take(high, axis) - summed.take(low, axis)) / np.expand_dims(high - low, 1 - axis)
    return values


def is_held(first: Tensor, second: Tensor, *, compressed: bool) -> bool:
    """Return whether two frames are the same picture; in a ``compressed`` video they may differ by two codes of 255."""
    if first.shape != second.shape:
        return False
    for rows in (max(1, first.shape[-2] // _LOOKS), 1):
        one, two = first.numpy()[:, ::rows], second.numpy()[:, ::rows]
        alike = float(np.abs(one - two).max()) <= 2.01 / 255 if compressed else np.array_equal(one, two)
        if not alike:
            return False
    return True
