"""Loss on NVIDIA GPUs, by kernels compiled on the user's machine; never waits for the device."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, parse_structures

LIBRARIES = LibraryCache("kernels of the training loss")
FACTOR, VALUES = 8, 6
_CELLS, _THREADS, _PARTIAL_SUMS = 4, 256, 64
_SOURCE = Path(__file__).with_name("loss.cu")
_POINTERS = ("field", "mask", "truth", "counted", "grad_mask", "partial", "grad_field", "sums")
_Params = parse_structures(_SOURCE)["LossParams"]


def explain_unsupported(field: Tensor, mask: Tensor, factor: int) -> str | None:
    """Return None if the kernels support these tensors, else the reason why not."""
    if factor != FACTOR or field.shape[1] != VALUES:
        return f"needs a factor of {FACTOR} and {VALUES} values, got {factor} and {field.shape[1]}"
    if field.dtype != torch.float32 or mask.dtype not in CODES:
        return "needs a float32 field and float32, float16 or bfloat16 weights"
    return _launching.explain_unsupported_device(field.device)


@functools.cache
def get_convex_loss_kernel_source(dtype: torch.dtype) -> KernelSource:
    """Return the source of both kernels for weights of a dtype."""
    shared = (_launching.HALVES, _launching.VALUES, _launching.WARPS, _launching.CONVEX_CELLS)
    return KernelSource.with_macros(_launching.read_source(*shared, _SOURCE), IN=CODES[dtype], CHANNELS=VALUES)


def compute_loss_error_and_gradients(
    field: Tensor, mask: Tensor, truth: Tensor, valid: Tensor, log_scale_min: float, log_scale_max: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums [2] of loss and end-point errors, and the loss's gradients by field and mask."""
    batch, _, height, width = field.shape
    cells = batch * height * width
    blocks = -(-cells // _CELLS)
    grad_mask, grad_field = torch.empty_like(mask), torch.empty_like(field, memory_format=torch.contiguous_format)
    if grad_mask.stride() != mask.stride():
        mask = mask.contiguous()
        grad_mask = torch.empty_like(mask)
    partial = field.new_empty((cells, _PARTIAL_SUMS))
    sums = field.new_empty((blocks, 2))
    tensors = (field.contiguous(), mask, truth.contiguous(), valid.contiguous(), grad_mask, partial, grad_field, sums)
    p = _Params()
    for name, tensor in zip(_POINTERS, tensors, strict=True):
        setattr(p, name, tensor.data_ptr())
    p.mask_b, p.mask_c, p.mask_y, p.mask_x = mask.stride()
    p.batch, p.height, p.width, p.low, p.high = batch, height, width, log_scale_min, log_scale_max
    kernels = _launching.load_kernels(LIBRARIES, get_convex_loss_kernel_source(mask.dtype), field.get_device())
    kernels.launch("loss", blocks, _THREADS, p)
    kernels.launch("gather", -(-cells // _THREADS), _THREADS, p)
    return sums.sum(0), grad_field, grad_mask
