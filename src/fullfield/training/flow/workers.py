"""Batches that were announced, made by other processes before they are asked for."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from itertools import count as numbers_from
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import torch

from fullfield import _check
from fullfield.training.flow.batch import Counts

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

T = TypeVar("T")
_Ask: TypeAlias = tuple[int, int]  # a batch's index, and how many pairs it has

_AHEAD = 4  # batches a worker


class Announced(Generic[T]):
    """What ``make(index, count)`` gives, made ahead by workers where :meth:`begin` said what comes.

    Args:
        make: goes to the workers: a picklable function of a batch's index and its count of pairs.
        workers: processes; 0: this one makes everything when it is asked for.
        pin: whether tensors are wanted in pinned memory.
    """

    def __init__(self, make: Callable[[int, int], T], workers: int, *, pin: bool) -> None:
        _check.number(workers, "workers", integer=True, low=0, high=1024)
        self._make, self._workers, self._pin = make, workers, pin
        self._coming: Iterator[T] | None = None
        self._next: _Ask | None = None
        self._following: Iterator[_Ask] = iter(())

    def begin(self, index: int, stride: int, counts: Counts) -> None:
        """Begin with the batches ``index``, ``index + stride`` and so on, of ``counts(index)`` pairs each."""

        def asked() -> Iterator[_Ask]:
            return ((n, counts(n)) for n in numbers_from(index, stride) if counts(n) > 0)

        if self._workers:
            self._following = asked()
            self._next = next(self._following)
            self._coming = iter(self._loader(asked))

    def take(self, index: int, count: int) -> T:
        """The batch; one that was not announced is made here and now."""
        if self._coming is not None and self._next == (index, count):
            made = next(self._coming)
            self._next = next(self._following)
            return made
        return self._make(index, count)

    def _loader(self, asked: Callable[[], Iterator[_Ask]]) -> DataLoader[T]:
        from torch.utils.data import DataLoader

        # Forks of this process would inherit CUDA and its threads; of a server that has imported this once, not.
        served = "forkserver" in multiprocessing.get_all_start_methods()
        start = multiprocessing.get_context("forkserver" if served else "spawn")
        if served:
            start.set_forkserver_preload([type(self).__module__, self._make.__module__])
        return DataLoader(
            _Made(self._make),  # type: ignore[arg-type]  # one without a base class
            batch_size=None,
            sampler=_Plan(asked),
            num_workers=self._workers,
            pin_memory=self._pin,
            multiprocessing_context=start,
            prefetch_factor=_AHEAD,
            worker_init_fn=_on_one_thread,
        )


class _Plan:
    """What is asked for, without an end."""

    def __init__(self, asked: Callable[[], Iterator[_Ask]]) -> None:
        self._asked = asked

    def __iter__(self) -> Iterator[_Ask]:
        return self._asked()


class _Made(Generic[T]):
    """Batches by what is asked, as a DataLoader's workers want them."""

    def __init__(self, make: Callable[[int, int], T]) -> None:
        self._make = make

    def __getitem__(self, ask: _Ask) -> T:
        return self._make(*ask)


def _on_one_thread(_: int) -> None:
    torch.set_num_threads(1)
