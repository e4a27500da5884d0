"""Public function of the point convolution, and its registered operators: two products, each the other's derivative.

All are derivatives of one trilinear form Σ_T grad[i] · W_k F[j], so gradients of any order close in these two. Eager
calls go past the dispatcher, whose path through a registered operator takes the host longer than a small layer takes
the GPU. Calls that are traced or differentiated twice go through it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._launching import is_eager, refuse_forward_mode
from fullfield.ops._operators import (
    get_apply_without_functorch,
    needs_gradient,
    register_and_return_torch_func_operator,
)
from fullfield.ops.point_conv.geometry import PointGeometry
from fullfield.ops.point_conv.protocol import CONVOLUTIONS, ConvRequest, check_conv_arguments
from fullfield.ops.point_conv.triplets import Triplets
from fullfield.ops.point_norm import cuda as layer_norm
from fullfield.ops.point_norm import point_norm
from fullfield.ops.point_norm.api import recompute_norm_gradients

# Rows summed at a time in a bias gradient.
_BLOCK = 1024


def choose_backend_module_and_build_request(
    features: Tensor, channels_out: int, triplets: Triplets, cells: int, groups: int, backend: str | None
) -> tuple[Any, ConvRequest]:
    """Return the backend's module, and the request for it."""
    rows, entries, _ = triplets
    dtype, shape = features.dtype, features.shape
    # The precision is asked for only where it matters: the question takes the host long.
    precision = torch.get_float32_matmul_precision() if dtype is torch.float32 else "highest"
    request = ConvRequest(
        features.device, dtype, (shape[1], channels_out), groups, cells, rows.shape[0] - 1, shape[0],
        entries.shape[0], precision,
    )  # fmt: skip
    return CONVOLUTIONS.load(CONVOLUTIONS.choose(backend, request)), request


_AS_IT_IS = nullcontext()


def disable_autocast_and_grad(device: str) -> AbstractContextManager[Any]:
    """Return a context without graph and autocast; a null context if both are off, because entering costs host time."""
    if not torch.is_grad_enabled() and not torch.is_autocast_enabled(device):
        return _AS_IT_IS
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def convolve_features(
    features: Tensor, weight: Tensor, bias: Tensor | None, forward: list[Tensor], _backward: list[Tensor],
    _mirrored: bool, groups: int, backend: str | None,
) -> Tensor:  # fmt: skip
    """Convolve features with weights and add the bias."""
    triplets = Triplets(*forward)
    module, request = choose_backend_module_and_build_request(
        features, weight.shape[2], triplets, weight.shape[0], groups, backend
    )
    with disable_autocast_and_grad(features.device.type):
        operands = (features.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous())
        out: Tensor = module.convolve_triplets(request, *operands, triplets)
    return out


