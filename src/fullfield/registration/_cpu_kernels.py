"""Kernels of the descriptors, compiled by numba on the first call; importing this module needs numba."""

from __future__ import annotations

import numpy as np
from numba import types

from fullfield._kernels.numba_cache import cache_folder, jit_in

BINS = 11
_TANGENTS = tuple(np.tan(np.pi * (np.arange(1, BINS) / BINS - 0.5)).tolist())  # between the bins of theta

CACHE = cache_folder(__file__)
_jit = jit_in(CACHE)


@_jit
def _bin(value):
    """Return the bin of a value from 0 to 1."""
    return min(max(int(value * BINS), 0), BINS - 1)


@_jit
def pair_histograms(points, normals, offsets, indices, histograms, first, last):
    """Fill three histograms of each point's pairs with its neighbours; each sums to 1, or to 0 without any pair."""
    for i in range(first, last):
        count = 0
        ux, uy, uz = normals[i, 0], normals[i, 1], normals[i, 2]
        for at in range(offsets[i], offsets[i + 1]):
            j = indices[at]
            dx = points[j, 0] - points[i, 0]
            dy = points[j, 1] - points[i, 1]
            dz = points[j, 2] - points[i, 2]
            length = np.sqrt((dx * dx + dy * dy) + dz * dz)
            if length == 0.0:
                continue
            scale = 1.0 / length
            dx, dy, dz = dx * scale, dy * scale, dz * scale
            vx, vy, vz = dy * uz - dz * uy, dz * ux - dx * uz, dx * uy - dy * ux
            across = np.sqrt((vx * vx + vy * vy) + vz * vz)
            if across < 1e-9:
                continue
            scale = 1.0 / across
            nx, ny, nz = normals[j, 0], normals[j, 1], normals[j, 2]
            along = (ux * nx + uy * ny) + uz * nz
            if along < 0.0:
                along, nx, ny, nz = -along, -nx, -ny, -nz
            wx, wy, wz = uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx
            alpha = ((vx * nx + vy * ny) + vz * nz) * scale
            phi = (ux * dx + uy * dy) + uz * dz
            aside = ((wx * nx + wy * ny) + wz * nz) * scale
            if phi < 0.0:
                phi, aside = -phi, -aside
            theta = 0  # bin of the angle with the tangent aside / along
            for k in range(BINS - 1):
                theta += aside >= along * _TANGENTS[k]
            histograms[i, _bin((alpha + 1.0) * 0.5)] += 1.0
            histograms[i, BINS + _bin(phi)] += 1.0
            histograms[i, 2 * BINS + theta] += 1.0
            count += 1
        if count > 0:
            for k in range(3 * BINS):
                histograms[i, k] /= count


@_jit
def weighted_histograms(points, offsets, indices, histograms, out, first, last):
    """Average the neighbours' histograms, weighted by 1 / distance²; each of the three is scaled to the sum 1."""
    for i in range(first, last):
        for at in range(offsets[i], offsets[i + 1]):
            j = indices[at]
            dx = points[j, 0] - points[i, 0]
            dy = points[j, 1] - points[i, 1]
            dz = points[j, 2] - points[i, 2]
            squared = (dx * dx + dy * dy) + dz * dz
            if squared > 0.0:
                weight = 1.0 / squared
                for k in range(3 * BINS):
                    out[i, k] += histograms[j, k] * weight
        for part in range(3):
            summed = 0.0
            for k in range(part * BINS, (part + 1) * BINS):
                summed += out[i, k]
            if summed > 0.0:
                for k in range(part * BINS, (part + 1) * BINS):
                    out[i, k] /= summed


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
def sorted_cells(points, normals, offsets, indices, edges, counts, neighbors, cells, first, last):
    """Sort each point's neighbours, itself left out, by kernel cell (learned_network.pair_cells), and count each cell.

    ``edges``: between two rings, elevations (sines) and bends (cosines), one after the other.
    """
    widest = 0
    for i in range(first, last):
        widest = max(widest, offsets[i + 1] - offsets[i])
    own = np.empty(widest, np.int64)
    place = np.empty(counts.shape[1], np.int64)
    for i in range(first, last):
        for at in range(offsets[i], offsets[i + 1]):
            j = indices[at]
            if j == i:
                continue
            dx = points[j, 0] - points[i, 0]
            dy = points[j, 1] - points[i, 1]
            dz = points[j, 2] - points[i, 2]
            distance = np.sqrt((dx * dx + dy * dy) + dz * dz)
            scale = max(distance, np.float32(1e-6))
            dx, dy, dz = dx / scale, dy / scale, dz / scale
            height = (normals[i, 0] * dx + normals[i, 1] * dy) + normals[i, 2] * dz
            ahead = (normals[j, 0] * dx + normals[j, 1] * dy) + normals[j, 2] * dz
            alike = (normals[i, 0] * normals[j, 0] + normals[i, 1] * normals[j, 1]) + normals[i, 2] * normals[j, 2]
            if height < 0:
                height, alike = -height, -alike
            if alike < 0:
                alike, ahead = -alike, -ahead
            if alike >= 1 or (ahead < height and alike > edges[4]):
                bend = 1
            elif ahead >= height or alike < edges[5]:
                bend = 2 + (alike < edges[4]) + (alike < edges[5])
            else:
                bend = 0
            ring = (distance > edges[0]) + (distance > edges[1])
            cell = (ring * 3 + (height > edges[2]) + (height > edges[3])) * 5 + bend
            own[at - offsets[i]] = cell
            counts[i, cell] += 1
        place[0] = offsets[i] - i  # a row less, its own entry, for each point before
        for cell in range(1, counts.shape[1]):
            place[cell] = place[cell - 1] + np.int64(counts[i, cell - 1])
        for at in range(offsets[i], offsets[i + 1]):
            if indices[at] != i:
                cell = own[at - offsets[i]]
                neighbors[place[cell]] = indices[at]
                cells[place[cell]] = cell
                place[cell] += 1


_i = types.intp
_points = types.float64[:, ::1]
_single = types.float32[:, ::1]
_long = types.int64[::1]
_int = types.int32[::1]
ENTRY_POINTS = {
    "pair_histograms": (pair_histograms, (_points, _points, _long, _int, _points, _i, _i)),
    "sorted_cells": (sorted_cells, (_single, _single, _long, _int, types.float32[::1], _single, _long, _long, _i, _i)),
    "spreads": (spreads, (_points, _points, _long, _int, _points, _i, _i)),
    "weighted_histograms": (weighted_histograms, (_points, _long, _int, _points, _points, _i, _i)),
}
