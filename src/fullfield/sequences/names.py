"""Frame ranges, and names of sequences: patterns, folders, globs, video files; imports neither torch nor numpy."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fullfield._check import InputError
from fullfield.io.names import FRAME_SUFFIXES

MOST = 1_000_000
"""Frames of one range; more is a slip of the keyboard."""

_NUMBER = "-?[0-9]{1,18}"
_PART = re.compile(f"({_NUMBER})(?:-({_NUMBER})(?:([xy:])({_NUMBER}))?)?")


def parse_frames(text: str, name: str = "frames") -> list[int]:
    """Return the frames of a range in ascending order, each once.

    Parts are separated by commas or spaces: ``7``; ``1001-1100`` (also ``1100-1001``); ``1-10x2``, every second frame
    from the first one named; ``1-10y3``, fileseq's other frames, those that ``x3`` leaves out; ``1-10:3``, fileseq's
    staggered order, which has all frames. Numbers may be negative: ``-5--1``.

    Raises InputError, which calls the range ``name``.
    """
    found: set[int] = set()
    for part in re.split(r"[,\s]+", text.strip()):
        match = _PART.fullmatch(part)
        if match is None:
            raise InputError(f"{name}: expected frames such as 1001-1100, 1-10x2 or 1-10,20, got {text!r}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        step = 1 if match[4] is None else abs(int(match[4]))
        if step == 0:
            raise InputError(f"{name}: expected a step other than 0, got {part!r}")
        if abs(last - first) // (step if match[3] == "x" else 1) >= MOST:
            raise InputError(f"{name}: expected at most {MOST} frames, got {part!r}")
        way = 1 if last >= first else -1
        whole = range(first, last + way, way)
        if match[3] == "y":
            found.update(set(whole).difference(whole[::step]))
        else:
            found.update(whole if match[3] == ":" else whole[::step])
        if len(found) > MOST:
            raise InputError(f"{name}: expected at most {MOST} frames, got more")
    if not found:
        raise InputError(f"{name}: expected at least one frame, got {text!r}")
    return sorted(found)


def format_frames(numbers: Iterable[int]) -> str:
    """Return the shortest plain spelling of frames: ``1-5,7,9-13x2``."""
    every = sorted(set(numbers))
    parts: list[str] = []
    at = 0
    while at < len(every):
        step = every[at + 1] - every[at] if at + 1 < len(every) else 1
        end = at + 1
        while end < len(every) and every[end] - every[end - 1] == step:
            end += 1
        if end - at == 1 or (end - at == 2 and step > 1):
            parts.append(f"{every[at]}")
            at += 1
            continue
        parts.append(f"{every[at]}-{every[end - 1]}" + (f"x{step}" if step > 1 else ""))
        at = end
    return ",".join(parts)


VIDEO_SUFFIXES = (
    ".mp4", ".mov", ".mkv", ".avi", ".webm", ".mxf", ".m4v", ".mpg", ".mpeg", ".mts", ".m2ts", ".ts", ".wmv", ".ogv",
)  # fmt: skip
"""Suffixes of files that are taken for videos."""

_FIELD = re.compile(r"%(?:0?(\d{1,2}))?d|(#+)|(@+)|\$F(\d?)")
_RANGE = r"-?\d+(?:--?\d+(?:[xy:]-?\d+)?)?(?:,-?\d+(?:--?\d+(?:[xy:]-?\d+)?)?)*"
_INNER = re.compile(rf"(?<![\d-])({_RANGE})(?=#+|@+|%0?\d*d)")
_OUTER = re.compile(rf"(.+\S)\s+({_RANGE})")
_NUMBERED = re.compile(r"(.*?)(-?\d+)(\D*)")


@dataclass(frozen=True)
class Pattern:
    """File name with a field for the frame number.

    ``%04d``, ``####`` and ``@@@@`` are four digits, with zeros in front; ``%d`` and ``@`` as many as the number has. A
    single ``#`` is four digits, as in fileseq and Houdini; ``$F4`` is Houdini's. A sign counts as a digit, as in C.
    """

    before: str
    digits: int
    after: str
    any_padding: bool = False
    """Whether files whose numbers are padded otherwise are found too: of a single ``#``."""

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Return the pattern that ``text`` spells; raise InputError unless it has one field for the number."""
        folder, name = os.path.split(text)
        fields = list(_FIELD.finditer(name))
        if _FIELD.search(folder):
            raise InputError(f"{text}: expected the frame number in the name of the file, got it in that of a folder")
        if len(fields) != 1:
            many = "none" if not fields else f"{len(fields)}"
            raise InputError(f"{text}: expected one place for the frame number, such as %04d or ####, got {many}")
        field = fields[0]
        if field[2] is not None:
            digits = 4 if len(field[2]) == 1 else len(field[2])
        elif field[3] is not None:
            digits = len(field[3])
        else:
            digits = int(field[1] or field[4] or 1)
        before, after = name[: field.start()], name[field.end() :]
        return cls(text[: len(text) - len(name)] + before, max(digits, 1), after, field[2] == "#")

    def path(self, number: int) -> str:
        """Return the file name of a frame."""
        return f"{self.before}{number:0{self.digits}d}{self.after}"

    def __str__(self) -> str:
        return f"{self.before}%0{self.digits}d{self.after}"

    def found(self) -> dict[int, Path]:
        """Return the files that are there, by number, in ascending order."""
        folder, before = os.path.split(self.before)
        where = Path(folder or ".")
        if not where.is_dir():
            raise InputError(f"{self}: folder {where} does not exist")
        name = re.compile(re.escape(before) + r"(-?\d+)" + re.escape(self.after))
        files: dict[int, Path] = {}
        for entry in where.iterdir():
            match = name.fullmatch(entry.name)
            if match is None:
                continue
            number = int(match[1])
            exact = match[1] == f"{number:0{self.digits}d}"
            if exact or (self.any_padding and number not in files):
                files[number] = (Path(folder) if folder else Path()) / entry.name
        return dict(sorted(files.items()))


@dataclass(frozen=True)
class Found:
    """Sequence of frames that was found by name.

    ``files`` are the frames that are there by number (none of a video); ``requested`` those that the text itself names
    (``plate.1001-1100####.exr``), or None.
    """

    text: str
    files: dict[int, Path]
    pattern: Pattern | None = None
    video: str | None = None
    requested: list[int] | None = None

    def path(self, number: int) -> str:
        """Return the file name of a frame, whether it exists or not."""
        if number in self.files:
            return str(self.files[number])
        if self.pattern is not None:
            return self.pattern.path(number)
        return f"{self.video or self.text}, frame {number}"


def is_pattern(text: str) -> bool:
    """Return whether the name has a field for the frame number."""
    return not Path(text).is_file() and _FIELD.search(os.path.split(text)[1]) is not None


def is_sequence(text: str) -> bool:
    """Return whether ``text`` names more than one frame: a pattern, a folder, a glob or a video."""
    where = Path(text)
    if where.is_file():
        return where.suffix.lower() in VIDEO_SUFFIXES
    return is_pattern(text) or where.is_dir() or glob.has_magic(text) or where.suffix.lower() in VIDEO_SUFFIXES


def find_frames(text: str) -> Found:
    """Return the sequence that ``text`` names; raise InputError where there is none.

    A pattern (:class:`Pattern`), also with its frames inside or behind as fileseq and Nuke write them
    (``plate.1001-1100####.exr``, ``plate.%04d.exr 1001-1100``); a folder of frames; a glob; a video file.
    """
    where = Path(text)
    if where.is_file():
        if where.suffix.lower() in VIDEO_SUFFIXES:
            return Found(text, {}, video=text)
        match = _NUMBERED.fullmatch(where.stem)
        hint = "" if match is None else f", such as {match[1]}{'#' * max(len(match[2]), 2)}{match[3]}{where.suffix}"
        raise InputError(f"{text}: is one frame; a sequence is a pattern{hint}, a folder or a glob")
    if where.suffix.lower() in VIDEO_SUFFIXES and not is_pattern(text):
        raise InputError(f"{text}: no such file")
    if where.is_dir():
        named = [p for p in where.iterdir() if p.suffix.lower() in FRAME_SUFFIXES and not p.name.startswith(".")]
        return _grouped(text, [p for p in named if p.is_file()])
    spelled, requested = text, None
    behind = _OUTER.fullmatch(text)
    if behind is not None and is_pattern(behind[1]):
        spelled, requested = behind[1], parse_frames(behind[2], text)
    name = os.path.split(spelled)[1]
    inside = _INNER.search(name)
    if inside is not None:
        requested = parse_frames(inside[1], text)
        spelled = spelled[: len(spelled) - len(name)] + name[: inside.start()] + name[inside.end() :]
    if _FIELD.search(os.path.split(spelled)[1]):
        pattern = Pattern.parse(spelled)
        files = pattern.found()
        if not files:
            raise InputError(f"{text}: no such file{_nearest(pattern)}")
        return Found(text, files, pattern, requested=requested)
    if glob.has_magic(text):
        matches = [Path(name) for name in glob.glob(text)]  # noqa: PTH207 - Path.glob takes no absolute pattern
        return _grouped(text, [p for p in matches if p.is_file()])
    raise InputError(f"{text}: no such file or folder")


def _nearest(pattern: Pattern) -> str:
    """Return a hint for errors: files of the pattern with other digits."""
    near = Pattern(pattern.before, 1, pattern.after, any_padding=True).found()
    if not near:
        return ""
    first = next(iter(near.values())).name
    return f"; the folder has {first} and {len(near) - 1} more with other digits"


def _grouped(text: str, files: list[Path]) -> Found:
    """Return files as one sequence, numbered by the last number of their names."""
    groups: dict[tuple[str, str], dict[int, Path]] = {}
    plain: list[Path] = []
    widths: list[int] = []
    for path in sorted(files):
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", path.stem)
        if match is None:
            plain.append(path)
            continue
        before, number, after = match[1], int(match[2]), match[3]
        key = (str(path.parent / before) if before else str(path.parent) + os.sep, after + path.suffix)
        if number in groups.get(key, {}):
            raise InputError(f"{text}: expected one file a frame, got {groups[key][number]} and {path}")
        groups.setdefault(key, {})[number] = path
        widths.append(len(match[2]))
    if not groups and not plain:
        raise InputError(f"{text}: expected frames ({', '.join(FRAME_SUFFIXES)}), found none")
    if not groups:
        return Found(text, dict(enumerate(plain, 1)))
    if plain or len(groups) > 1:
        names = [str(path) for path in plain] + [str(next(iter(group.values()))) for group in groups.values()]
        raise InputError(
            f"{text}: expected one sequence, got {len(groups) + bool(plain)} ({', '.join(names[:4])}); name one by a "
            "pattern such as plate.####.exr"
        )
    (before, after), numbered = next(iter(groups.items()))  # one group, whose widths these are
    return Found(text, dict(sorted(numbered.items())), Pattern(before, min(widths), after, True))


def choose(found: Found, text: str | None, name: str = "--frames") -> list[int]:
    """Return the frames to work on.

    They are those of the range ``text``, else those of the sequence's own spelling, else all that are there. Raise
    InputError where none of them is there.
    """
    requested = found.requested if text is None else parse_frames(text, name)
    if found.video is not None or requested is None:
        return list(found.files) if requested is None else requested
    if not any(number in found.files for number in requested):
        there = format_frames(found.files)
        raise InputError(f"{name}: none of the frames {format_frames(requested)} is there; {found.text} has {there}")
    return requested
