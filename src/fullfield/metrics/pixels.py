"""Errors of single pixels, from which every metric is made, and means over the pixels of one image.

A pixel of the truth is *known* where all its components are finite and none exceeds 1e9 in size (the mark of an
unknown vector in ``.flo`` files). With four true values a pixel is known where all four are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield import _check

UNKNOWN_BEYOND = 1e9
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BLOCK_PIXELS = 2**17
_TIMES_ON_GPU = 32  # there a launch costs more than memory


class Comparison(NamedTuple):
    """Errors of a block of pixels, float64, all of one shape. Meaningless where ``valid`` is False."""

    epe: Tensor  # end-point error, px
    aae: Tensor  # angle between (u, v, 1) vectors, degrees
    mean_motion: Tensor  # length of the true vector, px; mean over four values
    max_motion: Tensor  # the same, maximum over four values
    valid: Tensor  # bool


def check_flow_pair(pred: Tensor, truth: Tensor, valid: Tensor | None) -> None:
    """Refuse shapes, types and devices that do not go together (one image)."""
    _check.check_not_meta(_check.check_tensor(pred, "pred", (2, "H", "W"), dtypes=_FLOATS), "pred")
    height, width = pred.shape[-2:]
    four = isinstance(truth, Tensor) and truth.ndim == 4
    shape = (4, 2, height, width) if four else (2, height, width)
    _check.check_tensor(truth, "truth", shape, dtypes=_FLOATS, device=pred.device)
    check_mask(valid, "valid", pred)


def check_mask(mask: Tensor | None, name: str, pred: Tensor) -> None:
    """Refuse a mask that is not bool ``[H, W]`` on the device of ``pred``."""
    if mask is not None:
        _check.check_tensor(mask, name, tuple(pred.shape[-2:]), dtypes=(torch.bool,), device=pred.device)


def iterate_row_blocks(height: int, width: int, device: torch.device | None = None) -> Iterator[slice]:
    """Yield slices of so few rows that temporaries stay small at any frame size."""
    pixels = _BLOCK_PIXELS * (1 if device is None or device.type == "cpu" else _TIMES_ON_GPU)
    rows = max(1, pixels // max(width, 1))
    for top in range(0, height, rows):
        yield slice(top, min(top + rows, height))


def compare_rows(pred: Tensor, truth: Tensor, valid: Tensor | None, rows: slice) -> Comparison:
    """Compare some rows of ``pred`` ``[2, H, W]`` and ``truth`` ``[2, H, W]`` or ``[4, 2, H, W]`` in float64.

    With four true values the error and the angle are each the least over the four.
    """
    u, v = _convert_to_float64_on_supporting_device(pred[:, rows])
    values = _convert_to_float64_on_supporting_device(truth[..., rows, :])
    candidates = values if values.ndim == 4 else values[None]
    scored = (candidates.abs() <= UNKNOWN_BEYOND).all(1).all(0)
    if valid is not None:
        scored &= valid[rows].to(scored.device)
    epe = aae = total = largest = torch.zeros((), dtype=torch.float32)
    for index, (true_u, true_v) in enumerate(candidates):
        du, dv = true_u - u, true_v - v
        error = torch.hypot(du, dv)
        angle = torch.atan2(torch.hypot(error, u * dv - v * du), u * true_u + v * true_v + 1.0)
        motion = torch.hypot(true_u, true_v)
        if index == 0:
            epe, aae, total, largest = error, angle, motion, motion
        else:
            epe, aae = torch.minimum(epe, error), torch.minimum(aae, angle)
            total, largest = total + motion, torch.maximum(largest, motion)
    # Sums over all pixels must stay finite; only float64 predictions reach this far.
    epe = epe.masked_fill(epe > 1e100, math.inf)
    return Comparison(epe, aae * (180.0 / math.pi), total / len(candidates), largest, scored)


def raise_naming_nonfinite_predictions(pred: Tensor, truth: Tensor, valid: Tensor | None) -> None:
    """Raise InputError naming the first scored pixel without a finite error."""
    count, first = 0, (0, 0)
    for rows in iterate_row_blocks(pred.shape[-2], pred.shape[-1], pred.device):
        block = compare_rows(pred, truth, valid, rows)
        wrong = (block.valid & ~block.epe.isfinite()).nonzero()
        if len(wrong) and not count:
            first = (int(wrong[0, 1]), rows.start + int(wrong[0, 0]))
        count += len(wrong)
    raise _check.InputError(
        "pred: expected finite vectors on every scored pixel, "
        f"got {count} without a finite error, the first at x={first[0]}, y={first[1]}"
    )


def end_point_error(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the distance between predicted and true end point of every pixel.

    Args:
        pred: ``[2, H, W]``, (u, v), pixels.
        truth: ``[2, H, W]``, or ``[4, 2, H, W]`` with four true values for a pixel (the nearest counts).
        valid: bool ``[H, W]``; None scores every pixel whose truth is known.

    Returns:
        ``[H, W]`` float64, pixels; NaN where the truth is unknown or not valid, and where ``pred`` is NaN.

    >>> flow = torch.zeros(2, 4, 5)
    >>> float(end_point_error(flow + 3.0, flow)[0, 0])
    4.242640687119285
    """
    return _compute_error_map(pred, truth, valid, "epe")


