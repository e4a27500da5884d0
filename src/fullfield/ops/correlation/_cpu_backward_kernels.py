# mypy: ignore-errors
"""Numba kernels of the CPU backend's gradients with respect to the coordinates and to both feature maps.

The latter takes two passes over a chunk of tiles. ``compute_dot_gradients`` turns the gradient of the lookup into that
of the dot products, window by window (parallel over tiles). ``add_tiles_to_gradients`` multiplies it with the features,
sixteen channels at a time; a thread owns its channels in both gradients, so that nothing is added to from two sides
and the result does not depend on the number of threads. A pixel's gradient is summed row by row, then level by level:
thousands of products added to one float32, one after another, would be several times as far from the exact sum.
"""

from __future__ import annotations

import numpy as np

from fullfield._kernels.simd import load, splat, store
from fullfield.ops.correlation._cpu_kernels import (
    CACHE,  # noqa: F401 - of these kernels too
    LANES,
    LOOKUP,
    _clip_range_to_size,
    _compute_bounding_box,
    _compute_box_row_pitch,
    _compute_tile_origin,
    _fill_tile_products_and_get_pitch,
    _flat,
    _floats,
    _helper,
    _i,
    _jit,
    _locate_lane_windows_and_count_visible,
    _scratch,
    _table,
    _write_taps_to_map,
    compute_bilinear_weights,
    compute_max_box_cells,
    count_tiles_per_image,
)
from fullfield.ops.correlation._cpu_layout import TILE
from fullfield.ops.correlation._cpu_simd import (
    ADD_PRODUCTS_OVER_POSITIONS,
    STEP,
    add_products_over_lanes,
    gather_lanes,
    scatter_lanes,
)

_BLOCK = LANES * LANES
TILE_HEIGHT, TILE_WIDTH = TILE
# What is noted about a tile's window on a level: kind, then x0, y0, columns, rows, pitch (one box) or the x, y of
# every lane (one window each).
NOTES = 1 + 2 * LANES
_NOTHING, _ONE_BOX, _SINGLE = 0, 1, 2


@_helper
def _read_taps_from_map(taps_out, source, image, first_channel, channel_count, tile):
    """Read a tile of ``source``, the adjoint of ``_write_taps_to_map``; lanes outside the image read zero."""
    height = source.shape[2]
    width = source.shape[3]
    top, left = _compute_tile_origin(tile, width)
    columns = min(TILE_WIDTH, width - left)
    zero = splat(np.float32(0.0))
    for k in range(channel_count):
        store(taps_out, k * LANES, zero)
        for y in range(min(TILE_HEIGHT, height - top)):
            at = k * LANES + y * TILE_WIDTH
            for x in range(columns):
                taps_out[at + x] = source[image, first_channel + k, top + y, left + x]


@_helper
def _backpropagate_taps_to_fractions(cells, offsets, pitch, window_side, fx, fy, grad, slopes_out):
    """Write the sums over taps of grad * d tap / d x and grad * d tap / d y, 16 lanes each."""
    side = window_side - 1
    left, right, above, below = compute_bilinear_weights(fx, fy)
    sum_x = splat(np.float32(0.0))
    sum_y = splat(np.float32(0.0))
    for row in range(side):
        up = row * pitch * LANES
        down = up + pitch * LANES
        a = gather_lanes(cells, offsets, up)
        c = gather_lanes(cells, offsets, down)
        for dx in range(side):
            b = gather_lanes(cells, offsets, up + (dx + 1) * LANES)
            d = gather_lanes(cells, offsets, down + (dx + 1) * LANES)
            g = load(grad, (dx * side + row) * LANES)
            sum_x = sum_x + g * (above * (b - a) + below * (d - c))
            sum_y = sum_y + g * (left * (c - a) + right * (d - b))
            a = b
            c = d
    store(slopes_out, 0, sum_x)
    store(slopes_out, LANES, sum_y)


