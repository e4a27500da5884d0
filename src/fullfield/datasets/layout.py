"""Folders and lists of data sets, with errors that name what is missing."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fullfield._check import InputError, convert_path_to_text

_NUMBER = re.compile(r"(\d+)(?!.*\d)")


def require_folder(root: str | os.PathLike[str], *parts: str, description: str) -> Path:
    """Return ``root/parts``, which must be a folder."""
    path = Path(convert_path_to_text(root, "root"), *parts)
    if not path.is_dir():
        missing = next(p for p in (*reversed(path.parents), path) if not p.is_dir())
        kind = "is a file" if missing.exists() else "does not exist"
        raise InputError(f"{path}: expected the folder of {description}, but {missing} {kind}")
    return path


def list_subfolders(root: Path) -> list[Path]:
    """Return the folders in ``root``, by name."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def list_files_with_suffix(root: Path, suffixes: Iterable[str]) -> list[Path]:
    """Return the files in ``root`` with one of the suffixes, by number where their names end in one, then by name."""
    expected = {suffix.lower() for suffix in suffixes}
    paths = [
        Path(entry.path)
        for entry in os.scandir(root)
        if entry.is_file() and not entry.name.startswith(".") and Path(entry.name).suffix.lower() in expected
    ]
    return sorted(
        paths, key=lambda path: (get_name_before_last_number(path), parse_last_number_or_minus_one(path), path.name)
    )


def parse_last_number_or_minus_one(path: Path) -> int:
    """Return the last number in the file's name; -1 without one."""
    match = _NUMBER.search(path.stem)
    return int(match.group(1)) if match else -1


def get_name_before_last_number(path: Path) -> str:
    """Return the file's name before its last number."""
    match = _NUMBER.search(path.stem)
    return path.stem[: match.start()] if match else path.stem


def list_consecutive_pairs(frames: list[Path], *, backward: bool = False) -> list[tuple[Path, Path]]:
    """Pair each frame with that of the same name whose number is one higher.

    ``backward`` pairs it with the one before, the last frame first.
    """
    pairs = [
        (first, second)
        for first, second in itertools.pairwise(frames)
        if parse_last_number_or_minus_one(second) == parse_last_number_or_minus_one(first) + 1
        and get_name_before_last_number(second) == get_name_before_last_number(first)
    ]
    return [(second, first) for first, second in reversed(pairs)] if backward else pairs


def require_nonempty(items: list[Path], location: Path, description: str) -> list[Path]:
    """Return ``items``, which must not be empty."""
    if not items:
        raise InputError(f"{location}: expected {description}, found none")
    return items


def read_text_lines(path: Path) -> list[str]:
    """Return the lines of a list; InputError for a file that is no text."""
    try:
        return path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected text in UTF-8, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from None


def iterate_line_labels_and_words(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of a list of pairs: a name of the line for errors, and its words.

    Tabs separate the words where there are any. Empty lines and those that begin with # are skipped.
    """
    for count, line in enumerate(read_text_lines(path), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            words = line.split("\t") if "\t" in line else line.split()
            yield f"{path}: line {count}", [word.strip() for word in words]


def require_companion_file(path: Path, required_by: Path) -> Path:
    """Return ``path``, which must be a file because ``required_by`` exists."""
    if not path.is_file():
        raise InputError(f"{path}: does not exist, but {required_by.name} needs it")
    return path


def get_folder_if_exists(root: Path, *parts: str) -> Path | None:
    """Return the folder ``root/parts`` if it exists."""
    path = root.joinpath(*parts)
    return path if path.is_dir() else None


def require_file_unless_folder_is_none(folder: Path | None, name: str, required_by: Path) -> Path | None:
    """Return :func:`require_companion_file` of a file in a folder; None where there is no such folder."""
    return None if folder is None else require_companion_file(folder / name, required_by)


def require_listed_file(root: Path, name: str, line_label: str) -> Path:
    """Return the file that the line ``line_label`` of a list in ``root`` names."""
    path = root / name
    if not path.is_file():
        raise InputError(f"{line_label} names {path}, which does not exist")
    return path


def convert_path_to_relative_pair_name(path: str) -> str:
    """Turn a file of a list into the name of a pair, which is a relative path."""
    return Path(path).with_suffix("").as_posix().replace("..", "_").lstrip("/")
