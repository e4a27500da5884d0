"""Kernels of the descriptors, compiled by numba on the first call; importing this module needs numba."""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import cache_folder, jit_in
from fullfield._kernels.simd import (
    LANES,
    above,
    gather,
    load,
    maximum,
    minimum,
    reciprocal_where,
    splat,
    sqrt,
    store,
    store_int32,
)
from fullfield._kernels.simd import __file__ as _simd_file

BINS = 11
ROW = 48
"""Numbers of a row of three histograms: 3 * BINS and a padding to vectors."""
_TANGENTS = tuple(np.tan(np.pi * (np.arange(1, BINS) / BINS - 0.5)).astype(np.float32))  # between the bins of theta

CACHE = cache_folder(__file__, _simd_file)
_jit = jit_in(CACHE)


@_jit
def _room(offsets, first, last):
    """Return the most neighbours of a point, in whole vectors."""
    widest = 0
    for i in range(first, last):
        widest = max(widest, offsets[i + 1] - offsets[i])
    return (widest + LANES - 1) // LANES * LANES


@_jit
def _listed(indices, begin, count, i, row):
    """Copy a point's neighbours into ``row``, padded to whole vectors with the point itself."""
    for n in range(count):
        row[n] = indices[begin + n]
    while count % LANES:
        row[count] = i
        count += 1
    return count


@_jit
def _seen(surface, size, i, row, n):
    """Return how 16 neighbours are seen: distances, directions, normals, and the dot products of :func:`_dots`.

    ``surface`` holds coordinates and normals, ``size`` numbers each.
    """
    dx = gather(surface[:size], row, n) - splat(surface[i])
    dy = gather(surface[size : 2 * size], row, n) - splat(surface[size + i])
    dz = gather(surface[2 * size : 3 * size], row, n) - splat(surface[2 * size + i])
    distance = sqrt(dx * dx + dy * dy + dz * dz)
    scale = splat(np.float32(1.0)) / maximum(distance, splat(np.float32(1e-6)))
    nx = gather(surface[3 * size : 4 * size], row, n)
    ny = gather(surface[4 * size : 5 * size], row, n)
    nz = gather(surface[5 * size :], row, n)
    return distance, (dx * scale, dy * scale, dz * scale), (nx, ny, nz)


@_jit
def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@_jit
def _own_normal(surface, size, i):
    return splat(surface[3 * size + i]), splat(surface[4 * size + i]), splat(surface[5 * size + i])


@_jit
def _bin(value, begin, angles):
    """Return the bins of values from 0 to 1, from ``begin`` on; where there are no angles, the one behind all."""
    inside = minimum(maximum(value * splat(np.float32(BINS)), splat(np.float32(0.0))), splat(np.float32(BINS - 1)))
    return angles * (inside + splat(np.float32(begin))) + (splat(np.float32(1.0)) - angles) * splat(
        np.float32(3 * BINS)
    )


