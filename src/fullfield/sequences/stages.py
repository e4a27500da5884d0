"""Times of the stages of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Spent(NamedTuple):
    """Time of one stage, in all threads together."""

    times: int = 0
    wall_s: float = 0.0
    """By the clock, waiting included."""
    cpu_s: float = 0.0
    """Of the processor, in the stage's own thread."""

    def plus(self, other: Spent) -> Spent:
        """Return the sum of both."""
        return Spent(self.times + other.times, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class Stages:
    """Sums of stages over many threads; a stage inside another one counts in both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spent: dict[str, Spent] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the work inside; work that ends with an error counts too."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.add({name: Spent(1, time.perf_counter() - wall, time.thread_time() - cpu)})

    def add(self, spent: dict[str, Spent]) -> None:
        """Add the sums of another object."""
        with self._lock:
            for name, more in spent.items():
                self.spent[name] = self.spent.get(name, Spent()).plus(more)
