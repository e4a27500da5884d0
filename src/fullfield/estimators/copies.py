"""Copies between the host and a GPU through page-locked memory, at the rate of the bus."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_CHUNK = 64 << 20  # bytes of page-locked memory at a time; more would stay locked in PyTorch's cache


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return ``values`` on ``device``; the tensor itself if it is there already.

    From the host to a CUDA device the copy goes through page-locked memory and does not wait for the GPU. Copies to
    the host are complete when this returns.
    """
    if device.type == "cpu":
        return to_host(values)
    if values.device.type == "cpu" and device.type == "cuda" and not values.is_pinned():
        try:
            return _staged(values, device)
        except RuntimeError:  # the system has no more page-locked memory
            pass
    return values.to(device, non_blocking=True)


def to_host(values: Tensor) -> Tensor:
    """Return ``values`` on the CPU; the tensor itself if it is there already.

    Values from a CUDA device are in page-locked memory, which PyTorch reuses once the tensor is dropped.
    """
    if values.device.type != "cuda":
        return values.cpu()
    try:
        found = _page_locked(values.shape, values.dtype)
    except RuntimeError:
        return values.cpu()
    found.copy_(values, non_blocking=True)
    torch.cuda.current_stream(values.device).synchronize()
    return found


def _staged(values: Tensor, device: torch.device) -> Tensor:
    """Copy to ``device`` in chunks. PyTorch reuses a chunk's memory only after its copy has ended."""
    flat = values.contiguous().flatten()
    there = torch.empty(flat.shape, dtype=flat.dtype, device=device)
    step = max(1, _CHUNK // flat.element_size())
    for part, target in zip(torch.split(flat, step), torch.split(there, step), strict=True):
        target.copy_(_page_locked(part.shape, part.dtype).copy_(part), non_blocking=True)
    return there.view(values.shape)


def _page_locked(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return uninitialised page-locked memory."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
