"""Occlusion and confidence from the two directions of a pair."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Consistency(NamedTuple):
    """What the way back says of a flow."""

    occlusion: Tensor
    """[H, W] float32: 1 where the pixel has no match in the other frame, else 0."""
    confidence: Tensor
    """[H, W] float32, 0 to 1: exp(-e), where e is by how many pixels the way there and back misses; 0 where the flow
    leaves the frame."""


def consistency(flow: Tensor, back: Tensor) -> Consistency:
    """Compare a flow [2, H, W] with the one from its second frame to its first.

    A pixel goes where its flow says and comes back by the flow found there (bilinear). It is occluded where it leaves
    the frame or misses its place by more than |miss|² > 0.01 (|there|² + |back|²) + 0.5 (Sundaram, Brox, Keutzer, Dense
    point trajectories by GPU-accelerated large displacement optical flow, ECCV 2010).
    """
    height, width = flow.shape[-2:]
    y, x = torch.meshgrid(
        torch.arange(height, device=flow.device), torch.arange(width, device=flow.device), indexing="ij"
    )
    x, y = x + flow[0], y + flow[1]
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    found = sampled(back, x, y)
    miss = (flow + found).square().sum(0)
    allowed = 0.01 * (flow.square().sum(0) + found.square().sum(0)) + 0.5
    occluded = ~(inside & (miss <= allowed))
    return Consistency(occluded.to(torch.float32), torch.exp(-miss.sqrt()) * inside)


def sampled(image: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``image`` [C, H, W] at places x, y [H, W], bilinear; beyond the frame its rim."""
    height, width = image.shape[-2:]
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    return functional.grid_sample(image[None], grid[None].to(image.dtype), padding_mode="border", align_corners=False)[
        0
    ]
