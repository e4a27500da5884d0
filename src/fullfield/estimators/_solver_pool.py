"""Pool of solvers that are prepared for one size each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

import torch

Solver = TypeVar("Solver")

# Solvers of small frames are kept for several sizes, because a set of frames often mixes a few.
_SMALL_PIXELS, _MAX_SMALL_SIZES = 1 << 20, 4


class SolverSize(NamedTuple):
    """Size, device and dtype that a solver is prepared for."""

    height: int
    width: int
    device: torch.device
    dtype: torch.dtype

    @property
    def is_small(self) -> bool:
        """True if solvers of several such sizes may be kept."""
        return self.height * self.width <= _SMALL_PIXELS


class SolverPool(Generic[Solver]):
    """Idle solvers of the last sizes: of four sizes up to a megapixel, of one size above.

    A solver that computes is not in the pool, so threads never wait for each other's.

    Args:
        create: returns a new solver for a size.
    """

    def __init__(self, create: Callable[[SolverSize], Solver]) -> None:
        self._create = create
        self._lock = threading.Lock()
        self._idle: list[tuple[SolverSize, Solver]] = []

    @contextmanager
    def borrow_solver(self, size: SolverSize) -> Iterator[Solver]:
        """Take a solver of this size out of the pool, or create it, and put it back at the end."""
        solver = self._take_idle_solver_or_evict(size)
        if solver is None:
            solver = self._create(size)
        try:
            yield solver
        finally:
            self._put_back_solver_and_evict_old(size, solver)

    def release_idle_solvers(self) -> None:
        """Release every idle solver."""
        with self._lock:
            self._idle.clear()

    def _take_idle_solver_or_evict(self, size: SolverSize) -> Solver | None:
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index][0] == size:
                    return self._idle.pop(index)[1]
            # Releases old buffers before the new ones are allocated.
            self._evict_old_solvers(size, _MAX_SMALL_SIZES - 1)
            return None

    def _put_back_solver_and_evict_old(self, size: SolverSize, solver: Solver) -> None:
        with self._lock:
            # Another thread's solver of the same size would only take memory.
            self._idle = [pair for pair in self._idle if pair[0] != size]
            self._evict_old_solvers(size, _MAX_SMALL_SIZES - 1)
            self._idle.append((size, solver))

    def _evict_old_solvers(self, new_size: SolverSize, max_small: int) -> None:
        """Keep the newest ``max_small`` small solvers if ``new_size`` is small too, else none."""
        small = [pair for pair in self._idle if pair[0].is_small]
        self._idle = small[-max_small:] if new_size.is_small else []
