"""Reference in plain PyTorch for any device; it defines the results."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops._positions import create_pixel_grid


def predict_next_flow(flow: Tensor) -> Tensor:  # [2, H, W] -> [2, H, W]
    """Move each vector along itself; see :func:`fullfield.ops._splatting.predict_next_flow`."""
    height, width = flow.shape[-2:]
    finite = flow.isfinite().all(0)
    xs, ys = create_pixel_grid((height, width), flow.device, flow.dtype)
    safe = torch.where(finite, flow, 0.0)
    x, y = (xs + safe[0]).round().long(), (ys + safe[1]).round().long()
    inside = finite & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    vectors = flow[:, inside]
    target = (y * width + x)[inside]
    length = vectors.square().sum(0)
    longest = length.new_full((height * width,), -1.0).scatter_reduce_(0, target, length, "amax")
    index = torch.arange(len(target), device=flow.device)
    winner = torch.full((height * width,), -1, dtype=torch.long, device=flow.device)
    winner.scatter_reduce_(0, target, torch.where(length == longest[target], index, -1), "amax")
    valid = winner >= 0
    predicted = torch.zeros(2, height * width, dtype=flow.dtype, device=flow.device)
    predicted[:, valid] = vectors[:, winner[valid]]
    return fill_unknown_vectors(predicted.view(2, height, width), valid.view(height, width))


def fill_unknown_vectors(flow: Tensor, valid: Tensor) -> Tensor:
    """Fill unknown vectors; see :func:`fullfield.ops._splatting.fill_unknown_vectors`."""
    height, width = valid.shape
    if not bool(valid.any()):
        return torch.zeros_like(flow)
    stride = width + 2  # a border of unknown pixels that are never filled
    steps = torch.tensor([dy * stride + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx], device=flow.device)
    field = functional.pad(torch.where(valid, flow, 0.0), (1, 1, 1, 1)).flatten(1)
    have = functional.pad(valid, (1, 1, 1, 1)).flatten()
    fillable = functional.pad(~valid, (1, 1, 1, 1)).flatten()
    is_rim = functional.max_pool2d(valid[None].to(flow.dtype), 3, 1, 1)[0] > 0
    ring = (functional.pad(is_rim, (1, 1, 1, 1)).flatten() & fillable).nonzero()[:, 0]
    mark = torch.empty(have.shape, dtype=torch.int32, device=flow.device)
    while len(ring):
        around = ring[:, None] + steps
        weight = have[around].to(flow.dtype)
        means = (field[:, around] * weight).sum(2) / weight.sum(1)
        field[:, ring] = means
        have[ring], fillable[ring] = True, False
        ring = around[fillable[around]]
        order = torch.arange(len(ring), dtype=torch.int32, device=flow.device)
        mark[ring] = order
        ring = ring[mark[ring] == order]  # each one once
    return field.view(2, height + 2, stride)[:, 1:-1, 1:-1].contiguous()


def splat_scaled_flow_with_cover_and_confidence(
    flow: Tensor, length_fraction: float, confidence: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Splat a flow; see :func:`fullfield.ops._splatting.splat_scaled_flow_with_cover_and_confidence`."""
    height, width = flow.shape[-2:]
    columns, rows = create_pixel_grid((height, width), flow.device, flow.dtype)
    x, y = columns + length_fraction * flow[0], rows + length_fraction * flow[1]
    left, top = x.floor(), y.floor()
    strength = torch.exp(12 * confidence) * valid
    sums = torch.zeros(5, height * width, dtype=flow.dtype, device=flow.device)  # u, v, weight, cover, trust
    values = torch.stack(
        [flow[0] * strength, flow[1] * strength, strength, valid.to(flow.dtype), confidence * strength]
    )
    for dy in (0, 1):
        for dx in (0, 1):
            px, py = left + dx, top + dy
            overlap = (1 - (x - px).abs()) * (1 - (y - py).abs())
            inside = (px >= 0) & (px < width) & (py >= 0) & (py < height) & (overlap > 0)
            index = (py.long() * width + px.long())[inside]  # float32 holds no index beyond 2^24
            sums.index_add_(1, index, (values * overlap)[:, inside])
    weight = sums[2].clamp(min=1e-12)
    vectors, cover, sure = sums[:2] / weight, sums[3], sums[4] / weight
    return vectors.view(2, height, width), cover.view(height, width), sure.view(height, width)
