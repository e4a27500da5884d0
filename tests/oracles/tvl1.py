"""TV-L1 on one scale in plain Python loops, float64: what every backend is held against on small images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fullfield.ops.tvl1 import TVL1Config

    Array = NDArray[np.float64]


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "clamp": {"borders": "clamp"},
    "no blend": {"gradient_blend": 0.0},
    "median 3": {"median": 3},
    "no median": {"median": 0},
}
"""What a configuration may change in the arithmetic of one scale."""


def _clip(i: int, size: int) -> int:
    return min(max(i, 0), size - 1)


def _central(image: Array, y: int, x: int) -> tuple[float, float]:
    h, w = image.shape
    gx = (image[y, _clip(x + 1, w)] - image[y, _clip(x - 1, w)]) / 2
    gy = (image[_clip(y + 1, h), x] - image[_clip(y - 1, h), x]) / 2
    return float(gx), float(gy)


def _keys(distance: float) -> float:
    """Keys' cubic kernel, a = -1/2, from its piecewise definition."""
    d = abs(distance)
    if d <= 1:
        return 1.5 * d**3 - 2.5 * d**2 + 1
    if d < 2:
        return -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2
    return 0.0


def _sample(image: Array, y: float, x: float) -> float:
    h, w = image.shape
    total = 0.0
    for row in range(math.floor(y) - 1, math.floor(y) + 3):
        for column in range(math.floor(x) - 1, math.floor(x) + 3):
            total += _keys(y - row) * _keys(x - column) * float(image[_clip(row, h), _clip(column, w)])
    return total


def tvl1_by_loops(frame1: NDArray[Any], frame2: NDArray[Any], config: TVL1Config) -> Array:
    """Flow [2, H, W] between grey frames [H, W] of intensities 0 ... 255, on the finest scale only.

    Starts from zero. Written from the scheme, with none of the backends' code.
    """
    one, two = frame1.astype(np.float64), frame2.astype(np.float64)
    h, w = one.shape
    slopes = [np.zeros((h, w)), np.zeros((h, w))]
    for y in range(h):
        for x in range(w):
            slopes[0][y, x], slopes[1][y, x] = _central(two, y, x)
    u = np.zeros((2, h, w))
    p = np.zeros((2, 2, h, w))  # component, direction
    for _ in range(config.warps):
        data = _linearised(one, two, slopes, u, config.gradient_blend)
        for _ in range(config.iterations):
            u, p = _iterate(u, p, data, config)
        if config.median:
            u = _median(u, config.median)
    return u


def _linearised(one: Array, two: Array, slopes: list[Array], u: Array, blend: float) -> Array:
    """Per pixel: gradient x, gradient y, constant of the residual."""
    h, w = one.shape
    data = np.zeros((3, h, w))
    for y in range(h):
        for x in range(w):
            px, py = x + u[0, y, x], y + u[1, y, x]
            if 0 <= px <= w - 1 and 0 <= py <= h - 1:
                own = _central(one, y, x)
                for axis in range(2):
                    data[axis, y, x] = (1 - blend) * _sample(slopes[axis], py, px) + blend * own[axis]
                moved = _sample(two, py, px) - one[y, x]
                data[2, y, x] = moved - data[0, y, x] * u[0, y, x] - data[1, y, x] * u[1, y, x]
    return data


def _iterate(u: Array, p: Array, data: Array, config: TVL1Config) -> tuple[Array, Array]:
    h, w = u.shape[1:]
    lt = config.lambda_ * config.theta
    new_u, new_p = np.empty_like(u), np.empty_like(p)
    for y in range(h):
        for x in range(w):
            g = data[:2, y, x]
            residual = float(g @ u[:, y, x]) + data[2, y, x]
            square = float(g @ g)
            if square <= 1e-6:
                step = np.zeros(2)
            elif residual < -lt * square:
                step = lt * g
            elif residual > lt * square:
                step = -lt * g
            else:
                step = -residual * g / square
            for c in range(2):
                before_x = p[c, 0, y, x - 1] if x > 0 else (0.0 if config.borders == "adjoint" else p[c, 0, y, x])
                before_y = p[c, 1, y - 1, x] if y > 0 else (0.0 if config.borders == "adjoint" else p[c, 1, y, x])
                div = p[c, 0, y, x] - before_x + p[c, 1, y, x] - before_y
                new_u[c, y, x] = u[c, y, x] + step[c] + config.theta * div
    k = config.tau / config.theta
    for c in range(2):
        for y in range(h):
            for x in range(w):
                ux = new_u[c, y, x + 1] - new_u[c, y, x] if x + 1 < w else 0.0
                uy = new_u[c, y + 1, x] - new_u[c, y, x] if y + 1 < h else 0.0
                norm = 1 + k * math.hypot(ux, uy)
                new_p[c, 0, y, x] = (p[c, 0, y, x] + k * ux) / norm
                new_p[c, 1, y, x] = (p[c, 1, y, x] + k * uy) / norm
    return new_u, new_p


def _median(u: Array, side: int) -> Array:
    h, w = u.shape[1:]
    reach = range(-(side // 2), side // 2 + 1)
    out = np.empty_like(u)
    for c in range(2):
        for y in range(h):
            for x in range(w):
                window = [u[c, _clip(y + dy, h), _clip(x + dx, w)] for dy in reach for dx in reach]
                out[c, y, x] = sorted(window)[len(window) // 2]
    return out
