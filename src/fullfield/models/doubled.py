"""Inference at two sizes: frames are estimated as they are and at twice their size. Needs no training.

Features have an eighth of the frames' size, so what is thinner than their cells is lost to what lies behind it, and
the flow is rough at fractions of a pixel; at twice the size both are better, and motion beyond what the network was
trained on is lost. A network that tells how uncertain it is decides between the two at every pixel. What it expects is
seldom less than a pixel of the size that it sees, so where it is sure at both sizes the larger one is taken.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.models.cascade import resample_flow, resample_frame


class Judged(NamedTuple):
    """A flow, and what the network itself thinks of it."""

    flow: Tensor  # [B, 2, H, W], pixels
    log_scale: Tensor  # [B, 1, H, W], logarithm of the expected error in pixels


def enlarged(frame: Tensor) -> Tensor:
    """A frame [B, C, H, W], uint8 or floating, at twice its size."""
    height, width = frame.shape[-2:]
    return resample_frame(frame, (2 * height, 2 * width))


def surer(own: Judged, large: Judged) -> Judged:
    """At every pixel the flow whose error the network expects to be smaller, in pixels of ``own``.

    Args:
        own: of the frames as they are.
        large: of the same frames at another size, in its pixels.
    """
    height, width = own.flow.shape[-2:]
    ratio = math.sqrt(large.flow.shape[-2] * large.flow.shape[-1] / (height * width))
    expected = functional.interpolate(large.log_scale, size=(height, width), mode="bilinear", align_corners=False)
    expected = expected - math.log(ratio)
    better = expected < own.log_scale
    other = resample_flow(large.flow, height, width)
    flow = torch.where(better, other, own.flow)
    flow = flow.masked_fill((other + own.flow).isnan(), math.nan)  # half precision that overflowed is to be seen
    return Judged(flow, torch.where(better, expected, own.log_scale))
