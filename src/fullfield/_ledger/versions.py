"""Versions of files: compared by size and times, and by a checksum where these differ."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fullfield.io.files import Stamp, read_stamp_if_exists

_SAMPLE_BYTES = 4 << 20
_SAMPLES = 16


class FileIdentity(NamedTuple):
    """A version of a file."""

    stamp: Stamp
    checksum: str


def compute_sampled_checksum(path: str | os.PathLike[str]) -> str:
    """Return the checksum of a file: of all its bytes up to 64 MiB, of 16 samples of 4 MiB and its size beyond.

    Raises OSError for anything else than a regular file: the content of a pipe or device has no end.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as above
        raise OSError(errno.EINVAL, "expected a regular file, got a folder, device, pipe or socket", os.fspath(path))
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        checksum = hashlib.blake2b(str(size).encode(), digest_size=16)
        for index in range(_SAMPLES):
            if size > _SAMPLES * _SAMPLE_BYTES:
                file.seek(index * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            sample = file.read(_SAMPLE_BYTES)
            if not sample:
                break
            checksum.update(sample)
    return checksum.hexdigest()


def hash_json_values(values: object) -> str:
    """Return the checksum of plain values."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


class ChecksumCache:
    """Checksums of files by name; a file is read again only when its size or times have changed."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, Stamp], str] = {}
        self._new: list[tuple[str, FileIdentity]] = []

    def store_checksum_if_new(self, path: str, identity: FileIdentity) -> bool:
        """Keep a checksum; return whether it is new."""
        key = (os.path.abspath(path), identity.stamp)  # noqa: PTH100 - links are not followed
        if key in self._stored:
            return False
        self._stored[key] = identity.checksum
        self._new.append((key[0], identity))
        return True

    def pop_new_checksums(self) -> list[tuple[str, FileIdentity]]:
        """Return the names and versions of files that were added since the last call."""
        new, self._new = self._new, []
        return new

    def get_or_compute_checksum_if_readable(self, path: str | None) -> str | None:
        """Return the checksum of a file; None where there is none that can be read."""
        stamp = None if path is None else read_stamp_if_exists(path)
        if path is None or stamp is None:
            return None
        checksum = self._stored.get((os.path.abspath(path), stamp))  # noqa: PTH100
        if checksum is None:
            with suppress(OSError):
                checksum = compute_sampled_checksum(path)
                self.store_checksum_if_new(path, FileIdentity(stamp, checksum))
        return checksum