@_jit
def compute_coords_gradients(
    source_features,
    target_features,
    levels,
    scales,
    coords,
    window_side,
    channel_blocks,
    scratch,
    grad,
    out,
    first,
    last,
):
    """Write the gradient of the coordinates of tiles [first, last) into ``out`` [B, 2, H1, W1].

    ``grad`` is the gradient of what ``lookup_tiles`` writes.
    """
    cells, _, _, taps, offsets, lane_x, _, fx, fy = scratch
    positions = (window_side - 1) * (window_side - 1)
    tiles = count_tiles_per_image(coords)
    total = np.zeros(2 * LANES, np.float32)
    slopes = np.zeros(2 * LANES, np.float32)
    for index in range(first, last):
        b = index // tiles
        tile = index % tiles
        total[:] = np.float32(0.0)
        for level in range(levels.shape[0]):
            pitch = _fill_tile_products_and_get_pitch(
                source_features,
                target_features,
                levels,
                scales,
                coords,
                window_side,
                channel_blocks,
                index,
                level,
                scratch,
            )
            if pitch > 0:
                _read_taps_from_map(taps, grad, b, level * positions, positions, tile)
                _backpropagate_taps_to_fractions(cells, offsets, pitch, window_side, fx, fy, taps, slopes)
                for lane in range(2 * LANES):
                    # a lane that sees nothing keeps its zero, whatever its incoming gradient
                    if lane_x[lane % LANES] > -(1 << 30):
                        total[lane] += slopes[lane] * scales[level]
        _write_taps_to_map(total, out, b, 0, 2, tile)


@_jit
def compute_dot_gradients(
    levels,
    scales,
    coords,
    grad,
    window_side,
    first_stored_tile,
    scratch,
    first,
    last,
    tile_windows_out,
    dot_gradients_out,
):
    """Write the dot products' gradient of tiles [first, last) into slots counted from ``first_stored_tile``."""
    side = window_side - 1
    slot = (compute_max_box_cells(window_side) + 2) * LANES
    tiles = count_tiles_per_image(coords)
    _, _, line, taps, offsets, lane_x, lane_y, fx, fy = scratch
    zero = splat(np.float32(0.0))
    for index in range(first, last):
        b = index // tiles
        tile = index % tiles
        for level in range(levels.shape[0]):
            at = (index - first_stored_tile) * levels.shape[0] + level
            seen = _locate_lane_windows_and_count_visible(
                coords, scales, b, level, tile, window_side,
                levels[level, 1], levels[level, 2], lane_x, lane_y, fx, fy,
            )  # fmt: skip
            tile_windows_out[at, 0] = _NOTHING
            if seen == 0:
                continue
            _read_taps_from_map(taps, grad, b, level * side * side, side * side, tile)
            x0, y0, columns, rows = _compute_bounding_box(lane_x, lane_y, window_side)
            pitch = _compute_box_row_pitch(columns)
            if rows * pitch <= compute_max_box_cells(window_side):
                tile_windows_out[at, 0] = _ONE_BOX
                tile_windows_out[at, 1] = x0
                tile_windows_out[at, 2] = y0
                tile_windows_out[at, 3] = columns
                tile_windows_out[at, 4] = rows
                tile_windows_out[at, 5] = pitch
            else:
                tile_windows_out[at, 0] = _SINGLE
                rows = window_side
                pitch = window_side
            for cell in range(rows * pitch):
                store(dot_gradients_out, at * slot + cell * LANES, zero)
            for lane in range(LANES):
                offsets[lane] = lane
                if lane_x[lane] == -(1 << 30):
                    for k in range(side * side):
                        taps[k * LANES + lane] = np.float32(0.0)
                elif tile_windows_out[at, 0] == _ONE_BOX:
                    offsets[lane] = ((lane_y[lane] - y0) * pitch + lane_x[lane] - x0) * LANES + lane
                if tile_windows_out[at, 0] == _SINGLE:
                    tile_windows_out[at, 1 + lane] = lane_x[lane]
                    tile_windows_out[at, 1 + LANES + lane] = lane_y[lane]
            left, right, above, below = compute_bilinear_weights(fx, fy)
            for row in range(window_side):
                for dx in range(side):
                    value = zero
                    if row < side:
                        value = above * load(taps, (dx * side + row) * LANES)
                    if row > 0:
                        value = value + below * load(taps, (dx * side + row - 1) * LANES)
                    store(line, (dx + 1) * LANES, value)
                for column in range(window_side):
                    value = right * load(line, column * LANES) + left * load(line, (column + 1) * LANES)
                    scatter_lanes(dot_gradients_out, offsets, at * slot + (row * pitch + column) * LANES, value)


