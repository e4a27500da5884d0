"""Records of what made each stored file: a folder of notes, with one file for each process that wrote.

A process appends a line before a file takes its name, so every file that exists has a line, no matter which process was
killed or wrote at the same time.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fullfield._ledger.versions import (
    ChecksumCache,
    FileIdentity,
    compute_sampled_checksum,
)
from fullfield.io.files import (
    Stamp,
    build_process_name,
    call_after_each_atomic_write,
    has_local_process_ended,
    read_stamp_if_exists,
)


class Record(NamedTuple):
    """A file that was written, and what made it."""

    file: FileIdentity
    provenance: dict[str, Any]
    st_map_checksum: str | None
    """Checksum of the frame's ST map."""


class Records:
    """The records of a folder of notes. Lines that are damaged, and what is not a regular file, are ignored."""

    def __init__(self, folder: Path) -> None:
        self.checksums = ChecksumCache()
        self._folder = folder
        self._by_name: dict[str, list[Record]] = defaultdict(list)
        self._by_notes: dict[Path, list[tuple[str, Record]]] = {}
        for notes_path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            if notes_path.is_file():
                self._by_notes[notes_path] = []
                with suppress(FileNotFoundError):  # pruned by another run
                    for line in notes_path.read_bytes().splitlines():
                        self._parse_and_add_line_if_valid(line, notes_path)

    def _parse_and_add_line_if_valid(self, line: bytes, notes_path: Path) -> None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return  # the last line of a killed process
        stamp = _parse_stamp_if_valid(entry)
        if stamp is None or not isinstance(entry.get("checksum"), str):
            return
        identity = FileIdentity(stamp, entry["checksum"])
        if isinstance(entry.get("input"), str):
            self.checksums.store_checksum_if_new(entry["input"], identity)
        elif isinstance(entry.get("name"), str) and isinstance(entry.get("provenance"), dict):
            record = Record(identity, entry["provenance"], entry.get("st_map"))
            self._by_name[entry["name"]].append(record)
            self._by_notes[notes_path].append((entry["name"], record))

    def find_records_of_current_file(self, path: str) -> list[Record]:
        """Return the records of the file that exists now, newest last."""
        records = self._by_name.get(os.path.basename(path), [])  # noqa: PTH119
        stamp = read_stamp_if_exists(path)
        exact = [record for record in records if record.file.stamp == stamp]
        if exact or stamp is None or not any(record.file.stamp[0] == stamp[0] for record in records):
            return exact
        checksum = self.checksums.get_or_compute_checksum_if_readable(path)
        return [record for record in records if record.file.checksum == checksum]

    def delete_superseded_notes_from_ended_processes(self) -> None:
        """Delete the notes files of ended processes of this machine whose frames have all been written again.

        Frames that are absent, unreadable or without a record of their own keep the notes: they may only be moved away.
        """
        for notes_path, entries in self._by_notes.items():
            if has_local_process_ended(notes_path.stem) and all(
                self._is_record_superseded(name, record) for name, record in entries
            ):
                notes_path.unlink(missing_ok=True)

    def _is_record_superseded(self, name: str, record: Record) -> bool:
        """Return whether the file that exists now has only records newer than ``record``."""
        current = self.find_records_of_current_file(str(self._folder.parent / name))
        return bool(current) and all(other.file.stamp[1] > record.file.stamp[1] for other in current)


def _parse_stamp_if_valid(entry: Any) -> Stamp | None:
    """Return the stamp of a line; None if the line has none."""
    values = entry.get("stamp") if isinstance(entry, dict) else None
    if not isinstance(values, list) or len(values) != 3 or any(type(value) is not int for value in values):
        return None
    size, modified, inode = values
    return size, modified, inode


class Journal:
    """The notes that this process appends to in a folder; the first line creates them."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self._folder, self._name = folder, name
        self._lock = threading.Lock()
        self._inputs = ChecksumCache()

    @contextmanager
    def record_file_on_atomic_write(
        self, path: str, provenance: Mapping[str, Any], st_map_checksum: str | None = None
    ) -> Iterator[None]:
        """Append a record of the file ``path`` when it is written inside, just before it takes its name."""
        target = os.path.realpath(path)

        def append_record(temporary: Path, written: Path) -> None:
            stamp = read_stamp_if_exists(temporary)
            if os.fspath(written) == target and stamp is not None:
                identity = FileIdentity(stamp, compute_sampled_checksum(temporary))
                self.add_record(path, Record(identity, dict(provenance), st_map_checksum))

        with call_after_each_atomic_write(append_record):
            yield

    def add_record(self, path: str, record: Record) -> None:
        """Append a record of the file ``path``."""
        entry = {"name": os.path.basename(path), "provenance": record.provenance, "st_map": record.st_map_checksum}  # noqa: PTH119
        self._append_line({**entry, **record.file._asdict()})

    def record_input_once(self, path: str, identity: FileIdentity) -> None:
        """Append the checksum of an input, once for each version."""
        with self._lock:
            is_new = self._inputs.store_checksum_if_new(path, identity)
        if is_new:
            absolute = os.path.abspath(path)  # noqa: PTH100
            line = {"input": absolute, "stamp": identity.stamp, "checksum": identity.checksum}
            self._append_line(line, flush_to_disk=False)  # the record of what was made from it follows

    def _append_line(self, entry: Mapping[str, Any], *, flush_to_disk: bool = True) -> None:
        """Append a line; with ``flush_to_disk`` it and those before it are on the disk at the end."""
        line = json.dumps(entry).encode() + b"\n"
        self._folder.mkdir(exist_ok=True)
        with (self._folder / f"{self._name or build_process_name()}.jsonl").open("ab", buffering=0) as file:
            with self._lock:
                file.write(line)
            # Not inside the lock: it waits for the disk, and the system writes for all threads at once.
            if flush_to_disk:
                os.fsync(file.fileno())
