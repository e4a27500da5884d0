"""Requests and choice of the spatial correlation's backends.

They are modules with ``explain_unsupported``, ``compute_correlation`` and ``compute_requested_gradients``, which take
contiguous maps; the last returns the contiguous gradients of the requested maps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullfield.ops._backends import Backends

Pair = tuple[int, int]
"""Vertical, horizontal."""
FEATURES = (torch.float32, torch.float16, torch.bfloat16)
"""What the compiled backends take."""


@dataclass(frozen=True)
class DisplacementWindow:
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

    def compute_output_size(self, size: Pair) -> Pair:
        """Return the height and width of the result for maps of this size."""
        height, width = (
            max((n + 2 * p - 1) // s + 1, 0) for n, p, s in zip(size, self.padding, self.stride, strict=True)
        )
        return height, width

    @property
    def has_stride_dividing_dilation(self) -> bool:
        """Return whether each stride divides the displacement step, so that dense lattices hold all pairs."""
        return all(d % s == 0 for d, s in zip(self.dilation_patch, self.stride, strict=True))


@dataclass(frozen=True)
class WindowRequest:
    """One call, as far as backends ask about it."""

    window: DisplacementWindow
    size: Pair
    dtype: torch.dtype
    device: torch.device


BACKENDS = ("cuda", "reference")
"""By preference."""
SAMPLERS = Backends("spatial_correlation", f"{__package__}.", BACKENDS)


def choose_backend_module(window: DisplacementWindow, fmap: Tensor, backend: str | None) -> Any:
    """Return the backend's module for maps like this one; InputError if the named ``backend`` cannot serve them."""
    return _choose_backend_module_cached(
        window, (int(fmap.shape[2]), int(fmap.shape[3])), fmap.dtype, fmap.device, backend
    )


@functools.lru_cache(256)
def _choose_backend_module_cached(
    window: DisplacementWindow, size: tuple[int, int], dtype: torch.dtype, device: torch.device, backend: str | None
) -> Any:
    return SAMPLERS.load(SAMPLERS.choose(backend, WindowRequest(window, size, dtype, device)))