@_helper
def _add_box_gradients(
    weights,
    weights_start,
    target_features,
    target_start,
    source_block,
    source_gradient,
    source_start,
    target_gradient,
    tile_window,
    height,
    width,
    needs_source_gradient,
    needs_target_gradient,
):
    xs, xe = _clip_range_to_size(tile_window[1], tile_window[3], width)
    ys, ye = _clip_range_to_size(tile_window[2], tile_window[4], height)
    pitch = tile_window[5] * LANES
    weights_start += (ys - tile_window[2]) * pitch + (xs - tile_window[1]) * LANES
    target_start += (ys * width + xs) * LANES
    if needs_source_gradient:
        for channel in range(0, LANES, STEP):
            ADD_PRODUCTS_OVER_POSITIONS(
                weights,
                weights_start,
                pitch,
                target_features,
                target_start + channel,
                width * LANES,
                xe - xs,
                ye - ys,
                source_gradient,
                source_start + channel * LANES,
            )
    if needs_target_gradient:
        for row in range(ye - ys):
            add_products_over_lanes(
                weights,
                weights_start + row * pitch,
                source_block,
                0,
                xe - xs,
                target_gradient,
                target_start + row * width * LANES,
            )


@_helper
def _add_window_gradients(
    weights,
    weights_start,
    target_features,
    target_start,
    source_block,
    source_gradient,
    source_start,
    target_gradient,
    tile_window,
    height,
    width,
    window_side,
    line,
    needs_source_gradient,
    needs_target_gradient,
):
    for lane in range(LANES):
        x = tile_window[1 + lane]
        y = tile_window[1 + LANES + lane]
        if x == -(1 << 30):
            continue
        xs, xe = _clip_range_to_size(x, window_side, width)
        ys, ye = _clip_range_to_size(y, window_side, height)
        own = load(source_block, lane * LANES)
        pulled = splat(np.float32(0.0))
        for row in range(ys, ye):
            cell = target_start + row * width * LANES
            at = weights_start + ((row - y) * window_side - x) * LANES + lane
            for column in range(xs, xe):
                weight = splat(weights[at + column * LANES])
                k = cell + column * LANES
                if needs_source_gradient:
                    pulled = pulled + weight * load(target_features, k)
                if needs_target_gradient:
                    store(target_gradient, k, load(target_gradient, k) + weight * own)
        if needs_source_gradient:
            store(line, 0, pulled)
            for channel in range(LANES):
                source_gradient[source_start + channel * LANES + lane] += line[channel]


@_jit
def add_tiles_to_gradients(
    source_features,
    target_features,
    levels,
    tile_windows,
    dot_gradients,
    window_side,
    tiles,
    channel_blocks,
    first_stored_tile,
    end,
    first,
    last,
    source_gradient,
    target_gradient,
):
    """Add tiles [origin, end) to channel blocks [first, last) of both gradients; either may be empty."""
    slot = (compute_max_box_cells(window_side) + 2) * LANES
    needs_f1 = source_gradient.size > 0
    needs_f2 = target_gradient.size > 0
    f1_block = np.zeros(_BLOCK, np.float32)
    line = np.zeros(LANES, np.float32)
    for block in range(first, last):
        for index in range(first_stored_tile, end):
            i1 = (index * channel_blocks + block) * _BLOCK
            for channel in range(LANES):
                for lane in range(LANES):
                    f1_block[lane * LANES + channel] = source_features[i1 + channel * LANES + lane]
            for level in range(levels.shape[0]):
                at = (index - first_stored_tile) * levels.shape[0] + level
                p = levels[level, 0] + (index // tiles) * levels[level, 4] + block * levels[level, 3]
                height = levels[level, 1]
                width = levels[level, 2]
                if tile_windows[at, 0] == _ONE_BOX:
                    _add_box_gradients(
                        dot_gradients,
                        at * slot,
                        target_features,
                        p,
                        f1_block,
                        source_gradient,
                        i1,
                        target_gradient,
                        tile_windows[at],
                        height,
                        width,
                        needs_f1,
                        needs_f2,
                    )
                elif tile_windows[at, 0] == _SINGLE:
                    _add_window_gradients(
                        dot_gradients,
                        at * slot,
                        target_features,
                        p,
                        f1_block,
                        source_gradient,
                        i1,
                        target_gradient,
                        tile_windows[at],
                        height,
                        width,
                        window_side,
                        line,
                        needs_f1,
                        needs_f2,
                    )


ENTRY_POINTS = {
    "compute_coords_gradients": (compute_coords_gradients, (*LOOKUP, _floats, _floats, _i, _i)),
    "compute_dot_gradients": (
        compute_dot_gradients, (_table, _flat, _floats, _floats, _i, _i, _scratch, _i, _i, _table, _flat)
    ),
    "add_tiles_to_gradients": (add_tiles_to_gradients, (_flat, _flat, _table, _table, _flat, *[_i] * 7, _flat, _flat)),
}  # fmt: skip
