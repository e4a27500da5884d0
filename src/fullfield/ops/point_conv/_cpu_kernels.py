"""numba kernels of the CPU backend. Importing this module needs numba; nothing compiles until asked.

Sixty-four rows, a *tile*, are worked on together. Their cursors walk the kernel cells; for every cell the tile's
buckets are summed into a small dense matrix, whose product with the cell's weights is added to the tile's result.
Everything is float32. Weights are packed ``[group][cell][panel][channel in][lanes]``, panels of 16 * PANEL output
channels, the last perhaps 16; a *pitch* is a number of output channels rounded up to 16.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import create_jit_decorator, find_or_create_numba_cache_folder_or_none
from fullfield._kernels.simd import LANES, load, store
from fullfield._kernels.simd import __file__ as _simd_file
from fullfield.ops.point_conv._cpu_simd import MOST, PANEL, SQUARE, accumulate_panel, accumulate_single
from fullfield.ops.point_conv._cpu_simd import __file__ as _own_simd_file

TILE = 64
BLOCK = 2 * LANES  # input channels of a weight gradient worked on together
_PANEL_STEP = PANEL * LANES

CACHE = find_or_create_numba_cache_folder_or_none(__file__, _own_simd_file, _simd_file)
_jit = create_jit_decorator(CACHE)


@_jit
def _read_entry_cell(entries, cells, index_bits, at):
    word = np.int64(entries[at])
    if cells.size > 0:
        return np.int64(cells[at]) | (word >> 31 << 8)
    return word >> index_bits


@_jit
def _read_entry_index(entries, cells, index_bits, at):
    word = np.int64(entries[at])
    if cells.size > 0:
        return word & 0x7FFFFFFF
    return word & ((1 << index_bits) - 1)


@_jit
def _write_entry(index, cell, index_bits, entries_out, cells_out, at):
    if cells_out.size > 0:
        entries_out[at] = np.uint32(index | (cell >> 8 << 31))
        cells_out[at] = np.uint8(cell & 0xFF)
    else:
        entries_out[at] = np.uint32(index | (cell << index_bits))


@_jit
def _accumulate_panel_products(
    product_rows,
    depth,
    left,
    left_row_step,
    left_depth_step,
    right,
    right_start,
    pitch,
    right_offsets,
    single_panel_offsets,
    out,
    out_start,
    row_offsets,
    first_row,
):
    """Add the products of all panels of ``pitch`` channels to ``out``.

    ``right`` holds the panels in sequence, ``depth`` rows each, or side by side.
    """
    channel = 0
    while channel < pitch:
        side_by_side = single_panel_offsets.size == 0
        start = right_start + (channel if side_by_side else channel * depth)
        if pitch - channel >= _PANEL_STEP:
            accumulate_panel(
                product_rows,
                depth,
                left,
                first_row * left_row_step,
                left_row_step,
                left_depth_step,
                right,
                start,
                right_offsets,
                out,
                out_start + channel,
                row_offsets,
                first_row,
            )
            channel += _PANEL_STEP
        else:
            steps = right_offsets if side_by_side else single_panel_offsets
            accumulate_single(
                product_rows,
                depth,
                left,
                first_row * left_row_step,
                left_row_step,
                left_depth_step,
                right,
                start,
                steps,
                out,
                out_start + channel,
                row_offsets,
                first_row,
            )
            channel += LANES


@_jit
def _set_cursors_and_find_first_cell(
    row_offsets, entries, cells, index_bits, cell_count, first_row, row_count, cursors, next_cells
):
    """Put the cursors on the first entries of rows; returns the first cell in use."""
    lowest = cell_count
    for r in range(row_count):
        cursors[r] = row_offsets[first_row + r]
        next_cells[r] = cell_count
        if cursors[r] < row_offsets[first_row + r + 1]:
            next_cells[r] = _read_entry_cell(entries, cells, index_bits, cursors[r])
        lowest = min(lowest, next_cells[r])
    return lowest


@_jit
def _sum_feature_rows(
    features,
    channels,
    entries,
    cells,
    index_bits,
    first_entry,
    end_entry,
    first_channel,
    channel_count,
    sums_out,
    sums_start,
):
    """Write sums over the rows of entries [first_entry, end_entry), per channel, from ``sums_out[sums_start]`` on."""
    together, vector_width = channel_count // (4 * LANES) * 4 * LANES, channel_count // LANES * LANES
    for c in range(0, together, 4 * LANES):  # four sums at once, as each waits for its last addition
        start = _read_entry_index(entries, cells, index_bits, first_entry) * channels + first_channel + c
        w, x = load(features, start), load(features, start + LANES)
        y, z = load(features, start + 2 * LANES), load(features, start + 3 * LANES)
        for at in range(first_entry + 1, end_entry):
            start = _read_entry_index(entries, cells, index_bits, at) * channels + first_channel + c
            w, x = w + load(features, start), x + load(features, start + LANES)
            y, z = y + load(features, start + 2 * LANES), z + load(features, start + 3 * LANES)
        store(sums_out, sums_start + c, w)
        store(sums_out, sums_start + c + LANES, x)
        store(sums_out, sums_start + c + 2 * LANES, y)
        store(sums_out, sums_start + c + 3 * LANES, z)
    for c in range(together, vector_width, LANES):
        total = load(
            features, _read_entry_index(entries, cells, index_bits, first_entry) * channels + first_channel + c
        )
        for at in range(first_entry + 1, end_entry):
            total = total + load(
                features, _read_entry_index(entries, cells, index_bits, at) * channels + first_channel + c
            )
        store(sums_out, sums_start + c, total)
    for c in range(vector_width, channel_count):
        value = features[_read_entry_index(entries, cells, index_bits, first_entry) * channels + first_channel + c]
        for at in range(first_entry + 1, end_entry):
            value += features[_read_entry_index(entries, cells, index_bits, at) * channels + first_channel + c]
        sums_out[sums_start + c] = value


@_jit
def _sum_buckets_and_get_count_and_next_cell(
    features,
    channels,
    row_offsets,
    entries,
    cells,
    index_bits,
    cell_count,
    current_cell,
    first_row,
    row_count,
    cursors,
    next_cells,
    first_channel,
    channel_count,
    sums_out,
    pitch,
    used_rows_out,
):
    """Sum the inputs of the rows' buckets of ``current_cell``, from ``first_channel`` on.

    Return the number of buckets and the next cell in use.
    """
    n = 0
    following = cell_count
    for r in range(row_count):
        if next_cells[r] == current_cell:
            start = cursors[r]
            end = row_offsets[first_row + r + 1]
            at = start + 1
            next_cells[r] = cell_count
            while at < end:
                cell = _read_entry_cell(entries, cells, index_bits, at)
                if cell != current_cell:
                    next_cells[r] = cell
                    break
                at += 1
            _sum_feature_rows(
                features,
                channels,
                entries,
                cells,
                index_bits,
                start,
                at,
                first_channel,
                channel_count,
                sums_out,
                n * pitch,
            )
            cursors[r] = at
            used_rows_out[n] = r
            n += 1
        following = min(following, next_cells[r])
    return n, following


@_jit
def convolve_row_tiles(
    features,
    weight,
    bias,
    row_offsets,
    entries,
    cells,
    index_bits,
    cell_count,
    groups,
    inputs,
    outputs,
    out,
    first,
    last,
):
    """Compute tiles [first, last) of ``out`` [R, groups * outputs]."""
    pitch = (outputs + LANES - 1) // LANES * LANES
    flat, channels = features.reshape(-1), features.shape[1]
    sums = np.zeros((TILE + 2) * inputs, np.float32)
    result = np.zeros((TILE + 1) * pitch, np.float32)
    cursor = np.zeros(TILE, np.int64)
    upcoming = np.zeros(TILE, np.int64)
    used = np.zeros(TILE + 2, np.int64)
    lane_starts = np.arange(inputs) * _PANEL_STEP
    single = np.arange(inputs + 1) * LANES
    for tile in range(first, last):
        top = tile * TILE
        count = min(TILE, row_offsets.size - 1 - top)
        for g in range(groups):
            result[:] = np.float32(0.0)
            k = _set_cursors_and_find_first_cell(
                row_offsets, entries, cells, index_bits, cell_count, top, count, cursor, upcoming
            )
            while k < cell_count:
                n, following = _sum_buckets_and_get_count_and_next_cell(
                    flat, channels, row_offsets, entries, cells, index_bits, cell_count, k, top, count, cursor,
                    upcoming, g * inputs, inputs, sums, inputs, used,
                )  # fmt: skip
                for q in range(n):
                    used[q] *= pitch
                used[n] = TILE * pitch  # what an odd row too many computes goes behind the tile
                start = (g * cell_count + k) * inputs * pitch
                q = 0
                while q < n:
                    row_count = min((n - q + 1) // 2 * 2, MOST)
                    _accumulate_panel_products(
                        row_count,
                        inputs,
                        sums,
                        inputs,
                        1,
                        weight,
                        start,
                        pitch,
                        lane_starts,
                        single,
                        result,
                        0,
                        used,
                        q,
                    )
                    q += row_count
                k = following
            for r in range(count):
                for c in range(outputs):
                    out[top + r, g * outputs + c] = result[r * pitch + c] + bias[g * outputs + c]


@_jit
def add_tile_outer_products(
    features, grad, row_offsets, entries, cells, index_bits, cell_count, group, inputs, outputs, block, out, first, last
):
    """Add tiles [first, last) to ``out`` [kernel][channels in, rounded up to 16][pitch], for one block of channels."""
    pitch = (outputs + LANES - 1) // LANES * LANES
    height = (inputs + LANES - 1) // LANES * LANES
    c0 = group * inputs + block * BLOCK
    c1 = min(c0 + BLOCK, (group + 1) * inputs)
    flat, channels = features.reshape(-1), features.shape[1]
    sums = np.zeros(TILE * BLOCK, np.float32)
    outer = np.zeros(TILE * pitch, np.float32)
    cursor = np.zeros(TILE, np.int64)
    upcoming = np.zeros(TILE, np.int64)
    used = np.zeros(TILE, np.int64)
    row_starts = np.arange(BLOCK) * pitch
    nothing = np.empty(0, np.int64)
    for tile in range(first, last):
        top = tile * TILE
        count = min(TILE, row_offsets.size - 1 - top)
        for r in range(count):
            for c in range(outputs):
                outer[r * pitch + c] = grad[top + r, group * outputs + c]
        k = _set_cursors_and_find_first_cell(
            row_offsets, entries, cells, index_bits, cell_count, top, count, cursor, upcoming
        )
        while k < cell_count:
            n, following = _sum_buckets_and_get_count_and_next_cell(
                flat, channels, row_offsets, entries, cells, index_bits, cell_count, k, top, count, cursor, upcoming,
                c0, c1 - c0, sums, BLOCK, used,
            )  # fmt: skip
            for q in range(n):
                used[q] *= pitch
            start = (k * height + block * BLOCK) * pitch
            for channel in range(0, min(BLOCK, height - block * BLOCK), SQUARE):
                _accumulate_panel_products(
                    SQUARE, n, sums, 1, BLOCK, outer, 0, pitch, used, nothing, out, start, row_starts, channel
                )
            k = following


@_jit
def compute_and_write_sorted_row_entries(
    row_starts, indices, points, centers, grid, sides, index_bits, entries_out, cells_out, first, last
):
    """Write the sorted cells of the neighbours of centres [first, last)."""
    # Adding and taking away 1.5 * 2**23 rounds halves to even.
    half = np.float32(12582912.0)
    max_steps = np.float32(64.0)
    capacity = 0
    for row in range(first, last):
        capacity = max(capacity, row_starts[row + 1] - row_starts[row])
    keys = np.empty(capacity, np.int64)
    for row in range(first, last):
        start = row_starts[row]
        count = row_starts[row + 1] - start
        for n in range(count):
            j = indices[start + n]
            cell = 0
            for axis in range(3):
                distance = (points[j, axis] - centers[row, axis]) / grid
                distance = min(max(distance, -max_steps), max_steps)
                steps = int((distance + half) - half) + sides[axis] // 2
                cell = cell * sides[axis] + min(max(steps, 0), sides[axis] - 1)
            keys[n] = (cell << 32) | j
        keys[:count].sort()
        _write_sorted_keys_as_entries(keys, count, index_bits, entries_out, cells_out, start)


@_jit
def _write_sorted_keys_as_entries(keys, count, index_bits, entries_out, cells_out, start):
    for n in range(count):
        _write_entry(keys[n] & 0xFFFFFFFF, keys[n] >> 32, index_bits, entries_out, cells_out, start + n)


@_jit
def scatter_entries_into_transposed_rows(
    row_offsets, entries, cells, index_bits, next_positions, entries_out, cells_out
):
    """Put every entry into the row of its index; ``next_positions`` then holds the rows' ends."""
    for row in range(row_offsets.size - 1):
        for at in range(row_offsets[row], row_offsets[row + 1]):
            j = _read_entry_index(entries, cells, index_bits, at)
            k = _read_entry_cell(entries, cells, index_bits, at)
            to = next_positions[j]
            next_positions[j] = to + 1
            _write_entry(row, k, index_bits, entries_out, cells_out, to)


