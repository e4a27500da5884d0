"""Numba kernels of the CPU backend. Importing this module needs numba; the first call compiles.

Sixteen neighbouring source pixels, a *tile*, are worked on together, one per vector lane. Where their windows on a
level overlap, the dot products with their bounding box are a small matrix product; each lane then gathers and
blends its own window. Where they do not, each lane computes its own window, with the channels in the vector.

Features lie as described in ``_cpu_simd``: source ``[batch][tile][channel][16]``, already divided by √C, and target
``[batch][channel // 16][H][W][16]`` per level, ``plane`` elements apart. ``levels`` holds a row
(first element, H, W, plane, elements per image) per level.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import (
    create_helper_jit_decorator,
    create_jit_decorator,
    find_or_create_numba_cache_folder_or_none,
)
from fullfield._kernels.simd import __file__ as _simd_file
from fullfield._kernels.simd import load, splat, store
from fullfield.ops.correlation._cpu_layout import LANES, TILE
from fullfield.ops.correlation._cpu_layout import __file__ as _layout_file
from fullfield.ops.correlation._cpu_layout import compute_max_box_cells as _compute_max_box_cells
from fullfield.ops.correlation._cpu_simd import (
    MOST,
    gather_lanes,
    store_eight_lanes,
    write_pixel_products,
    write_tile_products,
)
from fullfield.ops.correlation._cpu_simd import __file__ as _own_simd_file

TILE_HEIGHT, TILE_WIDTH = TILE
_BLOCK = LANES * LANES

CACHE = find_or_create_numba_cache_folder_or_none(__file__, _own_simd_file, _simd_file, _layout_file)
_jit = create_jit_decorator(CACHE)
_helper = create_helper_jit_decorator(CACHE)
_inlined = create_helper_jit_decorator(CACHE, inline="always")


@_helper
def count_tiles_per_image(coords):  # type: ignore[no-untyped-def]
    """Return the number of tiles of an image."""
    return ((coords.shape[2] + TILE_HEIGHT - 1) // TILE_HEIGHT) * ((coords.shape[3] + TILE_WIDTH - 1) // TILE_WIDTH)


@_helper
def _compute_tile_origin(tile, width):  # type: ignore[no-untyped-def]
    """Return the first row and column of a tile."""
    across = (width + TILE_WIDTH - 1) // TILE_WIDTH
    return tile // across * TILE_HEIGHT, tile % across * TILE_WIDTH


@_helper
def compute_bilinear_weights(fx, fy):  # type: ignore[no-untyped-def]
    """Return the weights of the left, right, upper and lower neighbours."""
    one = splat(np.float32(1.0))
    right = load(fx, 0)
    below = load(fy, 0)
    return one - right, right, one - below, below


@_helper
def _compute_box_row_products(
    positions, source_features, source_start, target_features, target_start, plane, channel_blocks, out, out_start
):  # type: ignore[no-untyped-def]
    """Compute one row of a bounding box for all lanes, at most MOST positions at a time."""
    for column in range(0, positions, MOST):
        at = column * LANES
        write_tile_products(
            min(positions - column, MOST),
            source_features,
            source_start,
            target_features,
            target_start + at,
            plane,
            channel_blocks,
            out,
            out_start + at,
        )


@_helper
def _compute_lane_row_products(positions, pixel_features, target_features, target_start, plane, channel_blocks, out):  # type: ignore[no-untyped-def]
    """Compute one row of one lane's window, at most MOST positions at a time."""
    for column in range(0, positions, MOST):
        write_pixel_products(
            min(positions - column, MOST),
            pixel_features,
            0,
            target_features,
            target_start + column * LANES,
            plane,
            channel_blocks,
            out,
            column,
        )


@_helper
def _locate_lane_windows_and_count_visible(
    coords, scales, image, level, tile, window_side, height2, width2, lane_x_out, lane_y_out, fx_out, fy_out
):  # type: ignore[no-untyped-def]
    """Write each lane's first column, row and fractions; return the number of lanes that see the map.

    A lane outside the source image, with coordinates that are not finite, or whose window misses the map gets
    lane_x_out = -2**30.
    """
    height1 = coords.shape[2]
    width1 = coords.shape[3]
    top, left = _compute_tile_origin(tile, width1)
    radius = (window_side - 2) // 2
    seen = 0
    for lane in range(LANES):
        y = top + lane // TILE_WIDTH
        x = left + lane % TILE_WIDTH
        lane_x_out[lane] = -(1 << 30)
        fx_out[lane] = np.float32(0.0)
        fy_out[lane] = np.float32(0.0)
        if y < height1 and x < width1:
            px = coords[image, 0, y, x] * scales[level]
            py = coords[image, 1, y, x] * scales[level]
            # False for NaN, too.
            if -window_side < px < width2 + window_side and -window_side < py < height2 + window_side:
                ix = int(np.floor(px))
                iy = int(np.floor(py))
                fx_out[lane] = px - np.float32(ix)
                fy_out[lane] = py - np.float32(iy)
                ix -= radius
                iy -= radius
                if ix < width2 and ix + window_side > 0 and iy < height2 and iy + window_side > 0:
                    lane_x_out[lane] = ix
                    lane_y_out[lane] = iy
                    seen += 1
    return seen


