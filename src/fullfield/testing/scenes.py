"""Synthetic scenes with known motion, and scans of synthetic rooms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fullfield import _check

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

_STRIP_PIXELS = 2**17
_LIGHT = (-0.5, -0.87)  # towards the light, in the plane of the picture


class Noise:
    """Smooth periodic noise of mean 0 and about unit size: a lattice of values with cubic interpolation.

    Power falls with frequency, and no detail is finer than five lattice steps, so frames that are sampled at pixels
    show the texture without aliasing.
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

    def __call__(self, points: Tensor) -> Tensor:
        """Return the values ``[N]`` at ``points`` ``[2, N]``."""
        node = (points.T @ self._to_lattice).remainder_(_LATTICE).add_(1.0)
        node.mul_(2 / (_LATTICE + 2)).sub_(1.0)
        sampled = torch.nn.functional.grid_sample(self._values, node[None, None], mode="bicubic", align_corners=True)
        return sampled[0, 0, 0]


def create_texture_function(
    style_index: int, palette_index: int, feature_size_px: float, middle: Tensor, generator: torch.Generator
) -> Texture:
    """Return one of five kinds of texture around ``middle`` ``[2]``, with features of this size and with grain."""
    colors = torch.tensor(PALETTES[palette_index % len(PALETTES)], dtype=torch.float64).T / 255
    fine = Noise(generator, 2.6, slope=0.8)
    medium = Noise(generator, max(3.0, feature_size_px / 5))
    coarse = Noise(generator, max(4.0, feature_size_px / 1.6))
    turn = float(torch.rand((), generator=generator, dtype=torch.float32)) * math.pi
    cos, sin = math.cos(turn), math.sin(turn)
    pitch = max(14.0, feature_size_px)

    def compute_level(points: Tensor) -> Tensor:
        dx, dy = points - middle[:, None]
        x, y = cos * dx + sin * dy, cos * dy - sin * dx
        if style_index == 0:  # clouds
            return 0.5 + 0.17 * coarse(points) + 0.13 * medium(points)
        if style_index == 1:  # marble
            return 0.5 + 0.32 * torch.sin(2 * math.pi * x / pitch + 1.6 * coarse(points)) + 0.08 * medium(points)
        if style_index == 2:  # rings
            radius = torch.hypot(x, y) + 0.1 * pitch * coarse(points)
            return 0.52 + 0.3 * torch.sin(2 * math.pi * radius / (0.8 * pitch)) + 0.08 * medium(points)
        if style_index == 3:  # dots, on a hexagonal grid
            wave = 2 * math.pi / pitch
            angles = (0.0, math.pi / 3, -math.pi / 3)
            dots = torch.stack([torch.cos(wave * (x * math.cos(a) + y * math.sin(a))) for a in angles]).sum(0)
            return 0.45 + 0.36 * torch.sigmoid(2.5 * (dots - 0.6)) + 0.1 * medium(points)
        weave = torch.sin(2 * math.pi * x / pitch) * torch.sin(2 * math.pi * y / pitch)
        return 0.5 + 0.3 * torch.tanh(1.6 * weave) + 0.09 * medium(points)

    def compute_color(points: Tensor) -> Tensor:
        level_index = (compute_level(points) + 0.075 * fine(points)).clamp(0, 1) * (colors.shape[1] - 1)
        lower = level_index.floor().clamp(max=colors.shape[1] - 2)
        fraction = level_index - lower
        index = lower.to(torch.int64)
        return torch.lerp(colors[:, index], colors[:, index + 1], fraction)

    return compute_color


@dataclass(frozen=True)
class Scene:
    """Two frames and the true motion between them.

    Attributes:
        frame1: float32 ``[3, H, W]`` in [0, 1], display-referred.
        frame2: the second frame.
        flow: float32 ``[2, H, W]``, (u, v), in pixels of frame 1.
        valid: bool ``[H, W]``, True everywhere; the true flow is known for hidden pixels too.
        occluded: bool ``[H, W]``, True where the pixel has no match in frame 2, because it is hidden or left the frame.
    """

    frame1: Tensor
    frame2: Tensor
    flow: Tensor
    valid: Tensor
    occluded: Tensor


