"""Coordinates of the pixels of a map."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def create_pixel_grid(size: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the (x, y) of every pixel of a map of ``size`` (height, width), [2, H, W]; pixel 0 is at 0.0."""
    height, width = size
    y = torch.arange(height, device=device, dtype=dtype).view(-1, 1).expand(-1, width)
    x = torch.arange(width, device=device, dtype=dtype).expand(height, -1)
    return torch.stack((x, y))
