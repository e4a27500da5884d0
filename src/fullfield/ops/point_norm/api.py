"""Public function of the normalisation, and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._backends import is_usable_or_warn_missing
from fullfield.ops._launching import is_eager
from fullfield.ops._operators import compute_gradients_by_recomputation, get_apply_without_functorch, needs_gradient
from fullfield.ops.point_norm import cuda
from fullfield.ops.point_norm.reference import Running, normalize

KINDS = ("layer", "batch", "instance")
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def point_norm(
    features: Tensor,  # [N, C]
    weight: Tensor,  # [C]
    bias: Tensor,  # [C]
    kind: str = "layer",
    eps: float = 1e-5,
    *,
    sizes: Sequence[int] = (),
    running: Running | None = None,
    residual: Tensor | None = None,  # [N, C]
    relu: bool = False,
) -> Tensor:  # [N, C]
    """Compute ``(features − mean) / √(variance + eps) · weight + bias``, then add a residual and apply a ReLU.

    The result has the features' dtype, also under autocast. Statistics are at least float32. For "layer" NVIDIA GPUs
    use one kernel, without intermediate rounding. The other kinds, other devices, float64, more than 1024 channels and
    transforms use PyTorch's operators one after the other. The result is deterministic.

    Args:
        features: float32, float16, bfloat16 or float64.
        weight: scale, of the features' dtype or float32.
        bias: shift, of the weight's dtype.
        kind: "layer": statistics over the channels of each point. "batch": over all points. "instance": over the
            points of each cloud.
        eps: added to the variance.
        sizes: number of points of each cloud, for "instance".
        running: for "batch": statistics that are used, or updated with those of the points. The stored variance is the
            unbiased one.
        residual: added to the result, of the features' dtype.
        relu: whether negative results become 0.

    Raises:
        InputError: naming the argument that does not fit.
    """
    shape = features.shape
    is_valid = len(shape) == 2 and weight.shape == bias.shape == shape[1:] and features.dtype in _FLOATS
    is_valid = is_valid and weight.device == bias.device == features.device
    if residual is not None:
        is_valid = is_valid and residual.shape == shape and residual.dtype == features.dtype
        is_valid = is_valid and residual.device == features.device
    if not is_valid or kind != "layer":
        _check_norm_arguments(features, weight, bias, kind, sizes, running, residual)
    fast = kind == "layer" and is_eager(features, weight, bias, residual)
    if not fast or not is_usable_or_warn_missing(
        "point_norm", "cuda", cuda.explain_unsupported(features, weight, bias, residual)
    ):
        return normalize(features, weight, bias, kind, eps, sizes, running, residual, relu)
    features = features.contiguous()
    residual = None if residual is None else residual.contiguous()
    if needs_gradient(features, weight, bias, residual):
        return _apply(features, weight, bias, residual, eps, relu)
    return cuda.normalize_forward(features, weight, bias, residual, eps, relu)


def _check_norm_arguments(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    sizes: Sequence[int],
    running: Running | None,
    residual: Tensor | None,
) -> None:
    _check.check_choice(kind, "kind", KINDS)
    _check.check_tensor(features, "features", ("N", "C"), dtypes=_FLOATS)
    rows, channels = features.shape
    for name, value in (("weight", weight), ("bias", bias)):
        _check.check_tensor(value, name, (channels,), device=features.device)
    if residual is not None:
        _check.check_tensor(
            residual, "residual", tuple(features.shape), dtypes=(features.dtype,), device=features.device
        )
    if kind == "instance" and sum(sizes) != rows:  # formatted only here: under torch.compile they are symbols
        raise _check.InputError(f"sizes: expected {rows} points in all, got {sum(sizes)}")
    if kind == "batch" and (running is None or running.update) and rows < 2:
        _check.require(False, "features", "at least two points to train a batch norm", features)


def recompute_norm_gradients(
    recompute: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    relu_output: Tensor | None,
    grad: Tensor,
    requested: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of the inputs, then the residual's; ``relu_output`` is the result if a ReLU was applied."""
    grad_before = grad if relu_output is None else grad.masked_fill(relu_output <= 0, 0)
    *others, is_residual_requested = requested
    return [
        *compute_gradients_by_recomputation(recompute, inputs, grad_before, others),
        grad_before if is_residual_requested else None,
    ]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
    ) -> Tensor:
        out = cuda.normalize_forward(features, weight, bias, residual, eps, relu)
        ctx.eps = eps
        ctx.save_for_backward(features, weight, bias, out if relu else None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        features, weight, bias, out = ctx.saved_tensors
        requested = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():  # for second-order gradients

            def recompute(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return normalize(features, weight, bias, "layer", ctx.eps, (), None, None, False)

            return (
                *recompute_norm_gradients(recompute, (features, weight, bias), out, grad, requested),
                None,
                None,
            )
        return *cuda.normalize_backward(features, out, weight, grad.contiguous(), ctx.eps, requested[3]), None, None


_apply = get_apply_without_functorch(_Norm)
