"""Flow as colour: Middlebury's wheel, where hue is direction and saturation is length."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz._pixels import (
    check_flow_and_mask_are_on_cpu,
    create_blank_picture,
    draw_text_inplace,
    iterate_row_blocks,
    load_font,
    mark_valid_vectors,
)

# Numbers of colours from one corner of the RGB cube to the next: which channel moves, and which way.
_ARCS = ((15, 1, 1), (6, 0, -1), (4, 2, 1), (11, 1, -1), (13, 0, 1), (6, 2, -1))
# Of the table of FlowColors.
_SIDE = 511  # odd: no motion has an entry of its own
_TABLE_RADIUS = 1.1  # the table goes a little beyond the scale: longer vectors are all drawn as at its edge
_FADING = 0.95  # of the followed scale, a picture
_SAMPLED, _QUANTILE = 8, 0.95  # every 8th row and column; the share of vectors within the followed scale
_OUTSIDE = 0.75  # brightness of vectors longer than the scale


def create_color_wheel() -> Tensor:
    """Return the 55 colours of Middlebury's wheel, from red through yellow, green, cyan, blue and magenta.

    They are ``[55, 3]`` uint8, RGB. Colour 0, red, is motion to the right; motion down follows at a quarter. The six
    arcs have 15, 6, 4, 11, 13 and 6 colours (Baker et al., IJCV 2011).
    """
    wheel = []
    corner = [255, 0, 0]
    for count, channel, sign in _ARCS:
        for step in range(count):
            color = list(corner)
            ramp = 255 * step // count
            color[channel] = ramp if sign > 0 else 255 - ramp
            wheel.append(color)
        corner[channel] = 255 if sign > 0 else 0
    return torch.tensor(wheel, dtype=torch.uint8)


def measure_max_motion(flow: Tensor, valid: Tensor | None = None) -> float:
    """Return the length of the longest known vector, pixels: the default scale of :func:`flow_to_image`.

    The flow is ``[2, H, W]``; only vectors that are ``valid``, bool ``[H, W]``, count. 0.0 where no vector is known.
    """
    check_flow_and_mask_are_on_cpu(flow, valid)
    longest = 0.0
    for rows in iterate_row_blocks(*flow.shape[-2:]):
        block = flow[:, rows].float()
        length = torch.hypot(*block)[mark_valid_vectors(block, None if valid is None else valid[rows])]
        if length.numel():
            longest = max(longest, float(length.max()))
    return longest


def flow_to_image(flow: Tensor, valid: Tensor | None = None, *, max_motion: float | None = None) -> Tensor:
    """Draw a flow in Middlebury's colours, uint8 ``[3, H, W]``: white is no motion, a pure colour is ``max_motion``.

    Args:
        flow: ``[2, H, W]``, (u, v), pixels. Unknown vectors (NaN, infinite, beyond 1e9) are drawn black.
        valid: bool ``[H, W]``; pixels that are not valid are drawn black.
        max_motion: length of a vector that gets the pure colour, pixels; longer ones are darkened. None takes
            :func:`measure_max_motion` of this flow. Give the same number for all frames of a sequence.
    """
    check_flow_and_mask_are_on_cpu(flow, valid)
    scale = check_or_measure_max_motion(flow, valid, max_motion)
    height, width = flow.shape[-2:]
    wheel = create_color_wheel().float().T / 255
    last = wheel.shape[1] - 1
    image = torch.empty(3, height, width, dtype=torch.uint8)
    for rows in iterate_row_blocks(height, width):
        block = flow[:, rows].float()
        visible = mark_valid_vectors(block, None if valid is None else valid[rows])
        u, v = block.masked_fill(~visible, 0.0)
        radius = torch.hypot(u, v).div_(scale) if scale else torch.zeros_like(u)
        position = torch.atan2(-v, -u).div_(math.pi).add_(1.0).mul_(last / 2)
        below = position.floor()
        fraction = position.sub_(below)
        lower = below.clamp_(0, last).to(torch.int32)
        upper = (lower + 1).clamp_(max=last)
        inside = radius <= 1.0
        for channel, colors in enumerate(wheel):
            color = torch.lerp(_look_up_colors(colors, lower), _look_up_colors(colors, upper), fraction)
            color = torch.where(inside, 1.0 - radius * (1.0 - color), color * _OUTSIDE)
            image[channel, rows] = color.mul_(255).floor_().masked_fill_(~visible, 0.0).to(torch.uint8)
    return image


def draw_wheel_legend(size: int = 256, max_motion: float | None = None) -> Tensor:
    """Draw the legend of the colours: a disc whose rim is ``max_motion``, with that number at its side.

    The picture is uint8 ``[3, size, size]``, with ``size`` at least 32, and wider where there is a number.
    """
    _check.check_number(size, "size", integer=True, low=32)
    text, extra_width = "", 0
    letters = size * 0.27
    if max_motion is not None:
        _check.check_number(max_motion, "max_motion", low=0)
        text = f"{max_motion:.3g} px"
        extra_width = math.ceil(size * 0.1 + load_font(letters).getlength(text))
    radius = size / 2 - max(1.5, size / 50)
    offset = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    vectors = torch.stack([offset.expand(size, size), offset[:, None].expand(size, size)])
    length = torch.hypot(*vectors)
    colors = flow_to_image(vectors, max_motion=radius + 1).float()
    # Rings at a third and two thirds of the scale and a cross make lengths and directions readable.
    lines = torch.stack([(length - radius / 3).abs(), (length - radius * 2 / 3).abs(), *vectors.abs()]).amin(0)
    colors *= 1 - 0.16 * (max(0.9, size / 280) - lines).clamp(0, 1)
    cover = (radius + 0.5 - length).clamp(0, 1)
    image = create_blank_picture(size, size + extra_width)
    image[:, :, :size] = (colors * cover + image[:, :, :size] * (1 - cover)).round().to(torch.uint8)
    if text:
        draw_text_inplace(image, text, (size * 1.05, size / 2), letters)
    return image


def check_or_measure_max_motion(flow: Tensor, valid: Tensor | None, max_motion: float | None) -> float:
    """Return ``max_motion`` if it was given, else the flow's own scale."""
    if max_motion is None:
        return measure_max_motion(flow, valid)
    _check.check_number(max_motion, "max_motion", above=0)
    return float(max_motion)


