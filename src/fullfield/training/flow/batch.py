"""What a step of training sees, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from fullfield import _check

Counts: TypeAlias = Callable[[int], int]


class FlowBatch(NamedTuple):
    """Pairs of frames of one size and their true flow."""

    frame1: Tensor  # [B, 3, H, W] floating, RGB 0 ... 1, display-referred
    frame2: Tensor  # [B, 3, H, W]
    flow: Tensor  # [B, 2, H, W] float32, (x, y), pixels of the first frame; anything where it is not known
    valid: Tensor  # [B, H, W] bool: where the true flow is known
    occluded: Tensor  # [B, H, W] bool: not visible in the second frame; all False where a data set does not say

    def to(self, device: torch.device, *, non_blocking: bool = False) -> FlowBatch:
        """The same on a device."""
        return FlowBatch(*(part.to(device, non_blocking=non_blocking) for part in self))


class PairSource(Protocol):
    """What makes or reads pairs.

    A source that reads files may also have ``ahead(index, stride, counts)``, see :func:`tell`.

    A loop of R processes calls ``batch(step · R + rank, count)``, so that no two processes see the same pairs and no
    source has to know of processes.
    """

    def batch(self, index: int, count: int) -> FlowBatch:
        """``count`` pairs on the source's device: the same for the same seed, ``index`` and ``count``.

        The tensors are new at every call: the next batch is made while this one is still in use.
        """
        ...


def check_batch(batch: FlowBatch, name: str = "source") -> FlowBatch:
    """The batch, if its shapes and dtypes fit together.

    Raises:
        InputError: naming the part that does not fit.
    """
    frame = _check.tensor(batch.frame1, f"{name}: frame1", ("B", 3, "H", "W"))
    _check.require(frame.is_floating_point(), f"{name}: frame1", "a floating dtype", frame)
    count, _, height, width = frame.shape
    place = frame.device
    _check.tensor(batch.frame2, f"{name}: frame2", (count, 3, height, width), dtypes=[frame.dtype], device=place)
    _check.tensor(batch.flow, f"{name}: flow", (count, 2, height, width), dtypes=[torch.float32], device=place)
    for part in ("valid", "occluded"):
        value = getattr(batch, part)
        _check.tensor(value, f"{name}: {part}", (count, height, width), dtypes=[torch.bool], device=place)
    return batch


def join(batches: list[FlowBatch]) -> FlowBatch:
    """Several batches of one size as one."""
    if len(batches) == 1:
        return batches[0]
    return FlowBatch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def tell(source: PairSource, index: int, stride: int, counts: Counts) -> None:
    """Announce the batches ``index``, ``index + stride`` and so on, of ``counts(index)`` pairs each.

    Nothing happens with a source that does not read ahead.
    """
    ahead: Callable[[int, int, Counts], None] | None = getattr(source, "ahead", None)
    if ahead is not None:
        ahead(index, stride, counts)