@_jit
def sort_row_entries_inplace(row_offsets, entries, cells, index_bits, first, last):
    capacity = 0
    for row in range(first, last):
        capacity = max(capacity, row_offsets[row + 1] - row_offsets[row])
    keys = np.empty(capacity, np.int64)
    for row in range(first, last):
        start = row_offsets[row]
        count = row_offsets[row + 1] - start
        for n in range(count):
            keys[n] = (_read_entry_cell(entries, cells, index_bits, start + n) << 32) | _read_entry_index(
                entries, cells, index_bits, start + n
            )
        keys[:count].sort()
        _write_sorted_keys_as_entries(keys, count, index_bits, entries, cells, start)


@_jit
def count_entries_per_index(entries, cells, index_bits, counts_out):
    for at in range(entries.size):
        counts_out[_read_entry_index(entries, cells, index_bits, at)] += 1


_i = types.intp
_floats = types.Array(types.float32, 2, "C")
_flat = types.Array(types.float32, 1, "C")
_long = types.Array(types.int64, 1, "C")
_words = types.Array(types.uint32, 1, "C")
_cells = types.Array(types.uint8, 1, "C")
_ids = types.Array(types.int32, 1, "C")
_triplets = (_long, _words, _cells, _i)

ENTRY_POINTS = {
    "convolve_row_tiles": (convolve_row_tiles, (_floats, _flat, _flat, *_triplets, *[_i] * 4, _floats, _i, _i)),
    "add_tile_outer_products": (
        add_tile_outer_products,
        (_floats, _floats, *_triplets, *[_i] * 5, _flat, _i, _i),
    ),
    "compute_and_write_sorted_row_entries": (
        compute_and_write_sorted_row_entries,
        (_long, _ids, _floats, _floats, types.float32, _long, _i, _words, _cells, _i, _i),
    ),
    "scatter_entries_into_transposed_rows": (scatter_entries_into_transposed_rows, (*_triplets, _long, _words, _cells)),
    "sort_row_entries_inplace": (sort_row_entries_inplace, (*_triplets, _i, _i)),
    "count_entries_per_index": (count_entries_per_index, (_words, _cells, _i, _long)),
}
