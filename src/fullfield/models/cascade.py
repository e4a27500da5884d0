"""Inference at several sizes, which needs no training: a cascade, and enlarged frames.

In a cascade a flow of a quarter's size starts the estimate at full size. Source: Briedis, Gross and Schroers, arXiv
2505.16942, section 6.2, for SEA-RAFT; the split of updates: its table 9.

Features have an eighth of the frames' size, so objects thinner than a cell are lost and the flow is rough at fractions
of a pixel. Both improve at a larger size, which starts from the flow of the frames' own size because motion beyond
the training range would be lost. A network that estimates its uncertainty decides between the two at every pixel. It
seldom expects an error under a pixel of the size that it sees, so the larger size wins where it is confident at both.
The package's networks estimate small frames, and the coarsest level of a cascade if it is small, at a larger size
alone, which lowers most errors. There they may lose very long motion, so one update at a quarter of that size tells
whether there is any; if there is, more of them start the estimate.
The larger size corrects the flow by four cells at most, the radius of the lookup: farther away it is mostly wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check

THRESHOLD = 800
"""Largest smaller side, in pixels, of frames that are not reduced to a quarter of their size first."""

MIN_PIXELS = 786_432
"""Pixels to which smaller frames are enlarged: those of 1024×768, and at 512×384 twice the size."""

MIN_COARSE_PIXELS = 440_000
"""Pixels to which the coarsest level of a cascade is enlarged."""

LONG_MOTION_PX = 160
"""Motion of a quarter of a frame's pixels from which the package's networks start at a quarter of the size."""

MIN_START_SIDE = 64
"""Least smaller side, in pixels, of a size that is searched for such motion."""

_MAX_ENLARGEMENT = 2.0

MAX_CORRECTION_PX = 32.0
"""Largest difference between the flow of enlarged frames and that of the frames' own size that is taken."""

_CONSISTENT_ERRORS, _CONSISTENT_PX = 3.0, 0.5
"""Largest differences of two estimates that agree: in expected errors of the more confident one, and in pixels."""


class CascadableNetwork(Protocol):
    """Callable that can be cascaded: RAFT, SEARAFT, their prepared forms, or anything with their arguments."""

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W]
        frame2: Tensor,  # [B, C, H, W]
        /,
        *,
        updates: int | None = None,
        initial_flow: Tensor | None = None,  # [B, 2, h, w]: covers the frame, in pixels of its own grid
    ) -> Tensor:  # [B, 2, H, W]
        """Estimate the flow from ``frame1`` to ``frame2``."""
        ...


def list_quartered_sizes(
    height: int, width: int, threshold: int = THRESHOLD, *, enlarges_last: bool = False
) -> list[tuple[int, int]]:
    """Return (height, width) of every level of a cascade, finest first.

    A quarter of a side is rounded to the nearest, halves up: 8192×3432, 2048×858, 512×215. Both fields still cover
    the same picture, so frames and flow are scaled by the ratio of the sizes, which is 4 if 4 divides the side.
    With ``enlarges_last`` the coarsest level is enlarged to :data:`MIN_COARSE_PIXELS`, by a factor of two at most:
    512×215 to 1024×430.
    """
    sizes = [(height, width)]
    while min(sizes[-1]) > threshold:
        sizes.append(compute_quarter_size(*sizes[-1]))
    if enlarges_last and len(sizes) > 1:
        sizes[-1] = _enlarge_to_pixels(*sizes[-1], MIN_COARSE_PIXELS)
    return sizes


def compute_quarter_size(height: int, width: int) -> tuple[int, int]:
    """Return a quarter of (height, width), each rounded to the nearest, halves up."""
    return (height + 2) // 4, (width + 2) // 4


def mark_long_motion(flow: Tensor, height: int, width: int) -> Tensor:
    """Return for each flow [B, 2, h, w] whether it is long in frames of (height, width), as [B] bool.

    It is if a quarter of the pixels moves by more than :data:`LONG_MOTION_PX` of those frames. From nothing,
    fullfield-m then lost most of it in three of six synthetic pairs; from a quarter of the size it found most of it in
    all six (benchmarks/notes/fullfield_m.md). Shorter motion is found as well without that start, and small
    things that move fast are found better.
    """
    is_far = (flow * _compute_flow_scale(flow, height, width)).square().sum(1) > LONG_MOTION_PX**2
    return is_far.flatten(1).float().mean(1) > 0.25


