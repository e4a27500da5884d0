"""numba kernels of the CPU backend. Importing this module needs numba; nothing compiles until asked.

Features lie as rows of ``[row][channel][pitch]``, float32, with zeros around them; sixteen neighbouring pixels are
worked on together, one per vector lane.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import cache_folder, jit_in
from fullfield._kernels.simd import LANES, load, splat, store
from fullfield._kernels.simd import __file__ as _simd_file

GROUP = 3  # displacements that share their loads
CACHE = cache_folder(__file__, _simd_file)
_jit = jit_in(CACHE)


@_jit
def forward_rows(one, two, channels, pitch1, pitch2, out, first, last):
    """Compute rows of ``out``, [B, PH, PW, rows, columns]: row r of image b is row b·rows + r of ``one``."""
    patch_h, patch_w, rows, columns = out.shape[1:]
    line = np.zeros(2 * GROUP * LANES, np.float32)
    zero = splat(np.float32(0.0))
    for index in range(first, last):
        b = index // rows
        row = index % rows
        for x in range(0, columns, 2 * LANES):
            for i in range(patch_h):
                for j in range(0, patch_w, GROUP):
                    p = index * channels * pitch1 + x
                    q = (b * (rows + patch_h - 1) + row + i) * channels * pitch2 + x + j
                    a0 = a1 = a2 = b0 = b1 = b2 = zero
                    for _ in range(channels):
                        f = load(one, p)
                        g = load(one, p + LANES)
                        a0 = a0 + f * load(two, q)
                        a1 = a1 + f * load(two, q + 1)
                        a2 = a2 + f * load(two, q + 2)
                        b0 = b0 + g * load(two, q + LANES)
                        b1 = b1 + g * load(two, q + LANES + 1)
                        b2 = b2 + g * load(two, q + LANES + 2)
                        p += pitch1
                        q += pitch2
                    store(line, 0, a0)
                    store(line, LANES, b0)
                    store(line, 2 * LANES, a1)
                    store(line, 3 * LANES, b1)
                    store(line, 4 * LANES, a2)
                    store(line, 5 * LANES, b2)
                    for k in range(min(GROUP, patch_w - j)):
                        for lane in range(min(2 * LANES, columns - x)):
                            out[b, i, j + k, row, x + lane] = line[k * 2 * LANES + lane]


@_jit
def backward_rows(features, channels, pitch, grad, second, columns, out, pitch_out, first, last):
    """Compute rows of ``out``, flat [B·rows][channels][pitch_out], channels a multiple of 4.

    ``grad`` is [B, PH, PW, rows, columns] of the first map's pixels. Of the second map there are PH - 1 rows and
    PW - 1 columns more, and the displacements go backwards.
    """
    patch_h, patch_w, height, width = grad.shape[1:]
    rows = height + (patch_h - 1 if second else 0)
    weights = np.zeros(patch_h * patch_w * pitch_out, np.float32)
    zero = splat(np.float32(0.0))
    for index in range(first, last):
        b = index // rows
        row = index % rows
        weights[:] = np.float32(0.0)
        for i in range(patch_h):
            for j in range(patch_w):
                at = (i * patch_w + j) * pitch_out
                if not second:
                    for x in range(width):
                        weights[at + x] = grad[b, i, j, row, x]
                else:
                    y = row + i - (patch_h - 1)
                    shift = patch_w - 1 - j
                    if 0 <= y < height:
                        for x in range(width):
                            weights[at + shift + x] = grad[b, patch_h - 1 - i, shift, y, x]
        for c in range(0, channels, 4):
            for x in range(0, columns, LANES):
                a0 = a1 = a2 = a3 = zero
                for i in range(patch_h):
                    if second and not 0 <= row + i - (patch_h - 1) < height:
                        continue
                    q = ((b * (rows + patch_h - 1) + row + i) * channels + c) * pitch + x
                    w = i * patch_w * pitch_out + x
                    for _ in range(patch_w):
                        g = load(weights, w)
                        a0 = a0 + g * load(features, q)
                        a1 = a1 + g * load(features, q + pitch)
                        a2 = a2 + g * load(features, q + 2 * pitch)
                        a3 = a3 + g * load(features, q + 3 * pitch)
                        w += pitch_out
                        q += 1
                p = (index * channels + c) * pitch_out + x
                store(out, p, a0)
                store(out, p + pitch_out, a1)
                store(out, p + 2 * pitch_out, a2)
                store(out, p + 3 * pitch_out, a3)


_i = types.intp
_flat = types.float32[::1]
_planes = types.Array(types.float32, 5, "A")

ENTRY_POINTS = {
    "forward_rows": (forward_rows, (_flat, _flat, _i, _i, _i, _planes, _i, _i)),
    "backward_rows": (backward_rows, (_flat, _i, _i, _planes, types.boolean, _i, _flat, _i, _i, _i)),
}
