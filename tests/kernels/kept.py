"""What tests compile is kept in the user's cache folder, named after everything that it was made from."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fullfield._kernels.cache_folder import find_or_create_writable_folder_or_none

_DAYS = 30


@functools.cache
def folder() -> Path:
    found = find_or_create_writable_folder_or_none("tests") or Path(tempfile.mkdtemp())
    forget_old(found)
    return found


def forget_old(where: Path) -> None:
    """Delete what nobody has asked for in a month."""
    for place in where.iterdir():
        with suppress(FileNotFoundError):  # another process did it
            if time.time() - place.stat().st_mtime > _DAYS * 86400:
                place.unlink()


def kept(made_from: object, make: Callable[[Path], object]) -> Path:
    """The file that ``make`` writes, made once for what ``repr(made_from)`` says; whole or not there at all."""
    place = folder() / hashlib.sha256(repr(made_from).encode()).hexdigest()[:40]
    try:
        os.utime(place)
    except FileNotFoundError:
        handle, temporary = tempfile.mkstemp(dir=place.parent)
        os.close(handle)
        try:
            make(Path(temporary))
            Path(temporary).replace(place)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return place
