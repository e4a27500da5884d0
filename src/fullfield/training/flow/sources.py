"""Pairs from data sets, and from several sources by weight."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count as numbers_from
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets import FlowDataset, FlowSample
from fullfield.training.flow.batch import Counts, FlowBatch, PairSource, join, tell

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_Place: TypeAlias = tuple[int, tuple[int, int, int]]  # which pair, and the numbers that its window is drawn from

_AHEAD = 4  # batches a worker
_GOLDEN = 0.6180339887498949


def collate_flow(samples: Sequence[FlowSample | FlowBatch]) -> FlowBatch:
    """Samples of one size as a batch, for ``DataLoader(dataset, collate_fn=collate_flow)``.

    Takes pairs as data sets give them, or without their batch dimension as :func:`cut_window` does. Where a data set
    has four true values for a pixel, their mean counts.

    Raises:
        InputError: for samples without truth or of several sizes.
    """
    _check.require(len(samples) > 0, "samples", "one at least", "none")
    pairs = [_pair(sample) if isinstance(sample, FlowSample) else sample for sample in samples]
    sizes = {tuple(pair.frame1.shape[-2:]) for pair in pairs}
    if len(sizes) > 1:
        told = ", ".join(f"{width}×{height}" for height, width in sorted(sizes))
        raise InputError(f"samples: expected one size, got {told}; cut windows from them (cut_window)")
    return FlowBatch(*(torch.stack(parts) for parts in zip(*pairs, strict=True)))


def cut_window(sample: FlowSample, size: tuple[int, int], seed: Sequence[int] = (0,)) -> FlowBatch:
    """A window of ``size`` (height, width) at a random place of a pair, without a batch dimension.

    A frame that is smaller is repeated outwards; what is added is not valid. The same numbers ``seed`` give the same
    place.

    Raises:
        InputError: for a sample without truth.
    """
    pair = _pair(sample)
    height, width = pair.frame1.shape[-2:]
    below, right = max(0, size[0] - height), max(0, size[1] - width)
    draw = np.random.default_rng(tuple(seed))
    top, left = (int(draw.integers(0, max(0, have - want) + 1)) for have, want in ((height, size[0]), (width, size[1])))

    def window(part: Tensor, repeat: bool) -> Tensor:
        part = part[..., top : top + size[0], left : left + size[1]]
        if not (below or right):
            return part.clone()
        if repeat:
            return functional.pad(part[None], (0, right, 0, below), mode="replicate")[0]
        return functional.pad(part, (0, right, 0, below))

    return FlowBatch(*(window(part, name.startswith("frame")) for name, part in zip(pair._fields, pair, strict=True)))


def _pair(sample: FlowSample) -> FlowBatch:
    """The truth as a loss wants it."""
    if sample.flow is None:
        raise InputError(f"{sample.name}: has no true flow to train on")
    flow = sample.flow.float()
    if flow.ndim == 4:
        flow = flow.mean(0)
    known = flow.isfinite().all(0)
    valid = known if sample.valid is None else known & sample.valid
    occluded = torch.zeros_like(valid) if sample.occluded is None else sample.occluded
    return FlowBatch(sample.frame1, sample.frame2, torch.where(valid, flow, 0.0), valid, occluded)


class DatasetPairs:
    """Windows of a data set's pairs, read by workers.

    The pairs of a batch are drawn by its index, without one twice where there are enough.

    Args:
        dataset: any of :mod:`fullfield.datasets`.
        size: (height, width) of the windows, pixels.
        seed: of the draws.
        device: where batches are wanted.
        workers: processes that read; 0: this one does.

    Raises:
        InputError: for a data set without truth.
    """

    def __init__(
        self,
        dataset: FlowDataset,
        size: tuple[int, int],
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        for side in size:
            _check.number(side, "size", integer=True, low=8)
        _check.number(workers, "workers", integer=True, low=0, high=1024)
        self.dataset, self.size, self.seed = dataset, size, seed
        self.device, self._workers = _check.device(device), workers
        self._known = [index for index, record in enumerate(dataset.records) if record.flow is not None]
        if not self._known:
            raise InputError(f"{dataset.root}: {dataset.name} has no true flow to train on")
        self._coming: Iterator[FlowBatch] | None = None
        self._next: tuple[int, int] | None = None  # index and count that come next
        self._following: Iterator[tuple[int, int]] = iter(())

    def ahead(self, index: int, stride: int, counts: Counts) -> None:
        """Begin to read the batches ``index``, ``index + stride`` and so on, of ``counts(index)`` pairs each."""

        def asked() -> Iterator[tuple[int, int]]:
            return ((n, counts(n)) for n in numbers_from(index, stride) if counts(n) > 0)

        self._following = asked()
        self._next = next(self._following)
        self._coming = iter(self._loader(asked()))

    def batch(self, index: int, count: int) -> FlowBatch:
        """``count`` windows. Those that were not announced by :meth:`ahead` are read here and now."""
        if self._coming is not None and self._next == (index, count):
            batch = next(self._coming)
            self._next = next(self._following)
        else:
            batch = collate_flow([_cut(self.dataset, self.size, place) for place in self._places(index, count)])
        return batch.to(self.device, non_blocking=True)

    def _places(self, index: int, count: int) -> list[_Place]:
        draw = np.random.default_rng((self.seed, index, count))
        chosen = draw.choice(len(self._known), count, replace=count > len(self._known)).tolist()
        return [(self._known[pair], (self.seed, index, slot)) for slot, pair in enumerate(chosen)]

    def _loader(self, asked: Iterator[tuple[int, int]]) -> DataLoader[FlowBatch]:
        from torch.utils.data import DataLoader

        more: dict[str, Any] = {}
        if self._workers:
            # Forks of this process would inherit CUDA and its threads; of a server that has imported this once, not.
            served = "forkserver" in multiprocessing.get_all_start_methods()
            start = multiprocessing.get_context("forkserver" if served else "spawn")
            if served:
                start.set_forkserver_preload([__name__])
            more = {"multiprocessing_context": start, "prefetch_factor": _AHEAD, "worker_init_fn": _on_one_thread}
        return DataLoader(
            _Windows(self.dataset, self.size),  # type: ignore[arg-type]  # one without a base class
            batch_sampler=_Plan(partial(map, lambda ask: self._places(*ask), asked)),
            num_workers=self._workers,
            collate_fn=collate_flow,
            pin_memory=self.device.type == "cuda",
            **more,
        )


class _Plan:
    """Batches of places, without an end."""

    def __init__(self, places: Callable[[], Iterator[list[_Place]]]) -> None:
        self._places = places

    def __iter__(self) -> Iterator[list[_Place]]:
        return self._places()


class _Windows:
    """Windows by their place, as a DataLoader's workers want them."""

    def __init__(self, dataset: FlowDataset, size: tuple[int, int]) -> None:
        self._dataset, self._size = dataset, size

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: _Place) -> FlowBatch:
        return _cut(self._dataset, self._size, place)


