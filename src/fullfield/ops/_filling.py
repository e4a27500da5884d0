"""Unknown pixels filled from their surroundings."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check


def interpolate_unknown_pixels(values: Tensor, valid: Tensor) -> Tensor:  # [C, H, W], bool [H, W] -> [C, H, W]
    """Return values whose unknown pixels continue the known ones around them, smoothly; 0 where nothing is known.

    Known pixels are averaged over blocks of 2, 4, 8, ... pixels. An unknown pixel takes the value of the smallest block
    that has a known one, read bilinearly, in a number of steps that does not depend on the values.

    Raises:
        InputError: if the shapes or devices do not fit.
    """
    _check.check_tensor(values, "values", ("C", "H", "W"))
    _check.check_tensor(valid, "valid", values.shape[1:], dtypes=(torch.bool,), device=values.device)
    weights = valid[None, None].to(values.dtype)
    means = torch.where(valid, values, 0.0)[None]
    levels = [(means, weights)]
    while max(means.shape[-2:]) > 1:
        sums = functional.avg_pool2d(means * weights, 2, ceil_mode=True)
        shares = functional.avg_pool2d(weights, 2, ceil_mode=True)
        means, weights = torch.where(shares > 0, sums / shares.clamp(min=1e-12), 0.0), (shares > 0).to(values.dtype)
        levels.append((means, weights))
    filled = means
    for fine, fine_weights in reversed(levels[:-1]):
        coarse = functional.interpolate(filled, fine.shape[-2:], mode="bilinear", align_corners=False)
        filled = torch.where(fine_weights > 0, fine, coarse)
    return filled[0]
