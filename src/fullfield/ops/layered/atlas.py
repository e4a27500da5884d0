"""Pictures and silhouettes as the renderer reads them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check

_SMALLEST = 4  # texels across, of the last level
_TOGETHER = 64  # pictures that are halved at a time


class PictureAtlas:
    """Square pictures, each with its levels of half the size, and silhouettes.

    Args:
        pictures: [N, S, S, 3] uint8 RGB; S a power of two, at least 8. They are continued by reflection.
        shapes: [M, T, T] uint8 coverage, 0 at the border.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(self, pictures: Tensor, shapes: Tensor) -> None:
        _check.tensor(pictures, "pictures", ("N", "S", "S", 3), dtypes=(torch.uint8,))
        count, side = pictures.shape[:2]
        _check.require(count > 0 and pictures.shape[2] == side, "pictures", "square ones, at least one", pictures)
        _check.require(side >= 8 and not side & (side - 1), "pictures", "a power of two of at least 8 texels", side)
        _check.tensor(shapes, "shapes", ("M", "T", "T"), dtypes=(torch.uint8,), device=pictures.device)
        across = shapes.shape[1]
        _check.require(across == shapes.shape[2] and across >= 2, "shapes", "square ones of 2 texels or more", shapes)
        levels = []
        at = functional.pad(pictures, (0, 1))
        while True:
            levels.append(at.reshape(-1, 4))
            if at.shape[1] <= _SMALLEST:
                break
            at = _halved(at)
        self.texels = torch.cat(levels)  # uint8 [sum of N (S / 2^level)^2, 4]
        self.shapes = shapes.contiguous()
        self.count, self.side, self.levels = count, side, len(levels)

    @property
    def device(self) -> torch.device:
        """Of the texels."""
        return self.texels.device

    def bases(self) -> list[int]:
        """The first texel of every level."""
        found = [0]
        for level in range(self.levels - 1):
            found.append(found[-1] + self.count * (self.side >> level) ** 2)
        return found


def _halved(texels: Tensor) -> Tensor:
    """Means of 2×2, rounded, a few pictures at a time."""
    height, width = (side // 2 for side in texels.shape[1:3])
    found = [
        texels[first : first + _TOGETHER].reshape(-1, height, 2, width, 2, 4).sum((2, 4), dtype=torch.int16)
        for first in range(0, len(texels), _TOGETHER)
    ]
    return torch.cat([((total + 2) // 4).to(torch.uint8) for total in found])