def compute_enlarged_size(height: int, width: int) -> tuple[int, int]:
    """Return (height, width) of frames enlarged to :data:`MIN_PIXELS`, by a factor of two at most.

    Frames that have as many pixels keep their size, and the smaller side grows to :data:`THRESHOLD` at most, so that
    no cascade begins because frames were enlarged.
    """
    return _enlarge_to_pixels(height, width, MIN_PIXELS, THRESHOLD / min(height, width))


def _enlarge_to_pixels(height: int, width: int, pixels: int, max_scale: float = math.inf) -> tuple[int, int]:
    scale = min(_MAX_ENLARGEMENT, max_scale, math.sqrt(pixels / (height * width)))
    return (height, width) if scale <= 1 else (round(scale * height), round(scale * width))


def resample_flow(flow: Tensor, height: int, width: int) -> Tensor:
    """Resample a flow [B, 2, h, w] to [B, 2, height, width] over the same picture, in pixels of the new size.

    It is bilinear between the centres of pixels, and takes the nearest value beyond the outermost ones.
    """
    if flow.shape[-2:] == (height, width):
        return flow
    resampled = functional.interpolate(flow, size=(height, width), mode="bilinear", align_corners=False)
    return resampled * _compute_flow_scale(flow, height, width)


def _compute_flow_scale(flow: Tensor, height: int, width: int) -> Tensor:
    """Return the factors [1, 2, 1, 1] that take a flow to pixels of (height, width)."""
    return flow.new_tensor([width / flow.shape[-1], height / flow.shape[-2]]).view(1, 2, 1, 1)


def resample_pair_to_sizes(
    frame1: Tensor, frame2: Tensor, sizes: Sequence[tuple[int, int]]
) -> list[tuple[Tensor, Tensor]]:
    """Return both frames at every one of ``sizes``, each resampled from the previous one; the first is their own."""
    pairs = [(frame1, frame2)]
    for size in sizes[1:]:
        pairs.append((resample_frame(pairs[-1][0], size), resample_frame(pairs[-1][1], size)))
    return pairs


class Cascade:
    """Network that starts from its own estimate at a quarter of the size, recursively.

    While the smaller side of the frames exceeds ``threshold``, they are reduced bilinearly to a quarter
    (:func:`list_quartered_sizes`). Their flow is the initial flow of the next finer level, in place of the network's.
    The network pads every level itself.

    Args:
        network: called once per level, coarsest first.
        updates: m, the updates of the finest level; None is the network's number.
        coarse_updates: n, the updates of every other level; None is the finest level's. The paper's "nLR + mHR".
        threshold: largest smaller side of frames that are not reduced.

    >>> flow = Cascade(model, updates=4)(frame1, frame2)  # doctest: +SKIP
    """

    def __init__(
        self,
        network: CascadableNetwork,
        *,
        updates: int | None = None,
        coarse_updates: int | None = None,
        threshold: int = THRESHOLD,
    ) -> None:
        _check.require(callable(network), "network", "something that is called like a network", network)
        for name, value in (("updates", updates), ("coarse_updates", coarse_updates)):
            if value is not None:
                _check.check_number(value, name, integer=True, low=0)
        _check.check_number(threshold, "threshold", integer=True, low=1)
        self.network = network
        self.updates = updates
        self.coarse_updates = coarse_updates
        self.threshold = threshold

    def __call__(
        self,
        frame1: Tensor,  # [B, C, H, W] floating, 0 ... 1, or uint8
        frame2: Tensor,  # [B, C, H, W]
        updates: int | None = None,
        initial_flow: Tensor | None = None,  # [B, 2, h, w]: covers the frame, in pixels of its own grid
    ) -> Tensor:  # [B, 2, H, W]
        """Estimate the flow from ``frame1`` to ``frame2``.

        ``updates`` replaces m (and n, if that is None). ``initial_flow`` starts the coarsest level.
        """
        _check.check_tensor(frame1, "frame1", ("B", "C", "H", "W"))
        is_valid = frame1.is_floating_point() or frame1.dtype == torch.uint8
        _check.require(is_valid, "frame1", "dtype uint8 or floating", frame1)
        _check.check_tensor(frame2, "frame2", frame1.shape, dtypes=[frame1.dtype], device=frame1.device)
        fine = self.updates if updates is None else updates
        coarse = fine if self.coarse_updates is None else self.coarse_updates
        height, width = frame1.shape[-2:]
        pairs = resample_pair_to_sizes(frame1, frame2, list_quartered_sizes(height, width, self.threshold))
        flow = initial_flow
        for first, second in reversed(pairs[1:]):
            flow = self.network(first, second, updates=coarse, initial_flow=flow)
        return self.network(frame1, frame2, updates=fine, initial_flow=flow)


