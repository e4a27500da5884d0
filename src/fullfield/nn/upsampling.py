"""Convex up-sampling: every fine pixel is a weighted mean of the nine coarse ones around it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._fused import reference
from fullfield.ops._launching import explain_unsupported_device, is_eager, is_traced
from fullfield.ops._operators import compute_gradients_by_recomputation

# Number of weights at a time without gradients.
_ELEMENTS = 1 << 25
_NEIGHBOURS = 9


def convex_upsample(
    field: Tensor,  # [B, C, h, w]
    mask: Tensor,  # [B, 9·factor², h, w], before its softmax: neighbour (row by row) slow, fine row, fine column
    factor: int,
) -> Tensor:  # [B, C, factor·h, factor·w]
    """Up-sample ``field`` (its values unchanged) with the weights a network predicts. Source: RAFT, appendix B.

    The field is zero outside; the result has its dtype. Differentiable: on NVIDIA GPUs kernels compute the gradients of
    a float32 field of at most 7 channels for a factor of 8, and hold only the arguments for it. Without gradients a
    kernel does the work there, and strips of rows elsewhere, so that only the result grows with the size.

    Raises:
        InputError: naming the argument that does not fit.
    """
    _check.check_tensor(field, "field", ("B", "C", "h", "w"))
    batch, _, height, width = field.shape
    _check.check_number(factor, "factor", integer=True, low=1)
    _check.check_tensor(mask, "mask", (batch, _NEIGHBOURS * factor * factor, height, width), device=field.device)
    graph = torch.is_grad_enabled() and (field.requires_grad or mask.requires_grad)
    can = graph and is_eager(field, mask) and explain_unsupported_device(field.device) is None
    if can and _import_cuda_kernels().explain_convex_gradients_refusal(field, mask, factor) is None:
        result: Tensor = _Convex.apply(field, mask)  # type: ignore[no-untyped-call]
        return result
    if graph or is_traced(field, mask) or torch._C._get_tracing_state() is not None:
        return reference.convex_upsample(field, mask, factor)
    out = field.new_empty(batch, field.shape[1], factor * height, factor * width)
    if field.device.type == "cuda" and _import_cuda_kernels().explain_convex_refusal(field, mask, factor) is None:
        _import_cuda_kernels().write_convex_upsampled_strip(field, mask, factor, out)
        return out
    rows = max(1, _ELEMENTS // max(1, mask.shape[1] * batch * width))
    for first in range(0, height, rows):
        reference.write_convex_upsampled_strip(field, mask[:, :, first : first + rows], factor, out, first_row=first)
    return out


def _import_cuda_kernels() -> Any:
    from fullfield.ops._fused import cuda

    return cuda


class _Convex(torch.autograd.Function):
    """Up-sampling in three launches forward and backward, where autograd needs about a hundred for the reference."""

    @staticmethod
    def forward(ctx: Any, field: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(field, mask)
        kernels = _import_cuda_kernels()
        factor = kernels.GRADIENTS_FACTOR
        out = field.new_empty(*field.shape[:2], factor * field.shape[2], factor * field.shape[3])
        kernels.write_convex_upsampled_strip(field, mask, factor, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        field, mask = ctx.saved_tensors
        twice = torch.is_grad_enabled()  # gradients of the gradient
        if twice or not is_eager(grad) or torch._C._functorch.is_legacy_batchedtensor(grad):  # is_grads_batched=
            inputs = [t if twice else t.detach().requires_grad_() for t in (field, mask)]
            upsample = partial(reference.convex_upsample, factor=_import_cuda_kernels().GRADIENTS_FACTOR)
            with torch.enable_grad():
                grads = compute_gradients_by_recomputation(
                    upsample, inputs, grad, ctx.needs_input_grad, create_graph=twice
                )
            return grads[0], grads[1]
        field_grad, mask_grad = _import_cuda_kernels().compute_convex_gradients(field, mask, grad)
        return field_grad, mask_grad
