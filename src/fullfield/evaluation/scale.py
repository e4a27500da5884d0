"""Estimation at a fraction of the frames' size: bilinear reduction, estimate, bilinear enlargement."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullfield._check import InputError
from fullfield.estimators import Estimator
from fullfield.estimators.protocol import Progress, WrappingEstimator


def read_scale(text: str | float | Fraction) -> Fraction:
    """Read a scale: ``"1/4"``, ``"0.5"`` or a number, above 0 and at most 1."""
    try:
        scale = Fraction(text).limit_denominator(1 << 16)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        raise InputError(f"scale: expected a fraction such as 1/4, got {text!r}") from None
    if not 0 < scale <= 1:
        raise InputError(f"scale: expected more than 0 and at most 1, got {text!r}")
    return scale


def reduced(size: tuple[int, int], scale: Fraction) -> tuple[int, int]:
    """Return height and width of frames at a scale."""
    height, width = size
    return max(1, round(height * scale)), max(1, round(width * scale))


class AtScale(WrappingEstimator):
    """Estimator that reduces its frames first and enlarges its flow.

    Both are bilinear between pixel centres, without a filter (Briedis et al. 2026, section 6.3). A side becomes the
    nearest whole number of pixels, at least one, and vectors are scaled by the true ratio of the sizes.

    Args:
        estimator: estimator of the reduced frames.
        scale: above 0, at most 1; 1 leaves the frames as they are.
    """

    def __init__(self, estimator: Estimator, scale: str | float | Fraction) -> None:
        super().__init__(estimator)
        self.scale = read_scale(scale)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the estimator, and ``scale``."""
        return {**self.estimator.parameters, "scale": str(self.scale)}

    def prepare(self, device: str | torch.device = "cpu", size: tuple[int, int] | None = None, **more: Any) -> None:
        """Prepare the estimator, if it can be prepared, for frames of ``size`` before they are reduced."""
        super().prepare(device, None if size is None else reduced(size, self.scale), **more)

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`fullfield.estimators.Estimator`."""
        if self.scale == 1:
            return self.estimator(frame1, frame2, initial_flow=initial_flow, progress=progress)
        height, width = frame1.shape[-2:]
        small = reduced((height, width), self.scale)
        start = None if initial_flow is None else resized_flow(initial_flow, small)
        flow = self.estimator(_resized(frame1, small), _resized(frame2, small), initial_flow=start, progress=progress)
        return resized_flow(flow, (height, width))


def resized_flow(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a flow [B, 2, h, w]; its vectors are in pixels of the new size."""
    height, width = flow.shape[-2:]
    ratio = flow.new_tensor([size[1] / width, size[0] / height])
    return _resized(flow, size) * ratio[:, None, None]


def _resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    return functional.interpolate(image, size=size, mode="bilinear", align_corners=False)
