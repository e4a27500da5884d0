"""What two flows and two frames say about each pixel: is it hidden in the second frame, and is its flow right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from fullfield.ops.consistency import forward_backward_distance, sample

# Fitted on Middlebury, Sintel and FlyingChairs with RAFT-sintel and RAFT-small; pixels, and values of 0 ... 255.
_BLUR = (0.054488685, 0.24420134, 0.40261996, 0.24420134, 0.054488685)  # Gaussian of sigma 1
_FARTHEST = 20.0
OCCLUSION_SLOPE = 4.0
OCCLUSION_MIDDLE = 3.0
CONFIDENCE = (2.175, -0.843, -0.429)
"""Of a logistic regression: bias, logarithms of distance and residual."""


def occlusion_and_confidence(
    frame1: Tensor,  # [B, C, H, W], nominally 0 ... 1
    frame2: Tensor,  # [B, C, H, W]
    flow: Tensor,  # [B, 2, H, W]
    backward: Tensor,  # [B, 2, H, W]
) -> tuple[Tensor, Tensor]:  # [B, H, W] each, 0 ... 1
    """How likely each pixel of the first frame is to be hidden in the second, and how likely its flow is to be right.

    Both look at the forward-backward distance and at the difference of the first frame and the warped second one.
    An occlusion over 0.5 says hidden; where the flow leaves the frame it is 1. The confidence is the probability of
    an error under one pixel.
    """
    with torch.autocast(flow.device.type, enabled=False):
        distance = forward_backward_distance(flow, backward)
        warped, inside = sample(frame2, flow)
        residual = _smooth((frame1 - warped).abs().mean(1) * 255.0)
        squared = distance.clamp(max=_FARTHEST) ** 2
        hidden = torch.log(residual + 3.0) + 0.75 * squared / (1.0 + squared)
        occlusion = torch.where(inside, torch.sigmoid(OCCLUSION_SLOPE * (hidden - OCCLUSION_MIDDLE)), 1.0)
        bias, by_distance, by_residual = CONFIDENCE
        trust = by_distance * torch.log(distance.clamp(max=_FARTHEST) + 0.05) + by_residual * torch.log(residual + 1.0)
        return occlusion, torch.sigmoid(bias + trust)


def _smooth(planes: Tensor) -> Tensor:
    """Gaussian of [B, H, W], borders replicated."""
    kernel = planes.new_tensor(_BLUR)
    rows = pad(planes[:, None], (2, 2, 2, 2), mode="replicate")
    return conv2d(conv2d(rows, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))[:, 0]
