"""Sizes of the pyramid's levels and the resampling tables between them, shared by every backend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALLEST_SIDE = 16
# (index, weight), both [size_out, taps]: output = sum of weight * input[index]
Table = tuple["NDArray[np.int32]", "NDArray[np.float64]"]
# (index of the first tap [size_out], weight [size_out, taps]); indices may lie outside
Window = tuple["NDArray[np.int64]", "NDArray[np.float64]"]
Float32Table = tuple["NDArray[np.int32]", "NDArray[np.float32]"]


def level_sizes(height: int, width: int, scales: int | None, factor: float) -> list[tuple[int, int]]:
    """(height, width) of every level, finest first; a level's side is rounded and never under 16 but for level 0."""
    sizes = [(height, width)]
    while scales is None or len(sizes) < scales:
        shrink = factor ** len(sizes)
        size = (round(height * shrink), round(width * shrink))
        if min(size) < SMALLEST_SIDE or size == sizes[-1]:
            break
        sizes.append(size)
    return sizes


def progress_after(sizes: list[tuple[int, int]], number: int, share: float) -> tuple[float, str]:
    """Fraction of all pixels' work done, and where, once ``share`` of level ``number`` is done."""
    pixels = [h * w for h, w in sizes]
    done = sum(pixels[number + 1 :]) + pixels[number] * share
    height, width = sizes[number]
    return done / sum(pixels), f"level {len(sizes) - number} of {len(sizes)}, {width}×{height}"


def _clamped(first: NDArray[np.int64], weight: NDArray[np.float64], size: int) -> Table:
    index = first[:, None] + np.arange(weight.shape[1])
    return np.clip(index, 0, size - 1).astype(np.int32), weight


def _centres(size_in: int, size_out: int) -> NDArray[np.float64]:
    return (np.arange(size_out, dtype=np.float64) + 0.5) * (size_in / size_out) - 0.5


def gaussian_window(size_in: int, size_out: int) -> Window:
    """Gaussian low-pass and decimation: sigma = 0.6 sqrt(r^2 - 1) input pixels for a reduction by r (IPOL 2013).

    Returns (index of the first tap [size_out], weight [size_out, taps]); taps beyond the border count for the pixel at
    the border, weights sum to 1.
    """
    ratio = size_in / size_out
    sigma = max(0.6 * math.sqrt(max(ratio * ratio - 1.0, 0.0)), 0.3)
    radius = math.ceil(3.0 * sigma)
    centre = _centres(size_in, size_out)
    first = np.floor(centre).astype(np.int64) - radius + 1
    distance = first[:, None] + np.arange(2 * radius) - centre[:, None]
    weight = np.exp(-0.5 * (distance / sigma) ** 2)
    return first, weight / weight.sum(axis=1, keepdims=True)


def linear_window(size_in: int, size_out: int) -> Window:
    """Bilinear resampling, pixel centres aligned by area, borders clamped; as ``gaussian_window``, two taps."""
    centre = np.clip(_centres(size_in, size_out), 0.0, size_in - 1.0)
    first = np.floor(centre).astype(np.int64)
    t = centre - first
    return first, np.stack([1.0 - t, t], axis=1)


def gaussian_table(size_in: int, size_out: int) -> Table:
    """``gaussian_window`` as (index, weight), both [size_out, taps]; indices are clamped to the border."""
    return _clamped(*gaussian_window(size_in, size_out), size_in)


def linear_table(size_in: int, size_out: int) -> Table:
    """``linear_window`` as (index, weight), both [size_out, 2]; indices are clamped to the border."""
    return _clamped(*linear_window(size_in, size_out), size_in)
