"""Frame ranges, and names of sequences: patterns, folders, globs, video files; imports neither torch nor numpy."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fullfield._check import InputError
from fullfield.io.names import FRAME_SUFFIXES, STACK_SUFFIXES, get_separate_mask_file_or_none

MAX_FRAMES = 1_000_000
"""Limit of one range; more is a slip of the keyboard."""

_NUMBER = "-?[0-9]{1,18}"
_RANGE_ITEM = re.compile(f"({_NUMBER})(?:-({_NUMBER})(?:([xy:])({_NUMBER}))?)?")


def parse_frames(text: str, argument_name: str = "frames") -> list[int]:
    """Return the frames of a range in ascending order, each once.

    Parts are separated by commas or spaces: ``7``; ``1001-1100`` (also ``1100-1001``); ``1-10x2``, every second frame
    from the first one named; ``1-10y3``, fileseq's other frames, those that ``x3`` leaves out; ``1-10:3``, fileseq's
    staggered order, which has all frames. Numbers may be negative: ``-5--1``.

    Raises InputError, which calls the range ``argument_name``.

    >>> parse_frames("1001-1005x2,1010")
    [1001, 1003, 1005, 1010]
    """
    frames: set[int] = set()
    for item in re.split(r"[,\s]+", text.strip()):
        match = _RANGE_ITEM.fullmatch(item)
        if match is None:
            raise InputError(f"{argument_name}: expected frames such as 1001-1100, 1-10x2 or 1-10,20, got {text!r}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        step = 1 if match[4] is None else abs(int(match[4]))
        if step == 0:
            raise InputError(f"{argument_name}: expected a step other than 0, got {item!r}")
        if abs(last - first) // (step if match[3] == "x" else 1) >= MAX_FRAMES:
            raise InputError(f"{argument_name}: expected at most {MAX_FRAMES} frames, got {item!r}")
        sign = 1 if last >= first else -1
        span = range(first, last + sign, sign)
        if match[3] == "y":
            frames.update(set(span).difference(span[::step]))
        else:
            frames.update(span if match[3] == ":" else span[::step])
        if len(frames) > MAX_FRAMES:
            raise InputError(f"{argument_name}: expected at most {MAX_FRAMES} frames, got more")
    if not frames:
        raise InputError(f"{argument_name}: expected at least one frame, got {text!r}")
    return sorted(frames)


def format_frames(frame_numbers: Iterable[int]) -> str:
    """Return the shortest plain spelling of frames: ``1-5,7-13x2``.

    >>> format_frames([1, 2, 3, 4, 5, 7, 9, 11, 13])
    '1-5,7-13x2'
    """
    frames = sorted(set(frame_numbers))
    items: list[str] = []
    start = 0
    while start < len(frames):
        step = frames[start + 1] - frames[start] if start + 1 < len(frames) else 1
        end = start + 1
        while end < len(frames) and frames[end] - frames[end - 1] == step:
            end += 1
        if end - start == 1 or (end - start == 2 and step > 1):
            items.append(f"{frames[start]}")
            start += 1
            continue
        items.append(f"{frames[start]}-{frames[end - 1]}" + (f"x{step}" if step > 1 else ""))
        start = end
    return ",".join(items)


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
class FramePattern:
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
    def parse(cls, text: str) -> FramePattern:
        """Return the pattern that ``text`` spells; raise InputError unless it has one field for the number."""
        folder, name = os.path.split(text)
        if _FIELD.search(folder) and not Path(folder).is_dir():  # a folder may be called that
            raise InputError(f"{text}: expected the frame number in the name of the file, got it in that of a folder")
        field = _find_single_number_field_or_raise(text, name)
        if field[2] is not None:
            digits = 4 if len(field[2]) == 1 else len(field[2])
        elif field[3] is not None:
            digits = len(field[3])
        else:
            digits = int(field[1] or field[4] or 1)
        before, after = name[: field.start()], name[field.end() :]
        return cls(text[: len(text) - len(name)] + before, max(digits, 1), after, field[2] == "#")

    def format_path(self, number: int) -> str:
        """Return the file name of a frame."""
        return f"{self.before}{number:0{self.digits}d}{self.after}"

    def __str__(self) -> str:
        return f"{self.before}%0{self.digits}d{self.after}"

    @property
    def name(self) -> str:
        """Name of the files without their folder, the same for every spelling of the field: ``plate.#.exr``."""
        return os.path.split(f"{self.before}#{self.after}")[1]

    def find_files_by_number(self) -> dict[int, Path]:
        """Return the existing files by number, in ascending order."""
        folder, before = os.path.split(self.before)
        directory = Path(folder or ".")
        if not directory.is_dir():
            raise InputError(f"{self}: folder {directory} does not exist")
        name = re.compile(re.escape(before) + r"(-?\d+)" + re.escape(self.after))
        files: dict[int, Path] = {}
        for entry in directory.iterdir():
            match = name.fullmatch(entry.name)
            if match is None:
                continue
            number = int(match[1])
            exact = match[1] == f"{number:0{self.digits}d}"
            if exact or (self.any_padding and number not in files):
                files[number] = (Path(folder) if folder else Path()) / entry.name
        return dict(sorted(files.items()))


