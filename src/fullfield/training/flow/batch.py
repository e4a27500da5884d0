"""Batches of training pairs, and their sources: data sets, mixtures, and batches made ahead by other processes."""

from __future__ import annotations

import math
import multiprocessing.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers_from
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from fullfield import _check
from fullfield._check import InputError
from fullfield.datasets import FlowDataset, FlowSample
from fullfield.ops.consistency import compute_flow_targets_and_mark_inside
from fullfield.training.workers import create_worker_context_and_start_fork_server, ignore_sigint_and_exit_with_parent

PairCounter: TypeAlias = Callable[[int], int]  # from a batch's index to the number of its pairs

T = TypeVar("T")
_Request: TypeAlias = tuple[int, int]  # a batch's index, and how many pairs it has
_AHEAD = 4  # batches a worker


class FlowBatch(NamedTuple):
    """Pairs of frames of one size and their true flow."""

    frame1: Tensor  # [B, 3, H, W] floating, RGB 0 ... 1, display-referred
    frame2: Tensor  # [B, 3, H, W]
    flow: Tensor  # [B, 2, H, W] float32, (x, y), pixels of the first frame; anything where it is not known
    valid: Tensor  # [B, H, W] bool: where the true flow is known
    occluded: Tensor  # [B, H, W] bool: not visible in the second frame; at least what leaves what was cut

    def to(self, device: torch.device, *, non_blocking: bool = False) -> FlowBatch:
        """Return the batch on a device."""
        return FlowBatch(*(tensor.to(device, non_blocking=non_blocking) for tensor in self))


FlowPair: TypeAlias = FlowBatch
"""One pair: the fields of a batch without their batch dimension."""


class PairSource(Protocol):
    """Source that makes or reads pairs.

    A source that reads files may also have ``prefetch(first_batch_index, stride, count_pairs)``, which
    :func:`prefetch_batches_if_possible` calls.

    A loop of R processes calls ``batch(step · R + rank, pair_count)``, so that no two processes see the same pairs and
    no source has to know of processes.
    """

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        """Return ``pair_count`` pairs on the source's device, decided by the seed, ``batch_index`` and ``pair_count``.

        The tensors are new at every call: the next batch is made while this one is still in use.
        """
        ...


def check_batch(batch: FlowBatch) -> None:
    """Check that the shapes and dtypes of a batch fit together."""
    frame = _check.check_tensor(batch.frame1, "source: frame1", ("B", 3, "H", "W"))
    _check.require(frame.is_floating_point(), "source: frame1", "a floating dtype", frame)
    pair_count, _, height, width = frame.shape
    device = frame.device
    _check.check_tensor(
        batch.frame2, "source: frame2", (pair_count, 3, height, width), dtypes=[frame.dtype], device=device
    )
    _check.check_tensor(
        batch.flow, "source: flow", (pair_count, 2, height, width), dtypes=[torch.float32], device=device
    )
    for name in ("valid", "occluded"):
        value = getattr(batch, name)
        _check.check_tensor(value, f"source: {name}", (pair_count, height, width), dtypes=[torch.bool], device=device)


def concatenate_batches(batches: list[FlowBatch]) -> FlowBatch:
    """Join batches of one size."""
    if len(batches) == 1:
        return batches[0]
    return FlowBatch(*(torch.cat(tensors) for tensors in zip(*batches, strict=True)))


def prefetch_batches_if_possible(
    source: PairSource, first_batch_index: int, stride: int, count_pairs: PairCounter
) -> None:
    """Let the source prefetch every ``stride``-th batch from ``first_batch_index`` on.

    ``count_pairs`` returns the number of pairs of each. Nothing happens with a source that does not read ahead.
    """
    prefetch: Callable[[int, int, PairCounter], None] | None = getattr(source, "prefetch", None)
    if prefetch is not None:
        prefetch(first_batch_index, stride, count_pairs)