@_helper
def _compute_bounding_box(lane_x, lane_y, window_side):  # type: ignore[no-untyped-def]
    """Return x0, y0, columns, rows of the rectangle around all windows."""
    x0 = 1 << 30
    y0 = 1 << 30
    x1 = -(1 << 30)
    y1 = -(1 << 30)
    for lane in range(LANES):
        if lane_x[lane] > -(1 << 30):
            x0 = min(x0, lane_x[lane])
            y0 = min(y0, lane_y[lane])
            x1 = max(x1, lane_x[lane])
            y1 = max(y1, lane_y[lane])
    return x0, y0, x1 - x0 + window_side, y1 - y0 + window_side


compute_max_box_cells = _helper(_compute_max_box_cells)


@_helper
def _compute_box_row_pitch(columns):  # type: ignore[no-untyped-def]
    """Return the cells from one row of a bounding box to the next; a row's last product may write one cell too many."""
    return (columns + 2) // 2 * 2


@_helper
def _clip_range_to_size(start, count, size):  # type: ignore[no-untyped-def]
    return max(start, 0), min(start + count, size)


@_inlined
def _fill_box_products(
    source_features,
    source_start,
    target_features,
    target_start,
    plane,
    channel_blocks,
    height,
    width,
    x0,
    y0,
    columns,
    rows,
    cells_out,
):  # type: ignore[no-untyped-def]
    """Fill cells_out[row][column][lane] with every lane's dot products with the bounding box; zero outside the map."""
    pitch = _compute_box_row_pitch(columns)
    zero = splat(np.float32(0.0))
    xs, xe = _clip_range_to_size(x0, columns, width)
    ys, ye = _clip_range_to_size(y0, rows, height)
    if xe - xs < columns or ye - ys < rows:
        for cell in range(rows * pitch):
            store(cells_out, cell * LANES, zero)
    for y in range(ys, ye):
        at = ((y - y0) * pitch + xs - x0) * LANES
        _compute_box_row_products(
            xe - xs,
            source_features,
            source_start,
            target_features,
            target_start + (y * width + xs) * LANES,
            plane,
            channel_blocks,
            cells_out,
            at,
        )
        store(cells_out, at + (xe - xs) * LANES, zero)


@_inlined
def _fill_lane_products(
    source_features,
    source_start,
    target_features,
    target_start,
    plane,
    channel_blocks,
    height,
    width,
    window_side,
    lane_x,
    lane_y,
    pixel_scratch,
    line_scratch,
    cells_out,
):  # type: ignore[no-untyped-def]
    """Fill cells_out[row][column][lane] with the dot products of the lanes' own windows."""
    zero = splat(np.float32(0.0))
    for cell in range(window_side * window_side):
        store(cells_out, cell * LANES, zero)
    for lane in range(LANES):
        if lane_x[lane] > -(1 << 30):
            for channel in range(channel_blocks * LANES):
                pixel_scratch[channel] = source_features[source_start + channel * LANES + lane]
            xs, xe = _clip_range_to_size(lane_x[lane], window_side, width)
            ys, ye = _clip_range_to_size(lane_y[lane], window_side, height)
            for y in range(ys, ye):
                _compute_lane_row_products(
                    xe - xs,
                    pixel_scratch,
                    target_features,
                    target_start + (y * width + xs) * LANES,
                    plane,
                    channel_blocks,
                    line_scratch,
                )
                at = ((y - lane_y[lane]) * window_side + xs - lane_x[lane]) * LANES + lane
                for k in range(xe - xs):
                    cells_out[at + k * LANES] = line_scratch[k]


@_inlined
def _fill_window_products_and_get_pitch(
    source_features,
    source_start,
    target_features,
    target_start,
    plane,
    channel_blocks,
    height,
    width,
    window_side,
    lane_x,
    lane_y,
    pixel_scratch,
    line_scratch,
    offsets_out,
    cells_out,
):  # type: ignore[no-untyped-def]
    """Fill ``cells_out`` for one tile and level and return its pitch; lanes that see nothing read zeros."""
    x0, y0, columns, rows = _compute_bounding_box(lane_x, lane_y, window_side)
    pitch = _compute_box_row_pitch(columns)
    dense = rows * pitch <= compute_max_box_cells(window_side)
    if dense:
        _fill_box_products(
            source_features,
            source_start,
            target_features,
            target_start,
            plane,
            channel_blocks,
            height,
            width,
            x0,
            y0,
            columns,
            rows,
            cells_out,
        )
    else:
        pitch = window_side
        _fill_lane_products(
            source_features,
            source_start,
            target_features,
            target_start,
            plane,
            channel_blocks,
            height,
            width,
            window_side,
            lane_x,
            lane_y,
            pixel_scratch,
            line_scratch,
            cells_out,
        )
    for lane in range(LANES):
        if lane_x[lane] == -(1 << 30):
            offsets_out[lane] = (compute_max_box_cells(window_side) + MOST) * LANES + lane
        elif dense:
            offsets_out[lane] = ((lane_y[lane] - y0) * pitch + lane_x[lane] - x0) * LANES + lane
        else:
            offsets_out[lane] = lane
    return pitch


