"""What happens between two frames besides motion: a cut, or nothing at all."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_COLUMNS = 48
_SHIFT = 6  # pixels of the small pictures that anything may have moved by
_BLOCK = 9
_UNLIKE = 0.41  # frames of a shot are below 0.36 on Sintel's fastest scenes, two shots' above 0.42


def small(frame: Tensor) -> Tensor:  # [C, H, W] -> [h, w]
    """The frame's grey averaged to about 48 columns, for :func:`is_cut`.

    Rows are averaged by NumPy, in one thread: many readers do this at once, and in each of them PyTorch would take all
    cores.
    """
    height, width = frame.shape[-2:]
    rows = max(1, min(height, round(_COLUMNS * height / width), 4 * _COLUMNS))
    planes = frame.numpy()
    lines = [planes[:, i * height // rows : -(-(i + 1) * height // rows)].mean((0, 1)) for i in range(rows)]
    return functional.adaptive_avg_pool2d(torch.from_numpy(np.stack(lines))[None], (rows, min(_COLUMNS, width)))[0]


def is_cut(first: Tensor, second: Tensor) -> bool:
    """Whether two small pictures show different shots.

    Every block of the first looks for its like in the second, an eighth of the width around it; both are brought to
    the same mean and contrast before, so that a change of exposure is none of the shot.
    """
    if first.shape != second.shape:
        return True
    contrasts = [float(picture.std(correction=0)) for picture in (first, second)]
    if min(contrasts) < 2e-3:
        return max(contrasts) > 2e-2 or float((first - second).abs().mean()) > 0.2
    first, second = ((p - p.mean()) / c for p, c in zip((first, second), contrasts, strict=True))
    height, width = first.shape
    around = functional.pad(second[None, None], (_SHIFT,) * 4, mode="replicate")[0, 0]
    best = torch.full_like(first, float("inf"))
    shifts = [(dy, dx) for dy in range(-_SHIFT, _SHIFT + 1) for dx in range(-_SHIFT, _SHIFT + 1)]
    for dy, dx in sorted(shifts, key=lambda shift: shift[0] ** 2 + shift[1] ** 2):
        there = around[dy + _SHIFT : dy + _SHIFT + height, dx + _SHIFT : dx + _SHIFT + width]
        unlike = functional.avg_pool2d(
            (first - there).abs()[None, None], _BLOCK, 1, _BLOCK // 2, count_include_pad=False
        )
        best = torch.minimum(best, unlike[0, 0])
        if float(best.mean()) <= _UNLIKE:
            return False
    return True


def is_held(first: Tensor, second: Tensor, *, compressed: bool) -> bool:
    """Whether two frames are the same picture; of a ``compressed`` video but for two codes of 255."""
    if first.shape != second.shape:
        return False
    if not compressed:
        return torch.equal(first, second)
    return float((first - second).abs().max()) <= 2.01 / 255
