"""Inference at two sizes: the frames and the frames enlarged to twice their size. Needs no training.

Features have an eighth of the frames' size, so objects thinner than a cell are lost and the flow is rough at fractions
of a pixel. Both improve at twice the size, where motion beyond the training range is lost instead. A network that
estimates its uncertainty decides between the two at every pixel. It seldom expects an error under a pixel of the size
that it sees, so the larger size wins where it is confident at both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.models.cascade import resample_flow, resample_frame


class FlowWithScale(NamedTuple):
    """Flow with the network's own estimate of its error."""

    flow: Tensor  # [B, 2, H, W], pixels
    log_scale: Tensor  # [B, 1, H, W], logarithm of the expected error in pixels


def enlarged(frame: Tensor) -> Tensor:
    """Return a frame [B, C, H, W], uint8 or floating, at twice its size."""
    height, width = frame.shape[-2:]
    return resample_frame(frame, (2 * height, 2 * width))


def more_confident(own: FlowWithScale, large: FlowWithScale) -> FlowWithScale:
    """Return at every pixel the flow with the smaller expected error, in pixels of ``own``.

    Args:
        own: flow of the frames at their own size.
        large: flow of the same frames at another size, in its pixels.
    """
    height, width = own.flow.shape[-2:]
    ratio = math.sqrt(large.flow.shape[-2] * large.flow.shape[-1] / (height * width))
    expected = functional.interpolate(large.log_scale, size=(height, width), mode="bilinear", align_corners=False)
    expected = expected - math.log(ratio)
    better = expected < own.log_scale
    other = resample_flow(large.flow, height, width)
    flow = torch.where(better, other, own.flow)
    flow = flow.masked_fill((other + own.flow).isnan(), math.nan)  # an overflow in half precision must stay visible
    return FlowWithScale(flow, torch.where(better, expected, own.log_scale))
