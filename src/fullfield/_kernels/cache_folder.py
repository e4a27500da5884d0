"""Where compiled kernels are kept, and the word on stderr when they have to be compiled."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def candidates() -> Iterator[Path]:
    """``FULLFIELD_CACHE_DIR`` or the user's cache folder, then a temporary folder of the user's."""
    chosen = os.environ.get("FULLFIELD_CACHE_DIR")
    if chosen:
        yield Path(chosen)
    elif sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        yield Path(os.environ["LOCALAPPDATA"]) / "fullfield" / "cache"
    elif os.environ.get("XDG_CACHE_HOME"):
        yield Path(os.environ["XDG_CACHE_HOME"]) / "fullfield"
    else:
        with suppress(RuntimeError):  # no home directory is known
            yield Path.home() / ".cache" / "fullfield"
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    yield Path(tempfile.gettempdir()) / f"fullfield-{user}"


def usable(folder: Path) -> bool:
    """Whether ``folder`` is ours and can be written; made if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            return False  # compiled code from someone else's folder is not ours to run
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def folder_named(name: str) -> Path | None:
    """A writable folder of that name in the first of the :func:`candidates` that allows it, or None."""
    for parent in candidates():
        folder = parent / name
        if usable(folder):
            return folder
    return None


@contextmanager
def announced(what: str, where: str, folder: Path | None) -> Iterator[None]:
    """Say on stderr that ``what`` is compiled for ``where``, and how long it took; ``FULLFIELD_QUIET`` silences it."""
    if os.environ.get("FULLFIELD_QUIET"):
        yield
        return
    kept = "once" if folder is not None else "in every process: no cache folder can be written"
    print(f"fullfield: compiling {what} for {where}, {kept} ...", file=sys.stderr, flush=True)  # noqa: T201
    start = time.perf_counter()
    yield
    print(f"fullfield: compiled in {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