@_helper
def _blend_lane_taps(cells, offsets, pitch, window_side, fx, fy, line_scratch, taps_out):  # type: ignore[no-untyped-def]
    """Blend taps_out[dx, dy][lane] from the lanes' windows in the cells: along x, then between rows."""
    side = window_side - 1
    left, right, above, below = compute_bilinear_weights(fx, fy)
    for row in range(window_side):
        before = gather_lanes(cells, offsets, row * pitch * LANES)
        for dx in range(side):
            value_right = gather_lanes(cells, offsets, (row * pitch + dx + 1) * LANES)
            value = left * before + right * value_right
            if row > 0:
                store(taps_out, (dx * side + row - 1) * LANES, above * load(line_scratch, dx * LANES) + below * value)
            store(line_scratch, dx * LANES, value)
            before = value_right


@_helper
def _write_taps_to_map(taps, out, image, first_channel, channel_count, tile):  # type: ignore[no-untyped-def]
    height = out.shape[2]
    width = out.shape[3]
    top, left = _compute_tile_origin(tile, width)
    columns = min(TILE_WIDTH, width - left)
    by_b, by_channel, by_y, by_x = out.strides
    is_full_row = columns == TILE_WIDTH and by_x == 4
    for k in range(channel_count):
        for y in range(min(TILE_HEIGHT, height - top)):
            at = k * LANES + y * TILE_WIDTH
            if is_full_row:
                store_eight_lanes(
                    out, image * by_b + (first_channel + k) * by_channel + (top + y) * by_y + left * by_x, taps, at
                )
                continue
            for x in range(columns):
                out[image, first_channel + k, top + y, left + x] = taps[at + x]


@_inlined
def _fill_tile_products_and_get_pitch(
    source_features, target_features, levels, scales, coords, window_side, channel_blocks, index, level, scratch
):  # type: ignore[no-untyped-def]
    """Fill the cells of the scratch arrays for one tile and level; return their pitch, 0 if no lane sees the map."""
    cells, pixel, line, _, offsets, lane_x, lane_y, fx, fy = scratch
    tiles = count_tiles_per_image(coords)
    b = index // tiles
    height = levels[level, 1]
    width = levels[level, 2]
    seen = _locate_lane_windows_and_count_visible(
        coords, scales, b, level, index % tiles, window_side, height, width, lane_x, lane_y, fx, fy
    )
    pitch = 0
    if seen > 0:
        pitch = _fill_window_products_and_get_pitch(
            source_features,
            index * channel_blocks * _BLOCK,
            target_features,
            levels[level, 0] + b * levels[level, 4],
            levels[level, 3],
            channel_blocks,
            height,
            width,
            window_side,
            lane_x,
            lane_y,
            pixel,
            line,
            offsets,
            cells,
        )
    return pitch


@_jit
def lookup_tiles(
    source_features, target_features, levels, scales, coords, window_side, channel_blocks, scratch, out, first, last
):  # type: ignore[no-untyped-def]
    """Write the lookup of tiles [first, last) of all images into ``out`` [B, L * (window - 1)**2, H1, W1].

    ``scratch``: see ``cpu._allocate_scratch``.
    """
    cells, _, line, taps, offsets, _, _, fx, fy = scratch
    positions = (window_side - 1) * (window_side - 1)
    tiles = count_tiles_per_image(coords)
    zero = splat(np.float32(0.0))
    for index in range(first, last):
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
                _blend_lane_taps(cells, offsets, pitch, window_side, fx, fy, line, taps)
            else:
                for position in range(positions):
                    store(taps, position * LANES, zero)
            _write_taps_to_map(taps, out, index // tiles, level * positions, positions, index % tiles)


_i = types.intp
_flat = types.float32[::1]
_floats = types.Array(types.float32, 4, "A")
_table = types.int64[:, ::1]
_lanes = types.int64[::1]
_scratch = types.Tuple((_flat, _flat, _flat, _flat, types.int32[::1], _lanes, _lanes, _flat, _flat))
LOOKUP = (_flat, _flat, _table, _flat, _floats, _i, _i, _scratch)  # types of the first arguments

ENTRY_POINTS = {"lookup_tiles": (lookup_tiles, (*LOOKUP, _floats, _i, _i))}
