"""Continuous procedural textures: colours at any real position, made for being matched and for being looked at."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Texture = Callable[[Tensor], Tensor]  # positions [2, N] (x, y), px, float64 -> RGB [3, N] in [0, 1], float64

_LATTICE = 128

# Dark to bright, sRGB.
PALETTES = (
    ((16, 38, 52), (28, 92, 108), (118, 178, 164), (238, 226, 188), (214, 122, 72)),
    ((52, 20, 40), (148, 38, 58), (232, 104, 64), (252, 196, 104), (255, 240, 208)),
    ((20, 24, 66), (58, 66, 158), (126, 134, 222), (206, 196, 244), (250, 236, 246)),
    ((14, 44, 34), (34, 108, 66), (122, 172, 74), (216, 216, 112), (250, 246, 204)),
    ((48, 30, 18), (122, 74, 38), (196, 138, 78), (236, 204, 148), (252, 242, 220)),
    ((22, 40, 84), (28, 112, 168), (92, 190, 214), (190, 234, 226), (255, 250, 226)),
    ((56, 22, 70), (134, 48, 132), (214, 96, 150), (248, 170, 164), (255, 232, 208)),
)


class Noise:
    """Smooth random values of mean 0 and about unit size, without end: a periodic lattice and cubic interpolation.

    Power falls with frequency, and nothing is finer than five lattice steps, so that frames sampled at pixels hold the
    texture without aliasing.
    """

    def __init__(self, generator: torch.Generator, spacing: float, *, slope: float = 1.1) -> None:
        white = torch.randn(_LATTICE, _LATTICE, dtype=torch.float64, generator=generator)
        frequency = torch.fft.fftfreq(_LATTICE, dtype=torch.float64)
        radius = torch.hypot(frequency[:, None], frequency)
        gain = (radius * _LATTICE).clamp(min=1.0) ** -slope * torch.exp(-((radius / 0.2) ** 4))
        gain[0, 0] = 0.0
        values = torch.fft.ifft2(torch.fft.fft2(white) * gain).real
        around = torch.arange(-1, _LATTICE + 2) % _LATTICE
        self._values = (values / values.std())[around][:, around][None, None]
        turn = 2 * math.pi * float(torch.rand((), generator=generator, dtype=torch.float32))
        self._to_lattice = torch.tensor(
            [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]], dtype=torch.float64
        ).div_(spacing)

    def __call__(self, places: Tensor) -> Tensor:
        """Values ``[N]`` at ``places`` ``[2, N]``."""
        node = (places.T @ self._to_lattice).remainder_(_LATTICE).add_(1.0)
        node.mul_(2 / (_LATTICE + 2)).sub_(1.0)
        sampled = torch.nn.functional.grid_sample(self._values, node[None, None], mode="bicubic", align_corners=True)
        return sampled[0, 0, 0]


def texture(style: int, palette: int, size: float, middle: Tensor, generator: torch.Generator) -> Texture:
    """One of five kinds of texture round ``middle`` ``[2]``, with features of about ``size`` px and fine grain."""
    colors = torch.tensor(PALETTES[palette % len(PALETTES)], dtype=torch.float64).T / 255
    fine = Noise(generator, 2.6, slope=0.8)
    medium = Noise(generator, max(3.0, size / 5))
    coarse = Noise(generator, max(4.0, size / 1.6))
    turn = float(torch.rand((), generator=generator, dtype=torch.float32)) * math.pi
    cos, sin = math.cos(turn), math.sin(turn)
    pitch = max(14.0, size)

    def level(places: Tensor) -> Tensor:
        dx, dy = places - middle[:, None]
        x, y = cos * dx + sin * dy, cos * dy - sin * dx
        if style == 0:  # clouds
            return 0.5 + 0.17 * coarse(places) + 0.13 * medium(places)
        if style == 1:  # marble
            return 0.5 + 0.32 * torch.sin(2 * math.pi * x / pitch + 1.6 * coarse(places)) + 0.08 * medium(places)
        if style == 2:  # rings
            radius = torch.hypot(x, y) + 0.1 * pitch * coarse(places)
            return 0.52 + 0.3 * torch.sin(2 * math.pi * radius / (0.8 * pitch)) + 0.08 * medium(places)
        if style == 3:  # dots, on a hexagonal grid
            wave = 2 * math.pi / pitch
            angles = (0.0, math.pi / 3, -math.pi / 3)
            dots = torch.stack([torch.cos(wave * (x * math.cos(a) + y * math.sin(a))) for a in angles]).sum(0)
            return 0.45 + 0.36 * torch.sigmoid(2.5 * (dots - 0.6)) + 0.1 * medium(places)
        weave = torch.sin(2 * math.pi * x / pitch) * torch.sin(2 * math.pi * y / pitch)
        return 0.5 + 0.3 * torch.tanh(1.6 * weave) + 0.09 * medium(places)

    def color(places: Tensor) -> Tensor:
        place = (level(places) + 0.075 * fine(places)).clamp(0, 1) * (colors.shape[1] - 1)
        lower = place.floor().clamp(max=colors.shape[1] - 2)
        part = place - lower
        index = lower.to(torch.int64)
        return torch.lerp(colors[:, index], colors[:, index + 1], part)

    return color
