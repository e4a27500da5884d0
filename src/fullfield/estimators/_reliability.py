"""Occlusion and confidence of each pixel, from forward and backward flow and both frames."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from fullfield.estimators._still import find_still_areas
from fullfield.ops.consistency import compute_forward_backward_distance
from fullfield.ops.warping import warp_planes_and_mark_inside

# Pixels, and values of 0 ... 255.
_BLUR = (0.054488685, 0.24420134, 0.40261996, 0.24420134, 0.054488685)  # Gaussian of sigma 1
_FARTHEST = 20.0
_UNITS = 4096
OCCLUSION = (-3.4, 0.5, 1.9, -1.6)
"""Weights of a logistic function: bias, logarithms of distance and residual, share of the pixel that the backward flow
reaches. Fitted on synthetic pairs with RAFT-sintel, RAFT-small and fullfield-s; the bias, relative to the pair's
median, on these and on alley_1."""
_FLAT_CONFIDENCE = 0.2
"""Highest confidence where both frames are the same flat area, whose motion nothing shows."""
_MEDIAN_STRIDE = 4
"""Distance in rows and columns of the pixels whose median is taken."""
CONFIDENCE = (1.145, -0.734, -0.934, 0.940)
"""Weights of a logistic regression: bias, logarithms of distance, residual and contrast."""
CONFIDENCE_WITH_OWN = (2.068, -0.434, -0.655, 0.592, -1.851)
"""The same with the network's own log scale.

Fitted with fullfield-s by benchmarks/experiments/calibrate_confidence.py.
"""


class ReliabilityEvidence(NamedTuple):
    """Measures of how well a flow fits its frames, [B, H, W] each."""

    distance: Tensor
    """Forward-backward distance in pixels; infinite where the flow leaves the frame."""
    residual: Tensor
    """Smoothed difference between the first frame and the warped second one, 0 ... 255."""
    inside: Tensor
    """True where the flow stays in the frame."""
    contrast: Tensor
    """Smoothed length of the first frame's gradient, 0 ... 255 per pixel. Where it is large, a small error of the flow
    leaves a large residual."""

    @property
    def log_distance(self) -> Tensor:
        """Logarithm of the limited distance."""
        return torch.log(self.distance.clamp(max=_FARTHEST) + 0.05)

    @property
    def log_residual(self) -> Tensor:
        """Logarithm of the residual."""
        return torch.log(self.residual + 1.0)

    @property
    def log_contrast(self) -> Tensor:
        """Logarithm of the contrast."""
        return torch.log(self.contrast + 1.0)


def compute_reliability_evidence(frame1: Tensor, frame2: Tensor, flow: Tensor, backward: Tensor) -> ReliabilityEvidence:
    """Compute the evidence; arguments as for :func:`estimate_occlusion_and_confidence`."""
    distance = compute_forward_backward_distance(flow, backward)
    warped, inside = warp_planes_and_mark_inside(frame2, flow)
    across, down = ((after - before) / 2 for before, after in _get_four_neighbour_values(frame1))
    contrast = torch.sqrt(across * across + down * down).mean(1)
    residual = (frame1 - warped).abs().mean(1)
    return ReliabilityEvidence(distance, _blur_planes(residual * 255.0), inside, _blur_planes(contrast * 255.0))


def _get_four_neighbour_values(frame: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the neighbours left and right, above and below of [B, C, H, W], with replicated borders."""
    horizontal, vertical = pad(frame, (1, 1, 0, 0), mode="replicate"), pad(frame, (0, 0, 1, 1), mode="replicate")
    return (horizontal[..., :-2], horizontal[..., 2:]), (vertical[..., :-2, :], vertical[..., 2:, :])


