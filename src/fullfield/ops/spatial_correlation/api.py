"""Public function of the spatial correlation, its registered operators for traced code, and the path of eager code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fullfield import _check
from fullfield.ops._launching import is_eager
from fullfield.ops._operators import (
    compute_gradients_by_recomputation,
    get_apply_without_functorch,
    needs_gradient,
    register_operator,
)
from fullfield.ops.spatial_correlation.protocol import (
    FEATURES,
    SAMPLERS,
    DisplacementWindow,
    Pair,
    WindowRequest,
    choose_backend_module,
)
from fullfield.ops.spatial_correlation.reference import correlate_with_autograd

_FLOATS = (*FEATURES, torch.float64)


def _convert_integers_to_window(integers: Sequence[int]) -> DisplacementWindow:
    pairs = [(int(a), int(b)) for a, b in zip(integers[::2], integers[1::2], strict=True)]
    return DisplacementWindow(*pairs)


def _convert_window_to_integers(window: DisplacementWindow) -> list[int]:
    return [*window.patch, *window.dilation_patch, *window.stride, *window.padding]


def _correlate(fmap1: Tensor, fmap2: Tensor, window: list[int], backend: str | None) -> Tensor:
    parsed = _convert_integers_to_window(window)
    out: Tensor = choose_backend_module(parsed, fmap1, backend).compute_correlation(
        fmap1.contiguous(), fmap2.contiguous(), parsed
    )
    return out


def _correlate_fake(fmap1: Tensor, fmap2: Tensor, window: list[int], backend: str | None) -> Tensor:  # noqa: ARG001
    parsed = _convert_integers_to_window(window)
    return fmap1.new_empty(
        (fmap1.shape[0], *parsed.patch, *parsed.compute_output_size((fmap1.shape[2], fmap1.shape[3])))
    )


def _compute_gradients(
    fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: list[int], backend: str | None, requested: list[bool]
) -> list[Tensor]:
    parsed = _convert_integers_to_window(window)
    maps = (fmap1.contiguous(), fmap2.contiguous(), grad.contiguous())
    grads: list[Tensor] = choose_backend_module(parsed, fmap1, backend).compute_requested_gradients(
        *maps, parsed, (requested[0], requested[1])
    )
    return grads


def _compute_gradients_fake(fmap1: Tensor, fmap2: Tensor, *other_arguments: Any) -> list[Tensor]:
    return [
        m.new_empty(m.shape)
        for m, is_requested in zip((fmap1, fmap2), other_arguments[-1], strict=True)
        if is_requested
    ]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    fmap1, fmap2, ctx.window, ctx.backend = inputs
    ctx.save_for_backward(fmap1, fmap2)


def _backpropagate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    fmap1, fmap2 = ctx.saved_tensors
    requested = [bool(is_requested) for is_requested in ctx.needs_input_grad[:2]]
    if torch.is_grad_enabled():  # for gradients of the gradient
        recompute = partial(correlate_with_autograd, window=_convert_integers_to_window(ctx.window))
        return *compute_gradients_by_recomputation(recompute, (fmap1, fmap2), grad, requested), None, None
    backward = torch.ops.fullfield.spatial_correlation_backward
    gradients = iter(backward(fmap1, fmap2, grad, ctx.window, ctx.backend, requested))
    return *(next(gradients) if is_requested else None for is_requested in requested), None, None


# window: patch, dilation_patch, stride, padding; height before width.
register_operator(
    "spatial_correlation(Tensor fmap1, Tensor fmap2, int[] window, str? backend) -> Tensor",
    _correlate, _correlate_fake, _save_for_backward, _backpropagate,
)  # fmt: skip
register_operator(
    "spatial_correlation_backward(Tensor fmap1, Tensor fmap2, Tensor grad, int[] window, str? backend, "
    "bool[] requested) -> Tensor[]",
    _compute_gradients, _compute_gradients_fake,
)  # fmt: skip


class _SpatialCorrelation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow, module: Any) -> Any:
        ctx.window, ctx.module = window, module
        ctx.save_for_backward(fmap1, fmap2)
        return module.compute_correlation(fmap1, fmap2, window)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        fmap1, fmap2 = ctx.saved_tensors
        requested = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # for gradients of the gradient
            recompute = partial(correlate_with_autograd, window=ctx.window)
            return *compute_gradients_by_recomputation(recompute, (fmap1, fmap2), grad, requested), None, None
        left = iter(ctx.module.compute_requested_gradients(fmap1, fmap2, grad.contiguous(), ctx.window, requested))
        return *(next(left) if is_requested else None for is_requested in requested), None, None


_apply = get_apply_without_functorch(_SpatialCorrelation)


def explain_backends(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> list[tuple[str, str | None]]:
    """Return (name, None) for every backend that runs here, (name, reason) for the others, preferred first.

    The answer is for PWC-Net's windows of 9×9.
    """
    request = WindowRequest(DisplacementWindow((9, 9)), (112, 256), dtype, torch.empty(0, device=device).device)
    return SAMPLERS.list_refusals(request)


def spatial_correlation(
    fmap1: Tensor,  # [B, C, H, W]
    fmap2: Tensor,  # [B, C, H, W]
    patch_size: int | Pair = 9,
    *,
    dilation_patch: int | Pair = 1,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    backend: str | None = None,
) -> Tensor:  # [B, PH, PW, OH, OW]; OH = (H + 2·padding − 1) // stride + 1
    """Compute the products of each pixel's features with those of a fixed window around it.

    ``out[b, i, j, h, w] = ⟨fmap1[b, :, y, x], fmap2[b, :, y + i·d − r, x + j·d − r]⟩`` with y = h·stride − padding, x
    likewise, d = ``dilation_patch`` and r = d·(patch_size − 1) // 2. Features outside a map are zero. The sum is not
    normalised: networks divide by C themselves, or not. The values are those of ``spatial_correlation_sampler`` with
    ``kernel_size=1``.

    The result is differentiable in both maps, to any order, and deterministic. Sums are float32 (float64 for float64).
    On a GPU contiguous maps take no further memory than the result's.

    Args:
        fmap1: float32, float16, bfloat16 or float64, any strides. The result has its dtype.
        fmap2: of the same size and dtype, any strides.
        patch_size: size of the window, a number or a pair (vertical, horizontal), as the next arguments.
        dilation_patch: distance between the window's pixels.
        stride: distance between the pixels of ``fmap1``.
        padding: zeros around the maps.
        backend: "cuda" or "reference". None chooses the best one that can run; a named one never falls back.

    Raises:
        InputError: naming the argument that does not fit; for ``backend``, with every backend's reason.

    Source: Dosovitskiy et al., FlowNet, 2015 (the layer); Pinard's Pytorch-Correlation-extension (the form).
    """
    window = _check_and_build_window(patch_size, dilation_patch, stride, padding)
    _check.check_tensor(fmap1, "fmap1", ("B", "C", "H", "W"), dtypes=_FLOATS)
    _check.check_tensor(fmap2, "fmap2", tuple(fmap1.shape), dtypes=(fmap1.dtype,), device=fmap1.device)
    if not is_eager(fmap1, fmap2):
        compiling = torch.compiler.is_compiling()
        if not compiling and (torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0):
            return correlate_with_autograd(fmap1, fmap2, window)
        result: Tensor = torch.ops.fullfield.spatial_correlation(
            fmap1, fmap2, _convert_window_to_integers(window), backend
        )
        return result
    module = choose_backend_module(window, fmap1, backend)
    fmap1, fmap2 = fmap1.contiguous(), fmap2.contiguous()
    if needs_gradient(fmap1, fmap2):
        return _apply(fmap1, fmap2, window, module)
    out: Tensor = module.compute_correlation(fmap1, fmap2, window)
    return out


def _check_and_build_window(
    patch_size: int | Pair, dilation_patch: int | Pair, stride: int | Pair, padding: int | Pair
) -> DisplacementWindow:
    """Check the arguments and return the window, which is kept for later calls."""
    sizes = (patch_size, dilation_patch, stride, padding)
    keeps = not torch.compiler.is_compiling() and all(type(value) is int for value in sizes)
    return (_cached_window if keeps else _check_and_build_window_uncached)(*sizes)


def _check_and_build_window_uncached(
    patch_size: object, dilation_patch: object, stride: object, padding: object
) -> DisplacementWindow:
    return DisplacementWindow(
        _check_and_expand_integer_pair(patch_size, "patch_size", 1),
        _check_and_expand_integer_pair(dilation_patch, "dilation_patch", 1),
        _check_and_expand_integer_pair(stride, "stride", 1),
        _check_and_expand_integer_pair(padding, "padding", 0),
    )


_cached_window: Callable[..., DisplacementWindow] = functools.lru_cache(256)(_check_and_build_window_uncached)


def _check_and_expand_integer_pair(value: object, name: str, minimum: int) -> Pair:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    _check.require(len(pair) == 2, name, "a number or a pair", value)
    for side in pair:
        _check.check_number(side, name, integer=True, low=minimum)
    return int(pair[0]), int(pair[1])
