"""Files as such: what may be opened, how much it may claim to hold, and writing that is all or nothing."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from fullfield._check import InputError

PathLike: TypeAlias = str | os.PathLike[str]

_DEFLATE_RATIO = 1032
_PIXELS_ALWAYS = 1 << 22
_WINDOW_ALWAYS = 1 << 27


def check_readable(path: Path) -> int:
    """The size in bytes of a regular file that has some; anything else raises, naming it."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "expected a file, got a folder", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: expected a regular file, got a device, pipe or socket")
    if status.st_size == 0:
        raise InputError(f"{path}: the file is empty (0 bytes)")
    path.open("rb").close()
    logging.getLogger("fullfield").debug("opened %s (%d bytes)", path, status.st_size)
    return status.st_size


def check_inflated(path: Path, what: str, wanted: int, stored: int, ratio: int = _DEFLATE_RATIO) -> None:
    """Refuse data that claims more bytes than ``stored`` bytes can inflate to."""
    if wanted > ratio * stored:
        raise InputError(f"{path}: {what} claims {wanted} bytes of data, but only {stored} bytes are stored")


def check_pixels(path: Path, width: int, height: int, size: int, per_byte: int = 4096) -> None:
    """Refuse a picture whose header claims far more pixels than a file of ``size`` bytes can hold.

    2²² pixels always pass; beyond, every byte of the file vouches for ``per_byte`` more. The densest frame we
    know, a black one in OpenEXR's DWAB, holds 2744 pixels a byte.
    """
    _check_claim(path, width, height, size, _PIXELS_ALWAYS + per_byte * size)


def check_window(path: Path, width: int, height: int, size: int) -> None:
    """The same for a display window, most of which may be empty: a 16K one passes in any file."""
    _check_claim(path, width, height, size, _WINDOW_ALWAYS + 4096 * size)


def _check_claim(path: Path, width: int, height: int, size: int, most: int) -> None:
    if width < 1 or height < 1:
        raise InputError(f"{path}: the header says {width} × {height} pixels")
    if width * height > most:
        raise InputError(f"{path}: the header says {width} × {height} pixels, which a file of {size} bytes cannot hold")


def one_line(text: str, limit: int = 160) -> str:
    """A library's complaint as one printable line."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def reason(error: Exception) -> str:
    """What an exception says, on one line."""
    return one_line(str(error)) or type(error).__name__


@contextmanager
def complaining(path: Path, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Inside, these errors of a library become an InputError that says what is wrong with the file."""
    try:
        yield
    except InputError:
        raise
    except errors as error:
        raise InputError(f"{path}: {what}: {reason(error)}") from error


@contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` with its suffix; it becomes ``path`` when the block succeeds.

    On any exception the temporary is removed and what stood at ``path`` before is left as it was; a killed
    run leaves at most a hidden ``.NAME.XXXXXXXX.part.SUFFIX``. The new file's mode follows the umask. A link
    is written through. Raises :class:`OSError` naming ``path`` or its folder where that cannot be written.
    """
    shown = os.fspath(path)
    target = Path(os.path.realpath(shown))
    if target.is_symlink():  # realpath follows every link but one that leads back to itself
        raise OSError(errno.ELOOP, "a link that leads back to itself", shown)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "expected a file name, got a folder", shown)
    if target.exists() and not target.is_file():
        raise InputError(f"{shown}: expected a regular file to replace, got a device, pipe or socket")
    temporary = _create_beside(target)
    try:
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            if error.errno is not None and error.filename in (None, str(temporary)):
                raise OSError(error.errno, f"cannot write: {error.strerror}", shown) from error
            raise
    finally:
        temporary.unlink(missing_ok=True)


def _create_beside(target: Path) -> Path:
    while True:
        name = f".{target.stem[:64]}.{secrets.token_hex(4)}.part{target.suffix}"
        temporary = target.with_name(name)
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        except OSError as error:
            folder = str(target.parent)
            raise OSError(error.errno, f"cannot write into this folder: {error.strerror}", folder) from error
        return temporary
