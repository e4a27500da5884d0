"""Reference in plain PyTorch for any device: every query against every point of its cloud."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fullfield.ops.neighbors.ragged import Neighbors

_BLOCK = 1 << 22  # distances in memory at a time


def explain_unsupported(device: torch.device) -> str | None:  # noqa: ARG001 - any device
    """Return None: the reference runs on any device."""
    return None


def _compute_squared_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Return squared distances [M, N], summed in the order of the contract."""
    x, y, z = ((queries[:, None, axis] - points[None, :, axis]).square() for axis in range(3))
    return (x + y) + z


def _search_in_query_blocks(
    points: Tensor,
    queries: Tensor,
    offsets: Tensor,
    query_offsets: Tensor,
    count_and_choose_indices: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Neighbors:
    counts, chunks = [], []
    bounds, query_bounds = offsets.tolist(), query_offsets.tolist()
    for batch in range(len(bounds) - 1):
        own = points[bounds[batch] : bounds[batch + 1]]
        step = max(1, _BLOCK // max(1, own.shape[0]))
        for queries_chunk in torch.split(queries[query_bounds[batch] : query_bounds[batch + 1]], step):
            count, indices = count_and_choose_indices(_compute_squared_distances(queries_chunk, own))
            counts.append(count)
            chunks.append((indices + bounds[batch]).to(torch.int32))
    none = torch.zeros(1, dtype=torch.int64, device=points.device)
    rows = torch.cat([none, *counts]).cumsum(0)
    return Neighbors(rows, torch.cat([none[:0].to(torch.int32), *chunks]))


def radius_search(
    points: Tensor,
    queries: Tensor,
    offsets: Tensor,
    query_offsets: Tensor,
    radius: float,
    *,
    sort_indices: bool = True,  # noqa: ARG001
) -> Neighbors:
    """Find the points within a radius, always sorted; see :func:`fullfield.ops.neighbors.radius_search`."""
    limit = torch.tensor(radius, dtype=torch.float32).square().item()

    def choose_neighbors(distances: Tensor) -> tuple[Tensor, Tensor]:
        is_within = distances <= limit
        return is_within.sum(1), is_within.nonzero()[:, 1]

    return _search_in_query_blocks(points, queries, offsets, query_offsets, choose_neighbors)


def knn_search(points: Tensor, queries: Tensor, offsets: Tensor, query_offsets: Tensor, k: int) -> Neighbors:
    """Find the k nearest points; see :func:`fullfield.ops.neighbors.knn_search`."""

    def choose_neighbors(distances: Tensor) -> tuple[Tensor, Tensor]:
        nearest = torch.sort(distances, dim=1, stable=True).indices[:, :k]
        count = torch.full((distances.shape[0],), nearest.shape[1], dtype=torch.int64, device=points.device)
        return count, nearest.reshape(-1)

    return _search_in_query_blocks(points, queries, offsets, query_offsets, choose_neighbors)
