"""Numba kernels of the CPU backend. Importing this module needs numba and compiles nothing.

Radius search: points sorted by the cell of a grid whose cells are as wide as the radius. Cells that follow each other
in x follow each other in memory, so a query reads nine runs of points. kNN search: a balanced k-d tree without nodes:
the middle of a range of the order splits it; ``axes`` and ``cuts`` at the middle hold the axis and the coordinate.
Downsampling: a hash table of cells.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import create_jit_decorator, find_or_create_numba_cache_folder_or_none
from fullfield._kernels.simd import LANES
from fullfield._kernels.simd import __file__ as _simd_file
from fullfield.ops.neighbors._cpu_simd import __file__ as _own_simd_file
from fullfield.ops.neighbors._cpu_simd import store_within

LEAF = 12
_DEPTH, _LEAF_SIZE = 64, 64

CACHE = find_or_create_numba_cache_folder_or_none(__file__, _own_simd_file, _simd_file)
_jit = create_jit_decorator(CACHE)


@_jit
def _compute_squared_distance(points, i, queries, q):
    x = queries[q, 0] - points[i, 0]
    y = queries[q, 1] - points[i, 1]
    z = queries[q, 2] - points[i, 2]
    return (x * x + y * y) + z * z


@_jit
def _find_first_key_not_below(keys, limit):
    low = 0
    high = keys.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@_jit
def _write_nine_point_runs_around_query(keys, starts, shape, cells, q, runs_out):
    """Write the first and last point of the nine runs of cells around a query's cell."""
    run = 0
    x0 = max(cells[3, q] - 1, 0)
    x1 = min(cells[3, q] + 1, shape[2] - 1)
    for z in range(cells[1, q] - 1, cells[1, q] + 2):
        for y in range(cells[2, q] - 1, cells[2, q] + 2):
            if x0 <= x1 and 0 <= z < shape[0] and 0 <= y < shape[1]:
                line = ((cells[0, q] * shape[0] + z) * shape[1] + y) * shape[2]
                runs_out[run, 0] = starts[_find_first_key_not_below(keys, line + x0)]
                runs_out[run, 1] = starts[_find_first_key_not_below(keys, line + x1 + 1)]
            else:
                runs_out[run, 0] = 0
                runs_out[run, 1] = 0
            run += 1


@_jit
def _sort_first_numbers_inplace(numbers, count):
    """Sort the first ``count`` numbers; for a few of them numba's own function takes a multiple of the time."""
    if count > _LEAF_SIZE:
        for n in range(1, count):
            if numbers[n - 1] > numbers[n]:
                numbers[:count].sort()
                return
        return
    for n in range(1, count):
        number, at = numbers[n], n
        while at > 0 and numbers[at - 1] > number:
            numbers[at] = numbers[at - 1]
            at -= 1
        numbers[at] = number


@_jit
def _find_end_within_same_query_cell(query_cells, query_order, step, last):
    """Return the end of the queries from ``query_order[step]`` on, before ``last``, that are in the same cell."""
    q, end = query_order[step], step + 1
    while end < last:
        for axis in range(4):
            if query_cells[axis, query_order[end]] != query_cells[axis, q]:
                return end
        end += 1
    return end


