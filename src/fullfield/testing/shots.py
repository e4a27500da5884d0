"""Synthetic shots of many frames with known motion between any two of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.testing.scenes import PALETTES, Texture, create_texture_function

_STYLES = 5  # of textures


class ShotTruth(NamedTuple):
    """True motion from one frame of a shot to another."""

    flow: Tensor  # [2, H, W] float32, (u, v), pixels of the first frame
    visible: Tensor  # [H, W] bool: the same surface point is seen in the second frame


@dataclass(frozen=True)
class _Body:
    """Textured shape whose points move as ``x -> centre(t) + scale(t) R(angle(t)) x``; x is in its own coordinates."""

    color: Texture
    radius: float | None  # px; None covers everything
    lobes: int  # bumps of the outline
    path: Callable[[float], tuple[float, float]]
    angle: Callable[[float], float]
    scale: Callable[[float], float]

    def map_frame_to_body(self, positions: Tensor, time: float) -> Tensor:
        """Return the body's own coordinates [2, N] of frame positions [2, N]."""
        x, y = self.path(time)
        offset = positions - positions.new_tensor([[x], [y]])
        cos, sin = math.cos(self.angle(time)), math.sin(self.angle(time))
        turned = torch.stack([cos * offset[0] + sin * offset[1], cos * offset[1] - sin * offset[0]])
        return turned / self.scale(time)

    def map_body_to_frame(self, positions: Tensor, time: float) -> Tensor:
        """Return the frame positions [2, N] of the body's own coordinates [2, N]."""
        x, y = self.path(time)
        cos, sin = math.cos(self.angle(time)), math.sin(self.angle(time))
        scaled = positions * self.scale(time)
        turned = torch.stack([cos * scaled[0] - sin * scaled[1], sin * scaled[0] + cos * scaled[1]])
        return turned + positions.new_tensor([[x], [y]])

    def compute_signed_outline_distance(self, body_positions: Tensor) -> Tensor:
        """Return the approximate signed distance [N] to the outline in own coordinates; negative inside."""
        if self.radius is None:
            return torch.full_like(body_positions[0], -math.inf)
        around = torch.atan2(body_positions[1], body_positions[0])
        return torch.hypot(*body_positions) - self.radius * (1 + 0.18 * torch.sin(self.lobes * around))


