"""A convolution and the normalisation behind it as one step of the graph, for small clouds take the host's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullfield.ops.launching import is_eager
from fullfield.ops.point_conv import op
from fullfield.ops.point_conv.api import point_conv
from fullfield.ops.point_conv.arguments import check_conv
from fullfield.ops.point_conv.geometry import PointGeometry
from fullfield.ops.point_norm import Running, point_norm
from fullfield.ops.point_norm import cuda as kernels
from fullfield.ops.point_norm.op import gradients_again


def point_conv_norm(
    features: Tensor,  # [N, Cin]
    weight: Tensor,  # [K, Cin / groups, Cout]
    geometry: PointGeometry,  # of N points and M centres
    scale: Tensor,  # [Cout]
    shift: Tensor,  # [Cout]
    kind: str = "layer",
    eps: float = 1e-5,
    *,
    groups: int = 1,
    sizes: Sequence[int] = (),
    running: Running | None = None,
    residual: Tensor | None = None,  # [M, Cout]
    relu: bool = False,
    backend: str | None = None,
) -> Tensor:  # [M, Cout]
    """:func:`point_norm` of what :func:`point_conv` gives without a bias; arguments and results are theirs."""
    tensors = (features, weight, scale, shift, residual)
    fast = kind == "layer" and is_eager(*tensors) and not torch.is_autocast_enabled(features.device.type)
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    fits = residual is None or residual.shape == (geometry.centers, weight.shape[-1])
    if fast and wanted and fits and kernels.supports(features, scale, shift, residual, groups=1) is None:
        check_conv(features, weight, None, geometry.points, geometry.cells, geometry.device, groups)
        if scale.shape == shift.shape == weight.shape[2:] and 0 < weight.shape[2] <= kernels.MOST_CHANNELS:
            if features.requires_grad:
                geometry.require_gradient()
            residual = None if residual is None else residual.contiguous()
            rest = (*geometry.directions(), geometry.mirrored, groups, backend)
            made = kernels.Norm(kind, eps, (), relu)
            found: Tensor = _apply(features, weight, scale, shift, residual, rest, made)
            return found
    convolved = point_conv(features, weight, geometry, None, groups, backend=backend)
    return point_norm(convolved, scale, shift, kind, eps, sizes=sizes, running=running, residual=residual, relu=relu)


class _ConvNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        residual: Tensor | None,
        rest: tuple[Any, ...],
        made: kernels.Norm,
    ) -> Tensor:
        convolved = op.product(features, weight, None, *rest)
        out = made.forward(convolved, scale, shift, residual, None)
        ctx.save_for_backward(features, weight, scale, shift, convolved, out if made.relu else None)
        ctx.rest, ctx.made = rest, made
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        features, weight, scale, shift, convolved, out = ctx.saved_tensors
        made, rest, wanted = ctx.made, ctx.rest, ctx.needs_input_grad
        if torch.is_grad_enabled():  # for gradients of the gradient: step by step
            again = point_norm(op.convolve(features, weight, None, *rest), scale, shift, made.kind, made.eps)
            return *gradients_again(again, (features, weight, scale, shift), out, grad, wanted[:5]), None, None
        found = made.backward(convolved, out, scale, grad.contiguous(), wanted[4])
        grad_convolved, of_residual, of_scale, of_shift = found
        two = None
        if wanted[1]:
            forward, backward, mirrored, groups, backend = rest
            given = (features, grad_convolved, forward, backward, mirrored)
            two = op.weight_product(*given, weight.shape[0], groups, backend)
        one = op.transposed_product(grad_convolved, weight, *rest) if wanted[0] else None
        return one, two, of_scale, of_shift, of_residual, None, None


# Without what ``apply`` does for functorch's transforms and for ``setup_context``.
_apply: Any = super(torch.autograd.Function, _ConvNorm).apply
