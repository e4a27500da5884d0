"""Registration of operators with PyTorch for traced code and torch.func, and what their gradients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LIBRARY: Any = torch.library.Library("fullfield", "FRAGMENT")  # type: ignore[no-untyped-call]
_Setup = Callable[[Any, tuple[Any, ...], Any], None]
_Gradient = Callable[..., tuple[Any, ...]]


def register_operator(
    schema: str,
    real: Callable[..., Any],
    fake: Callable[..., Any],
    setup: _Setup | None = None,
    gradient: _Gradient | None = None,
) -> None:
    """Register the operator of ``schema`` in ``torch.ops.fullfield``.

    Args:
        schema: the signature without defaults: all arguments are passed by position.
        real: computes the results, on every device.
        fake: returns empty tensors like the results.
        setup: as ``torch.library.register_autograd`` takes it; None where there is no gradient.
        gradient: likewise.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fullfield::{name}", fake, lib=_LIBRARY)
    if gradient is not None:
        torch.library.register_autograd(f"fullfield::{name}", gradient, setup_context=setup, lib=_LIBRARY)


def register_and_return_torch_func_operator(
    schema: str, real: Callable[..., Any], fake: Callable[..., Any], setup: _Setup, gradient: _Gradient
) -> Callable[..., Any]:
    """Register an operator, and return a function that calls it and also works under torch.func's grad and vjp.

    PyTorch refuses vmap of it. Tensors in lists have no gradient. Gradients that are differentiated again must call the
    returned function.
    """
    register_operator(schema, real, fake, setup, gradient)
    name = schema.partition("(")[0]

    def call_registered(*arguments: Any) -> Any:
        return getattr(torch.ops.fullfield, name)(*arguments)

    def compute_gradient_per_argument(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        # A registered operator has a gradient for each tensor of a list, an autograd.Function one for the whole list.
        return tuple(None if isinstance(grad, list) else grad for grad in gradient(ctx, *grads))

    forms: dict[str, Any] = {
        "forward": call_registered,
        "setup_context": setup,
        "backward": compute_gradient_per_argument,
    }
    function: Any = type(name, (torch.autograd.Function,), {key: staticmethod(method) for key, method in forms.items()})

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
            return call_registered(*arguments)
        return function.apply(*arguments)

    return call


class _Refusal(torch.autograd.Function):
    """Identity of one tensor that raises when it is differentiated, by whichever of its inputs."""

    @staticmethod
    def forward(ctx: Any, name: str, result: Tensor, *_inputs: Tensor | None) -> Tensor:
        ctx.name = name
        return result

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[None, ...]:
        raise RuntimeError(f"{ctx.name} is differentiable only once: its gradient has no derivative")


def wrap_to_forbid_second_derivative(
    name: str, results: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return the results of a backward, made to raise where they are differentiated with respect to any of ``inputs``.

    ``inputs`` hold every path into the operator: the incoming gradient and what the operator was applied to. PyTorch's
    ``once_differentiable`` joins the results to nothing, so that ``torch.autograd.grad(..., allow_unused=True)``
    returns None or leaves out the operator's share.
    """
    if not torch.is_grad_enabled():
        return tuple(results)
    return tuple(one if one is None else _Refusal.apply(name, one.detach(), *inputs) for one in results)  # type: ignore[no-untyped-call]


def get_apply_without_functorch(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """Return ``function.apply`` without its steps for functorch's transforms and ``setup_context``, which take 3 µs."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc,no-any-return]


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Return whether a result of these tensors is part of a graph."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def compute_gradients_by_recomputation(
    recompute: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    grad: Tensor,
    requested: Sequence[bool],
    *,
    create_graph: bool = True,
) -> list[Tensor | None]:
    """Return differentiable gradients of the requested inputs, computed through ``recompute``; None for others."""
    # Aliases, because one input may be computed from another: the engine follows that path itself.
    inputs = [tensor.view_as(tensor) for tensor in inputs]
    differentiable = [tensor for tensor, is_requested in zip(inputs, requested, strict=True) if is_requested]
    gradients = iter(
        torch.autograd.grad(recompute(*inputs), differentiable, grad, create_graph=create_graph)
        if differentiable
        else ()
    )
    return [next(gradients) if is_requested else None for is_requested in requested]
