"""Padding of arrays on the device, several in one launch. Never waits for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import structures

LIBRARIES = Libraries("padding kernels")
_SOURCE = Path(__file__).with_name("padding.cu")
_DECLARED = structures(_SOURCE)
_Batch, _COPIED = launching.batch(_DECLARED["PaddingParams"]), _DECLARED.number("COPIED")


def supports(device: torch.device) -> str | None:
    """Return None if the kernel runs on ``device``, else the reason."""
    return launching.why_not(device)


@functools.cache
def source() -> Source:
    """Return the source of the kernel."""
    return Source(launching.read_source(launching.BATCHES, _SOURCE))


class Padding:
    """Prepared launches that fill ``rooms``, 1-D tensors, from arrays of other lengths."""

    def __init__(self, rooms: Sequence[Tensor]) -> None:
        self._rooms = list(rooms)
        self._launches: list[tuple[Any, list[int]]] = []
        for begin in range(0, len(rooms), launching.MOST_PROBLEMS):
            batch, some = _Batch(), self._rooms[begin : begin + launching.MOST_PROBLEMS]
            for p, room in zip(batch.each, some, strict=False):
                p.to, p.room, p.bytes = room.data_ptr(), room.numel(), room.itemsize
            self._launches.append((batch, [-(-room.numel() // _COPIED) for room in some]))

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        """Copy each array and repeat its last number behind it; an empty one changes nothing."""
        kernels = launching.kernels(LIBRARIES, source(), arrays[0].get_device())
        given = iter(arrays)
        for batch, blocks in self._launches:
            for p, array in zip(batch.each[: len(blocks)], given, strict=False):
                p.from_, p.count = array.data_ptr(), array.numel()
            kernels.launch_batch("pad", batch, blocks)
