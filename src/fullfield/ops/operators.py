"""Registering operators with PyTorch, for traced code; and the same under torch.func, which cannot see through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LIBRARY: Any = torch.library.Library("fullfield", "FRAGMENT")  # type: ignore[no-untyped-call]
_Setup = Callable[[Any, tuple[Any, ...], Any], None]
_Gradient = Callable[..., tuple[Any, ...]]


def register(
    schema: str,
    real: Callable[..., Any],
    fake: Callable[..., Any],
    setup: _Setup | None = None,
    gradient: _Gradient | None = None,
) -> None:
    """The operator of ``schema`` is then in ``torch.ops.fullfield``.

    Args:
        schema: without defaults, for all arguments come by position.
        real: what is done, on every device.
        fake: what the results look like.
        setup, gradient: as ``torch.library.register_autograd`` takes them; None where there is no gradient.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fullfield::{name}", fake, lib=_LIBRARY)
    if gradient is not None:
        torch.library.register_autograd(f"fullfield::{name}", gradient, setup_context=setup, lib=_LIBRARY)


def register_for_func(
    schema: str, real: Callable[..., Any], fake: Callable[..., Any], setup: _Setup, gradient: _Gradient
) -> Callable[..., Any]:
    """:func:`register`; what is returned calls it, and under torch.func's grad and vjp has the same gradient.

    PyTorch refuses vmap of it. Tensors in lists have no gradient. Formulas that are to be differentiated call what this
    returns.
    """
    register(schema, real, fake, setup, gradient)
    name = schema.partition("(")[0]

    def registered(*arguments: Any) -> Any:
        return getattr(torch.ops.fullfield, name)(*arguments)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        # What is registered has a place for each tensor of a list, a function of autograd one for the list.
        return tuple(None if isinstance(found, list) else found for found in gradient(ctx, *grads))

    forms: dict[str, Any] = {"forward": registered, "setup_context": setup, "backward": backward}
    function: Any = type(name, (torch.autograd.Function,), {key: staticmethod(form) for key, form in forms.items()})

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
            return registered(*arguments)
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


def once_only(
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


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a result of these is part of a graph."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def gradients_again(
    again: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """For gradients of the gradient: those of the wanted inputs, by way of ``again``, None for the others."""
    # Aliases: where one input was made of another, the engine goes that way itself.
    inputs = [tensor.view_as(tensor) for tensor in inputs]
    kept = [tensor for tensor, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(again(*inputs), kept, grad, create_graph=True) if kept else ())
    return [next(found) if want else None for want in wanted]
