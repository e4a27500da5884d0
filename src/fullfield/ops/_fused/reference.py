"""Passes in PyTorch for any device, which define the results of the kernels in ``cuda``.

Activations are [B, h, w, C]. Nothing takes part in autograd. A pass whose name ends in ``_`` overwrites its first
argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops._fused.arguments import FramePadding, ScaleAndShift, TargetSlice
from fullfield.ops._positions import create_pixel_grid

_CACHED = 1 << 19  # values


def convolve(
    x: Tensor,
    weight: Tensor,  # [C', C, kh, kw], channels-last
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
) -> Tensor:
    """Convolve; ``relu`` needs a bias."""
    out = functional.conv2d(x.permute(0, 3, 1, 2), weight, bias, stride, padding)
    out = out.relu_() if relu else out
    return out.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)


def rescale_and_pack_frames_into_2x2_cells(frame1: Tensor, frame2: Tensor, padding: FramePadding, out: Tensor) -> None:
    """Convert frames [B, 3, H, W], 0 … 1 or uint8, to −1 … 1 in cells of 2×2 pixels, padded to ``padding``.

    ``out`` is [B, height / 2 + 3, width / 2 + 3, 32], (row, column, colour) of the first frame's cell, then of the
    second's. The border of a 7×7 convolution of stride 2 is zero: two rows and columns before them and one after.
    """
    height, width = frame1.shape[-2:]
    around = (padding.left, padding.width - width - padding.left, padding.top, padding.height - height - padding.top)
    out.zero_()
    for number, source in enumerate((frame1, frame2)):
        values = source.to(torch.float32)
        values = 2 * (values / 255 if source.dtype == torch.uint8 else values) - 1
        values = functional.pad(values, around, mode="replicate")
        cells = values.view(*values.shape[:2], padding.height // 2, 2, padding.width // 2, 2).permute(0, 2, 4, 3, 5, 1)
        out[:, 2:-1, 2:-1, 12 * number : 12 * number + 12] = cells.flatten(3)


def normalize_relu_add_relu_(
    y: Tensor, norm: ScaleAndShift, residual: Tensor | None = None, residual_norm: ScaleAndShift | None = None
) -> Tensor:
    """Compute relu(norm(y)), or relu(x_norm(x) + relu(norm(y)))."""
    if y.device.type != "cpu":
        return _normalize_relu_add_relu_strip_(y, norm, residual, residual_norm)
    rows = max(1, _CACHED // (y.shape[2] * y.shape[3]))  # rows whose float32 values stay in a core's cache
    for first in range(0, y.shape[1], rows):
        strip = slice(first, first + rows)
        _normalize_relu_add_relu_strip_(
            y[:, strip], norm, None if residual is None else residual[:, strip], residual_norm
        )
    return y


def _normalize_relu_add_relu_strip_(
    y: Tensor, norm: ScaleAndShift, residual: Tensor | None, residual_norm: ScaleAndShift | None
) -> Tensor:
    result = _apply_scale_and_shift(y, norm).relu_()
    if residual is not None:
        result = result.add_(
            residual if residual_norm is None else _apply_scale_and_shift(residual, residual_norm)
        ).relu_()
    return y.copy_(result)


def _apply_scale_and_shift(x: Tensor, norm: ScaleAndShift) -> Tensor:
    def per_item(values: Tensor) -> Tensor:
        return values[:, None, None] if values.ndim == 2 else values

    shift = per_item(norm.shift)  # float32, and so is the sum
    return x + shift if norm.scale is None else torch.addcmul(shift, x, per_item(norm.scale))


def compute_instance_norm_scale_and_shift(y: Tensor, epsilon: float) -> ScaleAndShift:
    """Return the norm that gives every channel of every item mean 0 and variance 1."""
    variance, mean = torch.var_mean(y.to(torch.float32), (1, 2), correction=0)
    scale = (variance + epsilon).rsqrt()
    return ScaleAndShift(scale, -mean * scale)


def write_relu_and_flow_channels(
    source: Tensor,
    bias: Tensor | None,  # float32; None: source as it is
    targets: Sequence[TargetSlice],  # at most four
    coords_and_channel: tuple[Tensor, int]
    | None = None,  # coords [B, 2, h, w], and the first of the two channels that hold it
) -> None:
    """Write relu(source + bias) to ``targets``, and the flow coords − grid to two of its channels."""
    values = source if bias is None else (source + bias).relu_()
    if coords_and_channel is not None:
        coords, first = coords_and_channel
        values = values.clone()
        values[..., first : first + 2] = _convert_coords_to_flow(coords).permute(0, 2, 3, 1)
    _write_to_targets(values, targets)


def _write_to_targets(values: Tensor, targets: Sequence[TargetSlice]) -> None:
    for target in targets:
        target.slice.copy_(values.transpose(1, 2) if target.transposed else values)


def _convert_coords_to_flow(coords: Tensor) -> Tensor:
    return coords - create_pixel_grid(coords.shape[-2:], coords.device, coords.dtype)


def write_flow_windows_from_coords(coords: Tensor, side: int, out: Tensor) -> None:
    """Write windows of the flow, (row, column, x or y) slow to fast; zero outside the map and elsewhere."""
    batch, _, height, width = coords.shape
    windows = functional.unfold(_convert_coords_to_flow(coords), side, padding=side // 2)
    windows = windows.view(batch, 2, side * side, height, width).permute(0, 3, 4, 2, 1).flatten(3)
    out.zero_()
    out[..., : 2 * side * side] = windows


def write_gru_reset_state(state: Tensor, zr: Tensor, zr_map: Tensor, target: TargetSlice) -> None:
    """Write sigmoid(r + its map) · state; ``zr`` holds the update gate, then the reset gate."""
    channels = state.shape[-1]
    reset = zr[..., channels:].to(torch.float32) + zr_map[..., channels:]
    _write_to_targets(reset.sigmoid_() * state, [target])


def write_gru_updated_state(
    state: Tensor, zr: Tensor, zr_map: Tensor, q: Tensor, q_map: Tensor, targets: Sequence[TargetSlice]
) -> None:
    """Write (1 − z) · state + z · tanh(q + its map), which may replace ``state``; at most four targets."""
    channels = state.shape[-1]
    update = (zr[..., :channels].to(torch.float32) + zr_map[..., :channels]).sigmoid_()
    candidate = (q.to(torch.float32) + q_map).tanh_()
    _write_to_targets(state + update * (candidate - state), targets)


def add_3x3_taps_to_coords_(coords: Tensor, taps: Tensor, bias: Tensor) -> None:
    """Add bias and the sum over 3×3 neighbours of the products ``taps``: row, column, x or y slow to fast."""
    height, width = coords.shape[-2:]
    padded = functional.pad(taps[..., :18].to(torch.float32), (0, 0, 1, 1, 1, 1))
    total = bias.expand(*taps.shape[:3], 2)
    for tap in range(9):
        row, column = divmod(tap, 3)
        total = total + padded[:, row : row + height, column : column + width, 2 * tap : 2 * tap + 2]
    coords.add_(total.permute(0, 3, 1, 2))


def gelu_(y: Tensor) -> None:
    """Compute y Φ(y)."""
    torch.ops.aten.gelu.out(y, out=y)


def convolve_depthwise_and_normalize(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, out: Tensor) -> None:
    """Convolve depthwise 7×7 (``weight`` [49, C], float32), then normalise to mean 0 and variance 1."""
    channels = x.shape[-1]
    # A CPU with instructions for bfloat16 sums in float32; the rounded result is as good for what follows the norm.
    dtype = torch.bfloat16 if x.device.type == "cpu" and x.dtype == torch.bfloat16 else torch.float32
    filters = weight.t().reshape(channels, 1, 7, 7).to(dtype)
    activations = x.permute(0, 3, 1, 2).to(dtype)
    convolved = functional.conv2d(activations, filters, bias.to(dtype), padding=3, groups=channels)
    out.copy_(functional.layer_norm(convolved.permute(0, 2, 3, 1), (channels,), eps=epsilon))


def convex_upsample(
    field: Tensor,  # [B, C, h, w]
    mask: Tensor,  # [B, 9·factor², h, w]
    factor: int,
) -> Tensor:  # [B, C, factor·h, factor·w]
    """Up-sample convexly: softmax and blend, differentiable."""
    batch, channels, height, width = field.shape
    weights = torch.softmax(mask.view(batch, 1, 9, factor, factor, height, width).to(field.dtype), 2)
    padded = functional.pad(field, (1, 1, 1, 1))
    total = field.new_zeros(batch, channels, factor, factor, height, width)
    for neighbour in range(9):
        row, column = divmod(neighbour, 3)
        neighbors = padded[:, :, None, None, row : row + height, column : column + width]
        total = torch.addcmul(total, weights[:, :, neighbour], neighbors)
    return total.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels, factor * height, factor * width)


def write_convex_upsampled_strip(
    field: Tensor,  # [B, C, h, w] float32
    mask: Tensor,  # [B, 9·factor², rows, w], weights before their softmax
    factor: int,
    out: Tensor,  # [B, C, H, W] float32
    *,
    first_row: int = 0,
    origin: tuple[int, int] = (0, 0),
    gain: float = 1.0,
) -> None:
    """Up-sample the cells' rows from ``first_row`` on, those of ``mask``, convexly and multiply by ``gain``.

    ``out`` is the fine field from pixel ``origin`` (y, x) on; the pixels of these rows are written.
    """
    batch, _, height, width = field.shape
    rows = mask.shape[2]
    last = first_row + rows
    # One row of the field on either side, whose own weights do not matter.
    above, below = min(first_row, 1), min(height - last, 1)
    around = mask.new_zeros(batch, mask.shape[1], rows + above + below, width)
    around[:, :, above : above + rows] = mask
    fine = convex_upsample(field[:, :, first_row - above : last + below], around, factor) * gain
    fine = fine[:, :, factor * above : factor * (above + rows)]
    top, left = factor * first_row - origin[0], -origin[1]
    y = slice(max(top, 0), min(top + fine.shape[2], out.shape[2]))
    if y.stop > y.start:
        out[:, :, y] = fine[:, :, y.start - top : y.stop - top, -left : out.shape[3] - left]
