"""Requests, interface and choice of the spatial correlation's backends."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fullfield.ops.backends import Backends

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
        """Return the distance from the window's start to the pixel."""
        height, width = (d * (p - 1) // 2 for d, p in zip(self.dilation_patch, self.patch, strict=True))
        return height, width

    def out_size(self, size: Pair) -> Pair:
        """Return the height and width of the result for maps of this size."""
        height, width = (
            max((n + 2 * p - 1) // s + 1, 0) for n, p, s in zip(size, self.padding, self.stride, strict=True)
        )
        return height, width

    @property
    def is_aligned(self) -> bool:
        """Return whether each stride divides the displacement step, so that dense lattices hold all pairs."""
        return all(d % s == 0 for d, s in zip(self.dilation_patch, self.stride, strict=True))


@dataclass(frozen=True)
class Request:
    """One call, as far as backends ask about it."""

    window: Window
    size: Pair
    dtype: torch.dtype
    device: torch.device


BACKENDS = ("cuda", "cpu", "reference")
"""By preference."""
SAMPLERS = Backends("spatial_correlation", f"{__package__}.", BACKENDS)


class Module(Protocol):
    """A backend."""

    def supports(self, request: Request) -> str | None:
        """Return None if the backend can serve the request, else the reason."""

    def forward(self, fmap1: Tensor, fmap2: Tensor, window: Window) -> Tensor:
        """Return [B, PH, PW, OH, OW] of contiguous maps, of their dtype."""

    def backward(
        self, fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: Window, wanted: tuple[bool, bool]
    ) -> list[Tensor]:
        """Return the contiguous gradients of the wanted maps, in order; all arguments are contiguous."""


def choose(window: Window, fmap: Tensor, backend: str | None) -> Module:
    """Return the backend for maps like this one.

    Raises:
        InputError: if the named ``backend`` cannot serve them; the message gives every backend's reason.
    """
    return _choose(window, (int(fmap.shape[2]), int(fmap.shape[3])), fmap.dtype, fmap.device, backend)


@functools.lru_cache(256)
def _choose(
    window: Window, size: tuple[int, int], dtype: torch.dtype, device: torch.device, backend: str | None
) -> Module:
    module: Module = SAMPLERS.load(SAMPLERS.choose(backend, Request(window, size, dtype, device)))
    return module
