"""Compiling numba functions once per machine: where the cache lies, and a word on stderr when it is cold."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fullfield._kernels.cache_folder import announced, folder_named


def why_not() -> str | None:
    """None where numba can be used, else the reason it cannot."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (pip install numba)"
    return None


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
    return folder_named(f"numba-{digest.hexdigest()[:16]}")


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


def compile_all(functions: dict[str, tuple[Any, Any]], folder: Path | None, what: str) -> None:
    """Compile or load every ``name: (dispatcher, signature)``.

    A cold cache is announced on stderr, since it costs seconds once (not where ``FULLFIELD_QUIET`` is set); a warm one
    is silent.
    """
    cold = not is_warm(folder, what)
    with announced(what, "this CPU", folder) if cold else nullcontext():
        for dispatcher, signature in functions.values():
            dispatcher.compile(signature)
            dispatcher.disable_compile()  # a call with other types is a mistake, not a second specialisation
    if cold and folder is not None:
        with suppress(OSError):  # only the announcement would come again
            _stamp(folder, what).touch()


def _stamp(folder: Path, what: str) -> Path:
    return folder / f"{what.replace(' ', '-')}.{_cpu_digest()}.compiled"


def _cpu_digest() -> str:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_name() + llvm.get_host_cpu_features().flatten()
    return hashlib.sha256(features.encode()).hexdigest()[:12]
