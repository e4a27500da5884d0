"""Bilinear warping of planes by a flow, in plain PyTorch: any device and floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Pixels that are sampled together, which bounds the temporary memory: on a CPU they stay in its caches.
_GPU_PIXELS, _CPU_PIXELS = 1 << 22, 1 << 16


def warp_planes_and_mark_inside(
    planes: Tensor,  # [B, C, H, W], floating
    flow: Tensor,  # [B, 2, H, W], (u, v), x right, y down, in pixels
) -> tuple[Tensor, Tensor]:  # [B, C, H, W] of the planes' dtype; bool [B, H, W]
    """Sample ``planes`` bilinearly at ``x + flow(x)``, and return also where that target is inside the frame.

    With the flow from frame 1 to frame 2, warping frame 2 shows its content on the pixels of frame 1. A target is
    inside the frame up to the centres of the outermost pixels. Targets outside read the nearest pixel of the border.
    Where the flow is NaN, the target counts as outside and reads some pixel of the border.

    Pixel positions are integers and only the fraction of the flow enters the weights, so they are exact at any size of
    frame. Temporary memory does not grow with the frame. Differentiable in both arguments.

    Raises:
        InputError: naming the argument that does not fit.
    """
    _check.check_tensor(planes, "planes", ("B", "C", "H", "W"), dtypes=_FLOATS)
    batch, channels, height, width = planes.shape
    _check.check_tensor(flow, "flow", (batch, 2, height, width), dtypes=_FLOATS, device=planes.device)
    warped = torch.empty((batch, channels, height, width), dtype=planes.dtype, device=planes.device)
    inside = torch.empty((batch, height, width), dtype=torch.bool, device=planes.device)
    pixels = planes.flatten(2)
    strip = max(1, (_CPU_PIXELS if planes.device.type == "cpu" else _GPU_PIXELS) // max(width, 1))
    columns = torch.arange(width, device=planes.device)
    for image in range(batch):
        for top in range(0, height, strip):
            rows = slice(top, min(top + strip, height))
            lines = torch.arange(rows.start, rows.stop, device=planes.device)[:, None]
            left, right, x_fraction, x_inside = _find_axis_neighbors_fraction_and_inside(
                columns, flow[image, 0, rows], width
            )
            upper, lower, y_fraction, y_inside = _find_axis_neighbors_fraction_and_inside(
                lines, flow[image, 1, rows], height
            )
            x_fraction, y_fraction = x_fraction.to(planes.dtype), y_fraction.to(planes.dtype)
            inside[image, rows] = x_inside & y_inside
            for channel in range(channels):
                plane = pixels[image, channel]
                above = torch.lerp(plane[upper * width + left], plane[upper * width + right], x_fraction)
                below = torch.lerp(plane[lower * width + left], plane[lower * width + right], x_fraction)
                warped[image, channel, rows] = torch.lerp(above, below, y_fraction)
    return warped, inside


def _find_axis_neighbors_fraction_and_inside(
    position: Tensor, motion: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return both neighbouring pixels of ``position + motion`` along one axis, the second's weight, and a mask."""
    limit = size + 1  # a motion beyond it leads out of the frame from every pixel
    motion = motion.nan_to_num(-limit, limit, -limit).clamp(-limit, limit)
    steps = motion.detach().floor()
    fraction = motion - steps
    first = position + steps.long()
    is_inside = (first >= 0) & ((first < size - 1) | ((first == size - 1) & (fraction == 0)))
    fraction = torch.where(first < 0, 0.0, torch.where(first >= size - 1, 0.0, fraction))
    return first.clamp(0, size - 1), (first + 1).clamp(0, size - 1), fraction, is_inside