def resample_frame(frame: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample a frame [B, C, H, W], uint8 or floating, to (height, width); one of that size stays.

    It is bicubic where the frame is enlarged, which keeps more of its detail, and bilinear where it is reduced.
    """
    if frame.shape[-2:] == size:
        return frame
    if frame.dtype == torch.uint8:
        frame = frame.to(torch.float32) / 255
    mode = "bicubic" if size[0] * size[1] > frame.shape[-2] * frame.shape[-1] else "bilinear"
    return functional.interpolate(frame, size=size, mode=mode, align_corners=False)


class FlowWithLogScale(NamedTuple):
    """Flow with the network's own estimate of its error."""

    flow: Tensor  # [B, 2, H, W], pixels
    log_scale: Tensor  # [B, 1, H, W], logarithm of the expected error in pixels


def resample_flow_with_log_scale(estimate: FlowWithLogScale, height: int, width: int) -> FlowWithLogScale:
    """Resample a flow with its expected error to another size over the same picture, in pixels of the new size."""
    ratio = math.sqrt(estimate.flow.shape[-2] * estimate.flow.shape[-1] / (height * width))
    log_scale = functional.interpolate(estimate.log_scale, size=(height, width), mode="bilinear", align_corners=False)
    return FlowWithLogScale(resample_flow(estimate.flow, height, width), log_scale - math.log(ratio))


def select_more_confident_flow(own: FlowWithLogScale, enlarged: FlowWithLogScale) -> FlowWithLogScale:
    """Return at every pixel the flow with the smaller expected error, in pixels of ``own``.

    A flow of ``enlarged`` that differs by more than :data:`MAX_CORRECTION_PX` from ``own`` is not taken.

    Args:
        own: flow of the frames at their own size.
        enlarged: flow of the same frames at another size, in its pixels.
    """
    other, expected = resample_flow_with_log_scale(enlarged, *own.flow.shape[-2:])
    correction = (other - own.flow).norm(dim=1, keepdim=True)
    better = (expected < own.log_scale) & (correction <= MAX_CORRECTION_PX)
    flow = _set_nan_where_either_is_nan(torch.where(better, other, own.flow), other, own.flow)
    return FlowWithLogScale(flow, torch.where(better, expected, own.log_scale))


def average_flows_or_select_confident(first: FlowWithLogScale, second: FlowWithLogScale) -> FlowWithLogScale:
    """Return the mean of two estimates of the same flow, weighted by the inverse squares of their expected errors.

    Where they do not agree, it is the more confident one. The expected error is the smaller of both.
    """
    better = second.log_scale < first.log_scale
    best = torch.where(better, second.flow, first.flow)
    other = torch.where(better, first.flow, second.flow)
    log_scale = torch.minimum(first.log_scale, second.log_scale)
    difference = other - best
    limit = (_CONSISTENT_ERRORS * log_scale.exp()).clamp(min=_CONSISTENT_PX)
    agrees = difference.norm(dim=1, keepdim=True) <= limit
    other_share = torch.sigmoid(-2 * (first.log_scale - second.log_scale).abs())
    flow = _set_nan_where_either_is_nan(torch.where(agrees, best + other_share * difference, best), best, other)
    return FlowWithLogScale(flow, log_scale)


def _set_nan_where_either_is_nan(flow: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return a flow made of two with NaN where either has it: an overflow in half precision must stay visible."""
    return flow.masked_fill((first + second).isnan(), math.nan)
