"""Normals, local shapes and FPFH as tensor operations, for networks on GPUs.

:mod:`fullfield.registration.descriptors` defines them; there they are compiled for CPUs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fullfield.ops.neighbors import Neighbors, radius_search
from fullfield.registration.descriptors import BINS

_PAIRS = 1 << 23  # processed at a time


def spread(points: Tensor, queries: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Return the mean [M, 3] of the points around each query, relative to it, and their covariance [M, 3, 3], float64.

    Every query must be one of the points.
    """
    found = radius_search(points, radius, queries)
    places = points.to(torch.float64)
    table = torch.cat([places, (places[:, :, None] * places[:, None]).flatten(1)], 1)
    sums = _bags(found, table)
    means = sums / found.offsets.diff().clamp(min=1)[:, None]
    middle = means[:, :3]
    covariance = means[:, 3:].view(-1, 3, 3) - middle[:, :, None] * middle[:, None]
    return middle - queries.to(torch.float64), covariance


def _bags(found: Neighbors, table: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sum [M, C] of the rows of ``table`` [N, C] that are each query's neighbours."""
    offsets = found.offsets.to(table.device)
    return torch.nn.functional.embedding_bag(
        found.indices.to(torch.int64), table, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def eigen(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ascending eigenvalues [M, 3] of symmetric matrices [M, 3, 3], and a vector [M, 3] of the least."""
    one = torch.eye(3, device=covariance.device, dtype=covariance.dtype)
    middle = covariance.diagonal(dim1=1, dim2=2).mean(1)
    rest = covariance - middle[:, None, None] * one
    size = (rest.square().sum((1, 2)) / 6).sqrt()
    scaled = rest / size.clamp(min=1e-300)[:, None, None]
    determinant = (scaled[:, 0] * torch.linalg.cross(scaled[:, 1], scaled[:, 2])).sum(1)
    angle = (determinant / 2).clamp(-1, 1).acos() / 3
    most = middle + 2 * size * angle.cos()
    least = middle + 2 * size * (angle + 2 * math.pi / 3).cos()
    values = torch.stack([least, 3 * middle - most - least, most], 1)
    # The rows without the least eigenvalue's part span the plane that its vector is perpendicular to.
    rows = covariance - least[:, None, None] * one
    products = torch.linalg.cross(rows, rows.roll(-1, 1))
    lengths = products.norm(dim=2)
    every = torch.arange(len(rows), device=rows.device)
    best = lengths.argmax(1)
    vector, length = products[every, best], lengths[every, best]
    # They are parallel where the two least eigenvalues are equal: any perpendicular one does.
    along = rows[every, rows.norm(dim=2).argmax(1)]
    other = torch.linalg.cross(along, one[along.abs().argmin(1)])
    flat = length <= 1e-12 * size.square()
    vector = torch.where(flat[:, None], other, vector)
    lost = (vector.norm(dim=1) <= 1e-150)[:, None]
    return values, torch.nn.functional.normalize(torch.where(lost, one[:1], vector), dim=1, eps=1e-300)


def plane_normals(points: Tensor, queries: Tensor, radius: float) -> Tensor:
    """Return unit normals [M, 3] of the planes through the points around each query, of either sign, float64."""
    return eigen(spread(points, queries, radius)[1])[1]


def local_shapes(points: Tensor, queries: Tensor, radius: float) -> Tensor:
    """Return curvature, planarity, linearity and height [M, 4] of the points around each query, float64."""
    mean, covariance = spread(points, queries, radius)
    variances, normal = eigen(covariance)
    variances = variances.clamp(min=0)
    least, middle, most = variances.sqrt().unbind(1)
    some, far = variances.sum(1).clamp(min=1e-12), most.clamp(min=1e-6)
    height = (mean * normal).sum(1).abs() / radius
    return torch.stack([3 * variances[:, 0] / some, (middle - least) / far, (most - middle) / far, height], 1)


def fpfh(points: Tensor, normals: Tensor, found: Neighbors) -> Tensor:
    """Return the square roots of the histograms [N, 33] of the pairs with the neighbours ``found``, float32."""
    spots, upright = (part.to(torch.float32) for part in (points, normals))
    offsets = found.offsets.to(points.device)
    count, entries = len(points), len(found.indices)
    own = torch.zeros(count, 3 * BINS, device=points.device, dtype=torch.float32)
    weights = torch.empty(entries, device=points.device, dtype=torch.float32)
    steps = torch.arange(1, entries // _PAIRS + 1, device=points.device) * _PAIRS
    ends = [*torch.searchsorted(offsets, steps, right=True).sub(1).tolist(), count]
    first = 0
    for last in ends:
        if last > first:
            _pair_histograms(spots, upright, offsets, found.indices, (first, last), own, weights)
        first = last
    own /= own[:, :BINS].sum(1, keepdim=True).clamp(min=1)
    parts = _bags(found, own, weights).view(-1, 3, BINS)
    sums = parts.sum(2, keepdim=True)
    return (parts / torch.where(sums > 0, sums, 1)).flatten(1).sqrt()


def _pair_histograms(
    points: Tensor,
    normals: Tensor,
    offsets: Tensor,
    indices: Tensor,
    rows: tuple[int, int],
    counts: Tensor,
    weights: Tensor,
) -> None:
    """Count the pairs of these points in each bin of ``counts``, and write 1 / distance² into ``weights``."""
    first, last = rows
    begin, end = offsets[[first, last]].tolist()
    i = torch.repeat_interleave(
        torch.arange(first, last, device=points.device), offsets[first : last + 1].diff(), output_size=end - begin
    )
    j = indices[begin:end].to(torch.int64)
    away = points[j] - points[i]
    squared = away.square().sum(1)
    weights[begin:end] = torch.where(squared > 0, 1 / squared, 0)
    away *= squared.clamp(min=1e-30).rsqrt()[:, None]
    u, n = normals[i], normals[j]
    v = torch.linalg.cross(away, u)
    across = v.norm(dim=1)
    valid = (across >= 1e-6) & (squared > 0)
    v /= across.clamp(min=1e-6)[:, None]
    along = (u * n).sum(1)
    n = torch.where(along[:, None] < 0, -n, n)
    alpha, phi = (v * n).sum(1), (u * away).sum(1)
    theta = torch.atan2((torch.linalg.cross(u, v) * n).sum(1), along.abs())
    theta = torch.where(phi < 0, -theta, theta)
    flat, one = counts.view(-1), valid.to(torch.float32)
    for part, value in enumerate(((alpha + 1) / 2, phi.abs(), theta / math.pi + 0.5)):
        bins = (value * BINS).to(torch.int64).clamp(0, BINS - 1)
        flat.index_add_(0, (i * 3 + part) * BINS + bins, one)
