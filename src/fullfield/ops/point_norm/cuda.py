"""Layer norm of points' features on NVIDIA GPUs with kernels that are compiled at run time. It never waits for them."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, LoadedKernels, get_address, parse_structures

LIBRARIES = LibraryCache("normalisation kernels")
_SOURCE = Path(__file__).with_name("norm.cu")
_Params = parse_structures(_SOURCE)["NormParams"]
# Most channels of a lane; fewest rows that a block sums; threads of a block.
_MAX_VALUES, _MIN_ROWS, _THREADS = 32, 32, 128
MAX_CHANNELS = 32 * _MAX_VALUES
# Blocks that the rows are distributed over.
_BLOCKS = 528


def _choose_lanes_and_loads(channels: int, vector: int) -> tuple[int, int]:
    """Return the lanes of a row, and the loads of each lane."""
    vectors = -(-channels // vector)
    lanes = min(32, 1 << (vectors - 1).bit_length())
    return lanes, -(-vectors // lanes)


def explain_unsupported(features: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> str | None:
    """Return None if the kernels can normalise these rows, else the reason."""
    dtype, parameter_dtype, device = features.dtype, weight.dtype, features.device
    if (
        dtype not in CODES
        or (parameter_dtype is not torch.float32 and parameter_dtype is not dtype)
        or not features.numel()
    ):
        return "needs rows of float32, float16 or bfloat16, and parameters of float32 or their dtype"
    if features.shape[1] > MAX_CHANNELS:
        return f"needs at most {MAX_CHANNELS} channels"
    same = bias.dtype is parameter_dtype and weight.device == bias.device == device
    if not same or (residual is not None and (residual.dtype is not dtype or residual.device != device)):
        return "needs parameters of one dtype, and a residual of the rows' dtype, on one device"
    if not (weight.is_contiguous() and bias.is_contiguous()):
        return "needs contiguous parameters"
    return _launching.explain_unsupported_device(device)


@functools.cache
def generate_norm_source(
    dtype: torch.dtype, parameter_dtype: torch.dtype, channels: int, uses_vectors: bool
) -> KernelSource:
    """Return all kernels for rows of ``channels``, which start at multiples of 16 bytes with ``uses_vectors``."""
    vector = 16 // dtype.itemsize if uses_vectors else 1
    lanes, steps = _choose_lanes_and_loads(channels, vector)
    text = _launching.read_source(_launching.HALVES, _launching.VALUES, _SOURCE)
    return KernelSource.with_macros(
        text, IN=CODES[dtype], PARAM=CODES[parameter_dtype], VEC=vector, LANES=lanes, STEPS=steps
    )


def _load_kernels_for_row_alignment(rows: Tensor, weight: Tensor, *addresses: int | None) -> LoadedKernels:
    """Return the kernels for rows at these addresses."""
    together = rows.data_ptr() | rows.shape[1] * rows.itemsize
    for at in addresses:
        together |= at or 0
    return _launching.load_kernels(
        LIBRARIES, generate_norm_source(rows.dtype, weight.dtype, rows.shape[1], not together & 15), rows.get_device()
    )


def normalize_forward(
    features: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
) -> Tensor:
    """Return the result [N, C]; features and residual are contiguous."""
    out = torch.empty_like(features)
    p = _Params()
    p.x, p.residual, p.out = features.data_ptr(), get_address(residual), out.data_ptr()
    p.weight, p.bias = weight.data_ptr(), bias.data_ptr()
    (p.rows, p.channels), p.relu, p.eps = features.shape, relu, eps
    blocks = min(-(-p.rows * 4 // _THREADS), 4 * _BLOCKS)
    _load_kernels_for_row_alignment(features, weight, p.out, p.residual).launch("layer_forward", blocks, _THREADS, p)
    return out


def normalize_backward(
    features: Tensor, relu_output: Tensor | None, weight: Tensor, grad: Tensor, eps: float, wants_residual: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of features, weight, bias and residual (if requested).

    ``relu_output`` is the result if a ReLU was applied. All tensors are contiguous.
    """
    out, relu = torch.empty_like(features), relu_output is not None
    grad_residual = torch.empty_like(features) if wants_residual and relu else None
    grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(weight)
    p = _Params()
    p.x, p.y, p.grad, p.out = features.data_ptr(), get_address(relu_output), grad.data_ptr(), out.data_ptr()
    p.weight, p.grad_residual = weight.data_ptr(), get_address(grad_residual)
    (p.rows, p.channels), p.relu, p.eps = features.shape, relu, eps
    p.grad_weight, p.grad_bias = grad_weight.data_ptr(), grad_bias.data_ptr()
    p.chunk = max(_MIN_ROWS, -(-p.rows // _BLOCKS))
    p.chunks = -(-p.rows // p.chunk)
    partial = features.new_empty((p.chunks, 2, p.channels), dtype=torch.float32)
    p.partial = partial.data_ptr()
    kernels = _load_kernels_for_row_alignment(features, weight, p.y, p.grad, p.out, p.grad_residual)
    kernels.launch("layer_backward", p.chunks, _THREADS, p)
    kernels.launch("add_chunks", -(-2 * p.channels // 32), 256, p)
    return out, grad_weight, grad_bias, grad if wants_residual and not relu else grad_residual