def _look_up_colors(table: Tensor, indices: Tensor) -> Tensor:
    return table.index_select(0, indices.flatten()).reshape(indices.shape)


class FlowColors:
    """Pictures of a running flow in Middlebury's colours, from a table of 511×511 vectors.

    They differ from :func:`fullfield.viz.flow_to_image` by the table's steps of 1/232 of the scale. Without
    ``max_motion`` the scale follows the motion: at once to a longer one, by 5 % a picture to a shorter one.
    """

    def __init__(self, max_motion: float | None = None, device: str | torch.device = "cpu") -> None:
        if max_motion is not None:
            _check.check_number(max_motion, "max_motion", above=0)
        self._fixed, self.max_motion = max_motion, float(max_motion or 0.0)
        axis = torch.linspace(-_TABLE_RADIUS, _TABLE_RADIUS, _SIDE, dtype=torch.float32)
        vectors = torch.stack([axis.expand(_SIDE, _SIDE), axis[:, None].expand(_SIDE, _SIDE)])
        colors = torch.zeros(_SIDE, _SIDE, 4, dtype=torch.uint8)
        colors[..., :3] = flow_to_image(vectors, max_motion=1.0).permute(1, 2, 0)
        self._table = colors.view(torch.int32).flatten().to(device)

    def draw(
        self,
        flow: Tensor,  # [2, H, W], pixels
    ) -> Tensor:  # [3, H, W] uint8
        """Draw the next picture, on the flow's device; ``max_motion`` is its scale."""
        _check.check_tensor(flow, "flow", (2, "H", "W"), device=self._table.device)
        if self._fixed is None:
            self._update_max_motion_from_quantile(flow)
        # Half a step inside the edge of the circle that the table covers.
        limit = self.max_motion * (_TABLE_RADIUS - 1 / _SIDE)
        length = torch.hypot(flow[0], flow[1]).clamp_(min=1e-12)
        shrink = (limit / length).clamp_(max=1.0).mul_((_SIDE - 1) / 2 / _TABLE_RADIUS / self.max_motion)
        column, row = (flow * shrink).nan_to_num_(0.0).add_((_SIDE - 1) / 2).round_().int().unbind(0)
        packed = self._table.index_select(0, row.mul_(_SIDE).add_(column).flatten())
        return packed.view(torch.uint8).view(*flow.shape[1:], 4)[..., :3].permute(2, 0, 1)

    def _update_max_motion_from_quantile(self, flow: Tensor) -> None:
        some = flow[:, ::_SAMPLED, ::_SAMPLED].float()
        length = torch.hypot(some[0], some[1]).flatten()
        long = float(length.kthvalue(max(1, round(_QUANTILE * len(length)))).values)
        self.max_motion = max(long, _FADING * self.max_motion, 1e-3)
