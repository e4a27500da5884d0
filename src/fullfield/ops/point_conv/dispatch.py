"""Choosing a backend: by name, or the best that can serve the request."""

from __future__ import annotations

import warnings

import torch

from fullfield._check import InputError, choice
from fullfield.ops.backends import backend_module
from fullfield.ops.point_conv.protocol import Module, Request

# By preference.
BACKENDS = ("cuda", "cpu", "reference")

_warned: set[str] = set()


def load(name: str) -> Module | None:
    """The backend's module, or None where this version has none."""
    return backend_module(__package__, name)


def why_not(name: str, request: Request) -> str | None:
    """None where the backend can serve the request, else its reason."""
    module = load(name)
    if module is None:
        return "not part of this version"
    reason: str | None = module.supports(request)
    return reason


def reasons(request: Request) -> dict[str, str | None]:
    """Every backend's answer to the request."""
    return {name: why_not(name, request) for name in BACKENDS}


def choose(request: Request, backend: str | None) -> Module:
    """The backend that serves the request.

    Raises:
        InputError: if ``backend`` is named and cannot; the message gives every backend's reason.
    """
    if backend is not None:
        choice(backend, "backend", BACKENDS)
    names = BACKENDS if backend is None else (backend,)
    for name in names:
        module = load(name)
        reason = "not part of this version" if module is None else module.supports(request)
        if module is not None and reason is None:
            return module
        if backend is None:
            _tell(name, request.device.type, reason)
    answers = reasons(request)
    told = "; ".join(f"{name}: {why or 'can'}" for name, why in answers.items())
    if backend is not None:
        raise InputError(f"backend: {backend!r} cannot serve this request ({told})")
    raise InputError(f"features: no backend can serve this request ({told})")


def builder(device: torch.device) -> Module:
    """The backend that makes triplets there; the reference can everywhere."""
    for name in BACKENDS:
        module = load(name)
        if module is not None and module.builds(device) is None:
            return module
    raise InputError(f"points: no backend makes triplets on {device}")


def _tell(name: str, device: str, why: str | None) -> None:
    """Warn once if the kernel made for this device is not used because something is not installed."""
    module = load(name)
    if name != device or name in _warned or module is None or module.missing() is None:
        return
    _warned.add(name)
    warnings.warn(f"point_conv: the {name} kernel is not used ({why}); a slower backend runs instead", stacklevel=5)
