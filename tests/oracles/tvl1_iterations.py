"""Inner iterations of TV-L1 on planes of the GPU's solver, and the reference's float64 of the same."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield.ops.tvl1 import reference
from fullfield.ops.tvl1.config import GRADIENT_FLOOR, TVL1Config
from fullfield.ops.tvl1.cuda.state import Level


class Term(NamedTuple):
    """A linearised data term and where the iterations start, float64: what ``reference.update_flow_and_dual`` takes."""

    gradient: Tensor  # [B, 2, H, W]
    difference: Tensor  # [B, H, W]: second frame at ``start``, less the first
    start: Tensor  # [B, 2, H, W], pixels: the flow at the warp
    dual: Tensor  # [B, 4, H, W]


def make_term(batch: int, height: int, width: int, borders: str, motion: float = 3.0, seed: int = 0) -> Term:
    """At random: gradients as of 8-bit frames, a quarter of them zero; flows about ``motion`` pixels. All are values of
    half precision, so that float16 starts from the same."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1

    size = (height, width)
    gradient = (20 * uniform(batch, 2, *size)).half().double()
    gradient *= (uniform(batch, 1, *size) > -0.5).double()
    difference = (30 * uniform(batch, *size)).half().double()
    start = (motion * (uniform(batch, 2, 1, 1) + 0.1 * uniform(batch, 2, *size))).half().double()
    dual = (0.7 * uniform(batch, 4, *size)).half().double()
    if borders == "adjoint":
        dual[:, 0::2, :, -1] = 0
        dual[:, 1::2, -1, :] = 0
    return Term(gradient, difference, start, dual)


def load(level: Level, term: Term, config: TVL1Config) -> None:
    """Put ``term`` into the front of ``level``, as the solver's warp does."""
    level.gradient.copy_(term.gradient)
    level.current_dual.copy_(config.theta * term.dual)
    if level.dtype == torch.float16:
        level.origin.copy_(term.start)
        level.current_flow.zero_()
        level.residual.copy_(term.difference)
    else:
        level.current_flow.copy_(term.start)
        level.residual.copy_(term.difference - (term.gradient * term.start).sum(1))


def result(level: Level, config: TVL1Config) -> tuple[Tensor, Tensor]:
    """Flow [B, 2, H, W] and dual variable [B, 4, H, W] of ``level``, float64 on the CPU."""
    flow = level.current_flow.double()
    if level.dtype == torch.float16:
        flow += level.origin.double()
    return flow.cpu(), level.current_dual.double().cpu() / config.theta


def allowed(dtype: torch.dtype, iterations: int) -> tuple[float, float]:
    """How far a flow that began at ``make_term`` may be from ``iterated``, px: at most, and root mean square.

    An iteration rounds the flow twice, and nothing takes that back: the divergence adds to it, the data term moves it
    by a limited step, or along the gradient alone. So at the worst pixel errors add up, over the frame their squares
    do. Half precision rounds by up to 2⁻¹⁰ px where a flow is 2 to 4 px from its origin, as the farthest are: 2⁻⁹ px
    for the two. Below 1 px, as most are, it is 1.4·10⁻⁴ px root mean square each: less than 2⁻¹² px for the two.
    """
    if dtype == torch.float16:
        return 2**-9 * iterations, 2**-12 * math.sqrt(iterations)
    return 1e-4, 1e-5


def iterated(term: Term, iterations: int, config: TVL1Config) -> tuple[Tensor, Tensor]:
    """The reference's flow and dual variable after ``iterations``."""
    flows, duals = [], []
    for gradient, difference, flow, dual in zip(*term, strict=True):
        gx, gy = gradient
        squared = gx * gx + gy * gy
        inverse = torch.where(squared > GRADIENT_FLOOR, 1 / torch.where(squared > GRADIENT_FLOOR, squared, 1), 0)
        data = (gx, gy, difference - (gradient * flow).sum(0), inverse)
        for _ in range(iterations):
            flow, dual = reference.update_flow_and_dual(flow, dual, data, config)
        flows.append(flow)
        duals.append(dual)
    return torch.stack(flows), torch.stack(duals)
