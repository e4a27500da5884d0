"""Frames as pictures, and the second frame warped onto the first."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz._pixels import FLOATS, blocks, check_flow


def frame_to_image(frame: Tensor) -> Tensor:
    """Convert a frame tensor to a picture.

    Args:
        frame: float ``[1, H, W]`` or ``[3, H, W]``, display-referred; clipped to [0, 1], NaN becomes black.

    Returns:
        uint8 ``[3, H, W]``.
    """
    check_frame(frame, "frame")
    height, width = frame.shape[-2:]
    image = torch.empty(3, height, width, dtype=torch.uint8)
    for rows in blocks(height, width):
        image[:, rows] = frame[:, rows].float().nan_to_num(0.0).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return image


def warp(frame2: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Warp the second frame onto the first: ``warped(x) = frame2(x + flow(x))``, bilinear.

    Args:
        frame2: float ``[C, H, W]``.
        flow: ``[2, H, W]``, (u, v), pixels of the first frame; the centre of pixel 0 is at 0.0.

    Returns:
        ``[C, H, W]`` of the type of ``frame2``, 0 where ``x + flow(x)`` leaves the frame or is unknown;
        bool ``[H, W]``, True where it stays between the centres of the outermost pixels.
    """
    _check.tensor(frame2, "frame2", ("C", "H", "W"), dtypes=FLOATS, device=torch.device("cpu"))
    check_flow(flow, None)
    channels, height, width = frame2.shape
    _check.require(flow.shape[-2:] == frame2.shape[-2:], "flow", f"the size of frame2, [2, {height}, {width}]", flow)
    warped = torch.empty_like(frame2)
    inside = torch.empty(height, width, dtype=torch.bool)
    values = frame2.reshape(channels, -1)
    column = torch.arange(width, dtype=torch.float64)
    for rows in blocks(height, width):
        row = torch.arange(rows.start, rows.stop, dtype=torch.float64)[:, None]
        x, y = column + flow[0, rows], row + flow[1, rows]
        within = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
        x, y = (place.masked_fill(~within, 0.0) for place in (x, y))
        left, top = x.floor(), y.floor()
        right_part, bottom_part = (x - left).to(frame2.dtype), (y - top).to(frame2.dtype)
        first = (top * width + left).to(torch.int64)
        to_right = (left < width - 1).to(torch.int64)
        to_bottom = (top < height - 1).to(torch.int64) * width
        for channel in range(channels):
            here = values[channel]
            upper = torch.lerp(here[first], here[first + to_right], right_part)
            lower = torch.lerp(here[first + to_bottom], here[first + to_bottom + to_right], right_part)
            warped[channel, rows] = torch.lerp(upper, lower, bottom_part).masked_fill_(~within, 0.0)
        inside[rows] = within
    return warped, inside


def check_frame(frame: Tensor, name: str) -> None:
    """Refuse anything but a grey or colour frame tensor on the CPU."""
    _check.tensor(frame, name, ("C", "H", "W"), dtypes=FLOATS, device=torch.device("cpu"))
    _check.require(frame.shape[0] in (1, 3), name, "1 or 3 channels", frame)
