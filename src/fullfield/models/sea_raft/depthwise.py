"""Depthwise convolution of SEA-RAFT in training, whose gradient by its input is a convolution too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops._fused import cuda


class DepthwiseConvolution(torch.autograd.Function):
    """Depthwise convolution of [B, C, H, W] with [C, 1, side, side], of odd side, padded with zeros to the same size.

    On NVIDIA GPUs a kernel computes it and its gradient by the input, if it serves the filters.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve."""
        ctx.save_for_backward(x, weight)
        return _apply_depthwise_filters(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both."""
        x, weight = ctx.saved_tensors
        margin = weight.shape[-1] // 2
        none, one, pads = [0, 0], [1, 1], [margin, margin]
        grad_weight: Tensor = torch.ops.aten.convolution_backward(
            grad, x, weight, None, one, pads, one, False, none, len(weight), [False, True, False]
        )[1]
        return _apply_depthwise_filters(grad, weight.flip(2, 3)), grad_weight


def _apply_depthwise_filters(x: Tensor, weight: Tensor) -> Tensor:
    if cuda.explain_depthwise_refusal(x, weight) is None:
        filters = weight.float().flatten(1).t().contiguous()
        convolved: Tensor = _convolve_depthwise_by_kernel(x.contiguous(memory_format=torch.channels_last), filters)
        return convolved
    return functional.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=len(weight))


@torch.library.custom_op("fullfield::depthwise_convolution", mutates_args=())
def _convolve_depthwise_by_kernel(x: Tensor, filters: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.channels_last)
    cuda.convolve_depthwise(x.permute(0, 2, 3, 1), filters, out.permute(0, 2, 3, 1))
    return out


@_convolve_depthwise_by_kernel.register_fake
def _allocate_depthwise_result(x: Tensor, _: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)
