"""Records of what made each stored frame: a folder of notes beside the frames, one file for each process that wrote.

A process appends a line before a file takes its name, so every frame that is there has a line, whoever was killed and
whoever wrote at the same time. Files are compared by size and times, and by a checksum when these differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fullfield.io.files import calling_when_finished, has_ended, writer

Stamp = tuple[int, int, int]
"""Size, modification time in nanoseconds and inode of a file."""

_PIECE = 4 << 20
_PIECES = 16


class Identity(NamedTuple):
    """A version of a file."""

    stamp: Stamp
    checksum: str


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """Return the size and times of a file; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - names of plates are text, and there are many
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def checksum_of(path: str | os.PathLike[str]) -> str:
    """Return the checksum of a file: of all its bytes up to 64 MiB, of 16 pieces of 4 MiB and its size beyond."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = hashlib.blake2b(str(size).encode(), digest_size=16)
        most = _PIECES * _PIECE
        for index in range(_PIECES):
            if size > most:
                file.seek(index * (size - _PIECE) // (_PIECES - 1))
            piece = file.read(_PIECE)
            if not piece:
                break
            found.update(piece)
    return found.hexdigest()


def digest(facts: object) -> str:
    """Return the checksum of plain values."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


class Checksums:
    """Checksums of files by name; a file is read again only when its size or times have changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Stamp], str] = {}
        self._new: list[tuple[str, Identity]] = []

    def add(self, path: str, identity: Identity) -> bool:
        """Keep a checksum; return whether it is new."""
        key = (os.path.abspath(path), identity.stamp)  # noqa: PTH100 - links are not followed
        if key in self._known:
            return False
        self._known[key] = identity.checksum
        self._new.append((key[0], identity))
        return True

    def take_new(self) -> list[tuple[str, Identity]]:
        """Return the names and versions of files that were added since the last call."""
        new, self._new = self._new, []
        return new

    def of(self, path: str | None) -> str | None:
        """Return the checksum of a file; None where there is none that can be read."""
        stamp = None if path is None else stamp_of(path)
        if path is None or stamp is None:
            return None
        known = self._known.get((os.path.abspath(path), stamp))  # noqa: PTH100
        if known is None:
            with suppress(OSError):
                known = checksum_of(path)
                self.add(path, Identity(stamp, known))
        return known


class Record(NamedTuple):
    """A file that was written, and what made it."""

    file: Identity
    made: dict[str, Any]
    beside: str | None
    """Checksum of the frame's ST map."""


class Records:
    """The records of a folder of notes, as far as they can be read."""

    def __init__(self, folder: Path) -> None:
        self.checksums = Checksums()
        self._folder = folder
        self._of: dict[str, list[Record]] = defaultdict(list)
        self._noted: dict[Path, list[tuple[str, Record]]] = {}
        for notes in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            noted = self._noted[notes] = list[tuple[str, Record]]()
            with suppress(FileNotFoundError):  # pruned by another run
                for line in notes.read_bytes().splitlines():
                    self._take(line, noted)

    def _take(self, line: bytes, noted: list[tuple[str, Record]]) -> None:
        try:
            found = json.loads(line)
            size, changed, inode = (int(value) for value in found["stamp"])
            identity = Identity((size, changed, inode), str(found["checksum"]))
            if "input" in found:
                self.checksums.add(str(found["input"]), identity)
            elif isinstance(found["made"], dict):
                record = Record(identity, found["made"], found.get("beside"))
                self._of[str(found["name"])].append(record)
                noted.append((str(found["name"]), record))
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # the last line of a killed process

    def of(self, path: str) -> list[Record]:
        """Return the records of the file that is there now, newest last."""
        records = self._of.get(os.path.basename(path), [])  # noqa: PTH119
        stamp = stamp_of(path)
        exact = [record for record in records if record.file.stamp == stamp]
        if exact or stamp is None or not any(record.file.stamp[0] == stamp[0] for record in records):
            return exact
        checksum = self.checksums.of(path)
        return [record for record in records if record.file.checksum == checksum]

    def prune(self) -> None:
        """Remove the notes of ended processes of this machine whose frames have all been written again.

        Frames that are absent, unreadable or without a record of their own keep the notes: they may only be moved away.
        """
        for notes, noted in self._noted.items():
            if has_ended(notes.stem) and all(self._is_replaced(name, record) for name, record in noted):
                notes.unlink(missing_ok=True)

    def _is_replaced(self, name: str, record: Record) -> bool:
        """Return whether the file that is there now has only records newer than ``record``."""
        found = self.of(str(self._folder.parent / name))
        return bool(found) and all(other.file.stamp[1] > record.file.stamp[1] for other in found)


class Journal:
    """The notes that this process appends to in a folder, made with the first line."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self._folder, self._name = folder, name
        self._lock = threading.Lock()
        self._inputs = Checksums()

    @contextmanager
    def noting(self, path: str, made: Mapping[str, Any], beside: str | None = None) -> Iterator[None]:
        """Append a record of the file ``path`` when it is written inside, just before it takes its name."""
        target = os.path.realpath(path)

        def finished(temporary: Path, written: Path) -> None:
            stamp = stamp_of(temporary)
            if os.fspath(written) == target and stamp is not None:
                facts = {"name": os.path.basename(path), "made": dict(made), "beside": beside}  # noqa: PTH119
                self._append({**facts, "stamp": stamp, "checksum": checksum_of(temporary)})

        with calling_when_finished(finished):
            yield

    def add_input(self, path: str, identity: Identity) -> None:
        """Append the checksum of an input, once for each version."""
        with self._lock:
            is_new = self._inputs.add(path, identity)
        if is_new:
            where = os.path.abspath(path)  # noqa: PTH100
            self._append({"input": where, "stamp": identity.stamp, "checksum": identity.checksum})

    def _append(self, facts: Mapping[str, Any]) -> None:
        line = json.dumps(facts).encode() + b"\n"
        with self._lock:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / f"{self._name or writer()}.jsonl").open("ab", buffering=0) as file:
                file.write(line)
                os.fsync(file.fileno())
