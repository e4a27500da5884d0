"""What happens between two frames besides motion: a cut, or nothing at all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_COLUMNS = 32
_SHIFT = 6  # of the small pictures' columns and rows that the camera may have moved by
_UNLIKE = 0.75


def small(frame: Tensor) -> Tensor:  # [C, H, W] -> [h, w]
    """The frame's grey averaged to about 32 columns, for :func:`is_cut`."""
    height, width = frame.shape[-2:]
    rows = max(1, min(height, round(_COLUMNS * height / width)))
    grey = frame.mean(0, keepdim=True)
    return functional.adaptive_avg_pool2d(grey[None], (min(rows, 4 * _COLUMNS), min(_COLUMNS, width)))[0, 0]


def is_cut(first: Tensor, second: Tensor) -> bool:
    """Whether two small pictures show different shots.

    Their mean difference, at the best of the small shifts between them, is compared with their contrast: of two
    pictures that have nothing in common it is larger than the contrast, of two frames of a shot much smaller.
    """
    if first.shape != second.shape:
        return True
    height, width = first.shape
    contrast = float((first - first.mean()).abs().mean() + (second - second.mean()).abs().mean()) / 2
    if contrast < 1e-3:
        return float((first - second).abs().mean()) > 0.05
    least = float("inf")
    for dy in range(-min(_SHIFT, height // 3), min(_SHIFT, height // 3) + 1):
        for dx in range(-min(_SHIFT, width // 3), min(_SHIFT, width // 3) + 1):
            a = first[max(dy, 0) : height + min(dy, 0), max(dx, 0) : width + min(dx, 0)]
            b = second[max(-dy, 0) : height + min(-dy, 0), max(-dx, 0) : width + min(-dx, 0)]
            least = min(least, float((a - b).abs().mean()))
    return least > _UNLIKE * contrast


def is_held(first: Tensor, second: Tensor, *, compressed: bool) -> bool:
    """Whether two frames are the same picture; of a ``compressed`` video but for two codes of 255."""
    if first.shape != second.shape:
        return False
    if not compressed:
        return torch.equal(first, second)
    return float((first - second).abs().max()) <= 2.01 / 255
