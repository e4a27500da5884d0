"""Numba kernels of the CPU backend. Importing this module needs numba and compiles nothing.

Fields are [2, H, W] float32, masks [H, W] uint8.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import create_jit_decorator, find_or_create_numba_cache_folder_or_none

CACHE = find_or_create_numba_cache_folder_or_none(__file__)
_jit = create_jit_decorator(CACHE)


@_jit
def scatter_longest_vectors(flow, flow_out, valid_out):
    """Write every finite vector to the pixel nearest to its end; the longest wins, of equally long ones the last."""
    height, width = valid_out.shape
    longest = np.full((height, width), np.float32(-1.0))
    for y in range(height):
        for x in range(width):
            u, v = flow[0, y, x], flow[1, y, x]
            if not (np.isfinite(u) and np.isfinite(v)):
                continue
            to_x, to_y = np.rint(np.float32(x) + u), np.rint(np.float32(y) + v)
            if not (0 <= to_x < width and 0 <= to_y < height):
                continue
            i, j = int(to_y), int(to_x)
            length = u * u + v * v
            if length >= longest[i, j]:
                longest[i, j] = length
                flow_out[0, i, j] = u
                flow_out[1, i, j] = v
                valid_out[i, j] = 1


@_jit
def fill_unknown_pixels_by_rings_(field, valid):
    """Fill unknown pixels (0) from known ones (1) in place; 2 marks the next ring."""
    height, width = valid.shape
    holes = 0
    for y in range(height):
        for x in range(width):
            holes += valid[y, x] == 0
    ring = np.empty(holes, np.int64)
    means = np.empty((2, holes), np.float32)
    end = 0
    for y in range(height):
        for x in range(width):
            if valid[y, x] == 0 and _has_valid_neighbor(valid, y, x):
                ring[end] = y * width + x
                end += 1
    for k in range(end):
        valid[ring[k] // width, ring[k] % width] = 2
    start = 0
    while start < end:
        for k in range(start, end):
            y, x = ring[k] // width, ring[k] % width
            u, v, count = np.float32(0.0), np.float32(0.0), np.float32(0.0)
            for i in range(max(y - 1, 0), min(y + 2, height)):
                for j in range(max(x - 1, 0), min(x + 2, width)):
                    if valid[i, j] == 1:
                        u += field[0, i, j]
                        v += field[1, i, j]
                        count += np.float32(1.0)
            means[0, k], means[1, k] = u / count, v / count
        for k in range(start, end):
            y, x = ring[k] // width, ring[k] % width
            field[0, y, x], field[1, y, x] = means[0, k], means[1, k]
            valid[y, x] = 1
        last = end
        for k in range(start, last):
            y, x = ring[k] // width, ring[k] % width
            for i in range(max(y - 1, 0), min(y + 2, height)):
                for j in range(max(x - 1, 0), min(x + 2, width)):
                    if valid[i, j] == 0:
                        valid[i, j] = 2
                        ring[end] = i * width + j
                        end += 1
        start = last


@_jit
def _has_valid_neighbor(valid, y, x):
    height, width = valid.shape
    for i in range(max(y - 1, 0), min(y + 2, height)):
        for j in range(max(x - 1, 0), min(x + 2, width)):
            if valid[i, j] == 1:
                return True
    return False


@_jit
def splat_scaled_vectors_into_sums(flow, length_fraction, weights, valid, sums_out):
    """Add every known vector to the four pixels around ``length_fraction`` of its length, bilinearly.

    ``weights`` holds strength and trust. ``sums_out`` receives strength times u and v, strength, share, and strength
    times trust.
    """
    height, width = valid.shape
    scale = np.float32(length_fraction)
    one = np.float32(1.0)
    for y in range(height):
        for x in range(width):
            if valid[y, x] == 0:
                continue
            u, v = flow[0, y, x], flow[1, y, x]
            to_x, to_y = np.float32(x) + scale * u, np.float32(y) + scale * v
            left, top = np.floor(to_x), np.floor(to_y)
            if not (-1 <= left < width and -1 <= top < height):
                continue
            strength, trust = weights[0, y, x], weights[1, y, x]
            right, below = to_x - left, to_y - top
            for dy in range(2):
                i = int(top) + dy
                for dx in range(2):
                    j = int(left) + dx
                    overlap = (right if dx else one - right) * (below if dy else one - below)
                    if overlap > 0 and 0 <= i < height and 0 <= j < width:
                        weight = strength * overlap
                        sums_out[0, i, j] += u * weight
                        sums_out[1, i, j] += v * weight
                        sums_out[2, i, j] += weight
                        sums_out[3, i, j] += overlap
                        sums_out[4, i, j] += trust * weight


_field = types.float32[:, :, ::1]
_mask = types.uint8[:, ::1]

ENTRY_POINTS = {
    "scatter_longest_vectors": (scatter_longest_vectors, types.void(_field, _field, _mask)),
    "fill_unknown_pixels_by_rings_": (fill_unknown_pixels_by_rings_, types.void(_field, _mask)),
    "splat_scaled_vectors_into_sums": (
        splat_scaled_vectors_into_sums,
        types.void(_field, types.float64, _field, _mask, _field),
    ),
}
