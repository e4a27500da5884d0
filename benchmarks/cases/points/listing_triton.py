"""The kernels that the supplement of PointCNN++ prints, reimplemented in Triton with its block sizes.

A program walks LENGTH triplets with a square of channels. It loads weights and features only when their number changes,
and adds its sum to memory atomically when the output changes. Sums are float32 for every type of the features.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.cases.points.listing import Columns, convolution

LENGTH, SIDE = 128, 32


@triton.jit
def _place(block_ins, block_outs, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the number of a program's share of the triplets, and its input and output channels."""
    number = tl.program_id(0)
    outs = (number % block_outs) * SIDE + tl.arange(0, SIDE)
    ins = (number // block_outs % block_ins) * SIDE + tl.arange(0, SIDE)
    return number // (block_outs * block_ins), ins, outs


@triton.jit
def multiply(  # type: ignore[no-untyped-def]
    weight, features, sums, rows, points, cells, count, inputs, outputs,
    step_cell, step_in, step_out, LENGTH: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Add the product of each triplet's features and weights to the row of its output."""
    share, ins, outs = _place(tl.cdiv(inputs, SIDE), tl.cdiv(outputs, SIDE), SIDE)
    square = (ins < inputs)[:, None] & (outs < outputs)[None, :]
    weights = weight + ins[:, None] * step_in + outs[None, :] * step_out
    first = share * LENGTH
    row, point, cell = tl.load(rows + first), tl.load(points + first), tl.load(cells + first)
    matrix = tl.load(weights + cell.to(tl.int64) * step_cell, square, 0.0).to(tl.float32)
    vector = tl.load(features + point.to(tl.int64) * inputs + ins, ins < inputs, 0.0).to(tl.float32)
    total = tl.zeros((SIDE,), tl.float32)
    for t in tl.range(first, tl.minimum(first + LENGTH, count)):
        next_row, next_point, next_cell = tl.load(rows + t), tl.load(points + t), tl.load(cells + t)
        if next_cell != cell:
            cell = next_cell
            matrix = tl.load(weights + cell.to(tl.int64) * step_cell, square, 0.0).to(tl.float32)
        if next_point != point:
            point = next_point
            vector = tl.load(features + point.to(tl.int64) * inputs + ins, ins < inputs, 0.0).to(tl.float32)
        if next_row != row:
            tl.atomic_add(sums + row.to(tl.int64) * outputs + outs, total, outs < outputs)
            row = next_row
            total = tl.zeros((SIDE,), tl.float32)
        total += tl.sum(matrix * vector[:, None], 0)
    tl.atomic_add(sums + row.to(tl.int64) * outputs + outs, total, outs < outputs)


@triton.jit
def outer(  # type: ignore[no-untyped-def]
    grad, features, sums, rows, points, cells, count, inputs, outputs, LENGTH: tl.constexpr, SIDE: tl.constexpr
):
    """Add the outer product of each triplet's features and gradients to its cell's matrix."""
    share, ins, outs = _place(tl.cdiv(inputs, SIDE), tl.cdiv(outputs, SIDE), SIDE)
    square = (ins < inputs)[:, None] & (outs < outputs)[None, :]
    targets = sums + ins[:, None] * outputs + outs[None, :]
    first = share * LENGTH
    row, point, cell = tl.load(rows + first), tl.load(points + first), tl.load(cells + first)
    right = tl.load(grad + row.to(tl.int64) * outputs + outs, outs < outputs, 0.0).to(tl.float32)
    left = tl.load(features + point.to(tl.int64) * inputs + ins, ins < inputs, 0.0).to(tl.float32)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for t in tl.range(first, tl.minimum(first + LENGTH, count)):
        next_row, next_point, next_cell = tl.load(rows + t), tl.load(points + t), tl.load(cells + t)
        if next_row != row:
            row = next_row
            right = tl.load(grad + row.to(tl.int64) * outputs + outs, outs < outputs, 0.0).to(tl.float32)
        if next_point != point:
            point = next_point
            left = tl.load(features + point.to(tl.int64) * inputs + ins, ins < inputs, 0.0).to(tl.float32)
        if next_cell != cell:
            tl.atomic_add(targets + cell.to(tl.int64) * inputs * outputs, total, square)
            cell = next_cell
            total = tl.zeros((SIDE, SIDE), tl.float32)
        total += left[:, None] * right[None, :]
    tl.atomic_add(targets + cell.to(tl.int64) * inputs * outputs, total, square)


def run(name: str, weight: Tensor, features: Tensor, columns: Columns, shape: tuple[int, ...]) -> Tensor:
    """Run a kernel by name; arguments as in :data:`benchmarks.cases.points.listing.PredictionRun`."""
    features = features.contiguous()
    sums = features.new_zeros(shape, dtype=torch.float32)
    count, inputs, outputs = columns[0].numel(), features.shape[1], shape[-1]
    if count:
        blocks = triton.cdiv(count, LENGTH) * triton.cdiv(inputs, SIDE) * triton.cdiv(outputs, SIDE)
        kernel, first = (multiply, weight) if name == "multiply" else (outer, weight.contiguous())
        strides: tuple[Any, ...] = tuple(weight.stride()) if name == "multiply" else ()
        arguments = (first, features, sums, *columns, count, inputs, outputs, *strides)
        kernel[(blocks,)](*arguments, LENGTH, SIDE, num_warps=1)
    return sums.to(features.dtype)


def listing_in_triton(triplets: Columns, centers: int) -> Any:
    """Return the convolution of :func:`benchmarks.cases.points.listing.listing`, sorted by cell, by these kernels."""
    return convolution(run, triplets, centers, "k")
