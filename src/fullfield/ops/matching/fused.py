"""Attention by PyTorch's fused kernels on NVIDIA GPUs: linear memory, no matrix of all pairs.

They want widths that are multiples of 16 bytes, and in half precision values as wide as the features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops import _launching
from fullfield.ops.matching.protocol import HALVES, MatchingRequest

WIDEST = 256


def explain_unsupported(request: MatchingRequest) -> str | None:
    """Return None if the fused kernels can serve the request, else the reason."""
    reason = _launching.explain_not_nvidia_gpu(request.device)
    if reason is not None:
        return reason
    if request.dtype not in (torch.float32, *HALVES):
        return "needs float32, float16 or bfloat16 features"
    if not 0 < request.channels <= WIDEST:
        return f"needs 1 to {WIDEST} channels"
    # Below, PyTorch would multiply out the whole matrix.
    return _launching.explain_missing_bfloat16(request.device) if request.dtype == torch.bfloat16 else None


def _pad_columns(rows: Tensor, width: int) -> Tensor:
    return rows if rows.shape[-1] == width else functional.pad(rows, (0, width - rows.shape[-1]))


def compute_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Return [B, N, V] of [B, N, C], [B, M, C], [B, M, V], in the features' dtype."""
    width, half = value.shape[-1], query.dtype in HALVES
    step = 8 if half else 4
    inner = -(-query.shape[-1] // step) * step
    outer = -(-width // step) * step
    if half:
        inner = outer = max(inner, outer)
    padded = _pad_columns(query, inner), _pad_columns(key, inner), _pad_columns(value.to(query.dtype), outer)
    with torch.autocast("cuda", enabled=False):
        q, k, v = (tensor.unsqueeze(1) for tensor in padded)
        result = functional.scaled_dot_product_attention(q, k, v, scale=scale).squeeze(1)
    return result[..., :width]
