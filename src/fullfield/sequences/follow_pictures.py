"""Pictures of a followed shot: a grid or a paint of the reference frame that sticks to its surfaces."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fullfield._check import InputError
from fullfield.io import read_frame
from fullfield.io.all_channels import read_all_channels
from fullfield.ops.warping import warp_planes_and_mark_inside
from fullfield.viz.page import ViewFrame

_HIDDEN_OCCLUSION = 0.5
_COLUMN_COLOR = (1.0, 0.55, 0.1)  # lines along y
_ROW_COLOR = (0.1, 0.85, 1.0)  # lines along x


class Paint(NamedTuple):
    """Picture of the reference frame that is laid over the others."""

    color: Tensor  # [1 or 3, H, W], display-referred, multiplied by alpha
    alpha: Tensor  # [H, W], 0 ... 1


def read_paint_color_and_alpha(path: str | os.PathLike[str]) -> Paint:
    """Read a paint; without an alpha channel it covers everything."""
    raw = read_all_channels(path)
    color = read_frame(path, alpha="apply")
    alpha = torch.ones_like(color[0]) if raw.alpha_index is None else raw.pixels[raw.alpha_index].clamp(0, 1)
    return Paint(color, alpha)


def warp_and_composite_paint(frame: Tensor, paint: Paint, backward: Tensor, occlusion: Tensor) -> Tensor:
    """Lay the paint over a frame [1 or 3, H, W] where the reference shows its surface.

    Args:
        frame: display-referred.
        paint: of the reference frame's size.
        backward: [2, H, W], motion from the frame to the reference.
        occlusion: [H, W], probability that the pixel is hidden in the reference.
    """
    planes = torch.cat((paint.color.expand(3, -1, -1), paint.alpha[None]))
    warped, inside = warp_planes_and_mark_inside(planes[None], backward[None])
    warped = warped[0] * ((occlusion < _HIDDEN_OCCLUSION) & inside[0])
    return warped[:3] + (1 - warped[3]) * frame


def draw_reference_grid(frame: Tensor, backward: Tensor, occlusion: Tensor, step_px: int) -> Tensor:
    """Draw the lines of a grid that lies on the reference frame; arguments as for :func:`warp_and_composite_paint`.

    Args:
        frame: display-referred, [1 or 3, H, W].
        backward: [2, H, W], motion from the frame to the reference.
        occlusion: [H, W], probability that the pixel is hidden in the reference.
        step_px: distance of the lines in pixels of the reference.
    """
    height, width = backward.shape[-2:]
    half_width = max(0.75, 1.1 * width / 960)  # still a pixel wide where the page reduces the picture
    rows, columns = (torch.arange(size, dtype=torch.float32) for size in (height, width))
    picture = frame.expand(3, -1, -1) * 0.8
    visible = (occlusion < _HIDDEN_OCCLUSION).float()
    positions = (columns + backward[0], _COLUMN_COLOR), (rows[:, None] + backward[1], _ROW_COLOR)
    for position, color in positions:
        distance = (torch.remainder(position, step_px) - step_px / 2).abs()  # lines in the middle of each step
        cover = (half_width + 0.5 - distance).clamp(0, 1).nan_to_num() * visible
        picture = torch.lerp(picture, torch.tensor(color, dtype=torch.float32).view(3, 1, 1), cover)
    return picture


def draw_paint_or_grid_and_hide_occluded(
    view_frame: ViewFrame, *, paint: Paint | None = None, grid_px: int | None = None
) -> ViewFrame:
    """Return a frame of a page with the paint, or else the grid, drawn on it, and the layers on its own pixels.

    Args:
        view_frame: frame with the layers of a followed file.
        paint: picture of the reference frame.
        grid_px: distance of the grid's lines; a sixteenth of the width by default.

    Raises:
        InputError: for other layers, and a paint of another size.
    """
    names = "backward", "occlusion.backward", "confidence.backward"
    if not {*names} <= view_frame.layers.keys():
        raise InputError(
            f"frame {view_frame.number}: expected the layers of fullfield follow, got {', '.join(view_frame.layers)}"
        )
    backward, occlusion, confidence = (view_frame.layers[name].nan_to_num() for name in names)
    frame = (
        torch.full((3, *occlusion.shape), 0.2, dtype=torch.float32) if view_frame.frame is None else view_frame.frame
    )
    if frame.shape[-2:] != occlusion.shape:
        frame = interpolate(frame[None], occlusion.shape, mode="area")[0]
    if paint is None:
        frame = draw_reference_grid(frame, backward, occlusion, grid_px or max(8, occlusion.shape[-1] // 16))
    elif paint.alpha.shape != occlusion.shape:
        sizes = [f"{shape[1]}x{shape[0]}" for shape in (occlusion.shape, paint.alpha.shape)]
        raise InputError(f"paint: expected the size of the reference, {sizes[0]}, got {sizes[1]}")
    else:
        frame = warp_and_composite_paint(frame, paint, backward, occlusion)
    visible = backward.masked_fill(occlusion >= _HIDDEN_OCCLUSION, float("nan"))
    return ViewFrame(view_frame.number, frame, dict(zip(names, (visible, occlusion, confidence), strict=True)))