class SyntheticShot:
    """Shot of textured bodies that turn, grow and pass each other before a background that pans away and returns.

    Light changes over the shot, and the shutter blurs motion. Every frame samples the continuous textures, so no frame
    is resampled from another, and the truth is exact between any two frames.

    Args:
        height, width: size of the frames, at least 16.
        frames: number of frames.
        seed: seed of the shot; the same seed gives the same shot.
        bodies: number of bodies.
        pan: greatest displacement of the background as a share of the width.
        shutter: share of the time between two frames during which light falls on a frame; 0 gives no blur.
        light: relative change of the brightness over the shot.
    """

    def __init__(
        self,
        height: int,
        width: int,
        frames: int,
        *,
        seed: int = 0,
        bodies: int = 4,
        pan: float = 0.25,
        shutter: float = 0.4,
        light: float = 0.15,
    ) -> None:
        for name, value, low in (("height", height, 16), ("width", width, 16), ("frames", frames, 2)):
            _check.check_number(value, name, integer=True, low=low)
        self.height, self.width, self.frames = height, width, frames
        self._shutter, self._light = shutter, light
        generator = torch.Generator().manual_seed(seed)

        def draw(low: float, high: float) -> float:
            return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float32))

        side, turn = min(height, width), 2 * math.pi
        palettes = torch.randperm(len(PALETTES), generator=generator).tolist()
        origin = torch.zeros(2, dtype=torch.float64)
        middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
        heading = draw(-0.4, 0.4)

        def pan_path(time: float) -> tuple[float, float]:
            along = pan * width * math.sin(math.pi * time)
            return middle_x + along * math.cos(heading), middle_y + along * math.sin(heading)

        roll = draw(0.03, 0.08)
        self._bodies = [
            _Body(
                create_texture_function(0, palettes[0], 0.25 * side, origin, generator),
                None,
                0,
                pan_path,
                lambda time: roll * math.sin(turn * time),
                lambda time: 1 + 0.06 * math.sin(math.pi * time),
            )
        ]
        for index in range(bodies):
            self._bodies.append(self._draw_body(index, palettes[1 + index % (len(palettes) - 1)], draw, generator))

    def _draw_body(
        self,
        body_index: int,
        palette_index: int,
        draw_uniform: Callable[[float, float], float],
        generator: torch.Generator,
    ) -> _Body:
        side, turn = min(self.height, self.width), 2 * math.pi
        radius = draw_uniform(0.1, 0.2) * side
        x, y = draw_uniform(0.25, 0.75) * self.width, draw_uniform(0.3, 0.7) * self.height
        swing_x, swing_y = draw_uniform(0.15, 0.35) * self.width, draw_uniform(0.05, 0.2) * self.height
        cycles, phase = draw_uniform(0.5, 1.2), draw_uniform(0, turn)
        spin, sway, growth = draw_uniform(-1.2, 1.2), draw_uniform(0, 0.4), draw_uniform(-0.2, 0.3)
        return _Body(
            create_texture_function(
                1 + body_index % (_STYLES - 1),
                palette_index,
                0.5 * radius,
                torch.zeros(2, dtype=torch.float64),
                generator,
            ),
            radius,
            2 + body_index % 4,
            lambda time: (
                x + swing_x * math.cos(turn * cycles * time + phase),
                y + swing_y * math.sin(turn * cycles * time + phase),
            ),
            lambda time: spin * time + sway * math.sin(turn * time),
            lambda time: 1 + growth * math.sin(math.pi * time),
        )

    def render_frame(self, frame_index: int) -> Tensor:
        """Return a frame [3, H, W] float32 in [0, 1], display-referred."""
        grid = self._build_pixel_grid()
        instants = self._compute_exposure_times(frame_index)
        image = torch.stack([self._render_colors_at_time(grid, instant) for instant in instants]).mean(0)
        gain = 1 + self._light * math.sin(2 * math.pi * frame_index / max(self.frames - 1, 1))
        return (image * gain).clamp(0, 1).view(3, self.height, self.width).float()

    def compute_flow_and_visibility(self, first_frame_index: int, second_frame_index: int) -> ShotTruth:
        """Return the true motion of each pixel of the first frame to the second, and whether it is seen there."""
        grid = self._build_pixel_grid()
        before, after = self._compute_frame_time(first_frame_index), self._compute_frame_time(second_frame_index)
        owner = self._find_foremost_body_indices(grid, before)
        target = torch.empty_like(grid)
        for index, body in enumerate(self._bodies):
            own = owner == index
            target[:, own] = body.map_body_to_frame(body.map_frame_to_body(grid[:, own], before), after)
        inside = (target > -0.5).all(0) & (target[0] < self.width - 0.5) & (target[1] < self.height - 0.5)
        visible = inside & (self._find_foremost_body_indices(target, after) == owner)
        shape = self.height, self.width
        return ShotTruth((target - grid).view(2, *shape).float(), visible.view(shape))

    def _compute_frame_time(self, frame_index: float) -> float:
        return frame_index / max(self.frames - 1, 1)

    def _compute_exposure_times(self, frame_index: int) -> list[float]:
        if self._shutter <= 0:
            return [self._compute_frame_time(frame_index)]
        count = 5
        return [self._compute_frame_time(frame_index + self._shutter * ((k + 0.5) / count - 0.5)) for k in range(count)]

    def _build_pixel_grid(self) -> Tensor:
        y = torch.arange(self.height, dtype=torch.float64)
        x = torch.arange(self.width, dtype=torch.float64)
        return torch.stack([x.repeat(self.height), y.repeat_interleave(self.width)])

    def _find_foremost_body_indices(self, positions: Tensor, time: float) -> Tensor:
        """Return the index of the foremost body at each position [2, N]."""
        owner = torch.zeros(positions.shape[1], dtype=torch.int64)
        for index, body in enumerate(self._bodies):
            owner[body.compute_signed_outline_distance(body.map_frame_to_body(positions, time)) < 0] = index
        return owner

    def _render_colors_at_time(self, positions: Tensor, time: float) -> Tensor:
        image = torch.zeros(3, positions.shape[1], dtype=torch.float64)
        for body in self._bodies:
            own = body.map_frame_to_body(positions, time)
            cover = (0.5 - body.compute_signed_outline_distance(own) * body.scale(time)).clamp(0, 1)
            touched = cover.nonzero()[:, 0]
            color = body.color(own[:, touched]).clamp(0, 1)
            image[:, touched] = torch.lerp(image[:, touched], color, cover[touched])
        return image
