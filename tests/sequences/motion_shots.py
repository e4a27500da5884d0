"""Stored flow and pictures for tests of warp and retime."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from sequence_shots import HEIGHT, WIDTH, moving

from fullfield.io import write_flow_layers, write_image


def steady(u: float, v: float = 0.0) -> torch.Tensor:
    return torch.tensor([u, v]).view(2, 1, 1).expand(2, HEIGHT, WIDTH).contiguous()


def stored(first: int, last: int, u: float) -> None:
    """Files of both directions for a shot that moves by u px a frame."""
    for number in range(first, last + 1):
        ends = [name for name, at in (("forward", last), ("backward", first)) if at == number]
        parts = {"forward": steady(u) * (number < last), "backward": steady(-u) * (number > first)}
        write_flow_layers(f"mv.{number:04d}.exr", parts, notes={"fullfield/shot_ends": ",".join(ends)} if ends else {})


def hdr(seed: int = 0) -> torch.Tensor:
    """[4, H, W]: colour with highlights of 60, multiplied by an alpha with soft edges."""
    made = torch.rand(4, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(seed))
    made[:3] *= 60 * made[3]
    return made


def shot_of(numbers: Iterable[int]) -> None:
    for number, frame in zip(numbers, moving(6), strict=False):
        write_image(f"p.{number}.png", frame)


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(-10 * (a - b).square().mean().log10())