def _find_single_number_field_or_raise(pattern_text: str, file_name: str) -> re.Match[str]:
    """Return the field for the frame number in a file name; a single ``#`` or ``@`` may be part of the name."""
    fields = list(_FIELD.finditer(file_name))
    explicit = [field for field in fields if field[0] not in ("#", "@")]
    if len(explicit) == 1 or (not explicit and len(fields) == 1):
        return (explicit or fields)[0]
    count = len(fields) or "none"
    raise InputError(f"{pattern_text}: expected one field for the frame number, such as %04d or ####, got {count}")


@dataclass(frozen=True)
class FrameFiles:
    """Frames of a sequence, found by name.

    ``files`` are the existing frames by number (none of a video); ``requested`` those that the text itself names
    (``plate.1001-1100####.exr``), or None.
    """

    text: str
    files: dict[int, Path]
    pattern: FramePattern | None = None
    video: str | None = None
    requested: list[int] | None = None

    @property
    def name(self) -> str:
        """Name of the sequence without its folder; that of the pattern where there is one."""
        return Path(self.text).absolute().name if self.pattern is None else self.pattern.name

    def get_path(self, number: int) -> str:
        """Return the file name of a frame, whether it exists or not; of a video, a name for messages."""
        if number in self.files:
            return str(self.files[number])
        if self.pattern is not None:
            return self.pattern.format_path(number)
        return f"{self.video or self.text}, frame {number}"


def has_number_field(text: str) -> bool:
    """Return whether the name has a field for the frame number."""
    return not Path(text).is_file() and _FIELD.search(os.path.split(text)[1]) is not None


def resolve_mask_for_frame(mask: str | None, number: int) -> str | None:
    """Return the mask to read for a frame: a pattern of files gets the frame's number, anything else stays."""
    file = get_separate_mask_file_or_none(mask)
    if mask is None or file is None or not has_number_field(file):
        return mask
    return FramePattern.parse(file).format_path(number) + mask[len(file) :]


def normalize_mask_name_without_folder(mask: str) -> str:
    """Return the name of a mask without its folder, the same for every spelling of its field for the number."""
    file = get_separate_mask_file_or_none(mask)
    if file is None:
        return mask
    name = FramePattern.parse(file).name if has_number_field(file) else Path(file).name
    return name + mask[len(file) :]


def is_sequence_or_video_path(text: str) -> bool:
    """Return whether ``text`` is a pattern, a folder, a glob or a video; any other file that exists is not."""
    path = Path(text)
    if path.is_file():
        return path.suffix.lower() in VIDEO_SUFFIXES
    return has_number_field(text) or path.is_dir() or glob.has_magic(text) or path.suffix.lower() in VIDEO_SUFFIXES


