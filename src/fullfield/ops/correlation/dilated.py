"""Lookup with a separate distance between the taps of every pixel: SEA-RAFT's dilation.

Taps of one pixel then share no fraction, so no backend serves it. Plain PyTorch, exact, any device, differentiable in
every argument, memory linear in pixels: a chunk of gathered features at a time, gathered again in the backward.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Gathered features worked on at a time.
CHUNK_BYTES = 32 << 20


def dilated_lookup(
    fmap1: Tensor,  # [B, C, H1, W1]
    fmap2_levels: Sequence[Tensor],  # L × [B, C, H2_l, W2_l], finest first
    coords: Tensor,  # [B, 2, H1, W1] float32 (float64 with float64 features)
    dilation: Tensor,  # [B, 1, H1, W1] pixels between the taps, on every level
    radius: int,
) -> Tensor:  # [B, L·(2r+1)², H1, W1] float32 (float64 for float64 features)
    """Look up as :func:`fullfield.ops.correlation.correlation_lookup`, at coords / 2**l + dilation · (dx, dy).

    The caller checks the arguments. A pixel whose coordinates or dilation are not finite gets zeros.
    """
    batch, channels, height, width = fmap1.shape
    exact = torch.float64 if fmap1.dtype == torch.float64 else torch.float32
    side = 2 * radius + 1
    xy = coords.to(exact).permute(0, 2, 3, 1).reshape(-1, 2)
    steps = dilation.to(exact).reshape(-1)
    finite = xy.isfinite().all(1) & steps.isfinite()
    xy = torch.where(finite[:, None], xy, 0.0)
    steps = torch.where(finite, steps, 0.0)
    source = fmap1.to(exact).permute(0, 2, 3, 1).reshape(-1, channels) / channels**0.5
    span = torch.arange(-radius, radius + 1, device=xy.device, dtype=exact)
    offsets = torch.stack(torch.meshgrid(span, span, indexing="ij"), -1).view(-1, 2)
    images = torch.arange(batch, device=xy.device).repeat_interleave(height * width)
    chunk = max(1, CHUNK_BYTES // (side * side * channels * exact.itemsize))
    parts = []
    for level, fmap2 in enumerate(fmap2_levels):
        size = (fmap2.shape[2], fmap2.shape[3])
        if 0 in size or not xy.numel():
            parts.append(source.new_zeros((xy.shape[0], side * side)))
            continue
        table = fmap2.to(exact).permute(0, 2, 3, 1).reshape(-1, channels)
        chunks = [
            checkpoint(
                _taps,
                source[start : start + chunk],
                table,
                images[start : start + chunk] * (size[0] * size[1]),
                xy[start : start + chunk, None] / 2**level + steps[start : start + chunk, None, None] * offsets,
                size,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, xy.shape[0], chunk)
        ]
        parts.append(torch.where(finite[:, None], torch.cat(chunks), 0.0))
    out = torch.cat(parts, 1).view(batch, height, width, -1)
    return out.permute(0, 3, 1, 2).contiguous()


def _taps(
    source: Tensor,  # [n, C]
    table: Tensor,  # [B·H2·W2, C]
    first: Tensor,  # [n] row of the table at which the pixel's image begins
    at: Tensor,  # [n, T, 2] (x, y)
    size: tuple[int, int],
) -> Tensor:  # [n, T]
    height, width = size
    x = at[..., 0].clamp(-2, width + 1)
    y = at[..., 1].clamp(-2, height + 1)
    left, top = x.detach().floor(), y.detach().floor()
    total = torch.zeros_like(x)
    for down in (0, 1):
        for right in (0, 1):
            column, row = left.long() + right, top.long() + down
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            cell = first[:, None] + row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            features = table.index_select(0, cell.flatten()).view(*cell.shape, -1)
            dots = (features * source[:, None]).sum(-1)
            weight = (x - left if right else 1 + left - x) * (y - top if down else 1 + top - y)
            total = total + torch.where(inside, weight * dots, 0.0)
    return total
