"""Repeated 2×2 average pooling of a feature map, and its adjoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield.ops.correlation.protocol import FEATURES, MOST_LEVELS


def correlation_pyramid(
    fmap2: Tensor,  # [B, C, H2, W2]
    levels: int,
) -> tuple[Tensor, ...]:  # levels × [B, C, H2 // 2**l, W2 // 2**l], finest first; the first is fmap2 itself
    """Return the levels that :func:`correlation_lookup` reads: 2×2 averages, odd last rows and columns dropped.

    A level may have height or width zero. Differentiable.

    Raises:
        InputError: naming ``fmap2`` or ``levels``.
    """
    _check.tensor(fmap2, "fmap2", ("B", "C", "H2", "W2"), dtypes=FEATURES)
    _check.number(levels, "levels", integer=True, low=1, high=MOST_LEVELS)
    return pool(fmap2, levels)


def pool(fmap2: Tensor, levels: int) -> tuple[Tensor, ...]:
    """Return the levels as :func:`correlation_pyramid` does, without its checks."""
    pyramid = [fmap2]
    for _ in range(levels - 1):
        last = pyramid[-1]
        height, width = last.shape[-2] // 2, last.shape[-1] // 2
        if height == 0 or width == 0 or last.numel() == 0:
            pyramid.append(last.new_zeros((*last.shape[:2], height, width)))
        else:
            pyramid.append(functional.avg_pool2d(last, 2))
    return tuple(pyramid)


def fold(grads: Sequence[Tensor]) -> Tensor:
    """Return the finest map's gradient from those of all levels, the adjoint of :func:`pool`; changes ``grads``."""
    for finer, coarser in zip(reversed(grads[:-1]), reversed(grads[1:]), strict=True):
        height, width = coarser.shape[-2:]
        if height and width:
            cut = finer[..., : 2 * height, : 2 * width]
            inner = torch.unflatten(torch.unflatten(cut, -1, (width, 2)), -3, (height, 2))
            inner.add_(coarser[..., :, None, :, None], alpha=0.25)
    return grads[0]