@dataclass(frozen=True)
class _Layer:
    """Textured sheet that moves as ``x -> x + push + turn (x - middle)``, where ``turn`` is [[a, -b], [b, a]]."""

    color: Texture
    outline: Callable[[Tensor], Tensor] | None  # signed distance [N] of places [2, N], negative inside, px; None: all
    middle: Tensor  # [2]
    translation: Tensor  # [2]
    turn: Tensor  # [2]: a, b

    def compute_displacement(self, points: Tensor) -> Tensor:
        """Return the displacement ``[2, N]`` of the points that are at ``points`` in frame 1."""
        x, y = points - self.middle[:, None]
        a, b = self.turn
        return torch.stack([a * x - b * y, b * x + a * y]) + self.translation[:, None]

    def map_second_frame_to_first(self, points: Tensor) -> Tensor:
        """Return the positions in frame 1 of the points that are at ``points`` in frame 2."""
        x, y = points - (self.middle + self.translation)[:, None]
        a, b = self.turn + torch.tensor([1.0, 0.0], dtype=torch.float64)
        turned = torch.stack([a * x + b * y, a * y - b * x]).div_(a * a + b * b)
        return turned + self.middle[:, None]

    @property
    def size_ratio(self) -> float:
        """Ratio of lengths in frame 2 to lengths in frame 1."""
        return math.hypot(1 + float(self.turn[0]), float(self.turn[1]))

    def copy_with_scaled_motion(self, factor: float) -> _Layer:
        """Return the same layer with ``factor`` times the motion."""
        return _Layer(self.color, self.outline, self.middle, self.translation * factor, self.turn * factor)


def sample_textured_scene(height: int, width: int, *, seed: int = 0, max_motion: float | None = None) -> Scene:
    """Return a scene of textured shapes that move, turn and grow in front of a textured background that does too.

    Textures are continuous functions, and both frames sample them: neither frame is resampled from the other, and the
    true flow is exact to rounding. Edges are anti-aliased. The same arguments give the same scene; no global random
    state is read or changed.

    Args:
        height: rows, at least 16.
        width: columns, at least 16.
        seed: seed of the scene.
        max_motion: length of the longest true vector in pixels, at most half the longer side. None is 3 % of the
            shorter side.
    """
    _check.check_number(height, "height", integer=True, low=16)
    _check.check_number(width, "width", integer=True, low=16)
    _check.check_number(seed, "seed", integer=True, low=0)
    if max_motion is None:
        max_motion = 0.03 * min(height, width)
    _check.check_number(max_motion, "max_motion", low=0, high=max(height, width) / 2)
    layers = _draw_layers(height, width, seed, float(max_motion))
    flow, occluded = _compute_flow_and_occlusion(layers, height, width)
    return Scene(
        frame1=_render_frame(layers, height, width, is_second_frame=False),
        frame2=_render_frame(layers, height, width, is_second_frame=True),
        flow=flow,
        valid=torch.ones(height, width, dtype=torch.bool),
        occluded=occluded,
    )


# Kind, position (fractions of width and height) and size (fraction of the shorter side) of the shapes, back to front.
_CAST = (
    ("ring", 0.27, 0.36, 0.230),
    ("box", 0.72, 0.30, 0.200),
    ("disc", 0.15, 0.76, 0.150),
    ("hexagon", 0.50, 0.68, 0.215),
    ("bar", 0.80, 0.72, 0.260),
    ("disc", 0.52, 0.22, 0.100),
)


