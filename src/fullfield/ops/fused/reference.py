"""Reference of every pass in PyTorch for any device; it defines the results of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops.fused.protocol import Frame, Norm, Target
from fullfield.ops.positions import positions

_CACHED = 1 << 19  # values


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
) -> Tensor:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.convolve`."""
    out = functional.conv2d(x.permute(0, 3, 1, 2), weight, bias, stride, padding)
    out = out.relu_() if relu else out
    return out.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)


def frames_to_cells(frame1: Tensor, frame2: Tensor, frame: Frame, out: Tensor) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.frames_to_cells`."""
    height, width = frame1.shape[-2:]
    around = (frame.left, frame.width - width - frame.left, frame.top, frame.height - height - frame.top)
    out.zero_()
    for number, source in enumerate((frame1, frame2)):
        values = source.to(torch.float32)
        values = 2 * (values / 255 if source.dtype == torch.uint8 else values) - 1
        values = functional.pad(values, around, mode="replicate")
        cells = values.view(*values.shape[:2], frame.height // 2, 2, frame.width // 2, 2).permute(0, 2, 4, 3, 5, 1)
        out[:, 2:-1, 2:-1, 12 * number : 12 * number + 12] = cells.flatten(3)


def affine_(y: Tensor, norm: Norm, x: Tensor | None = None, x_norm: Norm | None = None) -> Tensor:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.affine_`."""
    if y.device.type != "cpu":
        return _affine_(y, norm, x, x_norm)
    rows = max(1, _CACHED // (y.shape[2] * y.shape[3]))  # rows whose float32 values stay in a core's cache
    for first in range(0, y.shape[1], rows):
        part = slice(first, first + rows)
        _affine_(y[:, part], norm, None if x is None else x[:, part], x_norm)
    return y


def _affine_(y: Tensor, norm: Norm, x: Tensor | None, x_norm: Norm | None) -> Tensor:
    done = _normed(y, norm).relu_()
    if x is not None:
        done = done.add_(x if x_norm is None else _normed(x, x_norm)).relu_()
    return y.copy_(done)


def _normed(x: Tensor, norm: Norm) -> Tensor:
    def per_item(values: Tensor) -> Tensor:
        return values[:, None, None] if values.ndim == 2 else values

    shift = per_item(norm.shift)  # float32, and so is the sum
    return x + shift if norm.scale is None else torch.addcmul(shift, x, per_item(norm.scale))


def moments(y: Tensor, epsilon: float) -> Norm:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.moments`."""
    variance, mean = torch.var_mean(y.to(torch.float32), (1, 2), correction=0)
    scale = (variance + epsilon).rsqrt()
    return Norm(scale, -mean * scale)


def pack(source: Tensor, bias: Tensor | None, to: Sequence[Target], flow: tuple[Tensor, int] | None = None) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.pack`."""
    values = source if bias is None else (source + bias).relu_()
    if flow is not None:
        coords, first = flow
        values = values.clone()
        values[..., first : first + 2] = _flow(coords).permute(0, 2, 3, 1)
    _store(values, to)


def _store(values: Tensor, to: Sequence[Target]) -> None:
    for target in to:
        target.slice.copy_(values.transpose(1, 2) if target.transposed else values)


def _flow(coords: Tensor) -> Tensor:
    return coords - positions(coords.shape[-2:], coords.device, coords.dtype)


def flow_patches(coords: Tensor, side: int, out: Tensor) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.flow_patches`."""
    batch, _, height, width = coords.shape
    windows = functional.unfold(_flow(coords), side, padding=side // 2)
    windows = windows.view(batch, 2, side * side, height, width).permute(0, 3, 4, 2, 1).flatten(3)
    out.zero_()
    out[..., : 2 * side * side] = windows


def gate_reset(state: Tensor, zr: Tensor, zr_map: Tensor, to: Target) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.gate_reset`."""
    channels = state.shape[-1]
    reset = zr[..., channels:].to(torch.float32) + zr_map[..., channels:]
    _store(reset.sigmoid_() * state, [to])


def gate_update(state: Tensor, zr: Tensor, zr_map: Tensor, q: Tensor, q_map: Tensor, to: Sequence[Target]) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.gate_update`."""
    channels = state.shape[-1]
    update = (zr[..., :channels].to(torch.float32) + zr_map[..., :channels]).sigmoid_()
    candidate = (q.to(torch.float32) + q_map).tanh_()
    _store(state + update * (candidate - state), to)


def flow_step_(coords: Tensor, taps: Tensor, bias: Tensor) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.flow_step_`."""
    height, width = coords.shape[-2:]
    padded = functional.pad(taps[..., :18].to(torch.float32), (0, 0, 1, 1, 1, 1))
    total = bias.expand(*taps.shape[:3], 2)
    for tap in range(9):
        row, column = divmod(tap, 3)
        total = total + padded[:, row : row + height, column : column + width, 2 * tap : 2 * tap + 2]
    coords.add_(total.permute(0, 3, 1, 2))


def gelu_(y: Tensor) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.gelu_`."""
    y.copy_(functional.gelu(y))


def depthwise_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, out: Tensor) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.depthwise_norm`."""
    channels = x.shape[-1]
    filters = weight.t().reshape(channels, 1, 7, 7).to(torch.float32)
    done = functional.conv2d(x.permute(0, 3, 1, 2).to(torch.float32), filters, bias, padding=3, groups=channels)
    out.copy_(functional.layer_norm(done.permute(0, 2, 3, 1), (channels,), eps=epsilon))


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
        part = padded[:, :, None, None, row : row + height, column : column + width]
        total = torch.addcmul(total, weights[:, :, neighbour], part)
    return total.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels, factor * height, factor * width)


def convex_strip(
    field: Tensor,
    mask: Tensor,
    factor: int,
    out: Tensor,
    *,
    first_row: int = 0,
    origin: tuple[int, int] = (0, 0),
    gain: float = 1.0,
) -> None:
    """Run the pass :meth:`fullfield.ops.fused.protocol.Passes.convex_strip`."""
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
