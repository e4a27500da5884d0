"""Where the time of a shot goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Spent(NamedTuple):
    """What one stage took, of all threads together."""

    times: int = 0
    wall_s: float = 0.0
    """By the clock, waiting included."""
    cpu_s: float = 0.0
    """Of the processor, in the stage's own thread."""

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(self.times + other.times, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class Stages:
    """Adds up stages, from many threads. A stage inside another one counts in both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spent: dict[str, Spent] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Around the work of a stage; one that ends with an error counts too."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.add({name: Spent(1, time.perf_counter() - wall, time.thread_time() - cpu)})

    def add(self, spent: dict[str, Spent]) -> None:
        """Count what another one has counted."""
        with self._lock:
            for name, more in spent.items():
                self.spent[name] = self.spent.get(name, Spent()).plus(more)
