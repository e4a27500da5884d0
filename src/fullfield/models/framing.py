"""Conversion between frames and a network's input and output: values, padding, and the grid of the flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield.ops._positions import create_pixel_grid

STRIDE = 8
# A map of one cell has no variance for an instance norm, so a side is padded to two cells at least.
MIN_SIDE = 2 * STRIDE
# Without gradients larger frames are encoded one after the other, which halves the peak memory.
_TOGETHER_PIXELS = 1 << 22

_FRAME_DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Padding(NamedTuple):
    """Pixels added on each side."""

    left: int
    right: int
    top: int
    bottom: int

    def pad(self, frame: Tensor) -> Tensor:
        """Pad [B, C, H, W] by repeating its border."""
        if not any(self):
            return frame
        return functional.pad(frame, tuple(self), mode="replicate")

    def crop(self, field: Tensor) -> Tensor:
        """Return a view of [B, C, H, W] without what :meth:`pad` added; the field itself if that is nothing."""
        if not any(self):
            return field
        height, width = field.shape[-2:]
        return field[..., self.top : height - self.bottom, self.left : width - self.right]

    def count_feature_rows_and_columns(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the 1/8 grid of a padded frame of this size."""
        return (height + self.top + self.bottom) // STRIDE, (width + self.left + self.right) // STRIDE


