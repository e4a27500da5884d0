"""Convex up-sampling: every fine pixel a weighted mean of the nine coarse ones around it."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.fused import reference
from fullfield.ops.launching import is_traced

# Weights that are worked on at a time where no gradient is wanted.
_ELEMENTS = 1 << 25
_NEIGHBOURS = 9


def convex_upsample(
    field: Tensor,  # [B, C, h, w]
    mask: Tensor,  # [B, 9·factor², h, w], before its softmax: neighbour (row by row) slow, fine row, fine column
    factor: int,
) -> Tensor:  # [B, C, factor·h, factor·w]
    """Up-sample ``field`` (its values unchanged) with the weights a network predicts. Source: RAFT, appendix B.

    The field is zero outside. Differentiable; where no gradient is wanted, a kernel on NVIDIA GPUs, and strips of rows
    elsewhere, so that nothing but the result grows with the size. The result has the field's dtype.

    Raises:
        InputError: naming the argument that does not fit.
    """
    _check.tensor(field, "field", ("B", "C", "h", "w"))
    batch, _, height, width = field.shape
    _check.number(factor, "factor", integer=True, low=1)
    _check.tensor(mask, "mask", (batch, _NEIGHBOURS * factor * factor, height, width), device=field.device)
    graph = torch.is_grad_enabled() and (field.requires_grad or mask.requires_grad)
    if graph or is_traced(field, mask) or torch._C._get_tracing_state() is not None:
        return reference.convex_upsample(field, mask, factor)
    out = field.new_empty(batch, field.shape[1], factor * height, factor * width)
    if field.device.type == "cuda":
        from fullfield.ops.fused import cuda

        if cuda.convex_why_not(field, mask, factor) is None:
            cuda.convex_strip(field, mask, factor, out)
            return out
    rows = max(1, _ELEMENTS // max(1, mask.shape[1] * batch * width))
    for first in range(0, height, rows):
        reference.convex_strip(field, mask[:, :, first : first + rows], factor, out, first_row=first)
    return out
