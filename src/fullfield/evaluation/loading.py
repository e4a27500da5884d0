"""Frames and truth of the next pairs, read and copied to the device while a pair is estimated."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.datasets import FlowDataset, Truth

_AHEAD_BYTES = 4 << 30
_FEWEST = 2


def readers() -> int:
    """Return the number of threads that read files; decoding releases the interpreter."""
    return max(2, min(16, (os.cpu_count() or 1) - 1))


@dataclass(frozen=True)
class Loaded:
    """One pair that has been read."""

    index: int
    frame1: Tensor | None
    frame2: Tensor | None
    truth: Truth | None


def read_ahead(
    dataset: FlowDataset,
    indices: Sequence[int],
    *,
    frames: bool = True,
    truth: bool = True,
    pin: bool = False,
    overlapping: bool = True,
) -> Iterator[Loaded]:
    """Yield the pairs ``indices`` in order, with their ``frames`` and ``truth``, read by several threads.

    A frame that two neighbouring pairs share is read once. What is read ahead is held to 4 GiB, or to two pairs where
    those take more; a pair is read only when it is requested without ``overlapping``. With ``pin`` the threads that
    read copy frames into page-locked memory.
    """

    def read(path: Path) -> Tensor:
        frame = dataset.read_frame(path)
        return frame.pin_memory() if pin else frame

    with ThreadPoolExecutor(readers(), thread_name_prefix="fullfield-read") as pool:
        waiting: deque[tuple[int, list[Future[Tensor]], Future[Truth | None] | None]] = deque()
        shared: dict[Path, Future[Tensor]] = {}
        left = deque(indices)
        ahead = _FEWEST if overlapping else 1  # until the size of the first pair is known
        try:
            while left or waiting:
                while left and len(waiting) < ahead:
                    index = left.popleft()
                    record = dataset.records[index]
                    files = record.inputs if frames else ()
                    for path in files:
                        if path not in shared:
                            shared[path] = pool.submit(read, path)
                    waiting.append(
                        (index, [shared[path] for path in files], pool.submit(dataset.truth, index) if truth else None)
                    )
                index, images, true = waiting.popleft()
                pair = [image.result() for image in images]
                known = None if true is None else true.result()
                record = dataset.records[index]
                if pair and pair[0].shape != pair[1].shape:
                    sizes = [f"{image.shape[-1]}×{image.shape[-2]}" for image in pair]
                    raise InputError(f"{record.frame2}: is {sizes[1]}, but {record.frame1} is {sizes[0]}")
                still = {path for other, *_ in waiting for path in dataset.records[other].inputs}
                kept = still | {record.frame2}
                shared = {path: image for path, image in shared.items() if path in kept}
                size = sum(image.nbytes for image in pair) + (0 if known is None else known.flow.nbytes)
                ahead = max(_FEWEST, min(readers() + 1, _AHEAD_BYTES // max(size, 1))) if overlapping else 1
                yield Loaded(index, pair[0] if pair else None, pair[1] if pair else None, known)
        finally:
            for _, images, true in waiting:
                for future in (*images, true):
                    if future is not None:
                        future.cancel()


class OnDevice:
    """Pairs with their frames on a device; with ``ahead``, a GPU copies the next (pinned) pair before its turn."""

    def __init__(self, pairs: Iterable[Loaded], device: torch.device, *, ahead: bool = True) -> None:
        self._pairs, self._device = pairs, device
        on_gpu = ahead and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._ahead: tuple[Tensor, Tensor] | None = None

    def __iter__(self) -> Iterator[tuple[Loaded, Tensor, Tensor]]:
        """Yield each pair and its frames [1, 3, H, W], ready for the device's current stream."""
        pairs = iter(self._pairs)
        following = next(pairs, None)
        while following is not None:
            present, frames = following, self._ahead or self._copied(following)
            following, self._ahead = next(pairs, None), None
            if self._stream is not None:
                here = torch.cuda.current_stream(self._device)
                here.wait_stream(self._stream)
                for frame in frames:
                    frame.record_stream(here)
                if following is not None:
                    self._ahead = self._copied(following)
            yield present, *frames
            del present, frames

    def drop(self) -> None:
        """Free the memory of the next pair, which is copied again at its turn."""
        self._ahead = None

    def _copied(self, pair: Loaded) -> tuple[Tensor, Tensor]:
        if pair.frame1 is None or pair.frame2 is None:
            raise RuntimeError(f"pair {pair.index} was read without its frames")
        with torch.cuda.stream(self._stream):
            first, second = (frame.to(self._device, non_blocking=True) for frame in (pair.frame1, pair.frame2))
            return first[None], second[None]
