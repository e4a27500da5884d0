"""Copies between the host and a GPU through page-locked memory, at the rate of the bus."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return ``values`` on ``device``; the tensor itself if it is there already.

    From the host to a CUDA device the copy goes through page-locked memory and does not wait for the GPU.
    """
    if values.device.type == "cpu" and device.type == "cuda" and not values.is_pinned():
        staged = _page_locked(values)
        values = values if staged is None else staged.copy_(values)
    return values.to(device, non_blocking=True)


def to_host(values: Tensor) -> Tensor:
    """Return ``values`` on the CPU; the tensor itself if it is there already.

    What comes from a CUDA device lies in page-locked memory, which PyTorch reuses once the tensor is dropped.
    """
    if values.device.type != "cuda":
        return values.cpu()
    found = _page_locked(values)
    if found is None:
        return values.cpu()
    found.copy_(values, non_blocking=True)
    torch.cuda.current_stream(values.device).synchronize()
    return found


def _page_locked(like: Tensor) -> Tensor | None:
    """Return uninitialised page-locked memory for ``like``; None if the system has no more of it."""
    try:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
    except RuntimeError:
        return None
