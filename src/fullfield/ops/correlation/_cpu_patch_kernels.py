# mypy: ignore-errors
"""Numba kernels of the CPU backend's lookups that keep products between them.

A tile's products on a level lie in a slot of ``patches``, as ``_cpu_kernels`` has them: ``[row][column][16 lanes]``.
They are those of one rectangle around all windows, or, where the windows are far apart, of a rectangle for every lane.
A lookup computes what its windows lack, and keeps the rest: products never become wrong, they only become useless.

Which of the two a tile takes is decided by the present windows alone, as without patches, and either computes a
product in one way wherever the rectangle begins. So results are those of ``lookup_tiles`` to the bit, whatever was
looked up before.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.simd import load, splat, store
from fullfield.ops.correlation._cpu_kernels import (
    _BLOCK,
    CACHE,  # noqa: F401 - of these kernels too
    LANES,
    _blend,
    _jit,
    _pitch,
    _place,
    _row,
    _union,
    _window_cells,
    _write,
    largest_union,
    tiles_of,
    workspace,
)
from fullfield.ops.correlation._cpu_simd import fetch

# A slot's notes: what it holds (below 0: nothing for -n more lookups), then x0, y0, columns, rows of
# its rectangle or of every lane's, then how long it rests when it is of no use again.
NOTES = 2 + 4 * LANES
_LONGEST_REST = 16
_UNION, _SINGLE = 1, 2
# Least width of a new strip next to a rectangle, if it fits: products of a narrower one wait for each other.
_STRIP = 4
# A lane's rectangle grows by at most this much: cells far away are not read again.
_ROOM = 3


@_jit
def _single_side(window, capacity):
    """Return the columns and rows of every lane's rectangle if each lane has one."""
    return min(int(np.sqrt(capacity)), window + _ROOM)


@_jit
def _fill(one, y, begin, end, f1, i1, f2, i2, plane, blocks, height, width, patches, at, origin, line, lane):
    """Write products of columns [begin, end) of row y from cell ``at`` on, whose first column is ``origin``."""
    zero = splat(np.float32(0.0))
    inside = 0 <= y < height
    xs = min(max(begin, 0), end) if inside else end
    xe = max(min(end, width), xs) if inside else end
    if xe > xs:
        p = i2 + (y * width + xs) * LANES
        here = at + (xs - origin) * LANES
        if one:
            _row(True, xe - xs, f1, i1, f2, p, plane, blocks, patches, here)
            if xe == width:  # an odd row's last product went one cell too far
                store(patches, at + (xe - origin) * LANES, zero)
        else:
            _row(False, xe - xs, f1, i1, f2, p, plane, blocks, line, 0)
            for k in range(xe - xs):
                patches[here + k * LANES + lane] = line[k]
    for x in range(begin, end):
        if x < xs or x >= xe:
            if one:
                store(patches, at + (x - origin) * LANES, zero)
            else:
                patches[at + (x - origin) * LANES + lane] = np.float32(0.0)


