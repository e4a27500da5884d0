"""Normals, and histograms of the angles between them: FPFH (Rusu, Blodow, Beetz, ICRA 2009) without oriented normals.

The sign of a PCA normal means nothing, and a cloud does not say where its sensor stood. So a neighbour's normal is
turned to the side of the point's own, and of the two mirror images of (phi, theta) that are left the one with phi >= 0
counts.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fullfield._kernels.threads import rows, run
from fullfield.ops.neighbors import knn_search, radius_search

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BINS = 11
_PAIRS = 1 << 18  # pairs worked on at a time


def _search(
    points: Floats, radius: float, queries: Floats | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row offsets and indices of the points within ``radius`` of each query."""
    asked = None if queries is None else _tensor(queries)
    found = radius_search(_tensor(points), radius, asked)
    return found.offsets.numpy(), found.indices.numpy().astype(np.int64)


def nearest(points: Floats, queries: Floats, k: int = 1) -> tuple[Floats, NDArray[np.int64]]:
    """Distances and indices [M, k] of the nearest points; there are at least ``k``."""
    found = knn_search(_tensor(points), k, _tensor(queries))
    indices = found.indices.numpy().astype(np.int64).reshape(len(queries), k)
    return np.linalg.norm(points[indices] - queries[:, None], axis=2), indices


def _tensor(points: Floats) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(points))


def _parts(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Rows first ... last with about ``_PAIRS`` pairs each."""
    edges = np.searchsorted(offsets, np.arange(0, offsets[-1] + _PAIRS, _PAIRS)).clip(0, len(offsets) - 1)
    cuts = np.unique(np.concatenate([[0], edges, [len(offsets) - 1]])).tolist()
    return list(pairwise(cuts))


def _sum_rows(values: Floats, offsets: NDArray[np.int64]) -> Floats:
    """[R, ...] sums of the rows ``offsets[r] ... offsets[r + 1]``; none is empty."""
    summed: Floats = np.add.reduceat(values, offsets[:-1], axis=0)
    return summed


def plane_normals(points: Floats, queries: Floats, radius: float) -> Floats:
    """Unit normals [M, 3], of either sign, of the planes through the points around each query, which is one of them."""
    offsets, indices = _search(points, radius, queries)
    covariance = np.empty((len(queries), 3, 3))
    for first, last in _parts(offsets):
        rows = offsets[first : last + 1] - offsets[first]
        away = points[indices[offsets[first] : offsets[last]]] - np.repeat(queries[first:last], np.diff(rows), axis=0)
        count = np.diff(rows)[:, None]
        mean = _sum_rows(away, rows) / count
        outer = (away[:, :, None] * away[:, None, :]).reshape(-1, 9)
        second = _sum_rows(outer, rows) / count
        covariance[first:last] = second.reshape(-1, 3, 3) - mean[:, :, None] * mean[:, None, :]
    return np.ascontiguousarray(np.linalg.eigh(covariance)[1][:, :, 0])


_compiling = threading.Lock()


@lru_cache(maxsize=1)
def _compiled() -> dict[str, Any]:
    from fullfield._kernels.numba_cache import compile_all
    from fullfield.registration import _cpu_kernels

    compile_all(_cpu_kernels.ENTRY_POINTS, _cpu_kernels.CACHE, "descriptor kernels")
    return {name: function for name, (function, _) in _cpu_kernels.ENTRY_POINTS.items()}


def _kernels() -> dict[str, Any]:
    with _compiling:
        return _compiled()


def _parallel(count: int, task: Any) -> None:
    threads = torch.get_num_threads()
    parts = rows(count, 4 * threads if threads > 1 else 1) if count else []
    run([lambda a=a, b=b: task(a, b) for a, b in parts], threads)  # type: ignore[misc]


def histograms(points: Floats, normals: Floats, radius: float) -> Floats:
    """[N, 33]: 11 bins each of alpha, phi and theta, averaged over the points within ``radius``.

    Each 11 sum to 1, or to 0 where there is no neighbour.
    """
    kernels = _kernels()
    found = radius_search(_tensor(points), radius)
    pairs = found.offsets.numpy(), found.indices.numpy()
    spots, upright = np.ascontiguousarray(points), np.ascontiguousarray(normals)
    own, averaged = np.zeros((2, len(points), 3 * BINS))
    _parallel(len(points), lambda a, b: kernels["pair_histograms"](spots, upright, *pairs, own, a, b))
    _parallel(len(points), lambda a, b: kernels["weighted_histograms"](spots, *pairs, own, averaged, a, b))
    return averaged
