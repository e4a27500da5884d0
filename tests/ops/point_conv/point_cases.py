"""Clouds, and the operator as its definition reads: loops in Python."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield.ops.point_conv import PointGeometry, point_conv, triplet_geometry


def ragged(sizes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Points in the unit cube, offsets."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(sum(sizes), 3, generator=generator, dtype=torch.float64).to(dtype)
    return points, torch.tensor([0, *sizes]).cumsum(0)


def random_geometry(centers: int, points: int, triplets: int, kernel: int = 3, seed: int = 0) -> PointGeometry:
    """Triplets that no cloud gives: any cell for any pair."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randperm(centers * points, generator=generator)[:triplets]
    cells = torch.randint(kernel**3, (len(pairs),), generator=generator)
    return triplet_geometry(pairs // points, pairs % points, cells, (centers, points), kernel)


def looped(features: Tensor, weight: Tensor, geometry: PointGeometry, bias: Tensor | None, groups: int) -> Tensor:
    """[M, Cout] float64."""
    rows = [torch.zeros(weight.shape[2], dtype=torch.float64) for _ in range(geometry.center_count)]
    inputs, outputs = features.shape[1] // groups, weight.shape[2] // groups
    for i, j, k in zip(*(t.tolist() for t in geometry.triplets()), strict=True):
        parts = [
            weight[k, :, g * outputs : (g + 1) * outputs].T.double()
            @ features[j, g * inputs : (g + 1) * inputs].double()
            for g in range(groups)
        ]
        rows[i] = rows[i] + torch.cat(parts)
    out = torch.stack(rows) if rows else torch.zeros(0, weight.shape[2], dtype=torch.float64)
    return out if bias is None else out + bias.double()


def expected_triplets(
    points: Tensor, centers: Tensor, grid: float, kernel: tuple[int, int, int], radius: float
) -> set[tuple[int, int, int]]:
    """Of one cloud in float64; the caller keeps clear of ties."""
    found = set()
    for i, q in enumerate(centers.double()):
        for j, p in enumerate(points.double()):
            if float((p - q).norm()) <= radius:
                steps = [
                    min(max(round(float(d) / grid) + t // 2, 0), t - 1) for d, t in zip(p - q, kernel, strict=True)
                ]
                found.add((i, j, (steps[0] * kernel[1] + steps[1]) * kernel[2] + steps[2]))
    return found


def draw(geometry: PointGeometry, channels: tuple[int, int], groups: int, dtype: torch.dtype) -> list[Tensor]:
    """Features, weight, bias, gradient."""
    generator = torch.Generator().manual_seed(3)
    shapes = (
        (geometry.points, channels[0]),
        (geometry.cells, channels[0] // groups, channels[1]),
        (channels[1],),
        (geometry.center_count, channels[1]),
    )
    return [torch.randn(shape, generator=generator).to(geometry.device, dtype) for shape in shapes]


def results(tensors: list[Tensor], geometry: PointGeometry, groups: int, name: str) -> list[Tensor]:
    """The result and all gradients."""
    inputs = [t.detach().clone().requires_grad_() for t in tensors[:3]]
    out = point_conv(inputs[0], inputs[1], geometry, inputs[2], groups, backend=name)
    return [out.detach(), *torch.autograd.grad(out, inputs, tensors[3])]
