"""Attention by PyTorch's fused kernels on NVIDIA GPUs: linear memory, the matrix is never there.

They want widths that are multiples of 16 bytes, and in half precision values as wide as the features. In half precision
the result is rounded too, which for coordinates in the hundreds would be a tenth of a cell: so there the width that
must be filled anyway holds the distances to many fixed centres, and each pixel takes the one that is near it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops import launching
from fullfield.ops.matching.protocol import HALVES, Request, flow_of, rows_of, size_of

_CLOSE = 16  # cells between centres, where there is room for so many
WIDEST = 256


def supports(request: Request) -> str | None:
    """Return None if the fused kernels can serve the request, else the reason."""
    if request.device.type != "cuda" or torch.version.hip is not None:
        return f"runs on NVIDIA GPUs, the tensors are on {request.device.type}"
    if request.dtype not in (torch.float32, *HALVES):
        return "needs float32, float16 or bfloat16 features"
    if not 0 < request.channels <= WIDEST:
        return f"needs 1 to {WIDEST} channels"
    # Below, PyTorch would multiply out the whole matrix.
    return launching.why_not_bfloat16(request.device) if request.dtype == torch.bfloat16 else None


def _padded(rows: Tensor, width: int) -> Tensor:
    return rows if rows.shape[-1] == width else functional.pad(rows, (0, width - rows.shape[-1]))


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Return [B, N, V] of [B, N, C], [B, M, C], [B, M, V], in the features' dtype."""
    width, half = value.shape[-1], query.dtype in HALVES
    step = 8 if half else 4
    inner = -(-query.shape[-1] // step) * step
    outer = -(-width // step) * step
    if half:
        inner = outer = max(inner, outer)
    parts = _padded(query, inner), _padded(key, inner), _padded(value.to(query.dtype), outer)
    with torch.autocast("cuda", enabled=False):
        q, k, v = (part.unsqueeze(1) for part in parts)
        found = functional.scaled_dot_product_attention(q, k, v, scale=scale).squeeze(1)
    return found[..., :width]


def matched(fmap1: Tensor, fmap2: Tensor, scale: float) -> Tensor:
    """Return the flow [B, 2, H1, W1]."""
    return flow_of(expected_positions(rows_of(fmap1), rows_of(fmap2), size_of(fmap2), scale), fmap1)


def expected_positions(query: Tensor, key: Tensor, size: tuple[int, int], scale: float) -> Tensor:
    """Return [B, N, 2] float32: the mean (x, y) of a map of ``size`` under each row's softmax."""
    height, width = size
    half = query.dtype in HALVES
    step = max(height, width, 1)
    if half:
        room = max(-(-query.shape[-1] // 8) * 8, 8)
        step = _CLOSE
        while -(-height // step) + -(-width // step) > room:
            step *= 2
    centres = [_centres(n, step, query.device) for n in (width, height)]
    values = [
        torch.arange(n, device=query.device, dtype=torch.float32)[:, None] - centre
        for n, centre in zip((width, height), centres, strict=True)
    ]
    parts = (values[0], values[1][:, None])
    columns = torch.cat([part.expand(height, width, -1) for part in parts], -1)
    spread = columns.reshape(1, height * width, -1).expand(query.shape[0], -1, -1)
    found = torch.split(attend(query, key, spread, scale).float(), [len(c) for c in centres], -1)
    return torch.cat([_nearest(part, centre) for part, centre in zip(found, centres, strict=True)], -1)


def _centres(length: int, step: int, device: torch.device) -> Tensor:
    count = max(-(-length // step), 1)
    return torch.arange(count, device=device, dtype=torch.float32) * step + (min(step, length) - 1) / 2


def _nearest(distances: Tensor, centres: Tensor) -> Tensor:
    """Return positions [..., 1] from distances [..., K] to the centres; the nearest centre gives the most exact one."""
    if len(centres) == 1:
        return distances + centres
    chosen = distances.detach().abs().argmin(-1, keepdim=True)
    return distances.gather(-1, chosen) + centres[chosen]
