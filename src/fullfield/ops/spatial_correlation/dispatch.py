"""Choosing a backend: by name, or the best that can serve the request."""

from __future__ import annotations

import functools
from typing import Protocol

import torch
from torch import Tensor

from fullfield.ops.backends import Backends
from fullfield.ops.spatial_correlation.protocol import Request, Window

BACKENDS = ("cuda", "cpu", "reference")
"""By preference."""
SAMPLERS = Backends("spatial_correlation", f"{__package__}.", BACKENDS)


class Module(Protocol):
    """A backend."""

    def supports(self, request: Request) -> str | None:
        """None, or why it cannot serve the request."""

    def forward(self, fmap1: Tensor, fmap2: Tensor, window: Window) -> Tensor:
        """[B, PH, PW, OH, OW] of contiguous maps."""

    def backward(
        self, fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: Window, wanted: tuple[bool, bool]
    ) -> list[Tensor]:
        """Gradients of the wanted maps, in order, contiguous as all that is given."""


def choose(window: Window, fmap: Tensor, backend: str | None) -> Module:
    """The backend that serves maps like this one.

    Raises:
        InputError: if ``backend`` is named and cannot; the message gives every backend's reason.
    """
    return _choose(window, (int(fmap.shape[2]), int(fmap.shape[3])), fmap.dtype, fmap.device, backend)


@functools.lru_cache(256)
def _choose(
    window: Window, size: tuple[int, int], dtype: torch.dtype, device: torch.device, backend: str | None
) -> Module:
    module: Module = SAMPLERS.load(SAMPLERS.choose(backend, Request(window, size, dtype, device)))
    return module
