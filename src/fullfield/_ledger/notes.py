"""JSON files of notes: reading with checks, and atomic writing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fullfield._check import InputError
from fullfield.io.files import join_to_one_line, require_nonempty_file_and_get_bytes, write_atomically

_LARGEST = 1e300


def read_json_object(path: Path, description: str = "a JSON object") -> dict[str, Any]:
    """Return the object in a JSON file, with None for numbers that are not finite.

    Raises:
        InputError: naming the file, if it is not a regular file or holds something other than an object.
        FileNotFoundError: if there is no file.
    """
    require_nonempty_file_and_get_bytes(path)
    try:
        content = json.loads(
            path.read_text("utf-8"), parse_constant=_parse_nonfinite_as_none, parse_float=_parse_finite_float_or_none
        )
    except (ValueError, RecursionError) as error:  # the second: nested too deeply
        raise InputError(f"{path}: expected JSON, got something else ({join_to_one_line(str(error))})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected {description}, got {type(content).__name__}")
    return content


def write_json_file_atomically(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON atomically, with null for numbers that are not finite; create the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as temporary:
        temporary.write_text(_format_json(content), "utf-8")


def write_json_file_if_absent(path: Path, content: Mapping[str, Any]) -> bool:
    """Write as :func:`write_json_file_atomically` unless the file exists; return whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(_format_json(content), "utf-8")
            _link_if_supported_or_raise_if_exists(temporary, path)
    except _PathExistsError:
        return False
    return True


class _PathExistsError(Exception):
    """The file exists."""


def _link_if_supported_or_raise_if_exists(temporary: Path, path: Path) -> None:
    """Give a file its name unless the name is taken, where the file system has links.

    The replacement that follows then changes nothing, because both names are the same file.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _PathExistsError from None
    except OSError:  # without links the last of several processes that begin at the same moment wins
        if path.exists():
            raise _PathExistsError from None


def round_trip_through_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content as JSON gives it back: other objects as text, None for numbers that are not finite."""
    plain: dict[str, Any] = json.loads(json.dumps(content, default=str), parse_constant=_parse_nonfinite_as_none)
    return plain


def _format_json(content: Mapping[str, Any]) -> str:
    return json.dumps(round_trip_through_json(content), indent=1, allow_nan=False) + "\n"


def _parse_nonfinite_as_none(_: str) -> None:
    """Return None for NaN and the infinities, which JSON does not have."""


def _parse_finite_float_or_none(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_KINDS: dict[str, Callable[[Any], bool]] = {
    "number": lambda value: type(value) in (int, float) and -_LARGEST < value < _LARGEST,
    "number or null": lambda value: value is None or _KINDS["number"](value),
    "count": lambda value: type(value) is int and 0 <= value < _LARGEST,
    "text": lambda value: isinstance(value, str),
    "text or null": lambda value: value is None or isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "4 rows of 4": lambda value: _is_4x4_of_kind(value, "number"),
    "4 rows of 4 or null": lambda value: value is None or _is_4x4_of_kind(value, "number"),
    "4 rows of 4, each a number or null": lambda value: _is_4x4_of_kind(value, "number or null"),
}


def _is_4x4_of_kind(value: Any, kind: str) -> bool:
    rows = value if isinstance(value, list) else []
    has_four = len(rows) == 4 and all(isinstance(row, list) and len(row) == 4 for row in rows)
    return has_four and all(_KINDS[kind](entry) for row in rows for entry in row)


def check_entry_kinds(path: Path, content: Mapping[str, Any], **kinds: str) -> None:
    """Raise InputError naming the file unless the object in it has these entries, each of its kind."""
    for name, kind in kinds.items():
        if name not in content or not _KINDS[kind](content[name]):
            value = join_to_one_line(repr(content[name]), 60) if name in content else "none"
            raise InputError(
                f"{path}: expected an entry {name} ({kind}), got {value}; remove the file to make it again"
            )
