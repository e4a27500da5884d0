"""Normalisation on NVIDIA GPUs with kernels that are compiled at run time. It never waits for the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import CODES, Kernels, address, structures
from fullfield.ops.point_norm.protocol import Running

LIBRARIES = Libraries("normalisation kernels")
_SOURCE = Path(__file__).with_name("norm.cu")
_DECLARED = structures(_SOURCE)
_Params = _DECLARED["NormParams"]
MOST_GROUPS = _DECLARED.number("MOST_GROUPS")
# Most channels of a lane; fewest rows that a block sums; threads of a block.
_MOST_VALUES, _LEAST_ROWS, _THREADS = 32, 32, 128
MOST_CHANNELS = 32 * _MOST_VALUES
# Blocks that the rows are distributed over.
_BLOCKS = 528


def _layout(channels: int, vector: int) -> tuple[int, int]:
    """Return the lanes of a row, and the loads of each lane."""
    vectors = -(-channels // vector)
    lanes = min(32, 1 << (vectors - 1).bit_length())
    return lanes, -(-vectors // lanes)


def supports(features: Tensor, weight: Tensor, *others: Tensor | None, groups: int) -> str | None:
    """Return None if the kernels can normalise rows in ``groups`` groups, else the reason.

    All parameters must have the rows' dtype or all float32, and other tensors with rows must have the rows' dtype.
    """
    dtype, learned, device = features.dtype, weight.dtype, features.device
    if dtype not in CODES or (learned is not torch.float32 and learned is not dtype) or not features.numel():
        return "needs rows of float32, float16 or bfloat16, and parameters of float32 or their dtype"
    if groups > MOST_GROUPS or features.shape[1] > MOST_CHANNELS:
        return f"needs at most {MOST_GROUPS} groups and {MOST_CHANNELS} channels"
    for tensor in (weight, *others):
        if tensor is None:
            continue
        rows = tensor.ndim == 2
        if tensor.device != device or tensor.dtype is not (dtype if rows else learned):
            return "needs parameters of one dtype, and tensors with rows of the rows' dtype, on one device"
        if not rows and not tensor.is_contiguous():
            return "needs contiguous parameters"
    return launching.why_not(device)


@functools.cache
def source(dtype: torch.dtype, learned: torch.dtype, channels: int, wide: bool) -> Source:
    """Return the source of all kernels for rows of ``channels``; ``wide``: rows begin at multiples of 16 bytes."""
    vector = 16 // dtype.itemsize if wide else 1
    lanes, steps = _layout(channels, vector)
    text = launching.read_source(launching.HALVES, launching.VALUES, _SOURCE)
    return Source.defining(text, IN=CODES[dtype], PARAM=CODES[learned], VEC=vector, LANES=lanes, STEPS=steps)


def _kernels(x: Tensor, weight: Tensor, *rows: int | None) -> Kernels:
    """Return the kernels for rows at these addresses."""
    together = x.data_ptr() | x.shape[1] * x.itemsize
    for at in rows:
        together |= at or 0
    return launching.kernels(LIBRARIES, source(x.dtype, weight.dtype, x.shape[1], not together & 15), x.get_device())


def _row_blocks(rows: int) -> int:
    return min(-(-rows * 4 // _THREADS), 4 * _BLOCKS)


@dataclass
class Norm:
    """Call of the normalisation, with what its gradient needs."""

    kind: str
    eps: float
    sizes: Sequence[int]
    relu: bool
    fixed: bool = False
    mean: Tensor | None = None
    scale: Tensor | None = None

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, running: Running | None
    ) -> Tensor:
        """Return the result [N, C]; features and residual are contiguous."""
        rows, channels = x.shape
        out = torch.empty_like(x)
        p = _Params()
        p.x, p.residual, p.out = x.data_ptr(), address(residual), out.data_ptr()
        p.weight, p.bias = weight.data_ptr(), bias.data_ptr()
        p.rows, p.channels, p.relu, p.eps = rows, channels, self.relu, self.eps
        kernels = _kernels(x, weight, p.out, p.residual)
        if self.kind == "layer":
            kernels.launch("layer_forward", _row_blocks(rows), _THREADS, p)
            return out
        if running is not None:
            self.fixed = p.fixed = not running.update
            p.running_mean, p.running_var = running.mean.data_ptr(), running.var.data_ptr()
            p.momentum = running.momentum
        self._divide(p)
        self.mean, self.scale = torch.empty((2, p.groups, channels), dtype=torch.float32, device=x.device)
        p.mean, p.scale = self.mean.data_ptr(), self.scale.data_ptr()
        partial = torch.empty((p.chunks, 2, channels), dtype=torch.float32, device=x.device)
        if not self.fixed:
            p.partial = partial.data_ptr()
            kernels.launch("moments", p.chunks, _THREADS, p)
        kernels.launch("join_moments", -(-p.groups * channels // _THREADS), _THREADS, p)
        kernels.launch("group_forward", _row_blocks(rows), _THREADS, p)
        return out

    def backward(
        self, x: Tensor, y: Tensor | None, weight: Tensor, grad: Tensor, wants_residual: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return the gradients of features, residual (if requested), weight and bias; all tensors are contiguous."""
        rows, channels = x.shape
        out = torch.empty_like(x)
        of_residual = torch.empty_like(x) if wants_residual and self.relu else None
        of_weight, of_bias = torch.empty_like(weight), torch.empty_like(weight)
        p = _Params()
        p.x, p.y, p.grad, p.out = x.data_ptr(), address(y), grad.data_ptr(), out.data_ptr()
        p.weight, p.grad_residual = weight.data_ptr(), address(of_residual)
        p.rows, p.channels, p.relu, p.eps = rows, channels, self.relu, self.eps
        p.grad_weight, p.grad_bias = of_weight.data_ptr(), of_bias.data_ptr()
        kernels = _kernels(x, weight, p.y, p.grad, p.out, p.grad_residual)
        self._divide(p)
        partial = x.new_empty((p.chunks + p.groups, 2, channels), dtype=torch.float32)
        p.partial = partial.data_ptr()
        if self.kind == "layer":
            kernels.launch("layer_backward", p.chunks, _THREADS, p)
        else:
            p.sums = p.partial + p.chunks * 8 * channels
            p.mean, p.scale, p.fixed = address(self.mean), address(self.scale), self.fixed
            kernels.launch("group_sums", p.chunks, _THREADS, p)
        kernels.launch("add_chunks", -(-2 * channels // 32), 256, p)
        if self.kind != "layer":
            kernels.launch("group_backward", _row_blocks(rows), _THREADS, p)
        if wants_residual and not self.relu:
            of_residual = grad
        return out, of_residual, of_weight, of_bias

    def _divide(self, p: Any) -> None:
        """Divide the rows into groups and chunks."""
        rows = p.rows
        p.chunk = size = max(_LEAST_ROWS, -(-rows // _BLOCKS))
        if self.kind != "instance":
            p.groups, p.first[1] = 1, rows
            p.chunks = p.begin[1] = -(-rows // size)
            return
        p.groups = len(self.sizes)
        p.first[: p.groups + 1] = list(accumulate(self.sizes, initial=0))
        p.begin[: p.groups + 1] = chunks = list(accumulate((-(-count // size) for count in self.sizes), initial=0))
        p.chunks = chunks[-1]