def _draw_layers(height: int, width: int, seed: int, max_motion: float) -> list[_Layer]:
    generator = torch.Generator().manual_seed(seed)

    def draw_uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float32))

    palettes = torch.randperm(len(PALETTES), generator=generator).tolist()
    styles = torch.randperm(4, generator=generator).tolist()
    side, diagonal = min(height, width), math.hypot(height, width)
    middle = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)
    direction = draw_uniform(0, 2 * math.pi)
    backdrop = create_texture_function(0, palettes[0], 0.22 * side, middle, generator)
    rotation = 0.16 * draw_uniform(0.7, 1.0) * (1 if draw_uniform(0, 1) < 0.5 else -1)
    turn = _compute_clamped_turn_and_growth(2 * max_motion / diagonal, rotation, 0.16 * draw_uniform(0.7, 1.0))
    layers = [_Layer(backdrop, None, middle, 0.12 * max_motion * _compute_unit_vector(direction), turn)]
    for index, (kind, across, down, fraction) in enumerate(_CAST):
        centre = torch.tensor(
            [(across + draw_uniform(-0.03, 0.03)) * width, (down + draw_uniform(-0.04, 0.04)) * height],
            dtype=torch.float64,
        )
        size = fraction * side * draw_uniform(0.9, 1.1)
        direction += 2 * math.pi / len(_CAST) * draw_uniform(0.75, 1.25)
        push = draw_uniform(0.6, 0.95) * max_motion
        # Shapes take the direction in which they stay in the frame.
        directions = [(direction + step * math.pi / 4) for step in (0, 1, -1, 2, -2, 3, -3, 4)]
        heading = min(
            directions,
            key=lambda angle: _compute_distance_outside_frame(
                centre + push * _compute_unit_vector(angle), size, height, width
            ),
        )
        layers.append(
            _Layer(
                create_texture_function(
                    1 + styles[index % 4], palettes[1 + index % (len(palettes) - 1)], 0.42 * size, centre, generator
                ),
                _build_outline_distance_function(kind, centre, size, draw_uniform(-0.5, 0.5)),
                centre,
                push * _compute_unit_vector(heading),
                _compute_clamped_turn_and_growth(
                    max_motion / size,
                    draw_uniform(-0.3, 0.3) * (index % 3 != 0),
                    draw_uniform(-0.12, 0.2) * (index % 3 == 2),
                ),
            )
        )
    longest = float(_compute_flow_and_occlusion(layers, height, width)[0].double().square().sum(0).max().sqrt())
    return [layer.copy_with_scaled_motion(max_motion / longest) for layer in layers] if longest else layers


def _compute_unit_vector(angle: float) -> Tensor:
    return torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)


def _compute_clamped_turn_and_growth(rate: float, rotation: float, growth: float) -> Tensor:
    """Return a layer's ``turn`` for a rotation and growth proportional to ``rate``, limited to plausible motion."""
    angle = max(-0.3, min(0.3, rotation * rate))
    factor = 1 + max(-0.15, min(0.25, growth * rate))
    return torch.tensor([factor * math.cos(angle) - 1, factor * math.sin(angle)], dtype=torch.float64)


def _compute_distance_outside_frame(centre: Tensor, size: float, height: int, width: int) -> float:
    """Return how many pixels a shape of radius ``size`` at ``centre`` extends beyond the frame."""
    x, y = float(centre[0]), float(centre[1])
    return max(0.0, 0.8 * size - x, x + 0.8 * size - width) + max(0.0, 0.8 * size - y, y + 0.8 * size - height)


def _build_outline_distance_function(
    shape_name: str, centre: Tensor, size: float, angle: float
) -> Callable[[Tensor], Tensor]:
    """Return the signed distance to a shape of about the radius ``size``, as a function of positions."""
    cos, sin = math.cos(angle), math.sin(angle)

    def compute_distance(points: Tensor) -> Tensor:
        dx, dy = points - centre[:, None]
        x, y = cos * dx + sin * dy, cos * dy - sin * dx
        if shape_name == "disc":
            return torch.hypot(x, y) - size
        if shape_name == "ring":
            return (torch.hypot(x, y) - 0.74 * size).abs() - 0.26 * size
        if shape_name == "bar":
            return torch.hypot((x.abs() - size).clamp(min=0), y) - 0.17 * size
        corner = 0.22 * size
        if shape_name == "box":
            return _compute_rounded_box_distance([x.abs() - 0.95 * size, y.abs() - 0.72 * size], corner)
        slanted = 0.5 * x.abs() + math.sqrt(0.75) * y.abs()
        return torch.maximum(x.abs(), slanted) - 0.9 * size

    return compute_distance


