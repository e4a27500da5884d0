"""Process-wide settings that several threads may request at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SharedSwitch:
    """Context manager that holds a setting: the first thread to enter sets it, the last one to leave restores it.

    ``set_value`` sets it and returns a function that restores the previous value.
    """

    def __init__(self, set_value: Callable[[], Callable[[], None]]) -> None:
        self._set_value = set_value
        self._lock = threading.Lock()
        self._inside = 0
        self._restore: Callable[[], None] | None = None

    @property
    def is_on(self) -> bool:
        """True if any thread is inside."""
        return self._inside > 0

    def forget_threads_in_forked_child(self) -> None:
        """Forget threads that are inside, in a forked child, which has none of them; the setting stays."""
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._restore = self._set_value()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._restore is not None:
                self._restore()
