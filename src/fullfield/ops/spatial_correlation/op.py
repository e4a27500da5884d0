"""The registered operator, for traced code, and the shorter way of eager code, with the same backends behind both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fullfield.ops.launching import is_eager
from fullfield.ops.operators import gradients_again, register, wants_gradient
from fullfield.ops.spatial_correlation.protocol import Module, Window, choose
from fullfield.ops.spatial_correlation.reference import compared


def _window(numbers: Sequence[int]) -> Window:
    pairs = [(int(a), int(b)) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    return Window(*pairs)


def _numbers(window: Window) -> list[int]:
    return [*window.patch, *window.dilation_patch, *window.stride, *window.padding]


def _forward(fmap1: Tensor, fmap2: Tensor, window: list[int], backend: str | None) -> Tensor:
    found = _window(window)
    return choose(found, fmap1, backend).forward(fmap1.contiguous(), fmap2.contiguous(), found)


def _forward_fake(fmap1: Tensor, fmap2: Tensor, window: list[int], backend: str | None) -> Tensor:  # noqa: ARG001
    found = _window(window)
    return fmap1.new_empty((fmap1.shape[0], *found.patch, *found.out_size((fmap1.shape[2], fmap1.shape[3]))))


def _backward(
    fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: list[int], backend: str | None, wanted: list[bool]
) -> list[Tensor]:
    found = _window(window)
    maps = (fmap1.contiguous(), fmap2.contiguous(), grad.contiguous())
    return choose(found, fmap1, backend).backward(*maps, found, (wanted[0], wanted[1]))


def _backward_fake(fmap1: Tensor, fmap2: Tensor, *rest: Any) -> list[Tensor]:
    return [m.new_empty(m.shape) for m, want in zip((fmap1, fmap2), rest[-1], strict=True) if want]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    fmap1, fmap2, ctx.window, ctx.backend = inputs
    ctx.save_for_backward(fmap1, fmap2)


def _autograd(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    fmap1, fmap2 = ctx.saved_tensors
    wanted = [bool(want) for want in ctx.needs_input_grad[:2]]
    if torch.is_grad_enabled():  # for gradients of the gradient
        again = partial(compared, window=_window(ctx.window))
        return *gradients_again(again, (fmap1, fmap2), grad, wanted), None, None
    backward = torch.ops.fullfield.spatial_correlation_backward
    found = iter(backward(fmap1, fmap2, grad, ctx.window, ctx.backend, wanted))
    return *(next(found) if want else None for want in wanted), None, None


# window: patch, dilation_patch, stride, padding; height before width.
register(
    "spatial_correlation(Tensor fmap1, Tensor fmap2, int[] window, str? backend) -> Tensor",
    _forward, _forward_fake, _setup, _autograd,
)  # fmt: skip
register(
    "spatial_correlation_backward(Tensor fmap1, Tensor fmap2, Tensor grad, int[] window, str? backend, bool[] wanted) "
    "-> Tensor[]",
    _backward, _backward_fake,
)  # fmt: skip


class _Compared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fmap1: Tensor, fmap2: Tensor, window: Window, module: Module) -> Tensor:
        ctx.window, ctx.module = window, module
        ctx.save_for_backward(fmap1, fmap2)
        return module.forward(fmap1, fmap2, window)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        fmap1, fmap2 = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # for gradients of the gradient
            again = partial(compared, window=ctx.window)
            return *gradients_again(again, (fmap1, fmap2), grad, wanted), None, None
        left = iter(ctx.module.backward(fmap1, fmap2, grad.contiguous(), ctx.window, wanted))
        return *(next(left) if want else None for want in wanted), None, None


# ``_Compared.apply`` without what it does for functorch's transforms and for ``setup_context``.
_apply: Any = super(torch.autograd.Function, _Compared).apply


def run(fmap1: Tensor, fmap2: Tensor, window: Window, backend: str | None) -> Tensor:
    """Arguments checked."""
    if not is_eager(fmap1, fmap2):
        compiling = torch.compiler.is_compiling()
        if not compiling and (torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0):
            return compared(fmap1, fmap2, window)
        found: Tensor = torch.ops.fullfield.spatial_correlation(fmap1, fmap2, _numbers(window), backend)
        return found
    module = choose(window, fmap1, backend)
    fmap1, fmap2 = fmap1.contiguous(), fmap2.contiguous()
    if wants_gradient(fmap1, fmap2):
        out: Tensor = _apply(fmap1, fmap2, window, module)
        return out
    return module.forward(fmap1, fmap2, window)
