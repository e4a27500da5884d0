"""Forward-backward consistency of two flows, in plain PyTorch: any device and floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check


def forward_backward_distance(
    flow: Tensor,  # [B, 2, H, W], (u, v), pixels of the first frame
    backward: Tensor,  # [B, 2, H, W], from the second frame to the first, on the second's pixels
) -> Tensor:  # [B, H, W], pixels
    """Return each pixel's distance from its start after it follows ``flow`` and then ``backward``, read bilinearly.

    The distance is infinite where the flow leaves the frame.

    Raises:
        InputError: if the two tensors have different shapes or devices.
    """
    _check.tensor(flow, "flow", ("B", 2, "H", "W"))
    _check.tensor(backward, "backward", flow.shape, device=flow.device)
    back, inside = sample(backward.to(flow.dtype), flow)
    distance = torch.linalg.vector_norm(flow + back, dim=1)
    return torch.where(inside, distance, torch.inf)


def targets(flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the targets of a flow [B, 2, H, W]: x, y and a mask of those inside the frame, [B, H, W] each."""
    height, width = flow.shape[-2:]
    x = torch.arange(width, device=flow.device, dtype=flow.dtype) + flow[:, 0]
    y = torch.arange(height, device=flow.device, dtype=flow.dtype)[:, None] + flow[:, 1]
    return x, y, (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)


def sample(planes: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Sample ``planes`` [B, N, H, W] bilinearly at x + flow; also return the mask [B, H, W] of targets in the frame.

    Outside the frame the border is repeated.
    """
    batch, _, height, width = flow.shape
    x, y, inside = targets(flow)
    x, y = x.nan_to_num().clamp(0, width - 1), y.nan_to_num().clamp(0, height - 1)
    left, top = x.floor().clamp(max=max(width - 2, 0)), y.floor().clamp(max=max(height - 2, 0))
    tx, ty = (x - left)[:, None], (y - top)[:, None]
    corner = (top.long() * width + left.long()).view(batch, 1, height * width)  # float32 holds no index beyond 2^24
    right, below = int(width > 1), width * int(height > 1)
    flat = planes.flatten(2)

    def at(step: int) -> Tensor:
        return flat.gather(2, (corner + step).expand(-1, flat.shape[1], -1)).view_as(planes)

    upper = at(0) * (1 - tx) + at(right) * tx
    lower = at(below) * (1 - tx) + at(below + right) * tx
    return upper * (1 - ty) + lower * ty, inside