def angular_error(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the angle between (u, v, 1) of prediction and truth, degrees; otherwise as :func:`end_point_error`."""
    return _compute_error_map(pred, truth, valid, "aae")


def compute_true_motion_length(truth: Tensor) -> Tensor:
    """Return the length of the true vectors ``[2, H, W]``, or the mean length of the four of ``[4, 2, H, W]``.

    The result is ``[H, W]`` float64, pixels; NaN where the truth is unknown.
    """
    pred = truth[0] if isinstance(truth, Tensor) and truth.ndim == 4 else truth
    return _compute_error_map(pred, truth, None, "mean_motion")


def split_four_values(flow: Tensor, valid: Tensor | None = None) -> Tensor:
    """Split truth at twice the frame's size into four values for each pixel of the frame.

    The vectors are not scaled: they must already be in pixels of the frame (Spring's are; vectors rendered at
    16K for 8K frames must be halved first).

    Args:
        flow: ``[2, 2H, 2W]``.
        valid: bool ``[2H, 2W]``; values that are not valid become NaN.

    Returns:
        ``[4, 2, H, W]``: top left, top right, bottom left, bottom right.
    """
    _check.check_tensor(flow, "flow", (2, "2H", "2W"), dtypes=_FLOATS)
    height, width = flow.shape[-2:]
    _check.require(height % 2 == 0 and width % 2 == 0, "flow", "an even height and width", flow)
    if valid is not None:
        _check.check_tensor(valid, "valid", (height, width), dtypes=(torch.bool,), device=flow.device)
    values = flow.new_empty(4, 2, height // 2, width // 2)
    for index, (row, column) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        values[index] = flow[:, row::2, column::2]
        if valid is not None:
            values[index].masked_fill_(~valid[row::2, column::2], math.nan)
    return values


def _compute_error_map(pred: Tensor, truth: Tensor, valid: Tensor | None, field: str) -> Tensor:
    check_flow_pair(pred, truth, valid)
    result = torch.empty(pred.shape[-2:], dtype=torch.float64, device=_choose_float64_device(pred.device))
    for rows in iterate_row_blocks(pred.shape[-2], pred.shape[-1], pred.device):
        block = compare_rows(pred, truth, valid, rows)
        result[rows] = torch.where(block.valid, getattr(block, field), math.nan)
    return result


def _convert_to_float64_on_supporting_device(values: Tensor) -> Tensor:
    return values.to(device=_choose_float64_device(values.device), dtype=torch.float64).contiguous()


def _choose_float64_device(device: torch.device) -> torch.device:
    """Return the device for float64 arithmetic on data from ``device``; Apple's GPUs have no float64."""
    return torch.device("cpu") if device.type == "mps" else device


WAUC_STEPS = 100  # thresholds 1/20 … 100/20 px
WAUC_FULL = WAUC_STEPS * (WAUC_STEPS + 1) // 2

Measure = Callable[[Comparison], Tensor]


def build_outlier_measure(threshold: float) -> Measure:
    """Return 1 where the end-point error exceeds ``threshold`` pixels."""
    return lambda pixels: pixels.epe > threshold


def mark_fl_outliers(pixels: Comparison) -> Tensor:
    """Return 1 where the error exceeds both 3 px and 5 % of the true motion."""
    return (pixels.epe > 3.0) & (pixels.epe > 0.05 * pixels.max_motion)


def compute_wauc_points(pixels: Comparison) -> Tensor:
    """Return the summed weights, in hundredths, of the thresholds that the error does not exceed.

    Spring's weight of threshold i/20 px is 1 − (i − 1)/100: 100, 99, …, 1 hundredths.
    """
    thresholds, points = _build_wauc_thresholds_and_points(pixels.epe.device)
    return points[torch.bucketize(pixels.epe, thresholds)]


# A pixel's value and the factor that turns the mean of the values into the measure.
MEASURES: dict[str, tuple[Measure, int, int]] = {
    "epe": (lambda pixels: pixels.epe, 1, 1),
    "aae": (lambda pixels: pixels.aae, 1, 1),
    "px1": (build_outlier_measure(1.0), 100, 1),
    "px3": (build_outlier_measure(3.0), 100, 1),
    "px5": (build_outlier_measure(5.0), 100, 1),
    "fl_all": (mark_fl_outliers, 100, 1),
    "wauc": (compute_wauc_points, 100, WAUC_FULL),
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
    return _compute_mean_over_pixels(pred, truth, valid, MEASURES["epe"])


def aae(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> float:
    """Return the mean angle between (u, v, 1) vectors, degrees; arguments as in :func:`epe`."""
    return _compute_mean_over_pixels(pred, truth, valid, MEASURES["aae"])


def outliers(pred: Tensor, truth: Tensor, valid: Tensor | None = None, *, threshold: float = 1.0) -> float:
    """Return the percentage of pixels with an end-point error above ``threshold`` pixels; otherwise as :func:`epe`."""
    _check.check_number(threshold, "threshold", low=0)
    return _compute_mean_over_pixels(pred, truth, valid, (build_outlier_measure(threshold), 100, 1))


def fl_all(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> float:
    """Return KITTI's Fl-all: the percentage of pixels with an error above 3 px and above 5 % of the true motion.

    Of four true values the longest makes the 5 %. Arguments as in :func:`epe`.
    """
    return _compute_mean_over_pixels(pred, truth, valid, MEASURES["fl_all"])


def wauc(pred: Tensor, truth: Tensor, valid: Tensor | None = None) -> float:
    """Return Spring's weighted area under the curve of inliers from 0 to 5 px, per cent; arguments as in :func:`epe`.

    ``100 · Σ wᵢ · frac(error <= i/20) / Σ wᵢ`` for i = 1 … 100 with wᵢ = 1 − (i − 1)/100.
    """
    return _compute_mean_over_pixels(pred, truth, valid, MEASURES["wauc"])


def _compute_mean_over_pixels(
    pred: Tensor, truth: Tensor, valid: Tensor | None, measure: tuple[Measure, int, int]
) -> float:
    check_flow_pair(pred, truth, valid)
    part, times, over = measure
    total, count = 0.0, 0
    for rows in iterate_row_blocks(pred.shape[-2], pred.shape[-1], pred.device):
        block = compare_rows(pred, truth, valid, rows)
        if bool((block.valid & ~block.epe.isfinite()).any()):
            raise_naming_nonfinite_predictions(pred, truth, valid)
        total += float(part(block)[block.valid].sum(dtype=torch.float64))
        count += int(block.valid.sum())
    return times * total / (over * count) if count else math.nan


@lru_cache
def _build_wauc_thresholds_and_points(device: torch.device) -> tuple[Tensor, Tensor]:
    steps = torch.arange(1, WAUC_STEPS + 1, dtype=torch.float64)
    left = torch.arange(WAUC_STEPS, -1, -1, dtype=torch.float64)
    return (steps / 20).to(device), (left * (left + 1) / 2).to(device)
