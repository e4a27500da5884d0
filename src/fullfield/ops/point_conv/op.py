"""The registered operators: the two products, each the other's derivative.

All are derivatives of one trilinear form Σ_T grad[i] · W_k F[j], so gradients of any order close in these two. Plain
eager calls go past the dispatcher, whose way through a registered operator takes the host longer than a small layer
takes the GPU; what is traced or differentiated twice goes through it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor

from fullfield.ops.launching import is_eager, refuse_forward_mode
from fullfield.ops.operators import register_for_func, wants_gradient
from fullfield.ops.point_conv.dispatch import CONVOLUTIONS
from fullfield.ops.point_conv.protocol import Request
from fullfield.ops.point_conv.triplets import Triplets

# Rows summed at a time in a bias gradient.
_BLOCK = 1024


def serve(
    features: Tensor, channels_out: int, triplets: Triplets, cells: int, groups: int, backend: str | None
) -> tuple[Any, Request]:
    """Return the backend's module, and the request for it."""
    rows, entries, _ = triplets
    dtype, shape = features.dtype, features.shape
    # The precision is asked for only where it matters: the question takes the host long.
    precision = torch.get_float32_matmul_precision() if dtype is torch.float32 else "highest"
    request = Request(
        features.device, dtype, (shape[1], channels_out), groups, cells, rows.shape[0] - 1, shape[0],
        entries.shape[0], precision,
    )  # fmt: skip
    return CONVOLUTIONS.load(CONVOLUTIONS.choose(backend, request)), request


_AS_IT_IS = nullcontext()


def plain_mode(device: str) -> AbstractContextManager[Any]:
    """No graph, no autocast; entered only where there is something to leave, for that costs the host."""
    if not torch.is_grad_enabled() and not torch.is_autocast_enabled(device):
        return _AS_IT_IS
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def product(
    features: Tensor, weight: Tensor, bias: Tensor | None, forward: list[Tensor], _backward: list[Tensor],
    _mirrored: bool, groups: int, backend: str | None,
) -> Tensor:  # fmt: skip
    """Convolve features with weights and add the bias."""
    triplets = Triplets(*forward)
    module, request = serve(features, weight.shape[2], triplets, weight.shape[0], groups, backend)
    with plain_mode(features.device.type):
        given = (features.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous())
        out: Tensor = module.multiply(request, *given, triplets)
    return out