def _compute_rounded_box_distance(side_distances: Sequence[Tensor], corner_radius: float) -> Tensor:
    x, y = (side + corner_radius for side in side_distances)
    return torch.hypot(x.clamp(min=0), y.clamp(min=0)) + torch.maximum(x, y).clamp(max=0) - corner_radius


def _list_pixel_centers(width: int, rows: slice) -> Tensor:
    """Return the pixel centres (x, y) of some rows, ``[2, N]``."""
    y = torch.arange(rows.start, rows.stop, dtype=torch.float64)
    x = torch.arange(width, dtype=torch.float64)
    return torch.stack([x.repeat(len(y)), y.repeat_interleave(width)])


def _split_into_row_blocks(height: int, width: int) -> list[slice]:
    rows = max(1, _STRIP_PIXELS // width)
    return [slice(top, min(top + rows, height)) for top in range(0, height, rows)]


def _compute_flow_and_occlusion(layers: Sequence[_Layer], height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the motion of the visible layer at each pixel centre of frame 1, and whether it is hidden in frame 2."""
    flow, occluded = torch.empty(2, height, width, dtype=torch.float32), torch.empty(height, width, dtype=torch.bool)
    for rows in _split_into_row_blocks(height, width):
        points = _list_pixel_centers(width, rows)
        motion = layers[0].compute_displacement(points)
        order = torch.zeros(points.shape[1], dtype=torch.int64)
        for index, layer in enumerate(layers[1:], 1):
            seen = _compute_signed_outline_distance(layer, points) < 0
            motion = torch.where(seen, layer.compute_displacement(points), motion)
            order[seen] = index
        targets = points + motion
        hidden = (targets < -0.5).any(0) | (targets[0] >= width - 0.5) | (targets[1] >= height - 0.5)
        for index, layer in enumerate(layers[1:], 1):
            hidden |= (order < index) & (
                _compute_signed_outline_distance(layer, layer.map_second_frame_to_first(targets)) < 0
            )
        flow[:, rows] = motion.reshape(2, -1, width).float()
        occluded[rows] = hidden.reshape(-1, width)
    return flow, occluded


def _render_frame(layers: Sequence[_Layer], height: int, width: int, *, is_second_frame: bool) -> Tensor:
    frame = torch.empty(3, height, width, dtype=torch.float32)
    for rows in _split_into_row_blocks(height, width):
        grid = _list_pixel_centers(width, rows)
        image = layers[0].color(layers[0].map_second_frame_to_first(grid) if is_second_frame else grid)
        for layer in layers[1:]:
            points = layer.map_second_frame_to_first(grid) if is_second_frame else grid
            # Share of a pixel behind a straight edge, from its distance in this frame.
            cover = (
                0.5 - _compute_signed_outline_distance(layer, points) * (layer.size_ratio if is_second_frame else 1.0)
            ).clamp(0, 1)
            touched = cover.nonzero()[:, 0]
            if len(touched):
                inner = points[:, touched]
                color = layer.color(inner) * _compute_rim_brightness(layer, inner)
                image[:, touched] = torch.lerp(image[:, touched], color.clamp(0, 1), cover[touched])
        frame[:, rows] = image.reshape(3, -1, width).float()
    return frame


def _compute_signed_outline_distance(layer: _Layer, points: Tensor) -> Tensor:
    if layer.outline is None:
        return torch.full_like(points[0], -math.inf)
    return layer.outline(points)


def _compute_rim_brightness(layer: _Layer, points: Tensor) -> Tensor:
    """Return the brightness ``[N]`` that gives a shape a rounded rim; it belongs to the texture and moves with it."""
    depth = _compute_signed_outline_distance(layer, points)
    step = torch.tensor([[0.5], [0.0]], dtype=torch.float64)
    slope_x = _compute_signed_outline_distance(layer, points + step) - _compute_signed_outline_distance(
        layer, points - step
    )
    slope_y = _compute_signed_outline_distance(layer, points + step.flip(0)) - _compute_signed_outline_distance(
        layer, points - step.flip(0)
    )
    rim = 3.0
    falloff = torch.exp(depth.clamp(max=0) / rim)
    return 1 + falloff * (0.45 * (slope_x * _LIGHT[0] + slope_y * _LIGHT[1]) - 0.15)
