"""Attention some rows at a time: any device and dtype, linear memory, differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Elements of the matrix that are there at a time.
_ELEMENTS = 1 << 24


def _rows(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """All columns of some rows, in float32 at least."""
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    with torch.autocast(query.device.type, enabled=False):
        scores = (query.to(exact) * scale) @ key.to(exact).transpose(-2, -1)
        return torch.softmax(scores, -1) @ value.to(exact)


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """[..., N, V] of [..., N, C], [..., M, C], [..., M, V]: float32, or float64 for float64."""
    each = max(_ELEMENTS // max(key.shape[-2] * key.shape[:-2].numel(), 1), 1)
    if each >= query.shape[-2]:
        return _rows(query, key, value, scale)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    parts = []
    for part in query.split(each, -2):
        if learns:  # what the gradient needs is computed again
            found = checkpoint(_rows, part, key, value, scale, use_reentrant=False, preserve_rng_state=False)
        else:
            found = _rows(part, key, value, scale)
        parts.append(found)
    return torch.cat(parts, -2)