class PrefetchedBatches(Generic[T]):
    """Results of ``build_batch(batch_index, pair_count)``, built ahead by workers.

    They start at :meth:`start_prefetching_if_workers`. ``build_batch`` must be picklable. Without workers this process
    makes everything on request.
    """

    def __init__(self, build_batch: Callable[[int, int], T], workers: int, *, pin: bool) -> None:
        _check.check_number(workers, "workers", integer=True, low=0, high=1024)
        self._make, self._workers, self._pin = build_batch, workers, pin
        self._coming: Iterator[T] | None = None
        self._next: _Request | None = None
        self._following: Iterator[_Request] = iter(())

    def start_prefetching_if_workers(self, first_batch_index: int, stride: int, count_pairs: PairCounter) -> None:
        """Start to build every ``stride``-th batch from ``first_batch_index`` on; ``count_pairs`` gives its pairs."""

        def iterate_requests() -> Iterator[_Request]:
            return ((n, count_pairs(n)) for n in numbers_from(first_batch_index, stride) if count_pairs(n) > 0)

        if self._workers:
            self._following = iterate_requests()
            self._next = next(self._following)
            self._coming = iter(self._create_loader(iterate_requests()))

    def take_or_build_batch(self, batch_index: int, pair_count: int) -> T:
        """Return the batch; one that was not announced is made now."""
        if self._coming is not None and self._next == (batch_index, pair_count):
            batch = next(self._coming)
            self._next = next(self._following)
            return batch
        return self._make(batch_index, pair_count)

    def _create_loader(self, requests: Iterator[_Request]) -> DataLoader[T]:
        return DataLoader(
            _BatchDataset(self._make),  # type: ignore[arg-type]  # one without a base class
            batch_size=None,
            sampler=requests,  # without an end, and used once
            num_workers=self._workers,
            pin_memory=self._pin,
            multiprocessing_context=create_worker_context_and_start_fork_server(
                type(self).__module__, self._make.__module__
            ),
            prefetch_factor=_AHEAD,
            generator=torch.Generator(),  # else it would take numbers from the training's
            worker_init_fn=partial(ignore_sigint_and_exit_with_parent, multiprocessing.util.get_temp_dir()),
        )


@dataclass(frozen=True)
class _BatchDataset(Generic[T]):
    """Map-style data set of batches for a DataLoader's workers."""

    make: Callable[[int, int], T]

    def __getitem__(self, request: _Request) -> T:
        return self.make(*request)


def collate_flow(samples: Sequence[FlowSample | FlowPair]) -> FlowBatch:
    """Join samples of one size to a batch, for ``DataLoader(dataset, collate_fn=collate_flow)``.

    Takes pairs as data sets give them, or without their batch dimension as
    :func:`cut_or_pad_random_window` does. Where a data set has four true values for a pixel, their mean counts.

    Raises:
        InputError: for samples without truth or of several sizes.
    """
    _check.require(len(samples) > 0, "samples", "one at least", "none")
    pairs = [
        _convert_sample_to_unbatched_pair(sample) if isinstance(sample, FlowSample) else sample for sample in samples
    ]
    sizes = {tuple(pair.frame1.shape[-2:]) for pair in pairs}
    if len(sizes) > 1:
        listed = ", ".join(f"{width}×{height}" for height, width in sorted(sizes))
        raise InputError(f"samples: expected one size, got {listed}; cut windows from them (cut_or_pad_random_window)")
    return FlowBatch(*(torch.stack(tensors) for tensors in zip(*pairs, strict=True)))


def cut_or_pad_random_window(sample: FlowSample, size: tuple[int, int], seed: Sequence[int] = (0,)) -> FlowPair:
    """Cut a random window of ``size`` (height, width) from a pair, without a batch dimension.

    A frame that is smaller is repeated outwards; what is added is not valid. A pixel whose flow leads out of the window
    counts as occluded. The same numbers ``seed`` give the same place. InputError for a sample without truth.
    """
    return _cut_or_pad_random_window_of_pair(_convert_sample_to_unbatched_pair(sample), size, seed)


