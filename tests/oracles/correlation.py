"""Oracle, inputs and error budgets for the correlation lookup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid

MOTIONS = ("smooth", "random", "outside", "integer")


def lookup_by_loops(
    fmap1: Tensor,  # [B, C, H1, W1]
    levels: Sequence[Tensor],  # L × [B, C, H2_l, W2_l]
    coords: Tensor,  # [B, 2, H1, W1]
    radius: int,
) -> Tensor:  # [B, L·(2r+1)², H1, W1] float64
    """Compute the lookup by its formula, one tap after another in float64; for small inputs."""
    f1 = fmap1.detach().double().cpu().numpy()
    xy = coords.detach().double().cpu().numpy()
    batch, channels, height, width = f1.shape
    side = 2 * radius + 1
    out = np.zeros((batch, len(levels) * side * side, height, width))
    for level, fmap2 in enumerate(levels):
        f2 = fmap2.detach().double().cpu().numpy()
        for b, h, w in np.ndindex(batch, height, width):
            if not np.isfinite(xy[b, :, h, w]).all():
                continue
            for dx in range(-radius, radius + 1):
                for dy in range(-radius, radius + 1):
                    x = xy[b, 0, h, w] / 2**level + dx
                    y = xy[b, 1, h, w] / 2**level + dy
                    channel = level * side * side + (dx + radius) * side + (dy + radius)
                    out[b, channel, h, w] = _tap(f1[b, :, h, w], f2[b], x, y) / math.sqrt(channels)
    return torch.from_numpy(out)


def _tap(pixel: np.ndarray, f2: np.ndarray, x: float, y: float) -> float:
    value = 0.0
    for column in (math.floor(x), math.floor(x) + 1):
        for row in (math.floor(y), math.floor(y) + 1):
            if 0 <= column < f2.shape[2] and 0 <= row < f2.shape[1]:
                weight = (1 - abs(x - column)) * (1 - abs(y - row))
                value += weight * float(pixel @ f2[:, row, column])
    return value


@dataclass(frozen=True)
class Case:
    """Inputs of one lookup."""

    fmap1: Tensor
    fmap2: Tensor
    coords: Tensor
    levels: int
    radius: int

    def pyramid(self) -> tuple[Tensor, ...]:
        """Return the levels of the second feature map."""
        return correlation_pyramid(self.fmap2, self.levels)

    def double(self) -> Case:
        """Return the same values in float64."""
        return replace(self, fmap1=self.fmap1.double(), fmap2=self.fmap2.double(), coords=self.coords.double())


def make_case(
    size1: tuple[int, int] = (9, 13),
    size2: tuple[int, int] | None = None,
    *,
    batch: int = 2,
    channels: int = 20,
    levels: int = 3,
    radius: int = 3,
    motion: str = "smooth",
    seed: int = 0,
) -> Case:
    """Return random float32 features and positions.

    Args:
        size1: height and width of the first feature map.
        size2: height and width of the second one; None is ``size1``.
        batch: number of pairs.
        channels: number of features.
        levels: number of levels.
        radius: radius of the windows.
        motion: ``"smooth"``, ``"random"``, ``"outside"`` (mostly outside the map) or ``"integer"`` (pixel centres).
        seed: seed of the values.
    """
    _check.check_choice(motion, "motion", MOTIONS)
    size2 = size2 or size1
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float32) for n in size1), indexing="ij")
    grid = torch.stack((x * size2[1] / max(size1[1], 1), y * size2[0] / max(size1[0], 1))).float()
    extent = torch.tensor([float(size2[1]), float(size2[0])], dtype=torch.float32).view(2, 1, 1)
    uniform = torch.rand((batch, 2, *size1), generator=generator, dtype=torch.float32)
    if motion == "smooth":
        coords = grid + 1.7 * torch.sin(grid.flip(0) / 5) + 0.3 * normal(batch, 2, 1, 1) + 0.1 * uniform
    elif motion == "integer":
        coords = grid.round() + torch.randint(-3, 4, (batch, 2, *size1), generator=generator)
    else:
        coords = uniform * extent
        if motion == "outside":
            coords = coords * 4 - 1.5 * extent
    return Case(normal(batch, channels, *size1), normal(batch, channels, *size2), coords, levels, radius)


class Results(NamedTuple):
    """Result of a lookup, and its gradients."""

    out: Tensor
    fmap1: Tensor
    fmap2: Tensor
    coords: Tensor


def run(case: Case, weight: Tensor, *, backend: str | None = None, dtype: torch.dtype = torch.float64) -> Results:
    """Look up a case in ``dtype``; return the result and the gradients of its sum weighted by ``weight``."""
    exact = dtype == torch.float64
    fmap1 = case.fmap1.to(dtype).requires_grad_()
    fmap2 = case.fmap2.to(dtype).requires_grad_()
    coords = case.coords.to(torch.float64 if exact else torch.float32).requires_grad_()
    out = correlation_lookup(fmap1, correlation_pyramid(fmap2, case.levels), coords, case.radius, backend=backend)
    grads = torch.autograd.grad(out, (fmap1, fmap2, coords), weight.to(out))
    return Results(out.detach(), *grads)


def rounded(case: Case, dtype: torch.dtype) -> Case:
    """Round the features of a case to values of ``dtype``, so that only arithmetic differs afterwards."""
    return replace(case, fmap1=case.fmap1.to(dtype).float(), fmap2=case.fmap2.to(dtype).float())


def error(got: Tensor, exact: Tensor) -> float:
    """Return the largest deviation; infinity if a value of either is not finite."""
    if got.shape != exact.shape:
        raise AssertionError(f"expected shape {list(exact.shape)}, got {list(got.shape)}")
    if not got.numel():
        return 0.0
    deviation = (got.detach().double().cpu() - exact.detach().double().cpu()).abs()
    return float(torch.where(deviation.isfinite(), deviation, math.inf).max())


def budget(eager: Tensor, exact: Tensor, dtype: torch.dtype) -> float:
    """Return a kernel's error limit: twice the error of plain PyTorch on these inputs, plus the rounding."""
    scale = float(exact.abs().max()) if exact.numel() else 0.0
    return 2.0 * (error(eager, exact) + scale * torch.finfo(dtype).eps)


def assert_within(got: Tensor, exact: Tensor, allowed: float, what: str) -> None:
    """Raise AssertionError unless every element of ``got`` is within ``allowed`` of ``exact``."""
    largest = error(got, exact)
    if not largest <= allowed:
        raise AssertionError(f"{what}: off by {largest:.3g}, allowed {allowed:.3g}")
