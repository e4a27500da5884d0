"""Thread pools of other libraries around a fork: file work in a forked child must not wait for threads it lacks."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ALONE = {"exr_threads": -1, "threads": 1}
"""Attributes of OpenImageIO with which a file is packed and unpacked by the thread that asks for it."""
_PAUSE_HARD = 2
_MAPS = Path("/proc/self/maps")


class _ForkGuard:
    """Thread pools of OpenImageIO, OpenEXR and GNU OpenMP around a fork.

    Their threads do not exist in the child, which would wait for them for ever. The pools are empty while the process
    forks; the parent gets them back, and the child works on files with one thread. OpenMP's, of PyTorch, are made again
    at the next use, in both processes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[str, int] | None = None
        self._has_team = False

    def lock_and_stop_pools(self) -> None:
        """Stop the threads, in the parent before the fork; nothing where a library is not used."""
        self._lock.acquire()
        oiio: Any = sys.modules.get("OpenImageIO")
        if oiio is not None:
            self._before = {name: oiio.get_int_attribute(name) for name in ALONE}
            for name, value in ALONE.items():
                oiio.attribute(name, value)
            oiio.ImageOutput.create("openexr")  # only now OpenEXR's pool gets its number of threads
        self._has_team = "torch" in sys.modules  # also where the next line fails
        self._has_team = self._has_team and not _stop_gnu_openmp_threads_if_possible()

    def restore_pools_and_unlock(self) -> None:
        """Restore the number of threads, in the parent after the fork."""
        oiio: Any = sys.modules.get("OpenImageIO")
        for name, value in (self._before or {}).items():
            oiio.attribute(name, value)
        self._before = None
        self._lock.release()

    def reset_lock_and_torch_threads_in_child(self) -> None:
        """Forget what other threads of the parent had requested, in the child."""
        self._before = None
        self._lock = threading.Lock()
        if self._has_team and sys.modules["torch"].get_num_threads() > 1:
            sys.modules["torch"].set_num_threads(1)  # the team of the parent's thread cannot be used again


def _stop_gnu_openmp_threads_if_possible() -> bool:
    """End the threads that GNU OpenMP keeps for the calling thread; return False where its version cannot.

    Without this, a parallel loop of PyTorch in the child waits for ever. Other implementations of OpenMP handle forks
    themselves.
    """
    ended = True
    for path in _list_loaded_gnu_openmp_paths():
        try:
            pause: Callable[[int], int] = ctypes.CDLL(path).omp_pause_resource_all
        except (OSError, AttributeError):  # a library of GCC 8 or older
            ended = False
        else:
            ended = pause(_PAUSE_HARD) == 0 and ended
    return ended


def _list_loaded_gnu_openmp_paths() -> set[str]:
    """Return the files of GNU OpenMP that this process has loaded; several wheels bring their own."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:  # no Linux
        return set()
    paths = {line[line.index("/") :] for line in lines if "/" in line}
    return {path for path in paths if Path(path).name.startswith("libgomp")}


def register_thread_pool_stop_at_forks(reset_child: Callable[[], None]) -> None:
    """Empty the pools whenever this process forks; ``reset_child`` is called in the child."""
    guard = _ForkGuard()

    def start_child() -> None:
        guard.reset_lock_and_torch_threads_in_child()
        reset_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=guard.lock_and_stop_pools, after_in_parent=guard.restore_pools_and_unlock, after_in_child=start_child
        )
