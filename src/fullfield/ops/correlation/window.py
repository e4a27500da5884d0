"""Integer window of every pixel, its fraction, and the blend, for backends in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """Integer windows of n pixels on one level; K = 2r + 2 positions a side."""

    x: Tensor  # [n] int64, first column; far outside the map for a pixel that sees nothing
    y: Tensor  # [n] int64, first row
    fx: Tensor  # [n] fraction, differentiable
    fy: Tensor


def place(
    coords: Tensor,  # [n, 2] (x, y), level-0 pixels
    level: int,
    size: tuple[int, int],  # H2, W2 of the level
    radius: int,
) -> Window:
    """Return the windows; coordinates that are not finite, or far outside, see nothing and have fraction 0."""
    reach = 2 * radius + 4
    scaled = coords / 2**level
    low = scaled > -reach
    high = torch.stack((scaled[:, 0] < size[1] + reach, scaled[:, 1] < size[0] + reach), 1)
    near = (low & high).all(1, keepdim=True)  # False for NaN, too
    scaled = torch.where(near, scaled, -float(reach))
    base = scaled.detach().floor()
    fraction = scaled - base
    first = base.long() - radius
    return Window(first[:, 0], first[:, 1], fraction[:, 0], fraction[:, 1])


def cells(
    window: Window, size: tuple[int, int], radius: int
) -> tuple[Tensor, Tensor, Tensor]:  # x, y, inside: each [n, K, K], rows slow
    """Return the positions of all cells, clamped into the map, and whether they were inside."""
    steps = torch.arange(2 * radius + 2, device=window.x.device)
    x = (window.x[:, None] + steps)[:, None, :]
    y = (window.y[:, None] + steps)[:, :, None]
    inside = (x >= 0) & (x < size[1]) & (y >= 0) & (y < size[0])
    return (
        x.clamp(0, max(size[1] - 1, 0)).expand_as(inside),
        y.clamp(0, max(size[0] - 1, 0)).expand_as(inside),
        inside,
    )


def blend(
    dots: Tensor,  # [n, K, K], rows slow
    window: Window,
) -> Tensor:  # [n, (2r+1)²]: dx slow, dy fast
    """Blend products at integer positions into bilinear taps."""
    fx = window.fx.to(dots.dtype)[:, None, None]
    fy = window.fy.to(dots.dtype)[:, None, None]
    rows = (1 - fx) * dots[:, :, :-1] + fx * dots[:, :, 1:]
    taps = (1 - fy) * rows[:, :-1] + fy * rows[:, 1:]
    return taps.transpose(1, 2).flatten(1)


def blend_adjoint(
    grad: Tensor,  # [n, (2r+1)²]
    window: Window,
    side: int,
) -> Tensor:  # [n, K, K]
    """Return the gradient of :func:`blend` in its first argument."""
    fx = window.fx.to(grad.dtype)[:, None, None]
    fy = window.fy.to(grad.dtype)[:, None, None]
    taps = torch.unflatten(grad, 1, (side, side)).transpose(1, 2)
    pad = torch.nn.functional.pad
    rows = pad((1 - fy) * taps, (0, 0, 0, 1)) + pad(fy * taps, (0, 0, 1, 0))
    return pad((1 - fx) * rows, (0, 1)) + pad(fx * rows, (1, 0))


def slopes(
    grad: Tensor,  # [n, (2r+1)²]
    dots: Tensor,  # [n, K, K]
    window: Window,
    side: int,
) -> Tensor:  # [n, 2]
    """Return the gradient of :func:`blend` in the fractions (x, y)."""
    fx = window.fx.to(dots.dtype)[:, None, None]
    fy = window.fy.to(dots.dtype)[:, None, None]
    taps = torch.unflatten(grad, 1, (side, side)).transpose(1, 2)
    across = dots[:, :, 1:] - dots[:, :, :-1]
    down = dots[:, 1:] - dots[:, :-1]
    d_x = (1 - fy) * across[:, :-1] + fy * across[:, 1:]
    d_y = (1 - fx) * down[:, :, :-1] + fx * down[:, :, 1:]
    return torch.stack(((taps * d_x).sum((1, 2)), (taps * d_y).sum((1, 2))), 1)
