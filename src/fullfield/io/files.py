"""Checks of files before they are read, and atomic writing."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import BinaryIO, TypeAlias

from fullfield._check import InputError, convert_path_to_text

PathLike: TypeAlias = str | os.PathLike[str]

_DEFLATE_RATIO = 1032
_PIXELS_ALWAYS = 1 << 22
_WINDOW_ALWAYS = 1 << 27
_STEM_BYTES = 64
_WRITER = re.compile(r"([0-9a-f]{8})-([0-9]{1,10})-([0-9a-f]{8})")
_PIECE = re.compile(rf"\..*\.({_WRITER.pattern})-[0-9a-f]{{8}}\.part(\.[^.]*)?", re.DOTALL)
_FORGOTTEN_S = 7 * 24 * 3600.0

Stamp: TypeAlias = tuple[int, int, int]
"""Size, modification time in nanoseconds and inode of a file."""

FinishedCallback: TypeAlias = Callable[[Path, Path], None]
"""A callback ``(temporary, target)`` for a file that is complete and about to take its name."""
_finished: ContextVar[FinishedCallback | None] = ContextVar("finished", default=None)


def require_nonempty_file_and_get_bytes(path: Path) -> int:
    """Return the size in bytes of a regular file; raise an error that names the path for anything else or no bytes."""
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


@contextmanager
def open_nonempty_file_with_size(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file and yield it with its size in bytes; errors are of :func:`require_nonempty_file_and_get_bytes`.

    The size is that of the open file: a path may have another one when another process has replaced its file.
    """
    require_nonempty_file_and_get_bytes(path)
    with path.open("rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def read_stamp_if_exists(path: PathLike) -> Stamp | None:
    """Return the size, the modification time and the inode of a file; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - names of plates are text, and there are many
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def refuse_implausible_inflated_size(
    path: Path, description: str, expected_bytes: int, stored_bytes: int, max_ratio: int = _DEFLATE_RATIO
) -> None:
    """Refuse data that claims more bytes than ``stored_bytes`` bytes can inflate to."""
    if expected_bytes > max_ratio * stored_bytes:
        raise InputError(
            f"{path}: {description} claims {expected_bytes} bytes of data, but only {stored_bytes} bytes are stored"
        )


def refuse_implausible_pixel_count(
    path: Path,
    width: int,
    height: int,
    file_bytes: int,
    max_pixels_per_byte: int = 4096,
    always_allowed_pixels: int = _PIXELS_ALWAYS,
) -> None:
    """Refuse a picture whose header claims far more pixels than a file of ``file_bytes`` bytes can hold.

    ``always_allowed_pixels`` pass in any file, by default 2²²; every byte of the file allows ``max_pixels_per_byte``
    more. The densest frame we know, a black one in OpenEXR's DWAB, holds 2744 pixels a byte.
    """
    _refuse_claimed_size_above(
        path, width, height, file_bytes, always_allowed_pixels + max_pixels_per_byte * file_bytes
    )


def refuse_implausible_display_window(path: Path, width: int, height: int, file_bytes: int) -> None:
    """Refuse a display window that is too large for the file. Most of it may be empty: 2²⁷ pixels always pass."""
    _refuse_claimed_size_above(path, width, height, file_bytes, _WINDOW_ALWAYS + 4096 * file_bytes)


def _refuse_claimed_size_above(path: Path, width: int, height: int, file_bytes: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise InputError(f"{path}: the header says {width} × {height} pixels")
    if width * height > max_pixels:
        raise InputError(
            f"{path}: the header says {width} × {height} pixels, which a file of {file_bytes} bytes cannot hold"
        )


def join_to_one_line(text: str, max_characters: int = 160) -> str:
    """Return a message of a library as one printable line of at most ``max_characters`` characters."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def describe_error(error: Exception) -> str:
    """Return the message of an exception on one line."""
    return join_to_one_line(str(error)) or type(error).__name__


@contextmanager
def raise_as_input_errors(path: Path, description: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn these errors of a library, raised inside, into an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except errors as error:
        raise InputError(f"{path}: {description}: {describe_error(error)}") from error


@contextmanager
def write_atomically(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` with its suffix; it becomes ``path`` when the block succeeds.

    On any exception the temporary is removed and what stood at ``path`` before is left as it was. A killed run leaves
    at most a hidden ``.NAME.WRITER-XXXXXXXX.part.SUFFIX``, which :func:`remove_abandoned_temporary_files` finds. The
    mode follows the umask. A link is written through. Raises :class:`OSError` naming ``path`` or its folder where that
    cannot be written.
    """
    path_text = convert_path_to_text(path)
    target = Path(os.path.realpath(path_text))
    if target.is_symlink():  # realpath follows every link but one that leads back to itself
        raise OSError(errno.ELOOP, "a link that leads back to itself", path_text)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "expected a file name, got a folder", path_text)
    if target.exists() and not target.is_file():
        raise InputError(f"{path_text}: expected a regular file to replace, got a device, pipe or socket")
    temporary = _create_temporary_file(target)
    try:
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            finished = _finished.get()
            if finished is not None:
                finished(temporary, target)
            temporary.replace(target)
        except OSError as error:
            if error.errno is not None and error.filename in (None, str(temporary)):
                raise OSError(error.errno, f"cannot write: {error.strerror}", path_text) from error
            raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def call_after_each_atomic_write(callback: FinishedCallback) -> Iterator[None]:
    """Call ``callback`` with every file that :func:`write_atomically` completes inside, in this thread."""
    token = _finished.set(callback)
    try:
        yield
    finally:
        _finished.reset(token)


def _create_temporary_file(target: Path) -> Path:
    while True:
        stem = truncate_to_bytes(target.stem, _STEM_BYTES)
        name = f".{stem}.{build_process_name()}-{secrets.token_hex(4)}.part{target.suffix}"
        temporary = target.with_name(name)
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        except OSError as error:
            folder = str(target.parent)
            raise OSError(error.errno, f"cannot write into this folder: {error.strerror}", folder) from error
        return temporary


def truncate_to_bytes(text: str, max_bytes: int) -> str:
    """Return the beginning of ``text`` that takes at most ``max_bytes`` bytes as a file name."""
    return os.fsencode(text)[:max_bytes].decode("utf-8", "ignore")


def remove_abandoned_temporary_files(folder: PathLike) -> None:
    """Remove the temporary files that killed processes left in ``folder``.

    They are those of processes of this machine that have ended, and those of other machines that have not changed for a
    week.
    """
    for entry in Path(folder).iterdir():
        match = _PIECE.fullmatch(entry.name)
        if match is None:
            continue
        with suppress(OSError):
            is_forgotten = (
                match[2] != _hash_host_and_pid_namespace() and time.time() - entry.stat().st_mtime > _FORGOTTEN_S
            )
            if is_forgotten or has_local_process_ended(match[1]):
                entry.unlink()


def has_local_process_ended(process_name: str) -> bool:
    """Return whether a process, by :func:`build_process_name`, is a local one that has ended; False in doubt."""
    match = _WRITER.fullmatch(process_name)
    return (
        match is not None
        and match[1] == _hash_host_and_pid_namespace()
        and not _is_process_running(int(match[2]), match[3])
    )


def build_process_name() -> str:
    """Return the name of this process in temporary files: machine, process id and start time."""
    started = _hash_process_start_time_if_available(os.getpid()) or "0" * 8
    return f"{_hash_host_and_pid_namespace()}-{os.getpid()}-{started}"


@cache
def _hash_host_and_pid_namespace() -> str:
    """Return eight digits for this machine and its table of processes, which containers have for themselves."""
    table = ""
    with suppress(OSError):
        table = str(Path("/proc/self/ns/pid").readlink())
    return _hash_to_8_hex_digits(f"{socket.gethostname()} {table}")


def _hash_process_start_time_if_available(process_id: int) -> str | None:
    """Return eight digits for the time when a process started; None where the system does not report it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        status = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    return _hash_to_8_hex_digits(f"{boot} {status.rpartition(')')[2].split()[19]}")


def _is_process_running(process_id: int, start_time_hash: str) -> bool:
    """Return whether a process of this machine runs; True in doubt."""
    if Path("/proc/self/stat").exists():
        return _hash_process_start_time_if_available(process_id) == start_time_hash
    if os.name != "posix":
        return True
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _hash_to_8_hex_digits(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
