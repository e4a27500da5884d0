"""What every backend of the spatial correlation is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Pair = tuple[int, int]
"""Vertical, horizontal."""
FEATURES = (torch.float32, torch.float16, torch.bfloat16)
"""What the compiled backends take."""


@dataclass(frozen=True)
class Window:
    """The pairs that are compared."""

    patch: Pair
    dilation_patch: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)

    @property
    def radius(self) -> Pair:
        """How far before the pixel the window begins."""
        height, width = (d * (p - 1) // 2 for d, p in zip(self.dilation_patch, self.patch, strict=True))
        return height, width

    def out_size(self, size: Pair) -> Pair:
        """Height and width of the result for maps of this size."""
        height, width = (
            max((n + 2 * p - 1) // s + 1, 0) for n, p, s in zip(size, self.padding, self.stride, strict=True)
        )
        return height, width

    @property
    def is_aligned(self) -> bool:
        """Whether each stride divides the step between displacements, so that dense lattices hold all pairs."""
        return all(d % s == 0 for d, s in zip(self.dilation_patch, self.stride, strict=True))


@dataclass(frozen=True)
class Request:
    """One call, as far as backends ask about it."""

    window: Window
    size: Pair
    dtype: torch.dtype
    device: torch.device
