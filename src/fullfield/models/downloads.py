"""Downloads that resume after a lost connection, are checked, and appear only when complete. Light: no PyTorch."""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

DownloadProgress: TypeAlias = Callable[[int, int | None], None]
"""Callback that receives the downloaded bytes and the file's size, if known."""

_BLOCK = 1 << 18
_ATTEMPTS = 3
_LARGEST_MEMBER = 1 << 31


class DownloadError(OSError):
    """Failed download, or a file with another checksum. The message is one line."""


class _TransferInterrupted(Exception):
    """Interrupted transfer, to be tried again; what arrived is kept."""


def download_if_missing(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    progress: DownloadProgress | None = None,
    timeout_s: float = 30.0,
) -> None:
    """Download ``url`` to ``target`` unless the file exists.

    Incomplete downloads stay in ``target.part``; a later call resumes them if the server takes ranges and says that it
    still has the same file. ``target`` appears complete and checked, or not at all. If several processes request the
    same file, one downloads it and the others wait.

    Args:
        url: address of the file.
        target: path of the file.
        sha256: the checksum in hexadecimal, or its first digits.
        progress: see :data:`DownloadProgress`.
        timeout_s: seconds without a byte after which a connection counts as lost.

    Raises:
        DownloadError: with the answer of the server or the network, or because the checksum differs.
        OSError: if the folder cannot be written.
    """
    partial_file = target.with_name(target.name + ".part")
    with _wait_for_and_hold_lock(target.with_name(f".{target.name}.lock")):
        if target.is_file():
            return
        for attempt in range(_ATTEMPTS):
            try:
                _start_or_resume_download(url, partial_file, progress, timeout_s)
                break
            except _TransferInterrupted as cut:
                if attempt == _ATTEMPTS - 1:
                    raise DownloadError(f"{url}: {cut}; a later call resumes where the server allows it") from None
        if sha256 is not None:
            checksum = compute_sha256(partial_file)
            if not checksum.startswith(sha256.lower()):
                _delete_partial_and_validator_files(partial_file)
                raise DownloadError(f"{url}: expected the SHA-256 {sha256}, got {checksum}; nothing was kept")
        partial_file.replace(target)
        _get_validator_path(partial_file).unlink(missing_ok=True)


def extract_zip_member_if_missing(archive: Path, member: str, target: Path, *, sha256: str | None = None) -> None:
    """Write one member of a zip file to ``target`` unless it exists, complete and checked or not at all.

    Args:
        archive: the zip file.
        member: name of the member.
        target: path of the file to write.
        sha256: checksum of the member in hexadecimal, or its first digits.

    Raises:
        DownloadError: if the archive is broken, the member is missing or it has another checksum.
        OSError: if the folder cannot be written.
    """
    partial_file = target.with_name(target.name + ".part")
    with _wait_for_and_hold_lock(target.with_name(f".{target.name}.lock")):
        if target.is_file():
            return
        checksum = hashlib.sha256()
        try:
            with zipfile.ZipFile(archive) as zip_file:
                size = zip_file.getinfo(member).file_size
                if size > _LARGEST_MEMBER:
                    raise DownloadError(f"{archive}: {member} claims {size} bytes, more than any weights have")
                with zip_file.open(member) as source, partial_file.open("wb") as file:
                    while block := source.read(_BLOCK):
                        checksum.update(block)
                        file.write(block)
        except KeyError:
            raise DownloadError(f"{archive}: expected {member} inside, it is not there") from None
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            _delete_partial_and_validator_files(partial_file)
            raise DownloadError(f"{archive}: expected a zip file, cannot be read ({error})") from None
        if sha256 is not None and not checksum.hexdigest().startswith(sha256.lower()):
            _delete_partial_and_validator_files(partial_file)
            raise DownloadError(f"{archive}: expected {member} with the SHA-256 {sha256}, got {checksum.hexdigest()}")
        partial_file.replace(target)


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum.update(block)
    return checksum.hexdigest()


def _start_or_resume_download(
    url: str, partial_file: Path, progress: DownloadProgress | None, timeout_s: float
) -> None:
    """Download what ``partial_file`` lacks of the file."""
    received_bytes = partial_file.stat().st_size if partial_file.is_file() else 0
    validator_path = _get_validator_path(partial_file)
    validator = validator_path.read_text("utf-8") if received_bytes and validator_path.is_file() else ""
    headers = {"User-Agent": "fullfield", "Accept-Encoding": "identity"}
    if received_bytes and validator:
        headers |= {"Range": f"bytes={received_bytes}-", "If-Range": validator}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout_s) as response:
            if url.startswith("https:") and not response.url.startswith("https:"):
                raise DownloadError(f"{url}: the server sent us on to {response.url}, which is not encrypted")
            start, total = _check_range_and_get_start_and_size(response, received_bytes)
            if start == 0:
                validator_path.write_text(_get_if_range_validator(response), "utf-8")
            with partial_file.open("ab" if start else "wb") as file:
                received_bytes = _copy_response_and_count_bytes(response, file, start, total, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # our part is longer than the file
            _delete_partial_and_validator_files(partial_file)
            raise _TransferInterrupted("the file on the server has changed") from None
        raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise DownloadError(f"{url}: cannot be reached ({_describe_error(error.reason)})") from None
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise _TransferInterrupted(f"the connection broke off ({_describe_error(error)})") from None
    if total is not None and received_bytes < total:
        raise _TransferInterrupted(f"the connection broke off after {received_bytes} of {total} bytes")


def _check_range_and_get_start_and_size(
    response: http.client.HTTPResponse, received_bytes: int
) -> tuple[int, int | None]:
    """Return the offset of the answer in the file, and the length of the file."""
    if response.status == 206:
        extent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if extent and int(extent[1]) == received_bytes:
            return received_bytes, None if extent[2] == "*" else int(extent[2])
        raise DownloadError(f"{response.url}: the server answered with another part of the file than was requested")
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _copy_response_and_count_bytes(
    source: IO[bytes], file: IO[bytes], received_bytes: int, total: int | None, progress: DownloadProgress | None
) -> int:
    while True:
        try:
            block = source.read(_BLOCK)
        except (TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError) as error:
            raise _TransferInterrupted(
                f"the connection broke off after {received_bytes} bytes ({_describe_error(error)})"
            ) from None
        if not block:
            return received_bytes
        file.write(block)
        received_bytes += len(block)
        if progress is not None:
            progress(received_bytes, total)


def _get_if_range_validator(response: http.client.HTTPResponse) -> str:
    """Return the server's name of this version of the file for If-Range; empty if it has none."""
    tag = str(response.headers.get("ETag", ""))
    return tag if tag.startswith('"') else str(response.headers.get("Last-Modified", ""))


def _get_validator_path(partial_file: Path) -> Path:
    return partial_file.with_name(partial_file.name + ".tag")


def _delete_partial_and_validator_files(partial_file: Path) -> None:
    partial_file.unlink(missing_ok=True)
    _get_validator_path(partial_file).unlink(missing_ok=True)


def _describe_error(error: object) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


@contextmanager
def _wait_for_and_hold_lock(lock_path: Path) -> Iterator[None]:
    """Hold the file lock ``lock_path``, waiting for other holders. The system releases it when a process ends.

    The empty file stays: if it were removed while a process waits for it, two could hold the lock.
    """
    with lock_path.open("ab") as file:
        _wait_and_lock_file(file)
        yield


def _wait_and_lock_file(file: IO[bytes]) -> None:
    if sys.platform == "win32":
        import msvcrt
        import time

        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(0.2)
            else:
                return
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