def transposed_product(
    grad: Tensor, weight: Tensor, forward: list[Tensor], backward: list[Tensor], mirrored: bool, groups: int,
    backend: str | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the features, without a transposed copy of the weights if the backend can."""
    triplets = Triplets(*(forward if mirrored else backward))
    module, request = serve(grad, weight.shape[1] * groups, triplets, weight.shape[0], groups, backend)
    with plain_mode(grad.device.type):
        return multiply_transposed(module, request, grad.contiguous(), weight, triplets, mirrored)


def multiply_transposed(
    module: Any, request: Request, grad: Tensor, weight: Tensor, triplets: Triplets | None, mirrored: bool
) -> Tensor:
    """:func:`transposed_product` by the backend's module."""
    out: Tensor
    if getattr(module, "TRANSPOSES", False):
        out = module.multiply(request, grad, weight.contiguous(), None, triplets, 2 if mirrored else 1)
    else:
        transposed = adjoint_weight(weight, request.groups, mirrored).contiguous()
        out = module.multiply(request, grad, transposed, None, triplets)
    return out


def _conv_fake(features: Tensor, weight: Tensor, _bias: Tensor | None, forward: list[Tensor], *_: Any) -> Tensor:
    return features.new_empty(forward[0].shape[0] - 1, weight.shape[2])


def weight_product(
    features: Tensor, grad: Tensor, forward: list[Tensor], _backward: list[Tensor], _mirrored: bool, cells: int,
    groups: int, backend: str | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of the weight."""
    triplets = Triplets(*forward)
    module, request = serve(features, grad.shape[1], triplets, cells, groups, backend)
    with plain_mode(features.device.type):
        out: Tensor = module.outer(request, features.contiguous(), grad.contiguous(), triplets)
    return out


def _weight_fake(features: Tensor, grad: Tensor, *rest: Any) -> Tensor:
    *_, cells, groups, _ = rest
    return features.new_empty(cells, features.shape[1] // groups, grad.shape[1])


def adjoint_weight(weight: Tensor, groups: int, mirrored: bool) -> Tensor:
    """[K, Cin / groups, Cout] → [K, Cout / groups, Cin], the cells mirrored where asked."""
    cells, inputs, outputs = weight.shape
    transposed = weight.view(cells, inputs, groups, outputs // groups).permute(0, 3, 2, 1)
    transposed = transposed.reshape(cells, outputs // groups, groups * inputs)
    return transposed.flip(0) if mirrored else transposed


def _adjoint(
    grad: Tensor, weight: Tensor, forward: list[Tensor], backward: list[Tensor], mirrored: bool, *rest: Any
) -> Tensor:
    """Return the gradient of the features as a convolution, which can be differentiated again."""
    directions = (forward, backward) if mirrored else (backward, forward)
    out: Tensor = _CONVOLVE(grad, adjoint_weight(weight, rest[0], mirrored), None, *directions, mirrored, *rest)
    return out


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    features, weight, _, forward, backward, mirrored, groups, backend = inputs
    ctx.save_for_backward(features, weight, *forward, *backward)
    ctx.options = (mirrored, groups, backend)
    ctx.count = (len(forward), len(backward))


def _saved(ctx: Any) -> tuple[Tensor, Tensor, tuple[list[Tensor], list[Tensor]]]:
    one, two, *rest = ctx.saved_tensors
    return one, two, (rest[: ctx.count[0]], rest[ctx.count[0] :])


def _conv_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    features, weight, directions = _saved(ctx)
    mirrored, groups, backend = ctx.options
    wanted = ctx.needs_input_grad
    two = None
    if wanted[1]:
        two = _WEIGHT(features, grad, *directions, mirrored, weight.shape[0], groups, backend)
    one = _adjoint(grad, weight, *directions, *ctx.options) if wanted[0] else None
    three = _column_sums(grad) if wanted[2] else None
    return (one, two, three, [None] * ctx.count[0], [None] * ctx.count[1], None, None, None)


def _column_sums(rows: Tensor) -> Tensor:
    """Σ over rows in the accumulating dtype, block by block: in an order that no number of threads changes."""
    exact = torch.float64 if rows.dtype == torch.float64 else torch.float32
    rows, blocks = rows.contiguous(), rows.shape[0] // _BLOCK
    whole = rows[: blocks * _BLOCK].reshape(blocks, _BLOCK, rows.shape[1])
    total = whole.sum(1, dtype=exact).sum(0) + rows[blocks * _BLOCK :].sum(0, dtype=exact)
    return total.to(rows.dtype)


def _weight_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    features, grad, forward, backward, mirrored, _, groups, backend = inputs
    ctx.save_for_backward(features, grad, *forward, *backward)
    ctx.options = (mirrored, groups, backend)
    ctx.count = (len(forward), len(backward))


def _weight_backward(ctx: Any, grad_weight: Tensor) -> tuple[Any, ...]:
    features, grad, directions = _saved(ctx)
    wanted = ctx.needs_input_grad
    one = _adjoint(grad, grad_weight, *directions, *ctx.options) if wanted[0] else None
    two = _CONVOLVE(features, grad_weight, None, *directions, *ctx.options) if wanted[1] else None
    return (one, two, [None] * ctx.count[0], [None] * ctx.count[1], None, None, None, None)


# forward and backward: rows, entries, cells of either direction. mirrored: they are the same tensors, and the cell of
# the other direction is K - 1 - k. An empty list stands for a direction that was not prepared.
_CONVOLVE = register_for_func(
    "point_conv(Tensor features, Tensor weight, Tensor? bias, Tensor[] forward, Tensor[] backward, bool mirrored, "
    "int groups, str? backend) -> Tensor",
    product, _conv_fake, _conv_setup, _conv_backward,
)  # fmt: skip
_WEIGHT = register_for_func(
    "point_conv_weight(Tensor features, Tensor grad, Tensor[] forward, Tensor[] backward, bool mirrored, "
    "SymInt cells, int groups, str? backend) -> Tensor",
    weight_product, _weight_fake, _weight_setup, _weight_backward,
)  # fmt: skip


class _Eager(torch.autograd.Function):
    """The same convolution without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        ctx.save_for_backward(features, weight)
        ctx.rest = rest
        return product(features, weight, bias, *rest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        features, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        again = torch.is_grad_enabled()  # for gradients of the gradient
        one = two = three = None
        if wanted[1]:
            forward, backward, mirrored, groups, backend = ctx.rest
            outer = _WEIGHT if again else weight_product
            two = outer(features, grad, forward, backward, mirrored, weight.shape[0], groups, backend)
        if wanted[0]:  # last: the other's partial sums are free by then
            one = (_adjoint if again else transposed_product)(grad, weight, *ctx.rest)
        if wanted[2]:
            three = _column_sums(grad)
        return (one, two, three, None, None, None, None, None)


# ``_Eager.apply`` without what it does for functorch's transforms and for ``setup_context``.
_apply: Any = super(torch.autograd.Function, _Eager).apply


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """``fullfield::point_conv`` by the shortest way; ``rest``: both directions, mirrored, groups, backend."""
    if not is_eager(features, weight, bias):
        refuse_forward_mode(features=features, weight=weight, bias=bias)
        out: Tensor = _CONVOLVE(features, weight, bias, *rest)
        return out
    if wants_gradient(features, weight, bias):
        found: Tensor = _apply(features, weight, bias, *rest)
        return found
    return product(features, weight, bias, *rest)
