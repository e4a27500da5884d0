"""Kernels of the descriptors, compiled by numba on the first call; importing this module needs numba."""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import create_jit_decorator, find_or_create_numba_cache_folder_or_none
from fullfield._kernels.simd import (
    LANES,
    compute_reciprocal_above_else_zero,
    get_ones_where_above,
    load,
    load_rows_transposed,
    maximum,
    minimum,
    splat,
    sqrt,
    store,
    store_truncated_int32,
)
from fullfield._kernels.simd import __file__ as _simd_file

BINS = 11
SWEEPS = 6  # over a matrix of three axes: more change nothing
ROW = 48
"""Numbers of a row of three histograms: 3 * BINS and a padding to vectors."""
_TANGENTS = tuple(np.tan(np.pi * (np.arange(1, BINS) / BINS - 0.5)).astype(np.float32))  # between the bins of theta

CACHE = find_or_create_numba_cache_folder_or_none(__file__, _simd_file)
_jit = create_jit_decorator(CACHE)
_reordering = create_jit_decorator(CACHE, fastmath={"reassoc", "contract", "nsz"})  # sums become sums of vectors


@_jit
def _compute_max_padded_neighbor_count(offsets, first, last):
    """Return the most neighbours of a point, in whole vectors."""
    widest = 0
    for i in range(first, last):
        widest = max(widest, offsets[i + 1] - offsets[i])
    return (widest + LANES - 1) // LANES * LANES


@_jit
def _copy_pad_and_count_neighbors(indices, start, count, i, row_out):
    """Copy a point's neighbours into ``row_out``, padded to whole vectors with the point itself."""
    for n in range(count):
        row_out[n] = indices[start + n]
    while count % LANES:
        row_out[count] = i
        count += 1
    return count


@_jit
def _compute_distances_directions_normals(surface, i, row, n):
    """Return distances, directions and normals of 16 neighbours, ``row[n : n + 16]``, seen from point ``i``.

    ``surface`` has eight numbers for each point: coordinates, a normal and two unused ones.
    """
    x, y, z, nx, ny, nz, _, _ = load_rows_transposed(surface, row, n)
    at = np.uintp(i) * np.uintp(8)
    dx, dy, dz = x - splat(surface[at]), y - splat(surface[at + np.uintp(1)]), z - splat(surface[at + np.uintp(2)])
    distance = sqrt(dx * dx + dy * dy + dz * dz)
    scale = splat(np.float32(1.0)) / maximum(distance, splat(np.float32(1e-6)))
    return distance, (dx * scale, dy * scale, dz * scale), (nx, ny, nz)


