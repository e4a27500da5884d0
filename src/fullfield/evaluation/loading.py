"""Frames and truth of the next pairs, read and copied to the device while a pair is estimated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield._read_ahead import ReadAhead, choose_reader_thread_count
from fullfield.datasets import FlowDataset
from fullfield.datasets.base import TrueFlow
from fullfield.estimators._frames import fill_unknown_pixels

_MAX_BYTES = 4 << 30
_MIN_ITEMS = 3  # a pair: frames and truth


@dataclass(frozen=True)
class LoadedPair:
    """One pair that has been read."""

    index: int
    frame1: Tensor | None
    frame2: Tensor | None
    truth: TrueFlow | None


def iterate_pairs_ahead(
    dataset: FlowDataset,
    indices: Sequence[int],
    *,
    frames: bool = True,
    truth: bool = True,
    pin_memory: bool = False,
    overlapping: bool = True,
) -> Iterator[LoadedPair]:
    """Yield the pairs ``indices`` in order, with their ``frames`` and ``truth``, read by several threads.

    A frame of two neighbouring pairs is read once. Pairs are read ahead within 4 GiB, or one pair more where that takes
    more; without ``overlapping`` a pair is read when it is requested. With ``pin_memory`` the threads that read copy
    frames into page-locked memory.
    """

    def read_key(key: Path | int) -> Tensor | TrueFlow | None:
        if isinstance(key, int):
            return dataset.read_truth(key)
        frame, valid = dataset.read_frame_and_valid_mask(key)
        frame = fill_unknown_pixels(frame, valid, str(key))
        return frame.pin_memory() if pin_memory else frame

    def list_keys(index: int) -> list[Path | int]:
        return [*(dataset.records[index].input_files if frames else ()), *([index] if truth else [])]

    with ReadAhead(
        read_key, _count_item_bytes, threads=choose_reader_thread_count(), max_bytes=_MAX_BYTES, min_items=_MIN_ITEMS
    ) as reader:
        if overlapping:
            reader.enqueue_keys_and_start_reads(key for index in indices for key in list_keys(index))
        images: dict[Path | int, Tensor] = {}
        for index, following in zip_longest(indices, indices[1:]):
            record = dataset.records[index]
            if not overlapping:
                reader.enqueue_keys_and_start_reads(key for key in list_keys(index) if key not in images)
            for path in record.input_files if frames else ():
                if path not in images:
                    images[path] = cast(Tensor, reader.wait_and_take_item(path))
            pair = [images[path] for path in (record.input_files if frames else ())]
            true = cast("TrueFlow | None", reader.wait_and_take_item(index)) if truth else None
            if pair and pair[0].shape != pair[1].shape:
                sizes = [f"{image.shape[-1]}×{image.shape[-2]}" for image in pair]
                raise InputError(f"{record.frame2}: is {sizes[1]}, but {record.frame1} is {sizes[0]}")
            retained = () if following is None else dataset.records[following].input_files
            images = {path: image for path, image in images.items() if path in retained}
            yield LoadedPair(index, pair[0] if pair else None, pair[1] if pair else None, true)


def _count_item_bytes(item: Tensor | TrueFlow | None) -> int:
    """Return the memory of a frame or of truth."""
    if isinstance(item, Tensor):
        return item.nbytes
    return 0 if item is None else item.flow.nbytes


class DevicePairs:
    """Pairs with their frames on a device; with ``ahead``, a GPU copies the next (pinned) pair before its turn."""

    def __init__(self, pairs: Iterable[LoadedPair], device: torch.device, *, ahead: bool = True) -> None:
        self._pairs, self._device = pairs, device
        on_gpu = ahead and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._ahead: tuple[Tensor, Tensor] | None = None

    def __iter__(self) -> Iterator[tuple[LoadedPair, Tensor, Tensor]]:
        """Yield each pair and its frames [1, 3, H, W], ready for the device's current stream."""
        pairs = iter(self._pairs)
        following = next(pairs, None)
        while following is not None:
            present, frames = following, self._ahead or self._copy_to_device(following)
            following, self._ahead = next(pairs, None), None
            if self._stream is not None:
                current = torch.cuda.current_stream(self._device)
                current.wait_stream(self._stream)
                for frame in frames:
                    frame.record_stream(current)
                if following is not None:
                    self._ahead = self._copy_to_device(following)
            yield present, *frames
            del present, frames

    def free_prefetched_pair(self) -> None:
        """Free the memory of the next pair, which is copied again at its turn."""
        self._ahead = None

    def _copy_to_device(self, pair: LoadedPair) -> tuple[Tensor, Tensor]:
        if pair.frame1 is None or pair.frame2 is None:
            raise RuntimeError(f"pair {pair.index} was read without its frames")
        with torch.cuda.stream(self._stream):
            first, second = (frame.to(self._device, non_blocking=True) for frame in (pair.frame1, pair.frame2))
            return first[None], second[None]