def choose_padding(height: int, width: int, mode: str = "sintel") -> Padding:
    """Return the padding that enlarges a frame to multiples of eight, at least 16.

    ``"sintel"`` adds the same on both sides, an odd pixel right and below; ``"kitti"`` adds rows only below, both as
    in princeton's evaluation.
    """
    _check.check_choice(mode, "padding", ("sintel", "kitti"))
    rows = (-height) % STRIDE if height > STRIDE else MIN_SIDE - height
    columns = (-width) % STRIDE if width > STRIDE else MIN_SIDE - width
    top = rows // 2 if mode == "sintel" else 0
    return Padding(columns // 2, columns - columns // 2, top, rows - top)


def check_frames_and_get_size(
    frame1: Tensor, frame2: Tensor, device: torch.device | None = None
) -> tuple[int, int, int]:
    """Check a pair [B, 3, H, W] of one dtype on the weights' ``device``, and return batch, height and width.

    Raises:
        InputError: naming the frame that does not fit.
    """
    first = _check.check_tensor(frame1, "frame1", ("B", 3, "H", "W"), dtypes=_FRAME_DTYPES)
    batch, _, height, width = first.shape
    if height == 0 or width == 0:
        raise _check.InputError(f"frame1: expected at least one pixel, got {_check.describe_value(first)}")
    if device is not None and first.device != device:
        raise _check.InputError(f"frame1: expected device {device}, as the weights, got {_check.describe_value(first)}")
    _check.check_tensor(frame2, "frame2", (batch, 3, height, width), dtypes=[first.dtype], device=first.device)
    return batch, height, width


def scale_frame_to_signed_unit_range(frame: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert uint8 0 … 255 or floating 0 … 1 to −1 … 1, as RAFT and SEA-RAFT were trained."""
    values = frame.to(dtype)
    if frame.dtype == torch.uint8:
        values = values / 255.0
    return 2.0 * values - 1.0


def encode_frames(encoder: Callable[[Tensor], Tensor], frame1: Tensor, frame2: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of both frames [B, C, H, W], computed in one pass unless they are large."""
    together = torch.compiler.is_compiling() or torch.is_grad_enabled()  # a size would become a condition
    if together or frame1.numel() <= 3 * _TOGETHER_PIXELS:
        fmap1, fmap2 = encoder(torch.cat((frame1, frame2))).chunk(2)
        return fmap1, fmap2
    return encoder(frame1), encoder(frame2)


def mark_unconverged_pairs(before: Tensor, after: Tensor) -> Tensor:  # [B, 2, h, w] twice, in cells -> [B] bool
    """Return for each pair whether an update moved more than 2 % of its cells by more than a pixel.

    The limits separate what gains by further updates from what does not: after four updates 0.1 % of the cells at most
    move so far on Middlebury, 6 to 60 % on the shared pairs of long motion.
    """
    return ((after - before).square().sum(1) > (1 / STRIDE) ** 2).flatten(1).float().mean(1) > 0.02


def create_coordinate_grid(batch: int, height: int, width: int, device: torch.device) -> Tensor:
    """Return the (x, y) of every cell, [B, 2, H, W] float32; cell 0 is at 0.0."""
    return create_pixel_grid((height, width), device).expand(batch, -1, -1, -1)


def create_coordinate_grid_like(field: Tensor) -> Tensor:
    """Return :func:`create_coordinate_grid` of the cells of ``field`` [B, C, H, W]."""
    return create_coordinate_grid(field.shape[0], field.shape[-2], field.shape[-1], field.device)


def check_and_resample_flow_to_cells_if_any(
    initial_flow: Tensor | None, frame: Tensor, padding: Padding, name: str = "initial_flow"
) -> Tensor | None:
    """Check an initial flow of ``frame`` [B, C, H, W], and :func:`resample_flow_to_cells`; None stays None."""
    if initial_flow is None:
        return None
    _check.check_tensor(initial_flow, name, (frame.shape[0], 2, "h", "w"), device=frame.device)
    return resample_flow_to_cells(initial_flow, frame.shape[-2], frame.shape[-1], padding, name)


def resample_flow_to_cells(
    initial_flow: Tensor,  # [B, 2, h, w], (u, v) in pixels of its own grid, covering the frame
    height: int,
    width: int,
    padding: Padding,
    name: str = "initial_flow",
) -> Tensor:  # [B, 2, (H + rows) / 8, (W + columns) / 8] float32, in cells of the padded grid
    """Resample a flow of any resolution to the 1/8 grid of the padded frame of ``height`` × ``width`` pixels.

    The flow is read bilinearly at the centres of the cells, its border continues outside, and values scale with the
    size. A 1/8 field stays as it is if the sides are multiples of eight.

    Raises:
        InputError: if ``initial_flow``, called ``name``, is not a floating tensor [B, 2, h, w].
    """
    flow = _check.check_tensor(initial_flow, name, ("B", 2, "h", "w"))
    _check.require(flow.is_floating_point(), name, "a floating dtype", flow)
    if flow.shape[-2] == 0 or flow.shape[-1] == 0:
        raise _check.InputError(f"{name}: expected at least one cell, got {_check.describe_value(flow)}")
    flow = flow.to(torch.float32)
    own_height, own_width = flow.shape[-2:]
    rows, columns = padding.count_feature_rows_and_columns(height, width)
    if (own_height, own_width, *padding) != (rows, columns, 0, 0, 0, 0):
        flow = _sample_at_cell_centers(flow, -2, rows, padding.top, own_height / height)
        flow = _sample_at_cell_centers(flow, -1, columns, padding.left, own_width / width)
    x = width / (own_width * STRIDE)
    y = height / (own_height * STRIDE)
    return torch.cat((flow[:, :1] * x, flow[:, 1:] * y), 1)


def _sample_at_cell_centers(
    field: Tensor, dim: int, cell_count: int, padding_before_px: int, field_scale: float
) -> Tensor:
    """Sample ``field`` along ``dim`` at the centres of cells that begin ``padding_before_px`` outside of the frame.

    ``field_scale`` is the size of the field over that of the frame.
    """
    last = field.shape[dim] - 1
    centres = torch.arange(cell_count, device=field.device, dtype=torch.float32) * STRIDE + (
        0.5 * STRIDE - padding_before_px
    )
    position = (centres * field_scale - 0.5).clamp(0, last)
    lower = position.floor()
    weight = position - lower
    index = lower.to(torch.int64)
    first = field.index_select(dim, index)
    second = field.index_select(dim, (index + 1).clamp(max=last))
    return torch.lerp(first, second, weight if dim == -1 else weight[:, None])