def find_frame_files(text: str) -> FrameFiles:
    """Return the sequence that ``text`` names; raise InputError where there is none.

    A pattern (:class:`FramePattern`), also with its frames inside or behind as fileseq and Nuke write them
    (``plate.1001-1100####.exr``, ``plate.%04d.exr 1001-1100``); a folder of frames; a glob; a video file; a GIF, WebP,
    PNG or TIFF with several pictures.
    """
    path = Path(text)
    if path.is_file():
        if path.suffix.lower() in VIDEO_SUFFIXES:
            return FrameFiles(text, {}, video=text)
        if path.suffix.lower() in STACK_SUFFIXES:
            from fullfield.io.stacks import count_stack_pictures_or_one

            if count_stack_pictures_or_one(text) > 1:
                return FrameFiles(text, {}, video=text)
        match = _NUMBERED.fullmatch(path.stem)
        hint = "" if match is None else f", such as {match[1]}{'#' * max(len(match[2]), 2)}{match[3]}{path.suffix}"
        raise InputError(f"{text}: is one frame; a sequence is a pattern{hint}, a folder or a glob")
    if path.exists() and not path.is_dir():
        from fullfield.io.files import require_nonempty_file_and_get_bytes

        require_nonempty_file_and_get_bytes(path)  # a pipe, a device or a socket
    if path.suffix.lower() in VIDEO_SUFFIXES and not has_number_field(text):
        raise InputError(f"{text}: no such file")
    if path.is_dir():
        frames = [p for p in path.iterdir() if p.suffix.lower() in FRAME_SUFFIXES and not p.name.startswith(".")]
        return _build_single_sequence_or_raise(text, [p for p in frames if p.is_file()])
    spelled, requested = text, None
    suffix_range = _OUTER.fullmatch(text)
    if suffix_range is not None and has_number_field(suffix_range[1]):
        spelled, requested = suffix_range[1], parse_frames(suffix_range[2], text)
    name = os.path.split(spelled)[1]
    inner_range = _INNER.search(name)
    if inner_range is not None:
        requested = parse_frames(inner_range[1], text)
        spelled = spelled[: len(spelled) - len(name)] + name[: inner_range.start()] + name[inner_range.end() :]
    if _FIELD.search(os.path.split(spelled)[1]):
        pattern = FramePattern.parse(spelled)
        files = pattern.find_files_by_number()
        if not files:
            raise InputError(f"{text}: no such file{_describe_files_with_other_digits(pattern)}")
        return FrameFiles(text, files, pattern, requested=requested)
    if glob.has_magic(text):
        folder, name = os.path.split(text)
        literal = os.path.join(glob.escape(folder), name) if Path(folder).is_dir() else text  # noqa: PTH118
        matches = [Path(name) for name in glob.glob(literal)]  # noqa: PTH207 - Path.glob takes no absolute pattern
        return _build_single_sequence_or_raise(text, [p for p in matches if p.is_file()])
    raise InputError(f"{text}: no such file or folder")


def _describe_files_with_other_digits(pattern: FramePattern) -> str:
    """Return a hint for errors: files of the pattern with other digits."""
    files = FramePattern(pattern.before, 1, pattern.after, any_padding=True).find_files_by_number()
    if not files:
        return ""
    first = next(iter(files.values())).name
    return f"; the folder has {first} and {len(files) - 1} more with other digits"


def _build_single_sequence_or_raise(text: str, files: list[Path]) -> FrameFiles:
    """Return files as one sequence, numbered by the last number of their names."""
    groups: dict[tuple[str, str], dict[int, Path]] = {}
    unnumbered: list[Path] = []
    widths: list[int] = []
    for path in sorted(files):
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", path.stem)
        if match is None:
            unnumbered.append(path)
            continue
        before, number, after = match[1], int(match[2]), match[3]
        key = (str(path.parent / before) if before else str(path.parent) + os.sep, after + path.suffix)
        if number in groups.get(key, {}):
            raise InputError(f"{text}: expected one file a frame, got {groups[key][number]} and {path}")
        groups.setdefault(key, {})[number] = path
        widths.append(len(match[2]))
    if not groups and not unnumbered:
        raise InputError(f"{text}: expected frames ({', '.join(FRAME_SUFFIXES)}), found none")
    if not groups:
        return FrameFiles(text, dict(enumerate(unnumbered, 1)))
    if unnumbered or len(groups) > 1:
        names = [str(path) for path in unnumbered] + [str(next(iter(group.values()))) for group in groups.values()]
        raise InputError(
            f"{text}: expected one sequence, got {len(groups) + bool(unnumbered)} ({', '.join(names[:4])}); name one "
            "by a pattern such as plate.####.exr"
        )
    (before, after), numbered = next(iter(groups.items()))  # one group, whose widths these are
    return FrameFiles(text, dict(sorted(numbered.items())), FramePattern(before, min(widths), after, True))


def choose_requested_or_all_frame_numbers(
    frame_files: FrameFiles, range_text: str | None, argument_name: str = "--frames"
) -> list[int]:
    """Return the frames to work on.

    They are those of the range ``range_text``, else those of the sequence's own spelling, else all that exist. Raise
    InputError where none of them exists.
    """
    requested = frame_files.requested if range_text is None else parse_frames(range_text, argument_name)
    if frame_files.video is not None or requested is None:
        return list(frame_files.files) if requested is None else requested
    if not any(number in frame_files.files for number in requested):
        existing = format_frames(frame_files.files)
        raise InputError(
            f"{argument_name}: none of the frames {format_frames(requested)} exists; {frame_files.text} has {existing}"
        )
    return requested