@_jit
def _gather_candidates_growing_arrays(
    points, points_by_cell, order, runs, sorts_candidates, candidates, coordinates, squares
):
    """Write the points of nine runs into ``candidates``, where they are into ``coordinates``; return their number.

    Arrays that are too short are replaced by longer ones.
    """
    count = 0
    for run in range(9):
        count += runs[run, 1] - runs[run, 0]
    if count + LANES > candidates.size:
        candidates = np.empty(count + count // 4 + LANES, np.int32)
        coordinates, squares = np.empty((3, candidates.size), np.float32), np.empty(candidates.size, np.float32)
    xs, ys, zs, at = coordinates[0], coordinates[1], coordinates[2], np.uintp(0)
    for run in range(9):
        for i in range(np.uintp(runs[run, 0]), np.uintp(runs[run, 1])):
            candidates[at], xs[at], ys[at], zs[at] = (
                order[i],
                points_by_cell[0, i],
                points_by_cell[1, i],
                points_by_cell[2, i],
            )
            at += np.uintp(1)
    if sorts_candidates:
        _sort_first_numbers_inplace(candidates, count)
        for n in range(np.uintp(count)):
            i = np.uintp(candidates[n])
            coordinates[0, n], coordinates[1, n], coordinates[2, n] = points[i, 0], points[i, 1], points[i, 2]
    for n in range(LANES):
        squares[count + n] = np.inf  # a vector reads beyond the last
    return count, candidates, coordinates, squares


# Indices without sign: numba looks whether signed ones are negative, and LLVM then makes no vectors of the loops.
@_jit
def _write_squared_distances(coordinates, count, queries, q, squares_out):
    """Write the squared distances of the first ``count`` places from a query."""
    x, y, z = queries[q, 0], queries[q, 1], queries[q, 2]
    xs, ys, zs = coordinates[0], coordinates[1], coordinates[2]
    for n in range(np.uintp(count)):
        dx, dy, dz = x - xs[n], y - ys[n], z - zs[n]
        squares_out[n] = (dx * dx + dy * dy) + dz * dz


@_jit
def count_or_write_neighbors_within_radius(
    points,
    points_by_cell,
    order,
    keys,
    starts,
    shape,
    queries,
    query_cells,
    query_order,
    max_squared_distance,
    writes_indices,
    sorts_indices,
    counts_or_offsets,
    indices_out,
    first,
    last,
):
    """Count neighbours of queries ``query_order[first:last]`` into ``counts_or_offsets[q + 1]``, or write indices.

    ``points_by_cell`` [3, N] has the points in the order of their cells, ``query_cells`` [4, M] each query's cloud, z,
    y and x. Queries of one cell follow each other: the points around it are copied once for all of them. The copies
    take at most 50 bytes for each point in the fullest 27 cells around a query, and 1 KiB, in each thread.
    """
    runs, count, end = np.zeros((9, 2), np.int64), 0, first
    who, coordinates, squares = np.empty(0, np.int32), np.empty((3, 0), np.float32), np.empty(0, np.float32)
    neighbors, sort_rows = np.empty(0, np.int32), False
    for step in range(first, last):
        q = query_order[step]
        if step == end:
            end = _find_end_within_same_query_cell(query_cells, query_order, step, last)
            _write_nine_point_runs_around_query(keys, starts, shape, query_cells, q, runs)
            sort_all = False
            if writes_indices and sorts_indices:
                hits = 0
                for n in range(step, end):
                    hits += counts_or_offsets[query_order[n] + 1] - counts_or_offsets[query_order[n]]
                # Few queries have fewer neighbours than candidates: then sorting each row takes less time.
                sort_all = hits > np.sum(runs[:, 1] - runs[:, 0])
            sort_rows = sorts_indices and not sort_all
            count, who, coordinates, squares = _gather_candidates_growing_arrays(
                points, points_by_cell, order, runs, sort_all, who, coordinates, squares
            )
            if writes_indices and neighbors.size < who.size:
                neighbors = np.empty(who.size, np.int32)
        _write_squared_distances(coordinates, count, queries, q, squares)
        if not writes_indices:
            within = np.int32(0)
            for n in range(np.uintp(count)):
                within += np.int32(squares[n] <= max_squared_distance)
            counts_or_offsets[q + 1] = within
            continue
        at = 0
        for n in range(0, count, LANES):
            at = store_within(squares, n, max_squared_distance, who, n, neighbors, at)
        if sort_rows:
            _sort_first_numbers_inplace(neighbors, at)
        start = np.uintp(counts_or_offsets[q])
        for n in range(np.uintp(at)):
            indices_out[start + n] = neighbors[n]


@_jit
def _compute_cell_and_squared_center_distance(points, i, cell):
    """Return the cell of a point, whole float64 numbers of x, y and z, and its squared distance from the middle."""
    x, y, z = points[i, 0] / cell, points[i, 1] / cell, points[i, 2] / cell
    corner = np.floor(x), np.floor(y), np.floor(z)
    x, y, z = x - corner[0] - 0.5, y - corner[1] - 0.5, z - corner[2] - 0.5
    return corner, (x * x + y * y) + z * z


@_jit
def _hash_cell(corner):
    """Return a number that spreads cells over a table."""
    key = np.uint64(0)
    for axis in range(3):
        key = (key ^ np.uint64(np.int64(corner[axis]))) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return key


@_jit
def mark_points_nearest_to_cell_centers(points, offsets, cell, slots_scratch, is_nearest_out):
    """Mark the points that remain when every cell of each cloud keeps the one nearest to its middle.

    ``slots_scratch`` is a table of cells, known by the point that stands for them: a power of two, -1 at first. Points
    of clouds before count as free slots.
    """
    mask = np.uint64(slots_scratch.size - 1)
    for cloud in range(offsets.size - 1):
        for i in range(offsets[cloud], offsets[cloud + 1]):
            corner, distance = _compute_cell_and_squared_center_distance(points, i, cell)
            slot = _hash_cell(corner) & mask
            while slots_scratch[slot] >= offsets[cloud]:
                other, nearest_distance = _compute_cell_and_squared_center_distance(points, slots_scratch[slot], cell)
                if corner == other:
                    break
                slot = (slot + np.uint64(1)) & mask
            rival = slots_scratch[slot]
            if rival >= offsets[cloud]:
                if distance >= nearest_distance:
                    continue
                is_nearest_out[rival] = False
            is_nearest_out[i], slots_scratch[slot] = True, i


@_jit
def _partition_order_inplace(points, order, low, high, middle, axis):
    """Reorder ``order[low:high]`` so that what stands at ``middle`` separates smaller from larger coordinates."""
    high -= 1
    while low < high:
        pivot = points[order[(low + high) >> 1], axis]
        i = low
        j = high
        while i <= j:
            while points[order[i], axis] < pivot:
                i += 1
            while points[order[j], axis] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@_jit
def build_kd_tree(points, order, axes_out, cuts_out, first, last):
    """Make ``order[first:last]`` a tree."""
    stack = np.empty((_DEPTH, 2), np.int64)
    stack[0, 0] = first
    stack[0, 1] = last
    size = 1
    while size > 0:
        size -= 1
        low = stack[size, 0]
        high = stack[size, 1]
        if high - low <= LEAF:
            continue
        widest = np.float32(-1.0)
        axis = 0
        for candidate in range(3):
            smallest = points[order[low], candidate]
            largest = smallest
            for i in range(low + 1, high):
                value = points[order[i], candidate]
                smallest = min(smallest, value)
                largest = max(largest, value)
            if largest - smallest > widest:
                widest = largest - smallest
                axis = candidate
        middle = (low + high) >> 1
        _partition_order_inplace(points, order, low, high, middle, axis)
        axes_out[middle] = axis
        cuts_out[middle] = points[order[middle], axis]
        stack[size, 0] = low
        stack[size, 1] = middle
        stack[size + 1, 0] = middle
        stack[size + 1, 1] = high
        size += 2


@_jit
def find_k_nearest(points, order, axes, cuts, bounds, queries, batches, k, row_offsets, indices_out, first, last):
    """Find the ``k`` nearest of queries ``first ... last``, by distance, then index; ``points`` are in tree order."""
    stack = np.empty((_DEPTH, 2), np.int64)
    lower_bounds = np.empty(_DEPTH, np.float32)
    best = np.empty(k, np.float32)
    who = np.empty(k, np.int32)
    for q in range(first, last):
        row_size = row_offsets[q + 1] - row_offsets[q]
        if row_size == 0:
            continue
        count = 0
        stack[0, 0] = bounds[batches[q]]
        stack[0, 1] = bounds[batches[q] + 1]
        lower_bounds[0] = np.float32(0.0)
        size = 1
        while size > 0:
            size -= 1
            low = stack[size, 0]
            high = stack[size, 1]
            if count == row_size and lower_bounds[size] > best[row_size - 1]:
                continue
            while high - low > LEAF:
                middle = (low + high) >> 1
                axis = axes[middle]
                offset = queries[q, axis] - cuts[middle]
                squared = offset * offset
                if offset < 0:
                    stack[size, 0] = middle
                    stack[size, 1] = high
                    high = middle
                else:
                    stack[size, 0] = low
                    stack[size, 1] = middle
                    low = middle
                lower_bounds[size] = squared
                size += 1
            for i in range(low, high):
                distance = _compute_squared_distance(points, i, queries, q)
                index = order[i]
                if count == row_size:
                    worst = best[row_size - 1]
                    if distance > worst or (distance == worst and index > who[row_size - 1]):
                        continue
                    at = row_size - 1
                else:
                    at = count
                    count += 1
                while at > 0 and (distance < best[at - 1] or (distance == best[at - 1] and index < who[at - 1])):
                    best[at] = best[at - 1]
                    who[at] = who[at - 1]
                    at -= 1
                best[at] = distance
                who[at] = index
        for at in range(row_size):
            indices_out[row_offsets[q] + at] = who[at]


_i = types.intp
_points = types.float32[:, ::1]
_flat = types.float32[::1]
_table = types.int64[:, ::1]
_long = types.int64[::1]
_int = types.int32[::1]

ENTRY_POINTS = {
    "count_or_write_neighbors_within_radius": (
        count_or_write_neighbors_within_radius,
        (
            _points,
            _points,
            _int,
            _long,
            _long,
            _long,
            _points,
            _table,
            _long,
            types.float32,
            types.boolean,
            types.boolean,
            _long,
            _int,
            _i,
            _i,
        ),
    ),
    "mark_points_nearest_to_cell_centers": (
        mark_points_nearest_to_cell_centers,
        (types.float64[:, ::1], _long, types.float64, _int, types.boolean[::1]),
    ),
    "build_kd_tree": (build_kd_tree, (_points, _int, types.int8[::1], _flat, _i, _i)),
    "find_k_nearest": (
        find_k_nearest,
        (_points, _int, types.int8[::1], _flat, _long, _points, _long, _i, _long, _int, _i, _i),
    ),
}