def _cut(dataset: FlowDataset, size: tuple[int, int], place: _Place) -> FlowBatch:
    return cut_window(dataset[place[0]], size, place[1])


def _on_one_thread(_: int) -> None:
    torch.set_num_threads(1)


class Mixture:
    """Several sources by weight: every batch has of each the share it should, within one pair.

    Args:
        parts: sources of pairs of one size, on one device, and their weights.

    Raises:
        InputError: for weights that are not positive.
    """

    def __init__(self, parts: Sequence[tuple[PairSource, float]]) -> None:
        _check.require(len(parts) > 0, "parts", "one source at least", "none")
        for _, weight in parts:
            _check.number(weight, "parts", above=0.0)
        self._sources = [source for source, _ in parts]
        total = sum(weight for _, weight in parts)
        self._bounds = np.cumsum([weight / total for _, weight in parts])

    def counts(self, index: int, count: int) -> list[int]:
        """How many pairs of each source are in a batch."""
        first = (index * _GOLDEN) % 1.0  # evenly spread over the batches, so that rare sources have their share too
        places = (np.arange(count) + first) / count
        of = np.minimum(np.searchsorted(self._bounds, places, side="right"), len(self._sources) - 1)
        return [int(found) for found in np.bincount(of, minlength=len(self._sources))]

    def ahead(self, index: int, stride: int, counts: Counts) -> None:
        """Tell the sources that can read ahead what will be asked of them."""
        for place, source in enumerate(self._sources):
            tell(source, index, stride, partial(self._count_of, place, counts))

    def _count_of(self, place: int, counts: Counts, index: int) -> int:
        return self.counts(index, counts(index))[place]

    def batch(self, index: int, count: int) -> FlowBatch:
        """``count`` pairs, those of one source after those of the one before."""
        asked = zip(self._sources, self.counts(index, count), strict=True)
        return join([source.batch(index, some) for source, some in asked if some])
