"""Reference of the loss in PyTorch's operators; defines what the kernel computes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fullfield.ops._fused.reference import convex_upsample


def mixture_negative_log_likelihood(
    flow: Tensor,  # [B, 2, H, W]
    mixture: Tensor,  # [B, 4, H, W]: logits of the wide and the narrow Laplacian, logarithms of their scales
    truth: Tensor,  # [B, 2, H, W]
    log_scale_min: float,
    log_scale_max: float,
) -> Tensor:  # [B, 2, H, W]
    """Return minus the log density of the true flow; limits and source as of ``laplace_mixture_loss``."""
    share1, share2, scale1, scale2 = torch.split(mixture, 1, 1)
    scale1, scale2 = scale1.clamp(0, log_scale_max), scale2.clamp(log_scale_min, 0)
    error = (flow - truth).abs()
    wide_level = share1 - scale1 - error * torch.exp(-scale1)
    narrow = share2 - scale2 - error * torch.exp(-scale2)
    return torch.logaddexp(share1, share2) - torch.logaddexp(wide_level, narrow) + math.log(2)


def compute_loss_and_error_sums(
    field: Tensor, mask: Tensor, truth: Tensor, valid: Tensor, factor: int, log_scale_min: float, log_scale_max: float
) -> tuple[Tensor, Tensor]:
    """Return the sums of :func:`fullfield.training.flow.convex_loss.convex_mixture_loss_and_error`."""
    fine = convex_upsample(field, mask, factor)
    inside = valid[:, None]
    truth_inside = torch.where(inside, truth, 0.0)
    surprise = mixture_negative_log_likelihood(fine[:, :2], fine[:, 2:], truth_inside, log_scale_min, log_scale_max)
    offset = torch.where(inside, fine[:, :2].detach() - truth_inside, 0.0)
    return torch.where(inside, surprise, 0.0).sum(), offset.norm(dim=1).sum()