@_jit
def pair_histograms(surface, offsets, indices, histograms, first, last):
    """Fill three histograms of each point's pairs with its neighbours; each sums to 1, or to 0 without any pair.

    ``surface`` holds coordinates and normals, six times N numbers. A row of ``histograms`` has :data:`ROW` numbers.
    """
    size, room = surface.size // 6, _room(offsets, first, last)
    row, bins, counted = np.empty(room, np.int32), np.empty(3 * room, np.int32), np.empty(3 * BINS + 1, np.int32)
    zero, half, one, two = (
        splat(np.float32(0.0)),
        splat(np.float32(0.5)),
        splat(np.float32(1.0)),
        splat(np.float32(2.0)),
    )
    least = splat(np.float32(1e-6))
    for i in range(first, last):
        count = _listed(indices, offsets[i], offsets[i + 1] - offsets[i], i, row)
        u = _own_normal(surface, size, i)
        for n in range(0, count, LANES):
            _, d, normal = _seen(surface, size, i, row, n)
            v = d[1] * u[2] - d[2] * u[1], d[2] * u[0] - d[0] * u[2], d[0] * u[1] - d[1] * u[0]
            across = sqrt(_dot(v, v))
            angles, scale = one - above(least, across), one / maximum(across, least)
            along, phi = _dot(u, normal), _dot(u, d)
            aside = (_dot(d, normal) - phi * along) * scale
            side = one - two * above(zero, along)  # the neighbour's normal on the side of the point's own
            mirrored = one - two * above(zero, phi)
            along, aside = along * side, aside * side * mirrored
            theta = zero  # bin of the angle with the tangent aside / along
            for k in range(BINS - 1):
                theta = theta + one - above(along * splat(_TANGENTS[k]), aside)
            alpha = (_dot(v, normal) * side * scale + one) * half
            store_int32(bins, 3 * n, _bin(alpha, 0, angles))
            store_int32(bins, 3 * n + LANES, _bin(phi * mirrored, BINS, angles))
            middle = (theta + half) * splat(np.float32(1 / BINS))
            store_int32(bins, 3 * n + 2 * LANES, _bin(middle, 2 * BINS, angles))
        counted[:] = 0
        for n in range(np.uintp(3 * count)):
            counted[np.uintp(bins[n])] += 1
        pairs = np.float32(max(count - counted[3 * BINS] // 3, 1))
        for k in range(3 * BINS):
            histograms[i, k] = np.float32(counted[k]) / pairs


@_jit
def weighted_histograms(surface, offsets, indices, histograms, out, first, last):
    """Average the neighbours' histograms, weighted by 1 / distance²; each of the three is scaled to the sum 1."""
    size, room, rows = surface.size // 6, _room(offsets, first, last), histograms.reshape(-1)
    row, weights, total = np.empty(room, np.int32), np.empty(room, np.float32), np.empty(ROW, np.float32)
    zero = splat(np.float32(0.0))
    for i in range(first, last):
        count = _listed(indices, offsets[i], offsets[i + 1] - offsets[i], i, row)
        for n in range(0, count, LANES):
            distance, _, _ = _seen(surface, size, i, row, n)
            store(weights, n, reciprocal_where(distance * distance, zero))
        a, b, c = zero, zero, zero
        for n in range(count):
            at, weight = np.int64(row[n]) * ROW, splat(weights[n])
            a = a + load(rows, at) * weight
            b = b + load(rows, at + LANES) * weight
            c = c + load(rows, at + 2 * LANES) * weight
        store(total, 0, a)
        store(total, LANES, b)
        store(total, 2 * LANES, c)
        for part in range(3):
            summed = np.float32(0.0)
            for k in range(part * BINS, (part + 1) * BINS):
                summed += total[k]
            for k in range(part * BINS, (part + 1) * BINS):
                out[i, k] = total[k] / summed if summed > 0 else np.float32(0.0)


@_jit
def spreads(points, queries, offsets, indices, out, first, last):
    """Fill the mean of each query's neighbours, relative to it, and their covariance (upper triangle, row by row)."""
    for i in range(first, last):
        count = offsets[i + 1] - offsets[i]
        for at in range(offsets[i], offsets[i + 1]):
            j = indices[at]
            dx = points[j, 0] - queries[i, 0]
            dy = points[j, 1] - queries[i, 1]
            dz = points[j, 2] - queries[i, 2]
            out[i, 0] += dx
            out[i, 1] += dy
            out[i, 2] += dz
            out[i, 3] += dx * dx
            out[i, 4] += dx * dy
            out[i, 5] += dx * dz
            out[i, 6] += dy * dy
            out[i, 7] += dy * dz
            out[i, 8] += dz * dz
        if count > 0:
            for k in range(9):
                out[i, k] /= count
            x, y, z = out[i, 0], out[i, 1], out[i, 2]
            out[i, 3] -= x * x
            out[i, 4] -= x * y
            out[i, 5] -= x * z
            out[i, 6] -= y * y
            out[i, 7] -= y * z
            out[i, 8] -= z * z


@_jit
def sorted_cells(surface, offsets, indices, edges, bits, counts, entries, first, last):
    """Sort each point's neighbours, itself left out, by kernel cell (learned_network.pair_cells), and count each cell.

    ``edges``: between two rings, elevations (sines) and bends (cosines), one after the other. An entry is
    ``cell << bits | neighbour``.
    """
    size, room = surface.size // 6, _room(offsets, first, last)
    row, own, place = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(counts.shape[1], np.int64)
    zero, one, two = splat(np.float32(0.0)), splat(np.float32(1.0)), splat(np.float32(2.0))
    three, five = splat(np.float32(3.0)), splat(np.float32(5.0))
    near, far, low, high = splat(edges[0]), splat(edges[1]), splat(edges[2]), splat(edges[3])
    flat, bent = splat(edges[4]), splat(edges[5])
    for i in range(first, last):
        begin, count = offsets[i], offsets[i + 1] - offsets[i]
        padded, u = _listed(indices, begin, count, i, row), _own_normal(surface, size, i)
        for n in range(0, padded, LANES):
            distance, d, normal = _seen(surface, size, i, row, n)
            height, ahead, alike = _dot(u, d), _dot(normal, d), _dot(u, normal)
            side = one - two * above(zero, height)
            height, alike = height * side, alike * side
            side = one - two * above(zero, alike)
            alike, ahead = alike * side, ahead * side
            slightly, strongly = above(flat, alike), above(bent, alike)
            away = maximum(one - above(height, ahead), strongly)
            bend = away * (two + slightly + strongly) + (one - away) * (one - slightly)
            bend = minimum(bend, one + three * above(one, alike))
            ring, elevation = above(distance, near) + above(distance, far), above(height, low) + above(height, high)
            store_int32(own, n, (ring * three + elevation) * five + bend)
        place[:] = 0
        for n in range(np.uintp(count)):
            place[np.uintp(own[n])] += row[n] != i
        start = begin - i  # a row less, its own entry, for each point before
        for cell in range(counts.shape[1]):
            counts[i, cell] = place[cell]
            start, place[cell] = start + place[cell], start
        for n in range(np.uintp(count)):
            cell = np.uintp(own[n])
            if row[n] != i:
                entries[np.uintp(place[cell])] = np.uint32(cell << np.uintp(bits) | np.uintp(row[n]))
                place[cell] += 1


_i = types.intp
_points = types.float64[:, ::1]
_single = types.float32[:, ::1]
_long = types.int64[::1]
_int = types.int32[::1]
_flat = types.float32[::1]
_found = (_flat, _long, _int)
ENTRY_POINTS = {
    "pair_histograms": (pair_histograms, (*_found, _single, _i, _i)),
    "sorted_cells": (sorted_cells, (*_found, _flat, _i, _single, types.uint32[::1], _i, _i)),
    "spreads": (spreads, (_points, _points, _long, _int, _points, _i, _i)),
    "weighted_histograms": (weighted_histograms, (*_found, _single, _single, _i, _i)),
}
