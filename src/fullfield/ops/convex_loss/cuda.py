"""The loss on NVIDIA GPUs, by kernels compiled on the user's machine. Never waits for the device."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import structure

LIBRARIES = Libraries("kernels of the training loss")
FACTOR, VALUES = 8, 6
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_CELLS, _THREADS, _KEPT = 4, 256, 64
_ptr, _i64, _i32, _f32 = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_float
_POINTERS = ("field", "mask", "truth", "counted", "grad_mask", "partial", "grad_field", "sums")
_STRIDES = ("mask_b", "mask_c", "mask_y", "mask_x")
_Params: Any = structure(
    "LossParams", *((name, _ptr) for name in _POINTERS), *((name, _i64) for name in _STRIDES),
    ("batch", _i32), ("height", _i32), ("width", _i32), ("low", _f32), ("high", _f32),
)  # fmt: skip


def why_not(field: Tensor, mask: Tensor, factor: int) -> str | None:
    """None where the kernels serve, else the reason that they do not."""
    if factor != FACTOR or field.shape[1] != VALUES:
        return f"needs a factor of {FACTOR} and {VALUES} values, got {factor} and {field.shape[1]}"
    if field.dtype != torch.float32 or mask.dtype not in TYPES:
        return "needs a float32 field and float32, float16 or bfloat16 weights"
    return launching.why_not(field.device)


@functools.cache
def source(dtype: torch.dtype) -> Source:
    """Both kernels for weights of a dtype."""
    text = launching.read_source(launching.HALVES, launching.VALUES, Path(__file__).with_name("loss.cu"))
    return Source(text, (f"-DIN={TYPES[dtype]}",))


def loss(
    field: Tensor, mask: Tensor, truth: Tensor, counted: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums [2] of the loss and of the end-point errors, and the gradients of the first by field and mask."""
    batch, _, height, width = field.shape
    cells = batch * height * width
    blocks = -(-cells // _CELLS)
    grad_mask, grad_field = torch.empty_like(mask), torch.empty_like(field, memory_format=torch.contiguous_format)
    if grad_mask.stride() != mask.stride():
        mask = mask.contiguous()
        grad_mask = torch.empty_like(mask)
    partial = field.new_empty((cells, _KEPT))
    sums = field.new_empty((blocks, 2))
    held = (field.contiguous(), mask, truth.contiguous(), counted.contiguous(), grad_mask, partial, grad_field, sums)
    p = _Params()
    for name, tensor in zip(_POINTERS, held, strict=True):
        setattr(p, name, tensor.data_ptr())
    p.mask_b, p.mask_c, p.mask_y, p.mask_x = mask.stride()
    p.batch, p.height, p.width, p.low, p.high = batch, height, width, low, high
    launching.launch(LIBRARIES, source(mask.dtype), "loss", cells, _CELLS, p, field, _THREADS)
    launching.launch(LIBRARIES, source(mask.dtype), "gather", cells, _THREADS, p, field, _THREADS)
    return sums.sum(0), grad_field, grad_mask
