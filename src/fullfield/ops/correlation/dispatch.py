"""Choosing a backend: by name, or the best that can serve the request."""

from __future__ import annotations

import warnings

import torch

from fullfield._check import InputError, NoRoomError, choice
from fullfield.ops.backends import backend_module
from fullfield.ops.correlation.protocol import FEATURES, Module, Request

# By preference. An automatic choice takes the first that can; "blocks" only on request, "dense" only where small.
BACKENDS = ("cuda", "cpu", "dense", "reference", "blocks")
AUTOMATIC = ("cuda", "cpu", "dense", "reference")
# Without a kernel the volume is faster than the reference wherever it fits, so what an automatic choice keeps is a
# question of memory: this share of a GPU's, elsewhere so many bytes. Both the same for every pair of a sequence.
DENSE_SHARE = 1 / 8
DENSE_BYTES = 1 << 30

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


def choose(request: Request, backend: str | None) -> str:
    """The name of the backend that serves the request.

    Raises:
        InputError: if ``backend`` is named and cannot; the message gives every backend's reason. NoRoomError, which is
            one, if memory is all it lacks.
    """
    if backend is not None:
        choice(backend, "backend", BACKENDS)
        if why_not(backend, request) is not None:
            told = "; ".join(f"{name}: {why or 'can'}" for name, why in reasons(request).items())
            kind = NoRoomError if _lacks_room(backend, request) else InputError
            raise kind(f"backend: {backend!r} cannot serve this request ({told})")
        return backend
    for name in AUTOMATIC:
        if name == "dense" and (request.device.type == "cpu" or _too_large(request)):
            continue
        why = why_not(name, request)
        if why is None:
            return name
        _tell(name, why, request)
    told = "; ".join(f"{name}: {why}" for name, why in reasons(request).items())
    raise InputError(f"fmap1: no backend can serve this request ({told})")


def _lacks_room(backend: str, request: Request) -> bool:
    from fullfield.ops.correlation.dense import no_room

    return backend == "dense" and request.dtype in FEATURES and no_room(request) is not None


def _too_large(request: Request) -> bool:
    from fullfield.ops.correlation.dense import volume_bytes

    limit = float(DENSE_BYTES)
    if request.device.type == "cuda" and torch.cuda.is_available():
        limit = torch.cuda.get_device_properties(request.device).total_memory * DENSE_SHARE
    return volume_bytes(request) * (1 + request.grad) > limit


def _tell(name: str, why: str, request: Request) -> None:
    """Warn once if the kernel made for this device is not used because something is not installed."""
    if name != request.device.type or torch.version.hip is not None or name in _warned:
        return
    module = load(name)
    missing: str | None = why if module is None else module.missing()
    if missing is None:
        return
    _warned.add(name)
    warnings.warn(
        f"correlation_lookup: the {name} kernel is not used ({missing}); a slower backend runs instead",
        stacklevel=5,
    )
