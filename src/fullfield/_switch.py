"""Settings of the whole process that several threads may want at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Switch:
    """Inside, a setting holds: the first thread that enters makes it, the last one that leaves puts it back.

    ``make`` makes the setting and returns what puts back what was there.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._inside = 0
        self._restore: Callable[[], None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether somebody is inside."""
        return self._inside > 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._restore = self._make()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._restore is not None:
                self._restore()
