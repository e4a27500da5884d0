"""What stands in for other people's correlation blocks at run time.

As in the originals, features take part in autocast and the result has the dtype that the original's has: float32 under
autocast, else the features'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.nn import CorrelationPyramid, RAFTCorrBlock, SEARAFTCorrBlock
from fullfield.ops.correlation import backends, correlation_lookup

PYRAMID = "fullfield's CorrelationPyramid"
# Bytes of two feature maps from which on a lean block does not keep them in the kernel's layout.
LEAN_BYTES = 64 << 20


def backend_for(device: torch.device, backend: str | None) -> str | None:
    """The backend asked for; without one the kernel made for the device, which does not give way to a slower one."""
    if backend is not None or device.type == "cpu":
        return backend
    if device.type == "cuda":
        return "cuda"
    raise InputError(f"model: expected it on cpu or cuda, where there are kernels (or a backend), got {device}")


def prepared_features(fmap1: Tensor, fmap2: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """The features as the original's product would see them, and the dtype of its result."""
    kind = fmap1.device.type
    if not torch.is_autocast_enabled(kind) or fmap1.dtype == torch.float64:
        return fmap1, fmap2, fmap1.dtype
    dtype = torch.get_autocast_dtype(kind)
    return fmap1.to(dtype), fmap2.to(dtype), torch.float32


def lookup_pyramid(
    fmap1: Tensor,
    fmap2: Tensor,
    levels: int,
    radius: int,
    backend: str | None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> CorrelationPyramid:
    first, second, dtype = prepared_features(fmap1, fmap2)
    return CorrelationPyramid(
        first,
        second,
        levels,
        radius,
        backend=backend_for(fmap1.device, backend),
        out_dtype=dtype,
        memory_format=memory_format,
    )


@dataclass
class _Arguments:
    corr_levels: int
    corr_radius: int


class RAFTBlock:
    """RAFT's block.

    ``lean`` is for models that have chosen memory over time: large features, which the model keeps anyway, are brought
    into the kernel's layout anew for every lookup instead of being kept in it too. Where they are converted first, or
    part of a graph, they are kept.
    """

    def __init__(
        self, fmap1: Tensor, fmap2: Tensor, levels: int, radius: int, backend: str | None, *, lean: bool = False
    ) -> None:
        first, second, dtype = prepared_features(fmap1, fmap2)
        place = backend_for(fmap1.device, backend)
        self._make = partial(RAFTCorrBlock, first, second, levels, radius, backend=place, out_dtype=dtype)
        large = (first.numel() + second.numel()) * first.element_size() >= LEAN_BYTES
        graph = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
        self._kept = None if lean and large and first is fmap1 and not graph else self._make()
        self._given = (fmap1, fmap2)

    def __call__(self, coords: Tensor) -> Tensor:
        return (self._kept or self._make())(coords)

    @property
    def corrMap(self) -> Tensor:
        """[B, H1·W1, H2·W2] the whole matrix, which GMFlowNet's matching is made of; computed when asked for."""
        fmap1, fmap2 = self._given
        products: Tensor = fmap1.flatten(2).transpose(1, 2) @ fmap2.flatten(2)
        return products / math.sqrt(fmap1.shape[1])


class SEARAFTBlock:
    """SEA-RAFT's block."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, levels: int, radius: int, backend: str | None) -> None:
        first, second, self._dtype = prepared_features(fmap1, fmap2)
        place = backend_for(fmap1.device, backend)
        self._block = SEARAFTCorrBlock(first, second, _Arguments(levels, radius), backend=place)

    def __call__(self, coords: Tensor, dilation: Tensor | None = None) -> Tensor:
        return self._block(coords, dilation).to(self._dtype)


class StoppingBlock:
    """A block that stops pooling maps no larger than the window."""

    def __init__(self, fmap1: Tensor, fmap2: Tensor, levels: int, radius: int, backend: str | None) -> None:
        self._fmap1, second, self._dtype = prepared_features(fmap1, fmap2)
        self._maps = pyramid(second, levels, radius, True)
        self._radius = radius
        self._backend = backend_for(fmap1.device, backend)

    def __call__(self, coords: Tensor) -> Tensor:
        at = coords if coords.dtype == self._fmap1.dtype == torch.float64 else coords.float()
        found = correlation_lookup(self._fmap1, self._maps, at, self._radius, backend=self._backend)
        return found.to(self._dtype)


def stops_here(fmap2: Tensor, levels: int, radius: int) -> bool:
    """Whether one of the maps to be pooled is no larger than the window."""
    shorter = min(fmap2.shape[-2:])
    return any(shorter >> level <= 2 * radius + 1 for level in range(levels - 1))


def require_kernel(device: torch.device, backend: str | None) -> None:
    """Raise unless the device's kernel, or the backend asked for, can run."""
    name = backend_for(device, backend) or "cpu"
    reason = dict(backends(device=device))[name]
    if reason is not None:
        raise InputError(f"model: the backend {name!r} cannot serve it on {device}: {reason}")


def pyramid(fmap2: Tensor, levels: int, radius: int, stops: bool) -> list[Tensor]:
    """``fmap2`` and its halvings; with ``stops``, a map whose shorter side is at most the window's stays as it is."""
    maps = [fmap2]
    for _ in range(levels - 1):
        last = maps[-1]
        keep = stops and min(last.shape[-2:]) <= 2 * radius + 1
        maps.append(last if keep else torch.nn.functional.avg_pool2d(last, 2))
    return maps
