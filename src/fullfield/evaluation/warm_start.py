"""The flow of the pair before as a start: every vector moves to where its pixel went."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def moved_forward(flow: Tensor) -> Tensor:  # [2, H, W] -> [2, H, W]
    """The motion of the last pair, at the pixels of the next one's first frame, if motion goes on as it was.

    Each vector lands at the pixel nearest to its end; of several the longest stays (it moves over what is slower).
    Pixels that none reaches take the mean of their neighbours, from the rim inwards. RAFT's own warm start does the
    same on its 1/8 grid with the nearest vector instead.
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
    order = vectors.square().sum(0).argsort(stable=True)
    target = (y * width + x)[inside][order]
    # Of equal targets the last, the longest vector, must win: index_put leaves that open, a maximum does not.
    winner = torch.full((height * width,), -1, dtype=torch.long, device=flow.device)
    winner.scatter_reduce_(0, target, torch.arange(len(target), device=flow.device), "amax")
    known = winner >= 0
    moved = torch.zeros(2, height * width, dtype=flow.dtype, device=flow.device)
    moved[:, known] = vectors[:, order][:, winner[known]]
    return _filled(moved.view(2, height, width), known.view(height, width))


def _filled(flow: Tensor, known: Tensor) -> Tensor:
    """Unknown vectors from known neighbours; zero where nothing is known."""
    if not known.any():
        return torch.zeros_like(flow)
    ring = flow.new_ones(1, 1, 3, 3)
    weight = known.to(flow.dtype)[None]
    while not bool(known.all()):
        sums = functional.conv2d((flow * weight)[:, None], ring, padding=1)[:, 0]
        counts = functional.conv2d(weight[None], ring, padding=1)[0]
        reached = (counts[0] > 0) & ~known
        flow = torch.where(reached, sums / counts.clamp(min=1), flow)
        known = known | reached
        weight = known.to(flow.dtype)[None]
    return flow