def _cut_or_pad_random_window_of_pair(pair: FlowPair, size: tuple[int, int], seed: Sequence[int]) -> FlowPair:
    height, width = pair.frame1.shape[-2:]
    below, right = max(0, size[0] - height), max(0, size[1] - width)
    draw = np.random.default_rng(tuple(seed))
    top, left = (
        int(draw.integers(0, max(0, length - side) + 1)) for length, side in ((height, size[0]), (width, size[1]))
    )

    def cut_tensor(tensor: Tensor, repeat: bool) -> Tensor:
        tensor = tensor[..., top : top + size[0], left : left + size[1]]
        if not (below or right):
            return tensor.clone()
        if repeat:
            return functional.pad(tensor[None], (0, right, 0, below), mode="replicate")[0]
        return functional.pad(tensor, (0, right, 0, below))

    cut = FlowPair(
        *(cut_tensor(tensor, name.startswith("frame")) for name, tensor in zip(pair._fields, pair, strict=True))
    )
    _, _, inside = compute_flow_targets_and_mark_inside(cut.flow[None])
    return cut._replace(occluded=cut.occluded | (cut.valid & ~inside[0]))


def _convert_sample_to_unbatched_pair(sample: FlowSample) -> FlowPair:
    """Return a sample as a pair with the truth that a loss takes."""
    if sample.flow is None:
        raise InputError(f"{sample.name}: has no true flow to train on")
    flow = sample.flow.float()
    if flow.ndim == 4:
        flow = flow.mean(0)
    finite = flow.isfinite().all(0)
    valid = finite if sample.valid is None else finite & sample.valid
    occluded = torch.zeros_like(valid) if sample.occluded is None else sample.occluded
    return FlowPair(sample.frame1, sample.frame2, torch.where(valid, flow, 0.0), valid, occluded)