def compute_feature_gradient(
    grad: Tensor, weight: Tensor, forward: list[Tensor], backward: list[Tensor], mirrored: bool, groups: int,
    backend: str | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the features, without a transposed copy of the weights if the backend can."""
    triplets = Triplets(*(forward if mirrored else backward))
    module, request = choose_backend_module_and_build_request(
        grad, weight.shape[1] * groups, triplets, weight.shape[0], groups, backend
    )
    with disable_autocast_and_grad(grad.device.type):
        return multiply_by_transposed_weight(module, request, grad.contiguous(), weight, triplets, mirrored)


def multiply_by_transposed_weight(
    module: Any, request: ConvRequest, grad: Tensor, weight: Tensor, triplets: Triplets | None, mirrored: bool
) -> Tensor:
    """Compute :func:`compute_feature_gradient` with the backend's module."""
    out: Tensor
    if getattr(module, "TRANSPOSES", False):
        out = module.convolve_triplets(request, grad, weight.contiguous(), None, triplets, 2 if mirrored else 1)
    else:
        transposed = transpose_weight(weight, request.groups, mirrored).contiguous()
        out = module.convolve_triplets(request, grad, transposed, None, triplets)
    return out


def _convolve_fake(features: Tensor, weight: Tensor, _bias: Tensor | None, forward: list[Tensor], *_: Any) -> Tensor:
    return features.new_empty(forward[0].shape[0] - 1, weight.shape[2])


def compute_weight_gradient(
    features: Tensor, grad: Tensor, forward: list[Tensor], _backward: list[Tensor], _mirrored: bool, cells: int,
    groups: int, backend: str | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the weight."""
    triplets = Triplets(*forward)
    module, request = choose_backend_module_and_build_request(features, grad.shape[1], triplets, cells, groups, backend)
    with disable_autocast_and_grad(features.device.type):
        out: Tensor = module.sum_outer_products(request, features.contiguous(), grad.contiguous(), triplets)
    return out


def _compute_weight_gradient_fake(features: Tensor, grad: Tensor, *rest: Any) -> Tensor:
    *_, cells, groups, _ = rest
    return features.new_empty(cells, features.shape[1] // groups, grad.shape[1])


def transpose_weight(weight: Tensor, groups: int, mirrored: bool) -> Tensor:
    """Convert [K, Cin / groups, Cout] to [K, Cout / groups, Cin], with mirrored cells if requested."""
    cells, inputs, outputs = weight.shape
    transposed = weight.view(cells, inputs, groups, outputs // groups).permute(0, 3, 2, 1)
    transposed = transposed.reshape(cells, outputs // groups, groups * inputs)
    return transposed.flip(0) if mirrored else transposed


def _convolve_adjoint(
    grad: Tensor,
    weight: Tensor,
    forward: list[Tensor],
    backward: list[Tensor],
    mirrored: bool,
    *groups_and_backend: Any,
) -> Tensor:
    """Return the gradient of the features as a convolution, which can be differentiated again."""
    directions = (forward, backward) if mirrored else (backward, forward)
    out: Tensor = _CONVOLVE(
        grad,
        transpose_weight(weight, groups_and_backend[0], mirrored),
        None,
        *directions,
        mirrored,
        *groups_and_backend,
    )
    return out


def _save_conv_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    features, weight, _, forward, backward, mirrored, groups, backend = inputs
    ctx.save_for_backward(features, weight, *forward, *backward)
    ctx.options = (mirrored, groups, backend)
    ctx.count = (len(forward), len(backward))


def _load_two_tensors_and_directions(ctx: Any) -> tuple[Tensor, Tensor, tuple[list[Tensor], list[Tensor]]]:
    one, two, *rest = ctx.saved_tensors
    return one, two, (rest[: ctx.count[0]], rest[ctx.count[0] :])


def _backpropagate_conv(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    features, weight, directions = _load_two_tensors_and_directions(ctx)
    mirrored, groups, backend = ctx.options
    requested = ctx.needs_input_grad
    two = None
    if requested[1]:
        two = _WEIGHT(features, grad, *directions, mirrored, weight.shape[0], groups, backend)
    one = _convolve_adjoint(grad, weight, *directions, *ctx.options) if requested[0] else None
    three = _sum_rows_deterministically(grad) if requested[2] else None
    return (one, two, three, [None] * ctx.count[0], [None] * ctx.count[1], None, None, None)


def _sum_rows_deterministically(rows: Tensor) -> Tensor:
    """Sum over rows in the accumulating dtype, block by block, in an order that no number of threads changes."""
    exact = torch.float64 if rows.dtype == torch.float64 else torch.float32
    rows, blocks = rows.contiguous(), rows.shape[0] // _BLOCK
    row_blocks = rows[: blocks * _BLOCK].reshape(blocks, _BLOCK, rows.shape[1])
    total = row_blocks.sum(1, dtype=exact).sum(0) + rows[blocks * _BLOCK :].sum(0, dtype=exact)
    return total.to(rows.dtype)


def _save_weight_gradient_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    features, grad, forward, backward, mirrored, _, groups, backend = inputs
    ctx.save_for_backward(features, grad, *forward, *backward)
    ctx.options = (mirrored, groups, backend)
    ctx.count = (len(forward), len(backward))


def _backpropagate_weight_gradient(ctx: Any, grad_weight: Tensor) -> tuple[Any, ...]:
    features, grad, directions = _load_two_tensors_and_directions(ctx)
    requested = ctx.needs_input_grad
    one = _convolve_adjoint(grad, grad_weight, *directions, *ctx.options) if requested[0] else None
    two = _CONVOLVE(features, grad_weight, None, *directions, *ctx.options) if requested[1] else None
    return (one, two, [None] * ctx.count[0], [None] * ctx.count[1], None, None, None, None)


# forward and backward: rows, entries, cells of either direction. mirrored: they are the same tensors, and the cell of
# the other direction is K - 1 - k. An empty list stands for a direction that was not prepared.
_CONVOLVE = register_and_return_torch_func_operator(
    "point_conv(Tensor features, Tensor weight, Tensor? bias, Tensor[] forward, Tensor[] backward, bool mirrored, "
    "int groups, str? backend) -> Tensor",
    convolve_features, _convolve_fake, _save_conv_inputs, _backpropagate_conv,
)  # fmt: skip
_WEIGHT = register_and_return_torch_func_operator(
    "point_conv_weight(Tensor features, Tensor grad, Tensor[] forward, Tensor[] backward, bool mirrored, "
    "SymInt cells, int groups, str? backend) -> Tensor",
    compute_weight_gradient, _compute_weight_gradient_fake, _save_weight_gradient_inputs,
    _backpropagate_weight_gradient,
)  # fmt: skip


class _EagerPointConv(torch.autograd.Function):
    """The same convolution without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        ctx.save_for_backward(features, weight)
        ctx.rest = rest
        return convolve_features(features, weight, bias, *rest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        features, weight = ctx.saved_tensors
        requested = ctx.needs_input_grad
        is_recomputed = torch.is_grad_enabled()  # for gradients of the gradient
        one = two = three = None
        if requested[1]:
            forward, backward, mirrored, groups, backend = ctx.rest
            outer = _WEIGHT if is_recomputed else compute_weight_gradient
            two = outer(features, grad, forward, backward, mirrored, weight.shape[0], groups, backend)
        if requested[0]:  # last: the other's partial sums are free by then
            one = (_convolve_adjoint if is_recomputed else compute_feature_gradient)(grad, weight, *ctx.rest)
        if requested[2]:
            three = _sum_rows_deterministically(grad)
        return (one, two, three, None, None, None, None, None)


_apply = get_apply_without_functorch(_EagerPointConv)


def convolve_points(features: Tensor, weight: Tensor, bias: Tensor | None, *directions_and_options: Any) -> Tensor:
    """Run ``fullfield::point_conv`` directly if possible.

    ``directions_and_options``: both directions, mirrored, groups, backend.
    """
    if not is_eager(features, weight, bias):
        refuse_forward_mode(features=features, weight=weight, bias=bias)
        out: Tensor = _CONVOLVE(features, weight, bias, *directions_and_options)
        return out
    if needs_gradient(features, weight, bias):
        return _apply(features, weight, bias, *directions_and_options)
    return convolve_features(features, weight, bias, *directions_and_options)


def explain_backends(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that can serve a 3×3×3 convolution of 64 channels, (name, reason) else.

    Preferred first.
    """
    request = ConvRequest(
        device=torch.empty(0, device=device).device,
        dtype=dtype,
        channels=(64, 64),
        groups=1,
        cells=27,
        rows=100_000,
        columns=100_000,
        entries=1_500_000,
        precision=torch.get_float32_matmul_precision(),
    )
    return CONVOLUTIONS.list_refusals(request)


def point_conv(
    features: Tensor,  # [N, Cin]
    weight: Tensor,  # [K, Cin / groups, Cout]
    geometry: PointGeometry,  # of N points and M centres
    bias: Tensor | None = None,  # [Cout]
    groups: int = 1,
    *,
    backend: str | None = None,
) -> Tensor:  # [M, Cout]
    """Compute ``out[i] = bias + Σ weight[k].T @ features[j]`` over the triplets (i, j, k) of the geometry.

    ``weight.view(*geometry.kernel_size, Cin / groups, Cout)`` has the axes of the coordinates: cell
    k = (kx·ty + ky)·tz + kz holds the points k − t // 2 grid steps from a centre. Group g reads the input channels from
    g·Cin / groups on and writes the outputs from g·Cout / groups on, as in :class:`torch.nn.Conv3d`. A centre without
    triplets gets the bias.

    Nothing of the size of triplets times channels is stored. Products of 16-bit features are exact and summed in
    float32. The result is differentiable in features, weight and bias, any number of times, and deterministic on every
    backend. Under autocast all three are cast to its dtype.

    Args:
        features: float32, float16, bfloat16 or float64.
        weight: of the same dtype and device.
        geometry: triplets of points, centres and kernel cells.
        bias: of the same dtype and device, or None.
        groups: number of groups of channels.
        backend: "cuda", "cpu" or "reference". None chooses the best one that can run; a named one never falls back.

    Raises:
        InputError: naming the argument that does not fit; for ``backend``, with every backend's reason.
        NotImplementedError: for forward-mode tangents.

    Source: PointCNN++ (arXiv 2511.23227).
    """
    _check.require(isinstance(geometry, PointGeometry), "geometry", "a PointGeometry", geometry)
    device = geometry.device
    if isinstance(features, Tensor) and features.device == device and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
        if features.dtype != torch.float64:
            features, weight = features.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
    check_conv_arguments(features, weight, bias, geometry.points, geometry.cells, device, groups)
    if torch.is_grad_enabled() and features.requires_grad:
        geometry.raise_unless_gradient_is_prepared()
    return convolve_points(
        features, weight, bias, *geometry.list_triplet_tensors_by_direction(), geometry.mirrored, groups, backend
    )


def point_conv_layer_norm(
    features: Tensor,  # [N, Cin]
    weight: Tensor,  # [K, Cin / groups, Cout]
    geometry: PointGeometry,  # of N points and M centres
    scale: Tensor,  # [Cout]
    shift: Tensor,  # [Cout]
    eps: float = 1e-5,
    *,
    groups: int = 1,
    residual: Tensor | None = None,  # [M, Cout]
    relu: bool = False,
    backend: str | None = None,
) -> Tensor:  # [M, Cout]
    """Apply :func:`point_norm` over the channels to :func:`point_conv` without a bias; arguments are theirs."""
    if (
        is_eager(features, weight, scale, shift, residual)
        and layer_norm.explain_unsupported(features, scale, shift, residual) is None
        and not torch.is_autocast_enabled(features.device.type)
        and (residual is None or residual.shape == (geometry.center_count, weight.shape[-1]))
    ):
        check_conv_arguments(features, weight, None, geometry.points, geometry.cells, geometry.device, groups)
        if scale.shape == shift.shape == weight.shape[2:] and 0 < weight.shape[2] <= layer_norm.MAX_CHANNELS:
            residual = None if residual is None else residual.contiguous()
            if needs_gradient(features, weight, scale, shift, residual):
                if features.requires_grad:
                    geometry.raise_unless_gradient_is_prepared()
                return _apply_both(features, weight, scale, shift, residual, geometry, groups, backend, eps, relu)
            rest = (*geometry.list_triplet_tensors_by_direction(), geometry.mirrored, groups, backend)
            return layer_norm.normalize_forward(
                convolve_features(features, weight, None, *rest), scale, shift, residual, eps, relu
            )
    convolved = point_conv(features, weight, geometry, None, groups, backend=backend)
    return point_norm(convolved, scale, shift, "layer", eps, residual=residual, relu=relu)


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
        eps: float,
        relu: bool,
    ) -> Tensor:
        triplets = geometry.forward
        module, request = choose_backend_module_and_build_request(
            features, weight.shape[2], triplets, weight.shape[0], groups, backend
        )
        convolved = module.convolve_triplets(request, features.contiguous(), weight.contiguous(), None, triplets)
        out = layer_norm.normalize_forward(convolved, scale, shift, residual, eps, relu)
        ctx.save_for_backward(features, weight, scale, shift, convolved, out if relu else None)
        ctx.geometry, ctx.backend, ctx.eps = geometry, backend, eps
        ctx.module, ctx.request = module, request
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        features, weight, scale, shift, convolved, out = ctx.saved_tensors
        geometry, requested = ctx.geometry, ctx.needs_input_grad
        module, request = ctx.module, ctx.request
        if request.dtype is torch.float32:
            request = request._replace(precision=torch.get_float32_matmul_precision())
        nothing = (None,) * 5  # for arguments that are no tensors
        if torch.is_grad_enabled():  # for gradients of the gradient: step by step
            rest = (*geometry.list_triplet_tensors_by_direction(), geometry.mirrored, request.groups, ctx.backend)

            def recompute(features: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
                return point_norm(convolve_points(features, weight, None, *rest), scale, shift, "layer", ctx.eps)

            return *recompute_norm_gradients(
                recompute, (features, weight, scale, shift), out, grad, requested[:5]
            ), *nothing
        gradients = layer_norm.normalize_backward(convolved, out, scale, grad.contiguous(), ctx.eps, requested[4])
        grad_convolved, grad_scale, grad_shift, grad_residual = gradients
        one = two = None
        with disable_autocast_and_grad(grad.device.type):
            if requested[1]:
                two = module.sum_outer_products(request, features.contiguous(), grad_convolved, geometry.forward)
            if requested[0]:
                triplets = geometry.forward if geometry.mirrored else geometry.backward
                transposed = request._replace(
                    channels=request.channels[::-1], rows=request.columns, columns=request.rows
                )
                one = multiply_by_transposed_weight(
                    module, transposed, grad_convolved, weight, triplets, geometry.mirrored
                )
        return one, two, grad_scale, grad_shift, grad_residual, *nothing


_apply_both = get_apply_without_functorch(_ConvNorm)
