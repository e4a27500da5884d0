"""The kernels that the supplement of PointCNN++ prints, reimplemented as a baseline: forward and both gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, parse_structures

ORDERS = ("k", "i", "j")
"""By what triplets are sorted: the kernel's cell, the centre or the point."""
LIBRARIES = LibraryCache("the listing's kernels")
_LENGTH, _WARPS = 128, 8
_SOURCE = Path(__file__).with_suffix(".cu")
_Params = parse_structures(_SOURCE)["ListingParams"]

Columns = tuple[Tensor, Tensor, Tensor]
PredictionRun = Callable[[str, Tensor, Tensor, Columns, tuple[int, ...]], Tensor]
"""(kernel, weight, features, (outputs, inputs, cells), shape of the result) → result; its last size is the outputs'."""


def source(dtype: torch.dtype) -> KernelSource:
    """Both kernels."""
    text = _launching.read_source(_launching.HALVES, _launching.VALUES, _SOURCE)
    return KernelSource(text, (f"-DIN={CODES[dtype]}",))


def run(name: str, weight: Tensor, features: Tensor, columns: Columns, shape: tuple[int, ...]) -> Tensor:
    """Run a kernel of the CUDA source by name."""
    weight, features = weight.contiguous(), features.contiguous()
    out = features.new_zeros(shape, dtype=torch.float32)
    p = _Params()
    p.weight, p.features, p.out = weight.data_ptr(), features.data_ptr(), out.data_ptr()
    p.outs, p.ins, p.cells = (column.data_ptr() for column in columns)
    p.count, p.inputs, p.outputs = columns[0].numel(), features.shape[1], shape[-1]
    p.blocks_in, p.blocks_out = -(-p.inputs // 32), -(-p.outputs // 32)
    warps = -(-p.count // _LENGTH) * p.blocks_in * p.blocks_out
    # every warp of the last block has work: a share beyond the end has no triplets
    kernels = _launching.load_kernels(LIBRARIES, source(features.dtype), features.get_device())
    kernels.launch(name, -(-warps // _WARPS), 32 * _WARPS, p)
    return out.to(features.dtype)


class _Listing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: PredictionRun, features: Tensor, weight: Tensor, columns: Columns, centers: int
    ) -> Tensor:
        ctx.save_for_backward(features, weight)
        ctx.columns, ctx.run = columns, run
        return run("multiply", weight, features, columns, (centers, weight.shape[2]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None, None]:
        features, weight = ctx.saved_tensors
        i, j, k = ctx.columns
        turned = weight.transpose(1, 2)
        return (
            None,
            ctx.run("multiply", turned, grad, (j, i, k), tuple(features.shape)),
            ctx.run("outer", grad, features, (i, j, k), tuple(weight.shape)),
            None,
            None,
        )


def listing(triplets: Columns, centers: int, order: str = "k") -> Callable[..., Tensor]:
    """Return a convolution (features, weight) → out by triplets (i, j, k), int64 [T]; differentiable once."""
    return convolution(run, triplets, centers, order)


def convolution(run: PredictionRun, triplets: Columns, centers: int, order: str) -> Callable[..., Tensor]:
    """Return :func:`listing` with the kernels of ``run``."""
    by = triplets["ijk".index(order)]
    at = torch.argsort(by, stable=True)
    i, j, k = (column[at].to(torch.int32).contiguous() for column in triplets)

    def apply(features: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = _Listing.apply(run, features, weight, (i, j, k), centers)  # type: ignore[no-untyped-call]
        return out

    return apply