def estimate_occlusion_and_confidence(
    frame1: Tensor,  # [B, C, H, W], nominally 0 ... 1
    frame2: Tensor,  # [B, C, H, W]
    flow: Tensor,  # [B, 2, H, W]
    backward: Tensor,  # [B, 2, H, W]
    log_error_px: Tensor | None = None,  # [B, H, W], a network's own logarithm of its error in pixels
    *,
    valid1: Tensor | None = None,  # bool [B, H, W], where the first frame is known; None: everywhere
    valid2: Tensor | None = None,  # bool [B, H, W], likewise of the second frame
) -> tuple[Tensor, Tensor]:  # [B, H, W] each, 0 ... 1
    """Return each pixel's probability of being hidden in the second frame, and of an error under one pixel.

    Both use the forward-backward distance and the difference between the first frame and the warped second one. The
    occlusion also uses whether the backward flow reaches the pixel; the confidence uses the first frame's contrast and
    ``log_error_px`` if it is given. An occlusion above 0.5 means hidden; it is 1 where the flow leaves the frame. The
    evidence for it is relative to the frame's median, so that noise does not count as occlusion. Where the first frame
    is not known, or the flow leads to where the second is not, the occlusion is 1 and the confidence 0.
    """
    with torch.autocast(flow.device.type, enabled=False):
        signs = compute_reliability_evidence(frame1, frame2, flow, backward)
        bias, by_distance, by_residual, by_reached = OCCLUSION
        hidden = by_residual * torch.log(signs.residual + 3.0) + by_reached * _blur_planes(
            compute_backward_coverage(backward)
        )
        hidden = by_distance * signs.log_distance + hidden
        is_valid = torch.ones_like(signs.inside) if valid1 is None else valid1
        if valid2 is not None:
            leads_to_valid = warp_planes_and_mark_inside(valid2[:, None].to(flow.dtype), flow)[0][:, 0] > 0.5
            is_valid = is_valid & (leads_to_valid | ~signs.inside)
        is_seen = signs.inside & is_valid
        hidden = (
            bias
            + hidden
            - _compute_finite_median(torch.where(is_seen, hidden, torch.inf)[:, ::_MEDIAN_STRIDE, ::_MEDIAN_STRIDE])
        )
        occlusion = torch.where(is_seen, torch.sigmoid(hidden), 1.0)
        if log_error_px is None:
            bias, by_distance, by_residual, by_contrast = CONFIDENCE
            own: Tensor | float = 0.0
        else:
            bias, by_distance, by_residual, by_contrast, by_own = CONFIDENCE_WITH_OWN
            own = by_own * log_error_px
        trust = by_distance * signs.log_distance + by_residual * signs.log_residual + own
        trust = trust + by_contrast * signs.log_contrast
        confidence = torch.sigmoid(bias + trust)
        still = find_still_areas(frame1, frame2)
        if still is not None:
            confidence = torch.where(still.flat[:, 0], confidence.clamp(max=_FLAT_CONFIDENCE), confidence)
        return occlusion, torch.where(is_valid, confidence, 0.0)


def compute_backward_coverage(backward: Tensor) -> Tensor:  # [B, 2, H, W] -> [B, H, W], 0 ... 1
    """Return the share of each first-frame pixel that second-frame pixels cover after moving by ``backward``."""
    batch, _, height, width = backward.shape
    x = torch.arange(width, device=backward.device, dtype=backward.dtype) + backward[:, 0]
    y = torch.arange(height, device=backward.device, dtype=backward.dtype)[:, None] + backward[:, 1]
    left, top = x.floor(), y.floor()
    tx, ty = x - left, y - top
    sums = torch.zeros(batch, height * width, device=backward.device, dtype=torch.int32)
    for across, column in ((1 - tx, left), (tx, left + 1)):
        for down, row in ((1 - ty, top), (ty, top + 1)):
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            # The sum of integers does not depend on the order. Indices are integers, for float32 ends at 2^24.
            fraction = torch.where(inside, across * down * _UNITS, 0.0).to(torch.int32).flatten(1)
            target = torch.where(inside, row, 0.0).long() * width + torch.where(inside, column, 0.0).long()
            sums.scatter_add_(1, target.flatten(1), fraction)
    return (sums.to(backward.dtype) / _UNITS).clamp(max=1.0).view(batch, height, width)


def _compute_finite_median(planes: Tensor) -> Tensor:  # [B, H, W] -> [B, 1, 1]
    """Return the median of the finite values; infinity if there are none."""
    ordered = planes.flatten(1).sort(1).values
    middle = (ordered.isfinite().sum(1, keepdim=True) // 2).clamp(max=ordered.shape[1] - 1)
    return ordered.gather(1, middle)[..., None]


def _blur_planes(planes: Tensor) -> Tensor:
    """Smooth [B, H, W] with a Gaussian, with replicated borders."""
    kernel = planes.new_tensor(_BLUR)
    rows = pad(planes[:, None], (2, 2, 2, 2), mode="replicate")
    return conv2d(conv2d(rows, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))[:, 0]
