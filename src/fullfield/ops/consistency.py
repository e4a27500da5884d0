"""Forward-backward consistency of two flows, in plain PyTorch: any device and floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.warping import warp_planes_and_mark_inside


def compute_forward_backward_distance(
    flow: Tensor,  # [B, 2, H, W], (u, v), pixels of the first frame
    backward: Tensor,  # [B, 2, H, W], from the second frame to the first, on the second's pixels
) -> Tensor:  # [B, H, W], pixels
    """Return each pixel's distance from its start after it follows ``flow`` and then ``backward``, read bilinearly.

    The distance is infinite where the flow leaves the frame.

    Raises:
        InputError: if the two tensors have different shapes or devices.
    """
    _check.check_tensor(flow, "flow", ("B", 2, "H", "W"))
    _check.check_tensor(backward, "backward", flow.shape, device=flow.device)
    returned, inside = warp_planes_and_mark_inside(backward.to(flow.dtype), flow)
    distance = torch.linalg.vector_norm(flow + returned, dim=1)
    return torch.where(inside, distance, torch.inf)


def compute_flow_targets_and_mark_inside(flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the targets of a flow [B, 2, H, W]: x, y and a mask of those inside the frame, [B, H, W] each."""
    height, width = flow.shape[-2:]
    x = torch.arange(width, device=flow.device, dtype=flow.dtype) + flow[:, 0]
    y = torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None] + flow[:, 1]
    return x, y, (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
