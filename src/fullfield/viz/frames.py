"""Frames as pictures, and flow drawn over its frame."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz._pixels import FLOATS, check_flow_and_mask_are_on_cpu, iterate_row_blocks, mark_valid_vectors
from fullfield.viz.wheel import check_or_measure_max_motion, flow_to_image


def frame_to_image(frame: Tensor) -> Tensor:
    """Convert a frame tensor to a picture.

    A float ``[1, H, W]`` or ``[3, H, W]``, display-referred, is clipped to [0, 1] and becomes uint8 ``[3, H, W]``; NaN
    becomes black.
    """
    check_frame_is_grey_or_rgb_on_cpu(frame, "frame")
    height, width = frame.shape[-2:]
    image = torch.empty(3, height, width, dtype=torch.uint8)
    for rows in iterate_row_blocks(height, width):
        image[:, rows] = frame[:, rows].float().nan_to_num(0.0).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return image


def check_frame_is_grey_or_rgb_on_cpu(frame: Tensor, name: str) -> None:
    """Refuse anything but a grey or colour frame tensor on the CPU."""
    _check.check_tensor(frame, name, ("C", "H", "W"), dtypes=FLOATS, device=torch.device("cpu"))
    _check.require(frame.shape[0] in (1, 3), name, "1 or 3 channels", frame)


_LUMA = (0.2126, 0.7152, 0.0722)
_ARROW = 0.92  # the longest arrow, in steps of the grid
_HEAD = math.radians(152)  # from the arrow's direction to its barbs


def draw_overlay(
    flow: Tensor,
    frame: Tensor,
    *,
    valid: Tensor | None = None,
    max_motion: float | None = None,
    opacity: float = 0.85,
    arrow_step: int = 0,
) -> Tensor:
    """Draw flow colours over the grey frame: still parts show the frame, moving parts the colour.

    Args:
        flow: ``[2, H, W]``, (u, v), pixels.
        frame: float ``[1 or 3, H, W]``, display-referred: the first frame.
        valid: bool ``[H, W]``; pixels that are not valid, and unknown vectors, show the frame alone.
        max_motion: as in :func:`flow_to_image`.
        opacity: strength of the colours, 0 (none) to 1.
        arrow_step: step of a grid of arrows, pixels; 0 draws none. An arrow shows the vector of the pixel under its
            middle. Its length is in proportion; a vector of ``max_motion`` is as long as the step of the grid.

    Returns:
        uint8 ``[3, H, W]``.
    """
    check_flow_and_mask_are_on_cpu(flow, valid)
    check_frame_is_grey_or_rgb_on_cpu(frame, "frame")
    height, width = flow.shape[-2:]
    _check.require(frame.shape[-2:] == flow.shape[-2:], "frame", f"the size of flow, [*, {height}, {width}]", frame)
    _check.check_number(opacity, "opacity", low=0, high=1)
    _check.check_number(arrow_step, "arrow_step", integer=True, low=0)
    _check.require(arrow_step == 0 or arrow_step >= 6, "arrow_step", "0 or a step of at least 6 pixels", arrow_step)
    scale = check_or_measure_max_motion(flow, valid, max_motion)
    colors = flow_to_image(flow, valid, max_motion=scale or None)
    weights = torch.tensor(_LUMA, dtype=torch.float32).reshape(3, 1, 1)
    image = torch.empty_like(colors)
    for rows in iterate_row_blocks(height, width):
        grey = (frame_to_image(frame[:, rows]) * weights).sum(0)
        visible = mark_valid_vectors(flow[:, rows], None if valid is None else valid[rows])
        # The colour is a filter over the frame; where it is strong, dark parts are lifted so that it shows.
        color = colors[:, rows].float()
        lift = (color.amax(0) - color.amin(0)) * (0.3 / 255)
        tinted = color * torch.lerp(grey / 255, torch.ones((), dtype=torch.float32), lift)
        strength = opacity * visible.float()
        image[:, rows] = (grey * (1 - strength) + tinted * strength).round().to(torch.uint8)
    if arrow_step:
        _draw_arrows_inplace(image, flow, valid, scale, arrow_step)
    return image


def _draw_arrows_inplace(image: Tensor, flow: Tensor, valid: Tensor | None, max_motion: float, step: int) -> None:
    """Draw one arrow in each cell of the grid. It stays inside its cell, so that a pixel belongs to one arrow only."""
    height, width = image.shape[-2:]
    middle = step // 2
    vectors = flow[:, middle::step, middle::step].float()
    is_inside = mark_valid_vectors(vectors, None if valid is None else valid[middle::step, middle::step])
    vectors = vectors.masked_fill(~is_inside, 0.0)
    length = torch.hypot(*vectors)
    direction = vectors / length.clamp(min=1e-20)
    half = (_ARROW / 2) * step * (length / max_motion if max_motion else length).clamp(max=1.0)
    is_inside &= half >= 0.04 * step
    thick = max(0.6, step / 28)
    x = (torch.arange(width) % step - middle).float()
    column = (torch.arange(width) // step).clamp(max=is_inside.shape[1] - 1)
    for rows in iterate_row_blocks(height, width):
        y = torch.arange(rows.start, rows.stop)
        cell = (y // step).clamp(max=is_inside.shape[0] - 1)
        py = (y % step - middle).float()[:, None]
        if not is_inside.numel():
            return
        dx, dy = (component[cell][:, column] for component in direction)
        radius, drawn = half[cell][:, column], is_inside[cell][:, column]
        drawn = drawn & (y // step == cell)[:, None] & (torch.arange(width) // step == column)
        distance = _compute_distance_to_segment(x, py, -radius * dx, -radius * dy, 2 * radius * dx, 2 * radius * dy)
        for side in (_HEAD, -_HEAD):
            bx = math.cos(side) * dx - math.sin(side) * dy
            by = math.sin(side) * dx + math.cos(side) * dy
            barb = 0.7 * radius
            distance = torch.minimum(
                distance, _compute_distance_to_segment(x, py, radius * dx, radius * dy, barb * bx, barb * by)
            )
        pen = thick * (radius / (0.3 * step)).clamp(0.4, 1.0)
        strip = image[:, rows].float()
        for extra, ink, strength in ((1.2, 16.0, 0.5), (0.0, 255.0, 1.0)):
            cover = (pen + extra + 0.5 - distance).clamp(0, 1) * (drawn.float() * strength)
            strip = strip * (1 - cover) + ink * cover
        image[:, rows] = strip.round().to(torch.uint8)


def _compute_distance_to_segment(
    x: Tensor, y: Tensor, from_x: Tensor, from_y: Tensor, along_x: Tensor, along_y: Tensor
) -> Tensor:
    """Return the distance of points (x, y) to the segments that start at ``from`` and run ``along``."""
    rx, ry = x - from_x, y - from_y
    fraction = ((rx * along_x + ry * along_y) / (along_x**2 + along_y**2).clamp(min=1e-12)).clamp(0, 1)
    return torch.hypot(rx - fraction * along_x, ry - fraction * along_y)
