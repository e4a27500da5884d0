"""Metrics of one image: each pixel's contribution, and the means over the scored pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from fullfield import _check
from fullfield.metrics.pixels import Comparison, blocks, check_pair, compare, refuse_unscorable

WAUC_STEPS = 100  # thresholds 1/20 … 100/20 px
WAUC_FULL = WAUC_STEPS * (WAUC_STEPS + 1) // 2

Measure = Callable[[Comparison], Tensor]


def outlier(threshold: float) -> Measure:
    """Return 1 where the end-point error exceeds ``threshold`` pixels."""
    return lambda pixels: pixels.epe > threshold


def fl(pixels: Comparison) -> Tensor:
    """Return 1 where the error exceeds both 3 px and 5 % of the true motion."""
    return (pixels.epe > 3.0) & (pixels.epe > 0.05 * pixels.max_motion)


def wauc_points(pixels: Comparison) -> Tensor:
    """Return the summed weights, in hundredths, of the thresholds that the error does not exceed.

    Spring's weight of threshold i/20 px is 1 − (i − 1)/100: 100, 99, …, 1 hundredths.
    """
    thresholds, points = _wauc_tables(pixels.epe.device)
    return points[torch.bucketize(pixels.epe, thresholds)]


# A pixel's value and the factor that turns the mean of the values into the measure.
MEASURES: dict[str, tuple[Measure, int, int]] = {
    "epe": (lambda pixels: pixels.epe, 1, 1),
    "aae": (lambda pixels: pixels.aae, 1, 1),
    "px1": (outlier(1.0), 100, 1),
    "px3": (outlier(3.0), 100, 1),
    "px5": (outlier(5.0), 100, 1),
    "fl_all": (fl, 100, 1),
    "wauc": (wauc_points, 100, WAUC_FULL),
}


def epe(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> float:
    """Return the mean end-point error of one image, pixels.

    Args:
        pred: ``[2, H, W]``, (u, v), pixels.
        truth: ``[2, H, W]``, or ``[4, 2, H, W]`` with four true values for a pixel.
        valid: bool ``[H, W]``; None scores every pixel whose truth is known.

    Returns:
        The mean over the scored pixels; NaN where there are none.

    Raises:
        InputError: shapes that differ, or a predicted vector on a scored pixel that is not finite.
    """
    return _mean(pred, truth, valid, MEASURES["epe"])


def aae(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> float:
    """Return the mean angle between (u, v, 1) vectors, degrees; arguments as in :func:`epe`."""
    return _mean(pred, truth, valid, MEASURES["aae"])


def outliers(pred: Tensor, truth: Tensor, valid: Tensor | None = None, *, threshold: float = 1.0) -> float:
    """Return the percentage of pixels with an end-point error above ``threshold`` pixels; otherwise as :func:`epe`."""
    _check.number(threshold, "threshold", low=0)
    return _mean(pred, truth, valid, (outlier(threshold), 100, 1))


def fl_all(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> float:
    """Return KITTI's Fl-all: the percentage of pixels with an error above 3 px and above 5 % of the true motion.

    Of four true values the longest makes the 5 %. Arguments as in :func:`epe`.
    """
    return _mean(pred, truth, valid, MEASURES["fl_all"])


def wauc(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> float:
    """Return Spring's weighted area under the curve of inliers from 0 to 5 px, per cent; arguments as in :func:`epe`.

    ``100 · Σ wᵢ · frac(error <= i/20) / Σ wᵢ`` for i = 1 … 100 with wᵢ = 1 − (i − 1)/100.
    """
    return _mean(pred, truth, valid, MEASURES["wauc"])


def _mean(pred: Tensor, truth: Tensor, valid: Tensor | None, measure: tuple[Measure, int, int]) -> float:
    check_pair(pred, truth, valid)
    part, times, over = measure
    total, count = 0.0, 0
    for rows in blocks(pred.shape[-2], pred.shape[-1], pred.device):
        block = compare(pred, truth, valid, rows)
        if bool((block.known & ~block.epe.isfinite()).any()):
            refuse_unscorable(pred, truth, valid)
        total += float(part(block)[block.known].sum(dtype=torch.float64))
        count += int(block.known.sum())
    return times * total / (over * count) if count else math.nan


@lru_cache
def _wauc_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    steps = torch.arange(1, WAUC_STEPS + 1, dtype=torch.float64)
    left = torch.arange(WAUC_STEPS, -1, -1, dtype=torch.float64)
    return (steps / 20).to(device), (left * (left + 1) / 2).to(device)
