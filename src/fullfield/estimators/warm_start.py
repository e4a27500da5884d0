"""The flow of the pair before as a start: every vector moves to where its pixel went."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def moved_forward(flow: Tensor) -> Tensor:  # [2, H, W] -> [2, H, W]
    """The motion of the last pair, at the pixels of the next one's first frame, if motion goes on as it was.

    Each vector lands at the pixel nearest to its end; of several the longest stays (it moves over what is slower), of
    equally long ones the last. Pixels that none reaches take the mean of their neighbours, ring by ring from the rim
    inwards. RAFT's own warm start does the same on its 1/8 grid with the nearest vector instead.

    The work grows with the number of pixels, however large the holes are.
    """
    height, width = flow.shape[-2:]
    finite = flow.isfinite().all(0)
    ys, xs = torch.meshgrid(
        torch.arange(height, device=flow.device), torch.arange(width, device=flow.device), indexing="ij"
    )
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
    known = winner >= 0
    moved = torch.zeros(2, height * width, dtype=flow.dtype, device=flow.device)
    moved[:, known] = vectors[:, winner[known]]
    return fill_holes(moved.view(2, height, width), known.view(height, width))


def fill_holes(flow: Tensor, known: Tensor) -> Tensor:
    """Unknown vectors from known neighbours; zero where nothing is known. Each pixel is in one ring."""
    height, width = known.shape
    if not bool(known.any()):
        return torch.zeros_like(flow)
    stride = width + 2  # a border of unknown pixels that are never filled
    steps = torch.tensor([dy * stride + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx], device=flow.device)
    field = functional.pad(flow, (1, 1, 1, 1)).flatten(1)
    have = functional.pad(known, (1, 1, 1, 1)).flatten()
    fillable = functional.pad(~known, (1, 1, 1, 1)).flatten()
    near = functional.max_pool2d(known[None].to(flow.dtype), 3, 1, 1)[0] > 0
    ring = (functional.pad(near, (1, 1, 1, 1)).flatten() & fillable).nonzero()[:, 0]
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
        ring = ring[mark[ring] == order]  # each once
    return field.view(2, height + 2, stride)[:, 1:-1, 1:-1].contiguous()
