"""Estimators that run another one on smaller frames: cascades, and estimation at a fraction of the size."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.estimators.protocol import Estimator, Progress, WrappingEstimator
from fullfield.models.cascade import THRESHOLD, Cascade, list_quartered_sizes, resample_flow, resample_frame


class CascadedEstimator(WrappingEstimator):
    """Estimator that starts from its own result at a quarter of the size; see :class:`fullfield.models.Cascade`.

    Networks cascade themselves with the parameter ``cascade``, which also sets the updates of either kind of level.
    ``fullfield-s``, ``fullfield-m`` and ``auto`` cascade by default; pass ``cascade=False`` to cascade them here.

    Args:
        estimator: any estimator that does not cascade itself, such as :class:`TVL1Estimator`.
        threshold: largest smaller side, in pixels, of frames that are not reduced to a quarter first.

    Raises:
        InputError: naming the argument that does not fit.

    >>> estimator = CascadedEstimator(NetworkEstimator("raft"), threshold=1000)  # doctest: +SKIP
    >>> flow = estimate("a.png", "b.png", estimator)  # doctest: +SKIP
    """

    def __init__(self, estimator: Estimator, *, threshold: int = THRESHOLD) -> None:
        super().__init__(estimator)
        cascades = bool(estimator.parameters.get("cascade"))
        _check.require(not cascades, "estimator", "one that does not cascade itself (cascade=False)", estimator.method)
        _check.check_number(threshold, "threshold", integer=True, low=1)
        self.threshold = threshold

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the estimator, and ``cascade``."""
        return {**self.estimator.parameters, "cascade": True}

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`Estimator`."""
        _check.check_tensor(frame1, "frame1", ("B", "C", "H", "W"))
        height, width = frame1.shape[-2:]
        pixels = sum(h * w for h, w in list_quartered_sizes(height, width, self.threshold))
        completed = 0.0

        def estimate_level(
            first: Tensor, second: Tensor, *, updates: int | None = None, initial_flow: Tensor | None = None
        ) -> Tensor:
            nonlocal completed
            del updates  # the estimator has its own number
            rows, columns = first.shape[-2:]
            level_start, scale = completed, rows * columns / pixels
            start = None if initial_flow is None else resample_flow(initial_flow, rows, columns)
            level_progress = (
                None if progress is None else lambda fraction, where: progress(level_start + scale * fraction, where)
            )
            flow = self.estimator(first, second, initial_flow=start, progress=level_progress)
            completed += scale
            return flow

        return Cascade(estimate_level, threshold=self.threshold)(frame1, frame2, initial_flow=initial_flow)


def parse_scale(scale: str | float | Fraction) -> Fraction:
    """Parse a scale: ``"1/4"``, ``"0.5"`` or a number, above 0 and at most 1."""
    try:
        fraction = Fraction(scale).limit_denominator(1 << 16)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        raise InputError(f"scale: expected a fraction such as 1/4, got {scale!r}") from None
    if not 0 < fraction <= 1:
        raise InputError(f"scale: expected more than 0 and at most 1, got {scale!r}")
    return fraction


def scale_size(size: tuple[int, int], scale: Fraction) -> tuple[int, int]:
    """Return height and width of frames at a scale."""
    height, width = size
    return max(1, round(height * scale)), max(1, round(width * scale))


class ReducedSizeEstimator(WrappingEstimator):
    """Estimator that reduces its frames first and enlarges its flow.

    Both are bilinear between pixel centres, without a filter (Briedis et al. 2026, section 6.3). A side becomes the
    nearest whole number of pixels, at least one, and vectors are scaled by the true ratio of the sizes.

    Args:
        estimator: estimator of the reduced frames.
        scale: above 0, at most 1; 1 leaves the frames as they are.
    """

    def __init__(self, estimator: Estimator, scale: str | float | Fraction) -> None:
        super().__init__(estimator)
        self.scale = parse_scale(scale)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the estimator, and ``scale``."""
        return {**self.estimator.parameters, "scale": str(self.scale)}

    def prepare(
        self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None, **prepare_options: Any
    ) -> None:
        """Prepare the estimator, if it can be prepared, for frames of ``size`` before they are reduced."""
        super().prepare(device, None if size is None else scale_size(size, self.scale), **prepare_options)

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`fullfield.estimators.Estimator`."""
        if self.scale == 1:
            return self.estimator(frame1, frame2, initial_flow=initial_flow, progress=progress)
        height, width = frame1.shape[-2:]
        small = scale_size((height, width), self.scale)
        start = None if initial_flow is None else resample_flow(initial_flow, *small)
        first, second = resample_frame(frame1, small), resample_frame(frame2, small)
        flow = self.estimator(first, second, initial_flow=start, progress=progress)
        return resample_flow(flow, height, width)