@_jit
def _renew(
    one, x0, y0, columns, rows, f1, i1, f2, i2, plane, blocks, height, width,
    patches, at, limit, note, cells, line, lane,
):  # fmt: skip
    """Extend the rectangle that ``note`` describes to hold [y0, y0 + rows) × [x0, x0 + columns).

    ``limit``: the slot's cells for one rectangle, else the side of every lane's.
    """
    kx, ky, kc, kr = note[0], note[1], note[2], note[3]
    if kc > 0 and kx <= x0 and ky <= y0 and x0 + columns <= kx + kc and y0 + rows <= ky + kr:
        return
    left, top, right, bottom = x0, y0, x0 + columns, y0 + rows
    if kc > 0:
        # Around both if they fit, with a wider strip or without; else the new alone.
        for strip in (_STRIP, 0):
            begin, end = min(x0, kx), max(x0 + columns, kx + kc)
            if begin < kx:
                begin = min(begin, kx - strip)
            if end > kx + kc:
                end = max(end, kx + kc + strip)
            up, down = min(y0, ky), max(y0 + rows, ky + kr)
            across, along = end - begin, down - up
            if (one and along * _pitch(across) <= limit) or (not one and along <= limit and across <= limit):
                left, top, right, bottom = begin, up, end, down
                break
    # What stays.
    xs, xe = max(left, kx), min(right, kx + kc)
    ys, ye = max(top, ky), min(bottom, ky + kr)
    if kc == 0 or xs >= xe or ys >= ye:
        xs, xe, ys, ye = left, left, top, top
    before = _pitch(kc) if one else limit
    pitch = _pitch(right - left) if one else limit
    n = 0
    for y in range(ys, ye):
        for x in range(xs, xe):
            source = at + ((y - ky) * before + x - kx) * LANES
            if one:
                store(cells, n * LANES, load(patches, source))
            else:
                cells[n] = patches[source + lane]
            n += 1
    n = 0
    for y in range(top, bottom):
        row = at + (y - top) * pitch * LANES
        if ys <= y < ye:
            for x in range(xs, xe):
                if one:
                    store(patches, row + (x - left) * LANES, load(cells, n * LANES))
                else:
                    patches[row + (x - left) * LANES + lane] = cells[n]
                n += 1
        begin, end = (xs, xe) if ys <= y < ye else (right, right)
        for first, last in ((left, begin), (end, right)):
            _fill(
                one, y, first, last, f1, i1, f2, i2, plane, blocks, height, width, patches, row, left, line, lane
            )  # fmt: skip
    note[0], note[1], note[2], note[3] = left, top, right - left, bottom - top


@_jit
def _shares(note, x, y, columns, rows):
    """Return whether a rectangle shares a cell with the noted one."""
    return (
        x < note[0] + note[2] and note[0] < x + columns
        and y < note[1] + note[3] and note[1] < y + rows
    )  # fmt: skip


@_jit
def _rests(note, x0, y0, columns, rows, lane_x, lane_y, window):
    """Return whether a slot rests, because its windows repeatedly had nothing in common with those before."""
    last = NOTES - 1
    if note[0] < 0:
        note[0] += 1
        return True
    missed = 0
    seen = 1
    if note[0] == _UNION:
        missed = 0 if _shares(note[1:], x0, y0, columns, rows) else 1
    elif note[0] == _SINGLE:
        seen = 0
        for lane in range(LANES):
            if lane_x[lane] > -(1 << 30):
                seen += 1
                if not _shares(note[1 + 4 * lane :], lane_x[lane], lane_y[lane], window, window):
                    missed += 1
    if 2 * missed <= seen:
        if note[0] > 0:
            note[last] = 0
        return False
    rest = note[last]
    note[last] = min(max(2 * rest, 1), _LONGEST_REST)
    if rest == 0:
        return False
    note[0] = -rest
    return True


@_jit
def _kept_cells(
    f1, i1, f2, i2, plane, blocks, height, width, window, lane_x, lane_y, pixel, line, offsets, cells,
    patches, at, capacity, note,
):  # fmt: skip
    """Fill the slot from ``at`` on as _window_cells does; return its pitch, or 0 if it is too small or rests."""
    x0, y0, columns, rows = _union(lane_x, lane_y, window)
    one = rows * _pitch(columns) <= largest_union(window)
    if one and rows * _pitch(columns) > capacity:
        return 0
    if _rests(note, x0, y0, columns, rows, lane_x, lane_y, window):
        return 0
    kind = _UNION if one else _SINGLE
    if note[0] != kind:
        note[: NOTES - 1] = 0
        note[0] = kind
    if one:
        _renew(
            True, x0, y0, columns, rows, f1, i1, f2, i2, plane, blocks, height, width,
            patches, at, capacity, note[1:], cells, line, 0,
        )  # fmt: skip
        pitch = _pitch(note[3])
        for lane in range(LANES):
            offsets[lane] = lane
            if lane_x[lane] > -(1 << 30):
                offsets[lane] += ((lane_y[lane] - note[2]) * pitch + lane_x[lane] - note[1]) * LANES
        return pitch
    pitch = _single_side(window, capacity)
    for lane in range(LANES):
        offsets[lane] = lane
        if lane_x[lane] > -(1 << 30):
            kept = note[1 + 4 * lane :]
            x, y = lane_x[lane], lane_y[lane]
            if not (
                kept[2] > 0 and kept[0] <= x and kept[1] <= y
                and x + window <= kept[0] + kept[2] and y + window <= kept[1] + kept[3]
            ):  # fmt: skip
                for channel in range(blocks * LANES):
                    pixel[channel] = f1[i1 + channel * LANES + lane]
                _renew(
                    False, x, y, window, window, pixel, 0, f2, i2, plane, blocks, height, width,
                    patches, at, pitch, kept, cells, line, lane,
                )  # fmt: skip
            offsets[lane] += ((y - kept[1]) * pitch + x - kept[0]) * LANES
    return pitch


