"""Compiling numba functions once per machine: where the cache lies, and a word on stderr when it is cold."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def why_not() -> str | None:
    """None where numba can be used, else the reason it cannot."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (pip install numba)"
    return None


def _candidates() -> Iterator[Path]:
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


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            return False  # compiled code from someone else's folder is not ours to run
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def cache_folder(*sources: str) -> Path | None:
    """A writable folder for code compiled from these source files, or None.

    ``FULLFIELD_CACHE_DIR``, then the user's cache folder, then a temporary folder of the user's. The name holds a
    digest of the sources and versions, so that a change to a helper that numba inlines is never missed.
    """
    import llvmlite
    import numba

    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode())
    for source in sources:
        # numba keeps code by the path of its source, too.
        digest.update(str(Path(source).resolve()).encode())
        digest.update(Path(source).read_bytes())
    for parent in _candidates():
        folder = parent / f"numba-{digest.hexdigest()[:16]}"
        if _usable(folder):
            return folder
    return None


@contextmanager
def caching_in(folder: Path | None) -> Iterator[None]:
    """Inside, functions decorated with ``njit(cache=True)`` keep their code in ``folder``."""
    from numba import config

    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder) if folder is not None else ""
    try:
        yield
    finally:
        config.CACHE_DIR = before


def is_warm(folder: Path | None, what: str) -> bool:
    """Whether :func:`compile_all` has finished for this CPU in ``folder`` before."""
    return folder is not None and _stamp(folder, what).exists()


def compile_all(functions: dict[str, tuple[Any, Any]], folder: Path | None, what: str) -> float:
    """Compile or load every ``name: (dispatcher, signature)``; returns the seconds it took.

    A cold cache is announced on stderr, since it costs seconds once; a warm one is silent.
    """
    cold = not is_warm(folder, what)
    start = time.perf_counter()
    if cold:
        kept = "once" if folder is not None else "in every process: no cache folder can be written"
        print(f"fullfield: compiling {what} for this CPU, {kept} ...", file=sys.stderr, flush=True)  # noqa: T201
    for dispatcher, signature in functions.values():
        dispatcher.compile(signature)
        dispatcher.disable_compile()  # a call with other types is a mistake, not a second specialisation
    seconds = time.perf_counter() - start
    if cold:
        print(f"fullfield: compiled in {seconds:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
        if folder is not None:
            with suppress(OSError):  # only the announcement would come again
                _stamp(folder, what).touch()
    return seconds


def _stamp(folder: Path, what: str) -> Path:
    return folder / f"{what.replace(' ', '-')}.{_cpu_digest()}.compiled"


def _cpu_digest() -> str:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_name() + llvm.get_host_cpu_features().flatten()
    return hashlib.sha256(features.encode()).hexdigest()[:12]