class DatasetPairs:
    """Windows of a data set's pairs, read by workers.

    The pairs of a batch are drawn by its index, without one twice where there are enough.

    Args:
        dataset: any of :mod:`fullfield.datasets`.
        size: (height, width) of the windows, pixels.
        min_size: (height, width) that the windows of a batch may shrink to where frames are smaller than ``size``, so
            that nothing has to be added; by default ``size``: smaller frames are repeated outwards.
        seed: of the draws.
        device: device of the batches.
        workers: processes that read; 0: this one does.
    """

    def __init__(
        self,
        dataset: FlowDataset,
        size: tuple[int, int],
        *,
        min_size: tuple[int, int] | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        min_size = size if min_size is None else min_size
        for side, small in zip(size, min_size, strict=True):
            _check.check_number(side, "size", integer=True, low=8)
            _check.check_number(small, "min_size", integer=True, low=8, high=side)
        self.device = _check.resolve_available_device(device)
        with_truth = [index for index, record in enumerate(dataset.records) if record.flow is not None]
        if not with_truth:
            raise InputError(f"{dataset.root}: {dataset.name} has no true flow to train on")
        windows = _WindowDataset(dataset, with_truth, size, min_size, seed)
        self._windows = PrefetchedBatches(windows, workers, pin=self.device.type == "cuda")

    def prefetch(self, first_batch_index: int, stride: int, count_pairs: PairCounter) -> None:
        """Begin to read every ``stride``-th batch from ``first_batch_index`` on; ``count_pairs`` gives its pairs."""
        self._windows.start_prefetching_if_workers(first_batch_index, stride, count_pairs)

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        """Return ``pair_count`` windows; those that :meth:`prefetch` did not announce are read now."""
        return self._windows.take_or_build_batch(batch_index, pair_count).to(self.device, non_blocking=True)


@dataclass(frozen=True)
class _WindowDataset:
    """Windows of some pairs of a data set, by a batch's index and number of pairs."""

    dataset: FlowDataset
    with_truth: list[int]
    size: tuple[int, int]
    min_size: tuple[int, int]
    seed: int

    def __call__(self, batch_index: int, pair_count: int) -> FlowBatch:
        draw = np.random.default_rng((self.seed, batch_index, pair_count))
        selected = draw.choice(len(self.with_truth), pair_count, replace=pair_count > len(self.with_truth)).tolist()
        windows = [
            self._cut_window_within_size_limits(self.dataset[self.with_truth[pair]], (self.seed, batch_index, slot))
            for slot, pair in enumerate(selected)
        ]
        sizes = {tuple(window.frame1.shape[1:]) for window in windows}
        if len(sizes) > 1:
            height, width = (min(sides) for sides in zip(*sizes, strict=True))
            windows = [
                _cut_or_pad_random_window_of_pair(window, (height, width), (self.seed, batch_index, slot, 1))
                for slot, window in enumerate(windows)
            ]
        return collate_flow(windows)

    def _cut_window_within_size_limits(self, sample: FlowSample, seed: Sequence[int]) -> FlowPair:
        """Cut a window as large as the limits and the frames allow."""
        sides = zip(self.size, self.min_size, sample.frame1.shape[1:], strict=True)
        height, width = (min(side, max(small, have)) for side, small, have in sides)
        return cut_or_pad_random_window(sample, (height, width), seed)


class Mixture:
    """Source that mixes several by weight: every batch has the due share of each, within one pair.

    Each source makes its share rounded up, and a surplus pair is dropped: ``PairGenerator`` numbers its pairs by index
    times count, so that with changing counts some would be repeated.

    Args:
        sources: sources of pairs of one size, on one device, and their weights.
    """

    def __init__(self, sources: Sequence[tuple[PairSource, float]]) -> None:
        _check.require(len(sources) > 0, "sources", "one source at least", "none")
        for _, weight in sources:
            _check.check_number(weight, "sources", above=0.0)
        self._sources = [source for source, _ in sources]
        total = sum(weight for _, weight in sources)
        self._shares = [weight / total for _, weight in sources]
        self._bounds = np.cumsum(self._shares)

    def count_pairs_by_source(self, batch_index: int, pair_count: int) -> list[int]:
        """Return how many pairs of each source are in a batch."""
        # By the golden ratio, evenly spread over the batches, so that rare sources have their share too.
        first = (batch_index * 0.6180339887498949) % 1.0
        positions = (np.arange(pair_count) + first) / pair_count
        sources = np.minimum(np.searchsorted(self._bounds, positions, side="right"), len(self._sources) - 1)
        return [int(number) for number in np.bincount(sources, minlength=len(self._sources))]

    def prefetch(self, first_batch_index: int, stride: int, count_pairs: PairCounter) -> None:
        """Let the sources that can prefetch do so for the batches that will be requested."""
        for number, source in enumerate(self._sources):
            prefetch_batches_if_possible(
                source, first_batch_index, stride, partial(self._count_pairs_to_prefetch, number, count_pairs)
            )

    def _count_pairs_to_prefetch(self, source_index: int, count_pairs: PairCounter, batch_index: int) -> int:
        batch_size = count_pairs(batch_index)
        retained_count = self.count_pairs_by_source(batch_index, batch_size)[source_index]
        return self._round_up_source_pair_count(source_index, batch_size, retained_count)

    def _round_up_source_pair_count(self, source_index: int, batch_pair_count: int, retained_count: int) -> int:
        """Return how many pairs to request of a source for a batch that keeps ``retained_count`` of them."""
        return (
            max(retained_count, math.ceil(self._shares[source_index] * batch_pair_count - 1e-6))
            if retained_count
            else 0
        )

    def batch(self, batch_index: int, pair_count: int) -> FlowBatch:
        """Return ``pair_count`` pairs, source by source."""
        batches = []
        for number, (source, some) in enumerate(
            zip(self._sources, self.count_pairs_by_source(batch_index, pair_count), strict=True)
        ):
            if some:
                batch = source.batch(batch_index, self._round_up_source_pair_count(number, pair_count, some))
                batches.append(FlowBatch(*(tensor[:some] for tensor in batch)))
        return concatenate_batches(batches)
