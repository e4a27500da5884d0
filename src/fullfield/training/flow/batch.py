"""Batches of training pairs, sources of pairs, and batches made ahead by other processes."""

from __future__ import annotations

import multiprocessing.util
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as numbers_from
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from fullfield import _check
from fullfield.training.workers import end_with_the_parent, worker_context

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Counts: TypeAlias = Callable[[int], int]

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
        return FlowBatch(*(part.to(device, non_blocking=non_blocking) for part in self))


class PairSource(Protocol):
    """Source that makes or reads pairs.

    A source that reads files may also have ``ahead(index, stride, counts)``, see :func:`announce`.

    A loop of R processes calls ``batch(step · R + rank, count)``, so that no two processes see the same pairs and no
    source has to know of processes.
    """

    def batch(self, index: int, count: int) -> FlowBatch:
        """Return ``count`` pairs on the source's device, decided by the seed, ``index`` and ``count``.

        The tensors are new at every call: the next batch is made while this one is still in use.
        """
        ...


def check_batch(batch: FlowBatch, name: str = "source") -> FlowBatch:
    """Return the batch if its shapes and dtypes fit together.

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
    """Join batches of one size."""
    if len(batches) == 1:
        return batches[0]
    return FlowBatch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def announce(source: PairSource, index: int, stride: int, counts: Counts) -> None:
    """Announce the batches ``index``, ``index + stride`` and so on, of ``counts(index)`` pairs each.

    Nothing happens with a source that does not read ahead.
    """
    ahead: Callable[[int, int, Counts], None] | None = getattr(source, "ahead", None)
    if ahead is not None:
        ahead(index, stride, counts)


class Announced(Generic[T]):
    """Results of ``make(index, count)``, made ahead by workers once :meth:`begin` has announced them.

    Args:
        make: goes to the workers: a picklable function of a batch's index and its count of pairs.
        workers: processes; 0: this one makes everything on request.
        pin: whether to return tensors in pinned memory.
    """

    def __init__(self, make: Callable[[int, int], T], workers: int, *, pin: bool) -> None:
        _check.number(workers, "workers", integer=True, low=0, high=1024)
        self._make, self._workers, self._pin = make, workers, pin
        self._coming: Iterator[T] | None = None
        self._next: _Request | None = None
        self._following: Iterator[_Request] = iter(())

    def begin(self, index: int, stride: int, counts: Counts) -> None:
        """Start to make batches ``index``, ``index + stride`` and so on, of ``counts(index)`` pairs each."""

        def requests() -> Iterator[_Request]:
            return ((n, counts(n)) for n in numbers_from(index, stride) if counts(n) > 0)

        if self._workers:
            self._following = requests()
            self._next = next(self._following)
            self._coming = iter(self._loader(requests()))

    def take(self, index: int, count: int) -> T:
        """Return the batch; one that was not announced is made now."""
        if self._coming is not None and self._next == (index, count):
            made = next(self._coming)
            self._next = next(self._following)
            return made
        return self._make(index, count)

    def _loader(self, requests: Iterator[_Request]) -> DataLoader[T]:
        from torch.utils.data import DataLoader

        return DataLoader(
            _Made(self._make),  # type: ignore[arg-type]  # one without a base class
            batch_size=None,
            sampler=requests,  # without an end, and used once
            num_workers=self._workers,
            pin_memory=self._pin,
            multiprocessing_context=worker_context(type(self).__module__, self._make.__module__),
            prefetch_factor=_AHEAD,
            generator=torch.Generator(),  # else it would take numbers from the training's
            worker_init_fn=partial(end_with_the_parent, multiprocessing.util.get_temp_dir()),
        )


class _Made(Generic[T]):
    """Map-style data set of batches for a DataLoader's workers."""

    def __init__(self, make: Callable[[int, int], T]) -> None:
        self._make = make

    def __getitem__(self, request: _Request) -> T:
        return self._make(*request)
