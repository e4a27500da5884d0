"""Losses of networks that refine a flow, prediction by prediction.

All are means over the pixels that count, see :func:`loss_mask`, and run under ``torch.compile`` as one graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.convex_loss import convex_mixture_loss_and_error, mixture_negative_log_likelihood


def loss_mask(batch: FlowBatch, *, max_flow: float = 400.0, include_occluded: bool = True) -> Tensor:  # [B, H, W] bool
    """Return the pixels that a loss counts: true flow known, finite and shorter than ``max_flow``.

    Args:
        batch: pairs with their truth.
        max_flow: length in pixels.
        include_occluded: whether pixels that are not visible in the second frame count too.
    """
    valid = batch.valid & (batch.flow.square().sum(1) < max_flow * max_flow)  # False of NaN
    return valid if include_occluded else valid & ~batch.occluded


def sequence_loss(
    predictions: Sequence[Tensor],  # N × [B, 2, H, W], the flow after each update
    flow: Tensor,  # [B, 2, H, W], the truth
    valid: Tensor,  # [B, H, W] bool
    *,
    gamma: float = 0.8,
) -> Tensor:  # scalar
    """Return the summed L1 errors of the predictions, the one k places before the last weighted by gamma^k.

    Mean over the pixels that count and both components, sum over the predictions. Source: RAFT, equation 7.

    >>> flow = torch.zeros(1, 2, 4, 5)
    >>> float(sequence_loss([flow + 1.0], flow, torch.ones(1, 4, 5, dtype=torch.bool)))
    1.0
    """
    truth, inside, pixels = _check_and_mask_truth_and_count_pixels(predictions, flow, valid, gamma)
    total = torch.zeros((), dtype=torch.float32, device=flow.device)
    for weight, predicted in zip(_compute_prediction_weights(len(predictions), gamma), predictions, strict=True):
        total = total + weight * torch.where(inside, (predicted.float() - truth).abs(), 0.0).sum()
    return total / (2 * pixels)


def laplace_mixture_loss(
    predictions: Sequence[tuple[Tensor, Tensor]],  # N × ([B, 2, H, W], [B, 4, H, W])
    flow: Tensor,  # [B, 2, H, W], the truth
    valid: Tensor,  # [B, H, W] bool
    *,
    gamma: float = 0.85,
    log_scale_min: float = 0.0,
    log_scale_max: float = 10.0,
) -> Tensor:  # scalar
    """Return the negative log likelihood of the true flow under mixtures of two Laplacians.

    Predictions are weighted as in :func:`sequence_loss`.
    Every prediction is a flow and its mixture as of :meth:`fullfield.models.SEARAFT.predictions_with_mixture`: logits
    of the weights of a wide and a narrow Laplacian around the flow, and the logarithms of their scales in pixels. The
    first is limited to 0 ... ``log_scale_max``, the second to ``log_scale_min`` ... 0. Source: SEA-RAFT, section 3.2.
    """
    truth, inside, pixels = _check_and_mask_truth_and_count_pixels(
        [flow for flow, _ in predictions], flow, valid, gamma
    )
    _check.check_number(log_scale_min, "log_scale_min", high=0)
    _check.check_number(log_scale_max, "log_scale_max", low=0)
    batch, _, height, width = flow.shape
    total = torch.zeros((), dtype=torch.float32, device=flow.device)
    for weight, (predicted, mixture) in zip(
        _compute_prediction_weights(len(predictions), gamma), predictions, strict=True
    ):
        _check.check_tensor(mixture, "predictions", (batch, 4, height, width))
        surprise = mixture_negative_log_likelihood(
            predicted.float(), mixture.float(), truth, log_scale_min, log_scale_max
        )
        total = total + weight * torch.where(inside, surprise, 0.0).sum()
    return total / (2 * pixels)


def mixture_loss_and_error_before_upsampling(
    predictions: Sequence[tuple[Tensor, Tensor]],  # N × ([B, 6, h, w], [B, 9·8·8, h, w])
    padding: Sequence[int],  # left, right, top, bottom: pixels that the network added
    flow: Tensor,  # [B, 2, H, W], the truth
    valid: Tensor,  # [B, H, W] bool
    *,
    gamma: float = 0.85,
    limits: tuple[float, float] = (0.0, 10.0),
) -> tuple[Tensor, Tensor]:  # scalars
    """Return :func:`laplace_mixture_loss` of predictions before up-sampling, and the last one's mean end-point error.

    Predictions are those of :meth:`fullfield.models.SEARAFT.compute_padding_coarse_fields_and_weights`.
    On a GPU nothing of the frames' size is kept for the gradients, see :mod:`fullfield.training.flow.convex_loss`.
    """
    _check.require(len(predictions) > 0, "predictions", "one at least", "none")
    _check.check_number(gamma, "gamma", above=0.0, high=1.0)
    low, high = limits
    pixels = valid.sum().clamp(min=1)
    if any(padding):
        flow, valid = functional.pad(flow, tuple(padding)), functional.pad(valid, tuple(padding))
    total = torch.zeros((), dtype=torch.float32, device=flow.device)
    error = total
    for weight, (field, mask) in zip(_compute_prediction_weights(len(predictions), gamma), predictions, strict=True):
        loss, error = convex_mixture_loss_and_error(field, mask, flow, valid, log_scale_min=low, log_scale_max=high)
        total = total + weight * loss
    return total / (2 * pixels), error / pixels


def mean_end_point_error(
    predicted: Tensor,  # [B, 2, H, W]
    flow: Tensor,  # [B, 2, H, W], the truth
    valid: Tensor,  # [B, H, W] bool
) -> Tensor:  # scalar, pixels
    """Return the mean end-point error over the pixels that count."""
    error = torch.where(valid, (predicted.float() - flow).square().sum(1), 0.0).sqrt().sum()
    return error / valid.sum().clamp(min=1)


def _compute_prediction_weights(prediction_count: int, gamma: float) -> list[float]:
    return [gamma ** (prediction_count - 1 - index) for index in range(prediction_count)]


def _check_and_mask_truth_and_count_pixels(
    predictions: Sequence[Tensor], flow: Tensor, valid: Tensor, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the truth with unknown pixels at 0, the mask that counts [B, 1, H, W], and its sum."""
    _check.require(len(predictions) > 0, "predictions", "one at least", "none")
    _check.check_number(gamma, "gamma", above=0.0, high=1.0)
    batch, _, height, width = _check.check_tensor(flow, "flow", ("B", 2, "H", "W")).shape
    for predicted in predictions:
        _check.check_tensor(predicted, "predictions", (batch, 2, height, width), device=flow.device)
    _check.check_tensor(valid, "valid", (batch, height, width), dtypes=[torch.bool], device=flow.device)
    inside = valid[:, None]
    return torch.where(inside, flow, 0.0), inside, valid.sum().clamp(min=1)
