"""A convolution and the normalisation behind it as one step of the graph, for small clouds take the host's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullfield.ops.launching import is_eager
from fullfield.ops.operators import wants_gradient
from fullfield.ops.point_conv import op
from fullfield.ops.point_conv.api import point_conv
from fullfield.ops.point_conv.arguments import check_conv
from fullfield.ops.point_conv.geometry import PointGeometry
from fullfield.ops.point_norm import Running, point_norm
from fullfield.ops.point_norm import cuda as kernels
from fullfield.ops.point_norm.op import gradients_before_relu


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
    if (
        kind == "layer"
        and is_eager(features, weight, scale, shift, residual)
        and kernels.supports(features, scale, shift, residual, groups=1) is None
        and not torch.is_autocast_enabled(features.device.type)
        and (residual is None or residual.shape == (geometry.centers, weight.shape[-1]))
    ):
        check_conv(features, weight, None, geometry.points, geometry.cells, geometry.device, groups)
        if scale.shape == shift.shape == weight.shape[2:] and 0 < weight.shape[2] <= kernels.MOST_CHANNELS:
            residual = None if residual is None else residual.contiguous()
            made = kernels.Norm(kind, eps, (), relu)
            if wants_gradient(features, weight, scale, shift, residual):
                if features.requires_grad:
                    geometry.require_gradient()
                found: Tensor = _apply(features, weight, scale, shift, residual, geometry, groups, backend, made)
                return found
            rest = (*geometry.directions(), geometry.mirrored, groups, backend)
            return made.forward(op.product(features, weight, None, *rest), scale, shift, residual, None)
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
        geometry: PointGeometry,
        groups: int,
        backend: str | None,
        made: kernels.Norm,
    ) -> Tensor:
        triplets = geometry.forward
        module, request = op.serve(features, weight.shape[2], triplets, weight.shape[0], groups, backend)
        convolved = module.multiply(request, features.contiguous(), weight.contiguous(), None, triplets)
        out = made.forward(convolved, scale, shift, residual, None)
        ctx.save_for_backward(features, weight, scale, shift, convolved, out if made.relu else None)
        ctx.geometry, ctx.backend, ctx.made = geometry, backend, made
        ctx.module, ctx.request = module, request
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        features, weight, scale, shift, convolved, out = ctx.saved_tensors
        geometry, made, wanted = ctx.geometry, ctx.made, ctx.needs_input_grad
        module, request = ctx.module, ctx.request
        if request.dtype is torch.float32:
            request = request._replace(precision=torch.get_float32_matmul_precision())
        nothing = (None,) * 4  # of what is no tensor
        if torch.is_grad_enabled():  # for gradients of the gradient: step by step
            rest = (*geometry.directions(), geometry.mirrored, request.groups, ctx.backend)

            def again(features: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
                return point_norm(op.convolve(features, weight, None, *rest), scale, shift, made.kind, made.eps)

            return *gradients_before_relu(again, (features, weight, scale, shift), out, grad, wanted[:5]), *nothing
        found = made.backward(convolved, out, scale, grad.contiguous(), wanted[4])
        grad_convolved, of_residual, of_scale, of_shift = found
        one = two = None
        with op.plain_mode(grad.device.type):
            if wanted[1]:
                two = module.outer(request, features.contiguous(), grad_convolved, geometry.forward)
            if wanted[0]:
                triplets = geometry.forward if geometry.mirrored else geometry.backward
                transposed = request._replace(
                    channels=request.channels[::-1], rows=request.columns, columns=request.rows
                )
                one = op.multiply_transposed(module, transposed, grad_convolved, weight, triplets, geometry.mirrored)
        return one, two, of_scale, of_shift, of_residual, *nothing


# Without what ``apply`` does for functorch's transforms and for ``setup_context``.
_apply: Any = super(torch.autograd.Function, _ConvNorm).apply
