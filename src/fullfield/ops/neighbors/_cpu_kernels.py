"""Numba kernels of the CPU backend. Importing this module needs numba and compiles nothing.

Radius search: points sorted by the cell of a grid whose cells are as wide as the radius. Cells that follow each other
in x follow each other in memory, so a query reads nine runs of points. kNN search: a balanced k-d tree without nodes:
the middle of a range of the order splits it; ``axes`` and ``cuts`` at the middle hold the axis and the coordinate.
"""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import cache_folder, jit_in

LEAF = 12
_DEPTH = 64

CACHE = cache_folder(__file__)
_jit = jit_in(CACHE)


@_jit
def _squared(points, i, queries, q):
    x = queries[q, 0] - points[i, 0]
    y = queries[q, 1] - points[i, 1]
    z = queries[q, 2] - points[i, 2]
    return (x * x + y * y) + z * z


@_jit
def _lower_bound(keys, value):
    low = 0
    high = keys.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@_jit
def _runs(keys, starts, shape, cells, q, runs):
    """Write the first and last point of the nine runs of cells around a query's cell."""
    run = 0
    x0 = max(cells[q, 3] - 1, 0)
    x1 = min(cells[q, 3] + 1, shape[2] - 1)
    for z in range(cells[q, 1] - 1, cells[q, 1] + 2):
        for y in range(cells[q, 2] - 1, cells[q, 2] + 2):
            if x0 <= x1 and 0 <= z < shape[0] and 0 <= y < shape[1]:
                line = ((cells[q, 0] * shape[0] + z) * shape[1] + y) * shape[2]
                runs[run, 0] = starts[_lower_bound(keys, line + x0)]
                runs[run, 1] = starts[_lower_bound(keys, line + x1 + 1)]
            else:
                runs[run, 0] = 0
                runs[run, 1] = 0
            run += 1


# Indices without sign: numba looks whether signed ones are negative, and LLVM then makes no vectors of the loops.
@_jit
def _count_within(xs, ys, zs, first, last, x, y, z, limit):
    """Return how many of the points ``first ... last`` are within the limit of a place."""
    count = np.int32(0)
    for i in range(np.uintp(first), np.uintp(last)):
        dx = x - xs[i]
        dy = y - ys[i]
        dz = z - zs[i]
        count += np.int32((dx * dx + dy * dy) + dz * dz <= limit)
    return np.int64(count)


@_jit
def _list_within(xs, ys, zs, first, last, x, y, z, limit, squares, places, found):
    """Write the points ``first ... last`` within the limit into ``places`` from ``found`` on; return the new number."""
    start, count, at = np.uintp(first), np.uintp(last - first), np.uintp(found)
    for n in range(count):
        dx = x - xs[start + n]
        dy = y - ys[start + n]
        dz = z - zs[start + n]
        squares[n] = (dx * dx + dy * dy) + dz * dz
    for n in range(count):
        places[at] = start + n  # without a branch: the next one overwrites it
        at += np.uintp(squares[n] <= limit)
    return np.int64(at)


@_jit
def radius_rows(
    columns, order, keys, starts, shape, queries, cells, visit, limit, fill, sort, rows, indices, first, last
):
    """Count the neighbours of queries ``visit[first:last]`` into ``rows[q + 1]``, or write their indices.

    ``columns`` [3, N] holds the points in the order of their cells.
    """
    xs, ys, zs = columns[0], columns[1], columns[2]
    runs = np.zeros((9, 2), np.int64)
    squares = np.empty(0, np.float32)
    places = np.empty(0, np.int32)
    before = -1
    for step in range(first, last):
        q = visit[step]
        same = before >= 0
        for axis in range(4):
            same = same and cells[q, axis] == cells[before, axis]
        if not same:
            _runs(keys, starts, shape, cells, q, runs)
            candidates = np.sum(runs[:, 1] - runs[:, 0])
            if candidates >= places.size:
                squares = np.empty(2 * candidates, np.float32)
                places = np.empty(2 * candidates + 1, np.int32)
        before = q
        x, y, z = queries[q, 0], queries[q, 1], queries[q, 2]
        found = 0
        for run in range(9):
            start, end = runs[run, 0], runs[run, 1]
            if fill:
                found = _list_within(xs, ys, zs, start, end, x, y, z, limit, squares, places, found)
            else:
                found += _count_within(xs, ys, zs, start, end, x, y, z, limit)
        if not fill:
            rows[q + 1] = found
            continue
        at, rising, previous = np.uintp(rows[q]), True, np.int32(-1)
        for n in range(np.uintp(found)):
            index = order[np.uintp(places[n])]
            indices[at + n] = index
            rising &= index > previous
            previous = index
        if sort and not rising:
            indices[rows[q] : rows[q] + found].sort()


@_jit
def _select(points, order, low, high, middle, axis):
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
def build_tree(points, order, axes, cuts, first, last):
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
        _select(points, order, low, high, middle, axis)
        axes[middle] = axis
        cuts[middle] = points[order[middle], axis]
        stack[size, 0] = low
        stack[size, 1] = middle
        stack[size + 1, 0] = middle
        stack[size + 1, 1] = high
        size += 2


@_jit
def nearest_rows(points, order, axes, cuts, bounds, queries, batches, k, rows, indices, first, last):
    """Find the ``k`` nearest of queries ``first ... last``, by distance, then index; ``points`` are in tree order."""
    stack = np.empty((_DEPTH, 2), np.int64)
    least = np.empty(_DEPTH, np.float32)
    best = np.empty(k, np.float32)
    who = np.empty(k, np.int32)
    for q in range(first, last):
        wanted = rows[q + 1] - rows[q]
        if wanted == 0:
            continue
        found = 0
        stack[0, 0] = bounds[batches[q]]
        stack[0, 1] = bounds[batches[q] + 1]
        least[0] = np.float32(0.0)
        size = 1
        while size > 0:
            size -= 1
            low = stack[size, 0]
            high = stack[size, 1]
            if found == wanted and least[size] > best[wanted - 1]:
                continue
            while high - low > LEAF:
                middle = (low + high) >> 1
                axis = axes[middle]
                away = queries[q, axis] - cuts[middle]
                far = away * away
                if away < 0:
                    stack[size, 0] = middle
                    stack[size, 1] = high
                    high = middle
                else:
                    stack[size, 0] = low
                    stack[size, 1] = middle
                    low = middle
                least[size] = far
                size += 1
            for i in range(low, high):
                distance = _squared(points, i, queries, q)
                index = order[i]
                if found == wanted:
                    worst = best[wanted - 1]
                    if distance > worst or (distance == worst and index > who[wanted - 1]):
                        continue
                    at = wanted - 1
                else:
                    at = found
                    found += 1
                while at > 0 and (distance < best[at - 1] or (distance == best[at - 1] and index < who[at - 1])):
                    best[at] = best[at - 1]
                    who[at] = who[at - 1]
                    at -= 1
                best[at] = distance
                who[at] = index
        for at in range(wanted):
            indices[rows[q] + at] = who[at]


_i = types.intp
_points = types.float32[:, ::1]
_flat = types.float32[::1]
_table = types.int64[:, ::1]
_long = types.int64[::1]
_int = types.int32[::1]

ENTRY_POINTS = {
    "radius_rows": (
        radius_rows,
        (
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
    "build_tree": (build_tree, (_points, _int, types.int8[::1], _flat, _i, _i)),
    "nearest_rows": (
        nearest_rows,
        (_points, _int, types.int8[::1], _flat, _long, _points, _long, _i, _long, _int, _i, _i),
    ),
}
