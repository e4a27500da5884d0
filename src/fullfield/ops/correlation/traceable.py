"""Lookup in PyTorch's own operators, without a loop over chunks, for graphs that leave PyTorch; inference only.

Two forms. ``linear`` keeps the features of every level and gathers 2r + 2 of them per source pixel at a time;
``dense`` keeps the volume of every level, quadratic in the number of pixels. As everywhere, dot products at integer
positions are gathered and blended. Nothing depends on values; sizes may be symbolic where every level is known to have
two cells a side.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops.correlation.in_pytorch import (
    blend_products_bilinearly,
    list_clamped_positions_and_mark_inside,
    locate_pixel_windows,
)
from fullfield.ops.correlation.protocol import compute_level_sizes

FORMS = ("linear", "dense")


def build_traceable_state(
    fmap1: Tensor,  # [B, C, H, W]
    fmap2: Tensor,  # [B, C, H, W]
    levels: int,
    variant: str,
) -> list[Tensor]:
    """Return the tensors that :func:`compute_traceable_lookup` reads.

    ``linear``: fmap1 / √C as [B, H, W, C], then every level of fmap2 as [B·H_l·W_l, C]. ``dense``: for every level
    [B, H, W, H_l·W_l].
    """
    batch, channels, height, width = fmap1.shape
    source = fmap1.permute(0, 2, 3, 1) / channels**0.5
    pyramid = _pool_by_convolution(fmap2, levels)
    if variant == "linear":
        return [source, *(level.permute(0, 2, 3, 1).reshape(-1, channels) for level in pyramid)]
    rows = source.reshape(batch, height * width, channels)
    return [torch.bmm(rows, level.flatten(2)).view(batch, height, width, -1) for level in pyramid]


def _pool_by_convolution(fmap2: Tensor, levels: int) -> list[Tensor]:
    """Return the values of ``pyramid.pool``, by convolution.

    Before 2.12, PyTorch's average pooling asks a symbolic size whether it is even, and the graph then takes no other.
    """
    _, channels, height, width = fmap2.shape
    quarter = fmap2.new_full((channels, 1, 2, 2), 0.25)
    pyramid = [fmap2]
    for size in compute_level_sizes(height, width, levels)[1:]:
        if size[0] == 0 or size[1] == 0:
            pyramid.append(fmap2.new_zeros((*fmap2.shape[:2], *size)))
        else:
            pyramid.append(functional.conv2d(pyramid[-1], quarter, stride=2, groups=channels))
    return pyramid


def compute_traceable_lookup(
    state: Sequence[Tensor],
    coords: Tensor,  # [B, 2, H, W] float32, (x, y), level-0 pixels
    radius: int,
    variant: str,
) -> Tensor:  # [B, L·(2r+1)², H, W]; order: level, dx (slow), dy (fast)
    """Return the values of :func:`fullfield.ops.correlation.correlation_lookup`, float32."""
    batch, _, height, width = coords.shape
    flat = coords.permute(0, 2, 3, 1).reshape(-1, 2)
    tables = state[1:] if variant == "linear" else state
    taps = []
    for level, size in enumerate(compute_level_sizes(height, width, len(tables))):
        if size[0] == 0 or size[1] == 0:
            taps.append(flat.new_zeros(flat.shape[0], (2 * radius + 1) ** 2))
            continue
        window = locate_pixel_windows(flat, level, size, radius)
        x, y, inside = list_clamped_positions_and_mark_inside(window, size, radius)
        positions = y * size[1] + x
        if variant == "linear":
            first = torch.arange(batch, device=flat.device).view(-1, 1) * (size[0] * size[1])
            positions = positions + first.expand(batch, height * width).reshape(-1, 1, 1)
            dots = _multiply_source_with_gathered_rows(state[0], tables[level], positions)
        else:
            volume = tables[level].reshape(batch * height * width, -1)
            dots = volume.gather(1, positions.flatten(1)).view_as(inside)
        taps.append(blend_products_bilinearly(torch.where(inside, dots, 0.0), window))
    return torch.cat(taps, 1).view(batch, height, width, -1).permute(0, 3, 1, 2)


def _multiply_source_with_gathered_rows(
    source: Tensor,  # [B, H, W, C]
    table: Tensor,  # [n2, C]
    positions: Tensor,  # [n, K, K]
) -> Tensor:  # [n, K, K]
    """Multiply row by row of the windows, which bounds the memory of gathered features."""
    channels = table.shape[1]
    columns = source.reshape(-1, channels, 1)
    rows = []
    for row in positions.unbind(1):
        gathered = table.index_select(0, row.flatten()).view(-1, row.shape[1], channels)
        rows.append(torch.bmm(gathered, columns))
    return torch.cat(rows, 2).transpose(1, 2)
