"""Checks of the files that a command reads and writes, before its work."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from fullfield._check import InputError
from fullfield._ledger.records import Journal
from fullfield.io.files import remove_abandoned_temporary_files
from fullfield.sequences.names import FramePattern, has_number_field


def check_input_file(path: str, option: str) -> None:
    """Check that ``path`` is a file. ``option`` names the argument in errors."""
    _check_name_is_nonempty_utf8(path, option)
    if not Path(path).exists():
        raise InputError(f"{path}: no such file; check the path given as {option}")
    if Path(path).is_dir():
        raise InputError(f"{path}: is a folder, expected a file as {option}")


def get_checked_suffix(path: str, option: str, suffixes: Collection[str]) -> str:
    """Return the lower-case suffix of ``path``; raise InputError unless it is one of ``suffixes``."""
    suffix = Path(path).suffix.lower()
    if suffix not in suffixes:
        problem = f"unknown suffix {suffix!r}" if suffix else "no suffix"
        raise InputError(f"{path}: {problem}; {option} takes {', '.join(suffixes)}")
    return suffix


def check_output_file_and_remove_temporaries(path: str, option: str) -> None:
    """Check that a file can be created at ``path``; an old file may be replaced."""
    _check_name_is_nonempty_utf8(path, option)
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise InputError(f"{path}: is a link to itself; {option} takes the name of a file")
    if target.is_dir():
        raise InputError(f"{path}: is a folder; {option} takes the name of a file")
    check_folder_writable_and_remove_temporaries(
        target.parent if Path(path).is_symlink() else Path(path).parent, f"{option} {path}"
    )
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"{path}: is read-only; choose another {option} or make it writable")


def _check_name_is_nonempty_utf8(path: str, option: str) -> None:
    """Check that the name is not empty and is UTF-8, which OpenImageIO requires."""
    if not path:
        raise InputError(f"{option}: expected the name of a file, got an empty one")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{path}: the name is not UTF-8; rename it, or use a UTF-8 locale") from None


def check_folder_writable_and_remove_temporaries(folder: Path, option: str) -> None:
    """Check that ``folder`` exists and is writable, and remove the temporary files of killed runs from it."""
    if not folder.is_dir():
        problem = "is a file; choose another name" if folder.exists() else "does not exist; make it first"
        raise InputError(f"{option}: folder {folder} {problem}")

    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{option}: cannot write in folder {folder} ({error.strerror})") from error
    with suppress(OSError):  # a folder may be writable but not readable
        remove_abandoned_temporary_files(folder)


def parse_pattern_and_remove_temporaries(text: str, option: str, suffix: str) -> FramePattern:
    """Return the pattern of files that can be created, such as ``mv.%04d.exr``."""
    if not has_number_field(text):
        raise InputError(f"{option} {text}: expected a pattern for the files, such as mv.%04d{suffix}")
    pattern = FramePattern.parse(text)
    check_folder_writable_and_remove_temporaries(Path(pattern.before).parent, f"{option} {text}")
    return pattern


def check_folder_creatable_and_remove_temporaries(name: str, option: str) -> None:
    """Check that folder ``name`` exists, or can be created, and is writable."""
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; {option} takes the name of a folder")
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    check_folder_writable_and_remove_temporaries(existing, f"{option} {folder}")


def refuse_replacing_unrecorded_files(outputs: Iterable[tuple[str, str | None]]) -> None:
    """Raise InputError if an output would replace a file that :func:`record_file_written_in_block` has not recorded.

    Outputs are (option, path); the path of an absent one is None. Empty files may be replaced.
    """
    for option, path in outputs:
        if path is None or not Path(path).is_file() or Path(path).stat().st_size == 0:
            continue
        from fullfield._ledger.records import Records

        if not Records(_get_notes_folder(path)).find_records_of_current_file(os.path.realpath(path)):
            raise InputError(
                f"{option} {path}: already exists and was not written by fullfield; use --overwrite or another name"
            )


def record_file_written_in_block(path: str) -> AbstractContextManager[None]:
    """Record a file that is written in the block, in the hidden folder ``.fullfield`` next to it."""
    from fullfield import __version__

    return Journal(_get_notes_folder(path), "pairs").record_file_on_atomic_write(
        os.path.realpath(path), {"version": __version__}
    )


def _get_notes_folder(path: str) -> Path:
    return Path(os.path.realpath(path)).parent / ".fullfield"


def build_unused_name(path: str, suffix: str) -> str:
    """Return ``path`` with ``suffix``, with a number if that name exists."""
    numbers = itertools.chain([""], (f".{n}" for n in itertools.count(1)))
    names = (f"{path}{number}{suffix}" for number in numbers)
    return next(name for name in names if not os.path.lexists(name))


def check_files_and_remove_temporaries(
    inputs: Collection[tuple[str, str | None]], outputs: Collection[tuple[str, str | None, Collection[str]]]
) -> None:
    """Check that inputs exist, and that outputs have a known suffix, can be created and are distinct.

    Each file comes with its option; the path of an absent file is None.
    """
    for option, path, suffixes in outputs:
        if path is not None:
            get_checked_suffix(path, option, suffixes)
    for option, path in inputs:
        if path is not None:
            check_input_file(path, option)
    for option, path, _ in outputs:
        if path is not None:
            check_output_file_and_remove_temporaries(path, option)
    check_outputs_are_distinct([(option, path) for option, path, _ in outputs], [path for _, path in inputs])


def check_outputs_are_distinct(outputs: Iterable[tuple[str, str | None]], inputs: Iterable[str | None] = ()) -> None:
    """Check that no output is an input or another output; outputs are (option, path), None for an absent path."""
    taken = {_get_inode_or_real_path(path): "an input" for path in inputs if path is not None}
    for option, path in outputs:
        if path is None:
            continue
        identity = _get_inode_or_real_path(path)
        if identity in taken:
            raise InputError(f"{option} {path}: is also {taken[identity]}; choose another file")
        taken[identity] = f"written by {option}"


def _get_inode_or_real_path(path: str) -> tuple[object, ...]:
    try:
        status = Path(path).stat()
    except OSError:
        return (os.path.normcase(os.path.realpath(path)),)
    return (status.st_dev, status.st_ino)
