"""What a backend of the correlation lookup is: a few functions and a prepared pair.

A backend is a module with

``supports(request) -> str | None``
    As :class:`fullfield.ops.backends.Backends` asks.
``prepare(request, fmap1, maps) -> Prepared``
    Bring a pair into the backend's layout. ``maps`` are all levels, or the finest alone if the module says
    ``POOLS = True`` and ``request.pooled``: then the backend pools by itself.
``restore(request, state) -> Prepared``
    The same pair from ``Prepared.state``, a flat tuple of tensors: what a compiled graph carries between operators.
``empty_state(request, like) -> tuple[Tensor, ...]``
    Uninitialised tensors with the shapes, dtypes and strides of that state, made by ``like.new_empty``; only
    arithmetic on sizes, for they may be symbolic.

A backend whose pairs keep products between lookups where ``request.reuse`` is not False says ``REUSES = True``.

A state shares no memory with the maps it was made from. Autocast may be on around any of these calls.
Backends never import each other. Levels of size zero and empty batches reach them and must give zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

FEATURES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # dtypes of feature maps
Precision = str  # "highest", "high" or "medium": torch.get_float32_matmul_precision()


@dataclass(frozen=True)
class Request:
    """Everything that decides which backend serves a pair and how."""

    batch: int
    channels: int
    size1: tuple[int, int]
    """H1, W1: source pixels."""
    sizes2: tuple[tuple[int, int], ...]
    """H2, W2 of every level, finest first; may be zero."""
    radius: int
    dtype: torch.dtype
    """Of the features."""
    device: torch.device
    grad: bool = False
    """Whether a backward may follow."""
    pooled: bool = False
    """Whether the levels are the repeated 2×2 average pooling of the finest."""
    precision: Precision = "highest"
    reuse: bool | None = False
    """Whether lookups keep products for the next ones of the pair; None: if the backend can."""

    @property
    def levels(self) -> int:
        return len(self.sizes2)

    @property
    def side(self) -> int:
        """Taps along one side of a window."""
        return 2 * self.radius + 1

    @property
    def out_channels(self) -> int:
        return self.levels * self.side**2

    @property
    def accumulate_dtype(self) -> torch.dtype:
        """Of products, blends and gradient accumulators."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


@dataclass
class Gradients:
    """Accumulators of one backward pass, in whatever layout their backend likes; None where there is nothing."""

    fmap1: Tensor | None
    levels: list[Tensor] | None
    wanted: tuple[bool, bool] = (True, True)
    """Whether fmap1's and fmap2's gradients are asked for."""


class Prepared(ABC):
    """A pair of feature maps in a backend's layout. Any number of lookups may share it, at once too, and none changes
    what another returns."""

    def __init__(self, request: Request, state: tuple[Tensor, ...]) -> None:
        self.request = request
        self.state = state

    @abstractmethod
    def lookup(self, coords: Tensor, out_dtype: torch.dtype, channels_last: bool) -> Tensor:
        """[B, L·(2r+1)², H1, W1] of ``out_dtype`` for checked coords [B, 2, H1, W1]; never part of a graph."""

    @abstractmethod
    def backward(self, grad_out: Tensor, coords: Tensor, grads: Gradients, coords_grad: bool) -> Tensor | None:
        """Add one lookup's share to ``grads`` in place; return the gradient of ``coords`` if it is wanted.

        ``grad_out`` has the shape and dtype of the lookup, any strides.
        """

    def accumulators(self, fmap1: bool, levels: bool) -> Gradients:
        """Zeroed accumulators for what is wanted. By default in the layout of a state that holds fmap1, then maps."""

        def zeros(like: Tensor) -> Tensor:
            return torch.zeros_like(like, dtype=self.request.accumulate_dtype)

        return Gradients(
            zeros(self.state[0]) if fmap1 else None,
            [zeros(level) for level in self.state[1:]] if levels else None,
            (fmap1, levels),
        )

    def gradients(self, grads: Gradients) -> Gradients:
        """What was accumulated, as [B, C, H, W] tensors of the accumulating dtype: fmap1, and every level.

        Called once, at the end of a pass; the result may reuse the accumulators' memory.
        """
        return grads


def empty_out(request: Request, like: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """An uninitialised lookup result in the layout asked for."""
    shape = (request.batch, request.out_channels, *request.size1)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=layout)


def laid_out(out: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """``out`` in the dtype and layout asked for, copied only where it differs."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return out.to(dtype).contiguous(memory_format=layout)


def as_written(device: torch.device) -> AbstractContextManager[object]:
    """Inside, products keep the dtypes of their operands: no autocast, and no graph."""
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    if torch.amp.autocast_mode.is_autocast_available(device.type):
        stack.enter_context(torch.autocast(device.type, enabled=False))
    return stack
