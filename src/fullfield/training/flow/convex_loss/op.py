"""Public function of the loss, and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._backends import is_usable_or_warn_missing
from fullfield.ops._operators import wrap_to_forbid_second_derivative
from fullfield.training.flow.convex_loss import cuda, reference


def convex_mixture_loss_and_error(
    field: Tensor,  # [B, 6, h, w]
    mask: Tensor,  # [B, 9·factor², h, w], before its softmax
    truth: Tensor,  # [B, 2, factor·h, factor·w] float32
    valid: Tensor,  # [B, factor·h, factor·w] bool
    *,
    factor: int = 8,
    log_scale_min: float = 0.0,
    log_scale_max: float = 10.0,
) -> tuple[Tensor, Tensor]:  # scalars
    """Return minus the log likelihood of the true flow, and the sum of the end-point errors, which has no gradient.

    Both are summed over the pixels that count, the first over both components.
    ``field`` holds a flow in fine pixels and the mixture around it: logits of a wide and a narrow Laplacian, and the
    logarithms of their scales, as ``reference.mixture_negative_log_likelihood`` takes them. It is up-sampled with the
    weights ``mask`` as by :func:`fullfield.nn.upsampling.convex_upsample`. On NVIDIA GPUs with factor 8 and float32
    fields, two kernels compute the loss and all gradients; elsewhere PyTorch's operators do. Differentiable by field
    and mask, once.
    """
    _check.check_tensor(field, "field", ("B", 6, "h", "w"))
    batch, _, height, width = field.shape
    _check.check_number(factor, "factor", integer=True, low=1)
    _check.check_tensor(mask, "mask", (batch, 9 * factor * factor, height, width), device=field.device)
    fine = (factor * height, factor * width)
    _check.check_tensor(truth, "truth", (batch, 2, *fine), dtypes=[torch.float32], device=field.device)
    _check.check_tensor(valid, "valid", (batch, *fine), dtypes=[torch.bool], device=field.device)
    if not field.numel() or not is_usable_or_warn_missing(
        "convex_mixture_loss_and_error", "cuda", cuda.explain_unsupported(field, mask, factor)
    ):
        return reference.compute_loss_and_error_sums(field, mask, truth, valid, factor, log_scale_min, log_scale_max)
    sums: Tensor = _compute_loss_error_and_gradients(
        field, mask, truth, valid, float(log_scale_min), float(log_scale_max)
    )[0]
    return sums[0], sums[1].detach()


@torch.library.custom_op("fullfield::convex_mixture_loss", mutates_args=())
def _compute_loss_error_and_gradients(
    field: Tensor, mask: Tensor, truth: Tensor, valid: Tensor, log_scale_min: float, log_scale_max: float
) -> tuple[Tensor, Tensor, Tensor]:
    return cuda.compute_loss_error_and_gradients(field, mask, truth, valid, log_scale_min, log_scale_max)


@_compute_loss_error_and_gradients.register_fake
def _allocate_fake_loss_error_and_gradients(field: Tensor, mask: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    grad_field = torch.empty_like(field, memory_format=torch.contiguous_format)
    return field.new_empty(2), grad_field, torch.empty_like(mask)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:  # noqa: ARG001  # PyTorch's names
    ctx.save_for_backward(output[1], output[2])


def _backpropagate(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_field, grad_mask = ctx.saved_tensors
    with torch.no_grad():
        grads = grad_field * grad[0], grad_mask * grad[0].to(grad_mask.dtype)
    # What the forward returned leads to field and mask.
    return (
        *wrap_to_forbid_second_derivative("convex_mixture_loss_and_error", grads, (grad, grad_field, grad_mask)),
        None,
        None,
        None,
        None,
    )


_compute_loss_error_and_gradients.register_autograd(_backpropagate, setup_context=_save_for_backward)
