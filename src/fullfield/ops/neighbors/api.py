"""Public functions of the exact neighbour search and the choice of its backend; the order of points in space."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._backends import Backends
from fullfield.ops.neighbors.ragged import (
    Cloud,
    Neighbors,
    check_and_build_cloud,
    check_and_build_cloud_pair,
    check_distance,
    convert_clouds_to_float32_centering_float64,
)

BACKENDS = ("cuda", "cpu", "reference")
"""Backends, preferred first: kernels for GPUs and for the CPU; plain PyTorch on any device, in quadratic time."""
SEARCHES = Backends("neighbour search", f"{__package__}.", BACKENDS)
MAX_NEIGHBORS = 1024
_BITS = 21  # bits of a coordinate in a Morton code


def explain_backends(device: str | torch.device = "cpu") -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that runs on ``device``, (name, reason) for others; preferred first."""
    return SEARCHES.list_refusals(torch.device(device))


def radius_search(
    points: Tensor,  # [N, 3] float32 or float64
    radius: float,
    queries: Tensor | None = None,  # [M, 3]; None: the points themselves
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    query_offsets: Tensor | None = None,  # [B + 1]
    sort_indices: bool = True,
    backend: str | None = None,
) -> Neighbors:
    """Find all points at most ``radius`` from each query, in its own cloud; a row's indices ascend.

    Without ``sort_indices`` they may be in any order, which takes less time. A point is its own neighbour. Distances
    are float32: ``(dx² + dy²) + dz² <= radius²``. Float64 coordinates are converted to float32 relative to the middle
    of their cloud.

    Raises:
        InputError: if coordinates are not finite, the radius is not from 1e-18 to 1e18, offsets do not fit, or the
            backend cannot run.
    """
    check_distance(radius, "radius")
    cloud, query_cloud = check_and_build_cloud_pair(points, queries, offsets, query_offsets)
    pair = convert_clouds_to_float32_centering_float64(cloud, query_cloud)
    search = _choose_and_load_backend_module(backend, points).radius_search
    neighbors: Neighbors = search(
        *pair, cloud.offsets, query_cloud.offsets, float(radius), sort_indices=bool(sort_indices)
    )
    return neighbors


def knn_search(
    points: Tensor,  # [N, 3] float32 or float64
    k: int,
    queries: Tensor | None = None,  # [M, 3]; None: the points themselves
    *,
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
    query_offsets: Tensor | None = None,  # [B + 1]
    backend: str | None = None,
) -> Neighbors:
    """Find the ``k`` points nearest to each query in its own cloud, nearest first, equal distances by index.

    A cloud with fewer points returns all of them. A point is its own neighbour. Distances are as in
    :func:`radius_search`.

    Raises:
        InputError: if coordinates are not finite, k < 1, offsets do not fit, or the backend cannot run.
    """
    _check.check_number(k, "k", integer=True, low=1, high=MAX_NEIGHBORS)
    cloud, query_cloud = check_and_build_cloud_pair(points, queries, offsets, query_offsets)
    return search_knn_in_validated_clouds(
        cloud, query_cloud, convert_clouds_to_float32_centering_float64(cloud, query_cloud), int(k), backend
    )


def run_radius_searches(searches: Sequence[tuple[Cloud, Cloud, tuple[Tensor, Tensor], float]]) -> list[Neighbors]:
    """Run :func:`radius_search` on checked clouds and their points as float32; GPUs wait once for all."""
    if not searches:
        return []
    module = _choose_and_load_backend_module(None, searches[0][2][0])
    arguments = [(*pair, cloud.offsets, query_cloud.offsets, radius) for cloud, query_cloud, pair, radius in searches]
    if hasattr(module, "run_radius_searches"):
        neighbors: list[Neighbors] = module.run_radius_searches(arguments)
        return neighbors
    return [module.radius_search(*search) for search in arguments]


def search_knn_in_validated_clouds(
    cloud: Cloud, query_cloud: Cloud, float32_points: tuple[Tensor, Tensor], k: int, backend: str | None = None
) -> Neighbors:
    """Run :func:`knn_search` on checked clouds, given :func:`convert_clouds_to_float32_centering_float64` of them."""
    neighbors: Neighbors = _choose_and_load_backend_module(backend, float32_points[0]).knn_search(
        *float32_points, cloud.offsets, query_cloud.offsets, k
    )
    return neighbors


def _choose_and_load_backend_module(backend: str | None, points: Tensor) -> Any:
    return SEARCHES.load(SEARCHES.choose(backend, points.device))


def spatial_order(
    points: Tensor,  # [N, 3] float32 or float64
    offsets: Tensor | None = None,  # [B + 1]; None: one cloud
) -> Tensor:  # [N] int64
    """Return the indices that sort each cloud's points along a Morton curve; clouds stay in their order.

    Searches and convolutions read ``points[order]`` and ``features[order]`` faster than unsorted points.

    Raises:
        InputError: if coordinates are not finite or offsets do not fit.
    """
    cloud = check_and_build_cloud(points, offsets)
    edges = cloud.offsets.tolist()
    orders = [_order_along_morton_curve(cloud.points[first:last]) + first for first, last in pairwise(edges)]
    return torch.cat(orders) if orders else torch.zeros(0, dtype=torch.int64, device=points.device)


def _order_along_morton_curve(points: Tensor) -> Tensor:
    if not points.shape[0]:
        return torch.zeros(0, dtype=torch.int64, device=points.device)
    low, high = points.amin(0).double(), points.amax(0).double()
    cells = ((points.double() - low) / (high - low).amax().clamp(min=1e-30) * (2**_BITS - 1)).to(torch.int64)
    return torch.argsort(compute_morton_codes(cells), stable=True)


def compute_morton_codes(cells: Tensor) -> Tensor:
    """Return the codes [N] int64 of numbers [N, 3] from 0 to 2²¹ − 1; x is the most significant."""
    x, y, z = (_insert_two_zero_bits(cells[:, axis]) for axis in range(3))
    return x << 2 | y << 1 | z


def _insert_two_zero_bits(x: Tensor) -> Tensor:
    """Insert two zero bits between the bits of int64 numbers."""
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        x = (x | x << shift) & mask
    return x
