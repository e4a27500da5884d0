"""Frame ranges as Nuke and fileseq write them; imports neither torch nor numpy."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fullfield._check import InputError

MOST = 1_000_000
"""Frames of one range; more is a slip of the keyboard."""

_PART = re.compile(r"(-?[0-9]{1,9})(?:-(-?[0-9]{1,9})(?:([xy:])(-?[0-9]{1,9}))?)?")


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
        if abs(last - first) // step >= MOST:
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