@_jit
def _compute_dot_product(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@_jit
def _get_normal(surface, i):
    at = np.uintp(i) * np.uintp(8)
    return splat(surface[at + np.uintp(3)]), splat(surface[at + np.uintp(4)]), splat(surface[at + np.uintp(5)])


@_jit
def _compute_fractional_bins(value):
    """Return the bins of values from 0 to 1, with a fraction."""
    return minimum(maximum(value * splat(np.float32(BINS)), splat(np.float32(0.0))), splat(np.float32(BINS - 1)))


@_jit
def _select(condition, number, otherwise):
    """Return ``number`` where the condition is 1, else ``otherwise``."""
    return condition * number + (splat(np.float32(1.0)) - condition) * splat(np.float32(otherwise))


@_jit
def compute_pair_histograms(surface, offsets, indices, histograms_out, first, last):
    """Fill three histograms of each point's pairs with its neighbours; each sums to 1, or to 0 without any pair.

    ``surface`` is as for :func:`_compute_distances_directions_normals`; ``histograms_out`` has rows of :data:`ROW`
    numbers.
    """
    capacity = _compute_max_padded_neighbor_count(offsets, first, last)
    row, bins, bin_counts = (
        np.empty(capacity, np.int32),
        np.empty(3 * capacity, np.int32),
        np.empty(3 * BINS + 1, np.int32),
    )  # the last: no angles
    zero, half = splat(np.float32(0.0)), splat(np.float32(0.5))
    one, two, tiny = splat(np.float32(1.0)), splat(np.float32(2.0)), splat(np.float32(1e-6))
    second, third = splat(np.float32(BINS)), splat(np.float32(2 * BINS))
    for i in range(first, last):
        count = _copy_pad_and_count_neighbors(indices, offsets[i], offsets[i + 1] - offsets[i], i, row)
        u = _get_normal(surface, i)
        for n in range(0, count, LANES):
            _, d, normal = _compute_distances_directions_normals(surface, i, row, n)
            v = d[1] * u[2] - d[2] * u[1], d[2] * u[0] - d[0] * u[2], d[0] * u[1] - d[1] * u[0]
            across = sqrt(_compute_dot_product(v, v))
            angles, scale = one - get_ones_where_above(tiny, across), one / maximum(across, tiny)
            along, phi = _compute_dot_product(u, normal), _compute_dot_product(u, d)
            aside = (_compute_dot_product(d, normal) - phi * along) * scale
            # The neighbour's normal is turned to the side of the point's own.
            side = one - two * get_ones_where_above(zero, along)
            mirrored = one - two * get_ones_where_above(zero, phi)
            along, aside = along * side, aside * side * mirrored
            theta = zero  # bin of the angle with the tangent aside / along
            for k in range(BINS - 1):
                theta = theta + one - get_ones_where_above(along * splat(_TANGENTS[k]), aside)
            alpha = (_compute_dot_product(v, normal) * side * scale + one) * half
            store_truncated_int32(bins, 3 * n, _select(angles, _compute_fractional_bins(alpha), 3 * BINS))
            store_truncated_int32(
                bins, 3 * n + LANES, _select(angles, _compute_fractional_bins(phi * mirrored) + second, 3 * BINS)
            )
            store_truncated_int32(bins, 3 * n + 2 * LANES, _select(angles, theta + third, 3 * BINS))
        bin_counts[:] = 0
        for n in range(np.uintp(3 * count)):
            bin_counts[np.uintp(bins[n])] += 1
        pairs = np.float32(max(count - bin_counts[3 * BINS] // 3, 1))
        for k in range(3 * BINS):
            histograms_out[i, k] = np.float32(bin_counts[k]) / pairs


@_jit
def average_neighbor_histograms(surface, offsets, indices, histograms, averages_out, first, last):
    """Average the neighbours' histograms, weighted by 1 / distance²; each of the three is scaled to the sum 1."""
    capacity, rows = _compute_max_padded_neighbor_count(offsets, first, last), histograms.reshape(-1)
    row, weights, total = np.empty(capacity, np.int32), np.empty(capacity, np.float32), np.empty(ROW, np.float32)
    zero = splat(np.float32(0.0))
    for i in range(first, last):
        count = _copy_pad_and_count_neighbors(indices, offsets[i], offsets[i + 1] - offsets[i], i, row)
        for n in range(0, count, LANES):
            distance, _, _ = _compute_distances_directions_normals(surface, i, row, n)
            store(weights, n, compute_reciprocal_above_else_zero(distance * distance, zero))
        a, b, c = zero, zero, zero
        for n in range(count):
            at, weight = np.int64(row[n]) * ROW, splat(weights[n])
            a = a + load(rows, at) * weight
            b = b + load(rows, at + LANES) * weight
            c = c + load(rows, at + 2 * LANES) * weight
        store(total, 0, a)
        store(total, LANES, b)
        store(total, 2 * LANES, c)
        for histogram in range(3):
            summed = np.float32(0.0)
            for k in range(histogram * BINS, (histogram + 1) * BINS):
                summed += total[k]
            for k in range(histogram * BINS, (histogram + 1) * BINS):
                averages_out[i, k] = total[k] / summed if summed > 0 else np.float32(0.0)


@_jit
def _apply_jacobi_rotation(a, v, i, j):
    """Turn two axes of the symmetric matrix ``a``, and the columns of ``v`` with them, so that a[i, j] becomes 0."""
    if a[i, j] == 0.0:
        return
    turn = (a[j, j] - a[i, i]) / (2.0 * a[i, j])
    t = np.copysign(1.0, turn) / (abs(turn) + np.sqrt(turn * turn + 1.0))
    c = 1.0 / np.sqrt(t * t + 1.0)
    s = t * c
    for k in range(3):
        x, y = a[k, i], a[k, j]
        a[k, i], a[k, j] = c * x - s * y, s * x + c * y
    for k in range(3):
        x, y = a[i, k], a[j, k]
        a[i, k], a[j, k] = c * x - s * y, s * x + c * y
        x, y = v[k, i], v[k, j]
        v[k, i], v[k, j] = c * x - s * y, s * x + c * y
    a[i, j] = a[j, i] = 0.0


@_jit
def _fill_principal_axes_and_get_smallest(moments, variances_out, axes_out):
    """Fill principal axes, the columns of ``axes_out``, and their variances ``variances_out[k, k]``.

    ``moments``: sums of the coordinates, of their products (xx, xy, xz, yy, yz, zz) and of the points. They become
    means. The result is the k of the least variance.
    """
    moments[:9] /= max(moments[9], 1.0)
    at = 3
    for row in range(3):
        for column in range(row, 3):
            variances_out[row, column] = variances_out[column, row] = moments[at] - moments[row] * moments[column]
            at += 1
            axes_out[row, column], axes_out[column, row] = 0.0, 0.0
        axes_out[row, row] = 1.0
    for _ in range(SWEEPS):
        _apply_jacobi_rotation(variances_out, axes_out, 0, 1)
        _apply_jacobi_rotation(variances_out, axes_out, 0, 2)
        _apply_jacobi_rotation(variances_out, axes_out, 1, 2)
    smallest = 0
    for k in range(3):
        variances_out[k, k] = max(variances_out[k, k], 0.0)
        smallest = k if variances_out[k, k] < variances_out[smallest, smallest] else smallest
    return smallest


@_reordering
def _fill_moment_sums(displacements, count, max_square, close_sums, full_sums):
    """Sum coordinates, their products and the points, of close ones (squares up to ``max_square``) and of all."""
    xs, ys, zs = displacements[0], displacements[1], displacements[2]
    a = b = c = aa = ab = ac = bb = bc = cc = 0.0
    x = y = z = xx = xy = xz = yy = yz = zz = close_count = 0.0
    for n in range(np.uintp(count)):
        dx, dy, dz = xs[n], ys[n], zs[n]
        ax, ay, az = dx * dx, dy * dy, dz * dz
        a, b, c = a + dx, b + dy, c + dz
        aa, ab, ac = aa + ax, ab + dx * dy, ac + dx * dz
        bb, bc, cc = bb + ay, bc + dy * dz, cc + az
        one = 1.0 if ax + ay + az <= max_square else 0.0
        px, py, pz = dx * one, dy * one, dz * one
        x, y, z, close_count = x + px, y + py, z + pz, close_count + one
        xx, xy, xz = xx + px * dx, xy + px * dy, xz + px * dz
        yy, yz, zz = yy + py * dy, yz + py * dz, zz + pz * dz
    full_sums[0], full_sums[1], full_sums[2], full_sums[9] = a, b, c, count
    full_sums[3], full_sums[4], full_sums[5], full_sums[6], full_sums[7], full_sums[8] = aa, ab, ac, bb, bc, cc
    close_sums[0], close_sums[1], close_sums[2], close_sums[9] = x, y, z, close_count
    close_sums[3], close_sums[4], close_sums[5], close_sums[6], close_sums[7], close_sums[8] = xx, xy, xz, yy, yz, zz


@_jit
def compute_local_surfaces(points, queries, offsets, indices, radius, normals_out, shapes_out, first, last):
    """Fill the normal of the plane through each query's neighbours and, unless ``shapes_out`` is empty, the shape.

    See descriptors.surfaces; ``radius`` limits the neighbours of the shape.
    """
    a, v, close_sums, full_sums = np.empty((3, 3)), np.empty((3, 3)), np.empty(10), np.empty(10)
    displacements, limit = np.empty((3, _compute_max_padded_neighbor_count(offsets, first, last))), radius * radius
    for i in range(first, last):
        start, count = np.uintp(offsets[i]), offsets[i + 1] - offsets[i]
        x, y, z = queries[i, 0], queries[i, 1], queries[i, 2]
        for n in range(np.uintp(count)):
            j = np.uintp(indices[start + n])
            displacements[0, n], displacements[1, n], displacements[2, n] = (
                points[j, 0] - x,
                points[j, 1] - y,
                points[j, 2] - z,
            )
        _fill_moment_sums(displacements, count, limit, close_sums, full_sums)
        smallest = _fill_principal_axes_and_get_smallest(full_sums, a, v)
        for k in range(3):
            normals_out[i, k] = v[k, smallest]
        if len(shapes_out) == 0:
            continue
        smallest = _fill_principal_axes_and_get_smallest(close_sums, a, v)
        low, high = a[smallest, smallest], max(a[0, 0], a[1, 1], a[2, 2])
        total, height = a[0, 0] + a[1, 1] + a[2, 2], 0.0
        for k in range(3):
            height += close_sums[k] * v[k, smallest]
        middle, largest = np.sqrt(max(total - low - high, 0.0)), max(np.sqrt(high), 1e-6)
        shapes_out[i, 0] = 3.0 * low / max(total, 1e-12)
        shapes_out[i, 1] = (middle - np.sqrt(low)) / largest
        shapes_out[i, 2] = (np.sqrt(high) - middle) / largest
        shapes_out[i, 3] = abs(height) / radius


@_jit
def sort_and_count_neighbors_by_cell(surface, offsets, indices, edges, bits, counts_out, entries_out, first, last):
    """Sort each point's neighbours, itself left out, by kernel cell (learned_network.pair_cells), and count each cell.

    ``edges``: between two rings, elevations (sines) and bends (cosines), one after the other. An entry is
    ``cell << bits | neighbour``.
    """
    capacity = _compute_max_padded_neighbor_count(offsets, first, last)
    row, own, positions = (
        np.empty(capacity, np.int32),
        np.empty(capacity, np.int32),
        np.empty(counts_out.shape[1], np.int64),
    )
    zero, one, two = splat(np.float32(0.0)), splat(np.float32(1.0)), splat(np.float32(2.0))
    three, five = splat(np.float32(3.0)), splat(np.float32(5.0))
    inner_ring, outer_ring, low, high = splat(edges[0]), splat(edges[1]), splat(edges[2]), splat(edges[3])
    flat, bent = splat(edges[4]), splat(edges[5])
    for i in range(first, last):
        row_start, count = offsets[i], offsets[i + 1] - offsets[i]
        padded, u = _copy_pad_and_count_neighbors(indices, row_start, count, i, row), _get_normal(surface, i)
        for n in range(0, padded, LANES):
            distance, d, normal = _compute_distances_directions_normals(surface, i, row, n)
            height, ahead, cosine = (
                _compute_dot_product(u, d),
                _compute_dot_product(normal, d),
                _compute_dot_product(u, normal),
            )
            side = one - two * get_ones_where_above(zero, height)
            height, cosine = height * side, cosine * side
            side = one - two * get_ones_where_above(zero, cosine)
            cosine, ahead = cosine * side, ahead * side
            slightly, strongly = get_ones_where_above(flat, cosine), get_ones_where_above(bent, cosine)
            diverging = maximum(one - get_ones_where_above(height, ahead), strongly)
            bend = diverging * (two + slightly + strongly) + (one - diverging) * (one - slightly)
            bend = minimum(bend, one + three * get_ones_where_above(one, cosine))
            ring, elevation = (
                get_ones_where_above(distance, inner_ring) + get_ones_where_above(distance, outer_ring),
                get_ones_where_above(height, low) + get_ones_where_above(height, high),
            )
            store_truncated_int32(own, n, (ring * three + elevation) * five + bend)
        positions[:] = 0
        for n in range(np.uintp(count)):
            positions[np.uintp(own[n])] += row[n] != i
        start = row_start - i  # a row less, its own entry, for each point before
        for cell in range(counts_out.shape[1]):
            counts_out[i, cell] = positions[cell]
            start, positions[cell] = start + positions[cell], start
        for n in range(np.uintp(count)):
            cell = np.uintp(own[n])
            if row[n] != i:
                entries_out[np.uintp(positions[cell])] = np.uint32(cell << np.uintp(bits) | np.uintp(row[n]))
                positions[cell] += 1


@_jit
def compute_ring_means_and_root_shares(features, counts, rows, entries, bits, rings, properties_out, first, last):
    """Fill each point's unlearned properties: features, their means over ``rings``, square roots of the cells' shares.

    ``features`` has rows of :data:`ROW` numbers; the rest as :func:`sort_and_count_neighbors_by_cell` fills it.
    """
    width, cells = (properties_out.shape[1] - counts.shape[1]) // (rings + 1), counts.shape[1]
    values, total, zero = features.reshape(-1), np.empty(ROW, np.float32), splat(np.float32(0.0))
    index, at = np.uint32((1 << bits) - 1), np.uintp(rows[first])
    for i in range(first, last):
        properties_out[i, :width] = features[i, :width]
        for ring in range(rings):
            count = np.float32(0.0)
            for cell in range(ring * cells // rings, (ring + 1) * cells // rings):
                count += counts[i, cell]
            a, b, c = zero, zero, zero
            for _ in range(np.uintp(count)):
                neighbour = np.int64(entries[at] & index) * ROW
                a, b, c = (
                    a + load(values, neighbour),
                    b + load(values, neighbour + LANES),
                    c + load(values, neighbour + 2 * LANES),
                )
                at += np.uintp(1)
            store(total, 0, a)
            store(total, LANES, b)
            store(total, 2 * LANES, c)
            for k in range(width):
                properties_out[i, (ring + 1) * width + k] = total[k] / max(count, np.float32(1.0))
        total_count = np.float32(max(rows[i + 1] - rows[i], 1))
        for cell in range(cells):
            properties_out[i, (rings + 1) * width + cell] = np.sqrt(counts[i, cell] / total_count)


_i = types.intp
_points = types.float64[:, ::1]
_single = types.float32[:, ::1]
_long = types.int64[::1]
_int = types.int32[::1]
_flat = types.float32[::1]
_neighborhood = (_flat, _long, _int)
ENTRY_POINTS = {
    "compute_ring_means_and_root_shares": (
        compute_ring_means_and_root_shares,
        (_single, _single, _long, types.uint32[::1], _i, _i, _single, _i, _i),
    ),
    "compute_local_surfaces": (
        compute_local_surfaces,
        (_points, _points, _long, _int, types.float64, _points, _points, _i, _i),
    ),
    "compute_pair_histograms": (compute_pair_histograms, (*_neighborhood, _single, _i, _i)),
    "sort_and_count_neighbors_by_cell": (
        sort_and_count_neighbors_by_cell,
        (*_neighborhood, _flat, _i, _single, types.uint32[::1], _i, _i),
    ),
    "average_neighbor_histograms": (average_neighbor_histograms, (*_neighborhood, _single, _single, _i, _i)),
}
