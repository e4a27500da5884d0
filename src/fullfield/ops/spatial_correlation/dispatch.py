"""Choosing a backend: by name, or the best that can serve the request."""

from __future__ import annotations

import functools
import warnings
from typing import Protocol, cast

import torch
from torch import Tensor

from fullfield._check import InputError, choice
from fullfield.ops.backends import backend_module
from fullfield.ops.spatial_correlation.protocol import Request, Window

# By preference.
BACKENDS = ("cuda", "cpu", "reference")

_warned: set[str] = set()


class Module(Protocol):
    """A backend."""

    def missing(self) -> str | None:
        """What would have to be installed."""

    def supports(self, request: Request) -> str | None:
        """None, or why it cannot serve the request."""

    def forward(self, fmap1: Tensor, fmap2: Tensor, window: Window) -> Tensor:
        """[B, PH, PW, OH, OW] of contiguous maps."""

    def backward(
        self, fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: Window, wanted: tuple[bool, bool]
    ) -> list[Tensor]:
        """Gradients of the wanted maps, in order, contiguous as all that is given."""


def load(name: str) -> Module | None:
    """The backend's module, or None where this version has none."""
    return cast("Module | None", backend_module(__package__, name))


def reasons(request: Request) -> dict[str, str | None]:
    """Every backend's answer to the request."""
    return {name: _why_not(name, request) for name in BACKENDS}


def _why_not(name: str, request: Request) -> str | None:
    module = load(name)
    return "not part of this version" if module is None else module.supports(request)


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
    request = Request(window, size, dtype, device)
    if backend is not None:
        choice(backend, "backend", BACKENDS)
    for name in BACKENDS if backend is None else (backend,):
        module, why = load(name), _why_not(name, request)
        if module is not None and why is None:
            return module
        if backend is None:
            _tell(name, request, module)
    told = "; ".join(f"{name}: {why or 'can'}" for name, why in reasons(request).items())
    raise InputError(f"backend: {backend!r} cannot serve this request ({told})")


def _tell(name: str, request: Request, module: Module | None) -> None:
    """Warn once if the kernel made for this device is not used because something is not installed."""
    if name != request.device.type or torch.version.hip is not None or name in _warned or module is None:
        return
    missing = module.missing()
    if missing is None:
        return
    _warned.add(name)
    warnings.warn(
        f"spatial_correlation: the {name} kernel is not used ({missing}); a slower backend runs instead", stacklevel=5
    )
