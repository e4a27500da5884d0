"""Exact neighbour search: public functions, what they promise, and who computes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.neighbors.ragged import Cloud, Neighbors, check_cloud, recentred

BACKENDS = ("cpu", "reference")
"""In order of preference: compiled kernels for the CPU; plain PyTorch on any device, in quadratic time."""


def backends(device: str | torch.device = "cpu") -> dict[str, str | None]:
    """Every backend with None where it can run on ``device``, else the reason it cannot."""
    kind = torch.device(device).type
    return {name: _module(name).supports(kind) for name in BACKENDS}


def _module(name: str) -> Any:
    return import_module(f"fullfield.ops.neighbors.{name}")


def radius_search(
    points: Tensor,  # [N, 3] float32 or float64
    radius: float,
    queries: Tensor | None = None,  # [M, 3]; None: the points themselves
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    query_offsets: Tensor | None = None,  # [B + 1]
    backend: str | None = None,
) -> Neighbors:
    """All points at most ``radius`` from each query, in its own cloud; a row's indices rise.

    A point is its own neighbour. Distances are float32: ``(dx² + dy²) + dz² <= radius²``. Float64 coordinates, of any
    size, are taken relative to the middle of their cloud before they become float32.

    Raises:
        InputError: for anything but finite coordinates, a radius above 0, fitting offsets, a backend that can run.
    """
    _check.number(radius, "radius", above=0.0)
    cloud, asked = _clouds(points, queries, offsets, query_offsets)
    run = _chosen(backend, points).radius_search
    found: Neighbors = run(*recentred(cloud, asked), cloud.offsets, asked.offsets, float(radius))
    return found


def knn_search(
    points: Tensor,  # [N, 3] float32 or float64
    k: int,
    queries: Tensor | None = None,  # [M, 3]; None: the points themselves
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    query_offsets: Tensor | None = None,  # [B + 1]
    backend: str | None = None,
) -> Neighbors:
    """The ``k`` points nearest to each query in its own cloud, nearest first, equal distances by index.

    A cloud of fewer points gives all of them. A point is its own neighbour. Distances as in :func:`radius_search`.

    Raises:
        InputError: for anything but finite coordinates, k >= 1, fitting offsets, a backend that can run.
    """
    _check.number(k, "k", integer=True, low=1, high=1024)
    cloud, asked = _clouds(points, queries, offsets, query_offsets)
    run = _chosen(backend, points).knn_search
    found: Neighbors = run(*recentred(cloud, asked), cloud.offsets, asked.offsets, int(k))
    return found


def _clouds(
    points: Tensor, queries: Tensor | None, offsets: Tensor | None, query_offsets: Tensor | None
) -> tuple[Cloud, Cloud]:
    cloud = check_cloud(points, offsets)
    if queries is None:
        _check.require(query_offsets is None, "query_offsets", "None without queries", query_offsets)
        return cloud, cloud
    asked = check_cloud(queries, query_offsets, "queries", "query_offsets")
    _check.tensor(queries, "queries", ("M", 3), dtypes=(points.dtype,), device=points.device)
    _check.require(
        asked.batches == cloud.batches,
        "query_offsets",
        f"{cloud.batches} clouds, as the points have",
        f"{asked.batches}",
    )
    return cloud, asked


def _chosen(backend: str | None, points: Tensor) -> Any:
    reasons = backends(points.device)
    if backend is not None:
        _check.choice(backend, "backend", BACKENDS)
        if reasons[backend] is not None:
            raise _check.InputError(f"backend: {backend} cannot run: {reasons[backend]}")
        return _module(backend)
    return _module(next(name for name in BACKENDS if reasons[name] is None))