@_jit
def _fetch(patches, at, window, capacity, note):
    """Prefetch the cells of a slot."""
    cells = 0
    if note[0] == _UNION:
        cells = note[4] * _pitch(note[3])
    elif note[0] == _SINGLE:
        cells = _single_side(window, capacity) ** 2
    for cell in range(cells):
        fetch(patches, at + cell * LANES)


@_jit
def lookup_tiles_with_patches(f1, f2, levels, scales, coords, window, blocks, slots, patches, notes, out, first, last):
    """Look up as ``lookup_tiles`` does, with the products that ``patches`` keeps.

    ``slots`` holds a row (first cell of a tile's patches, cells) per level and the end of all; ``notes``
    [tiles, levels, NOTES] describes what is kept, and is zero at first.
    """
    side = window - 1
    tiles = tiles_of(coords)
    cells, pixel, line, taps, offsets, lane_x, lane_y, fx, fy = workspace(window, blocks)
    for index in range(first, last):
        b = index // tiles
        tile = index % tiles
        i1 = index * blocks * _BLOCK
        for level in range(levels.shape[0]):
            height = levels[level, 1]
            width = levels[level, 2]
            plane = levels[level, 3]
            # While this level is worked on, the next one's products come.
            ahead = level + 1 if level + 1 < levels.shape[0] else 0
            beside = index if ahead > 0 else min(index + 1, last - 1)
            here = (beside * slots[levels.shape[0], 0] + slots[ahead, 0]) * LANES
            _fetch(patches, here, window, slots[ahead, 1], notes[beside, ahead])
            seen = _place(coords, scales, b, level, tile, window, height, width, lane_x, lane_y, fx, fy)
            if seen == 0:
                taps[:] = np.float32(0.0)
            else:
                i2 = levels[level, 0] + b * levels[level, 4]
                at = (index * slots[levels.shape[0], 0] + slots[level, 0]) * LANES
                pitch = _kept_cells(
                    f1, i1, f2, i2, plane, blocks, height, width, window, lane_x, lane_y, pixel, line, offsets, cells,
                    patches, at, slots[level, 1], notes[index, level],
                )  # fmt: skip
                if pitch > 0:
                    _blend(patches, at, offsets, pitch, window, fx, fy, line, taps)
                    for lane in range(LANES):
                        if lane_x[lane] == -(1 << 30):
                            for k in range(side * side):
                                taps[k * LANES + lane] = np.float32(0.0)
                else:
                    pitch = _window_cells(
                        f1, i1, f2, i2, plane, blocks, height, width, window,
                        lane_x, lane_y, pixel, line, offsets, cells,
                    )  # fmt: skip
                    _blend(cells, 0, offsets, pitch, window, fx, fy, line, taps)
            _write(taps, out, b, level * side * side, side * side, tile)


_i = types.intp
_flat = types.float32[::1]
_floats = types.Array(types.float32, 4, "A")
_table = types.int64[:, ::1]

ENTRY_POINTS = {
    "lookup_tiles_with_patches": (
        lookup_tiles_with_patches,
        (_flat, _flat, _table, _flat, _floats, _i, _i, _table, _flat, types.int32[:, :, ::1], _floats, _i, _i),
    ),
}
