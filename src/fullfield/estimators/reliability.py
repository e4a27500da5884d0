"""What two flows and two frames say about each pixel: is it hidden in the second frame, and is its flow right."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from fullfield.ops.consistency import forward_backward_distance, sample

# Fitted on Middlebury, Sintel and FlyingChairs with RAFT-sintel and RAFT-small; pixels, and values of 0 ... 255.
_BLUR = (0.054488685, 0.24420134, 0.40261996, 0.24420134, 0.054488685)  # Gaussian of sigma 1
_FARTHEST = 20.0
OCCLUSION_SLOPE = 4.0
OCCLUSION_MIDDLE = 3.0
CONFIDENCE = (2.329, -0.957, -0.567)
"""Of a logistic regression: bias, logarithms of distance and residual."""
CONFIDENCE_WITH_OWN = (2.854, -0.650, -0.434, -2.509)
"""The same with the network's own logarithm of its error. Fitted with fullfield-s (scripts/calibrate_confidence.py)."""


class Evidence(NamedTuple):
    """What speaks for and against a flow. [B, H, W] each."""

    distance: Tensor
    """Forward-backward, pixels; infinite where the flow leaves the frame."""
    residual: Tensor
    """Smoothed difference of the first frame and the warped second one, 0 ... 255."""
    inside: Tensor
    """Whether the flow stays in the frame."""

    @property
    def log_distance(self) -> Tensor:
        """As the confidence takes it."""
        return torch.log(self.distance.clamp(max=_FARTHEST) + 0.05)

    @property
    def log_residual(self) -> Tensor:
        """As the confidence takes it."""
        return torch.log(self.residual + 1.0)


def evidence(frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor) -> Evidence:
    """Arguments as of :func:`occlusion_and_confidence`."""
    distance = forward_backward_distance(flow, backward)
    warped, inside = sample(frame2, flow)
    return Evidence(distance, _smooth((frame1 - warped).abs().mean(1) * 255.0), inside)


def occlusion_and_confidence(
    frame1: Tensor,  # [B, C, H, W], nominally 0 ... 1
    frame2: Tensor,  # [B, C, H, W]
    flow: Tensor,  # [B, 2, H, W]
    backward: Tensor,  # [B, 2, H, W]
    log_scale: Tensor | None = None,  # [B, H, W], a network's own logarithm of its error in pixels
) -> tuple[Tensor, Tensor]:  # [B, H, W] each, 0 ... 1
    """How likely each pixel of the first frame is to be hidden in the second, and how likely its flow is to be right.

    Both look at the forward-backward distance and at the difference of the first frame and the warped second one, the
    confidence also at ``log_scale`` where it is given. An occlusion over 0.5 says hidden; where the flow leaves the
    frame it is 1. The confidence is the probability of an error under one pixel.
    """
    with torch.autocast(flow.device.type, enabled=False):
        signs = evidence(frame1, frame2, flow, backward)
        squared = signs.distance.clamp(max=_FARTHEST) ** 2
        hidden = torch.log(signs.residual + 3.0) + 0.75 * squared / (1.0 + squared)
        occlusion = torch.where(signs.inside, torch.sigmoid(OCCLUSION_SLOPE * (hidden - OCCLUSION_MIDDLE)), 1.0)
        if log_scale is None:
            bias, by_distance, by_residual = CONFIDENCE
            own: Tensor | float = 0.0
        else:
            bias, by_distance, by_residual, by_own = CONFIDENCE_WITH_OWN
            own = by_own * log_scale
        trust = by_distance * signs.log_distance + by_residual * signs.log_residual + own
        return occlusion, torch.sigmoid(bias + trust)


def _smooth(planes: Tensor) -> Tensor:
    """Gaussian of [B, H, W], borders replicated."""
    kernel = planes.new_tensor(_BLUR)
    rows = pad(planes[:, None], (2, 2, 2, 2), mode="replicate")
    return conv2d(conv2d(rows, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))[:, 0]
