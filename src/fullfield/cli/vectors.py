"""Stored flow and pictures, for the verbs that pull pictures along it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.progress import Progress
from fullfield.io.names import FLOW_SUFFIXES, is_exr
from fullfield.sequences.names import Found, Pattern, find_frames, is_pattern
from fullfield.sequences.ranges import format_frames

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.io.raw import Raw

SUFFIXES = (".exr", ".tif", ".tiff", ".png")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What both verbs take."""
    parser.add_argument("--flow", metavar="FLOW", required=True, help="stored flow: mv.%%04d.exr, or one file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help=f"pictures: {' '.join(SUFFIXES)}")
    parser.add_argument("--frames", metavar="RANGE", help="1001-1100, 1-10,20 [all that are there]")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    report.add_report_options(parser, progress=True)


class Vectors:
    """The flow files of a shot, by frame and direction."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        if is_pattern(pattern):
            found = find_frames(pattern)
            self.numbers = list(found.files)
            self._path: Callable[[int], str] = found.path
        else:
            paths.check_input(pattern, "--flow")
            self.numbers, self._path = [1], lambda _: pattern
        paths.check_suffix(self._path(self.numbers[0]), "--flow", FLOW_SUFFIXES)

    def field(self, direction: str, *, hide: bool = False) -> Callable[[int], Tensor]:
        """The flow of a frame in that direction, unknown vectors NaN; with ``hide`` those of occluded pixels too."""
        from fullfield.io import read_flow, read_vectors
        from fullfield.io.vectors import ENDS_NOTE, INCOMPLETE_NOTE, read_note

        def read(number: int) -> Tensor:
            path = self._path(number)
            if number not in self.numbers:
                raise InputError(f"{path}: no such file")
            if is_exr(path):
                gone = [read_note(path, note).split(",") for note in (ENDS_NOTE, INCOMPLETE_NOTE)]
                if direction in gone[0] + gone[1]:
                    raise InputError(f"{path}: has no {direction} vectors (the shot ends there, or a plate was bad)")
            if not hide:
                layer: dict[str, Any] = {"layer": direction} if is_exr(path) else {}
                flow, valid = read_flow(path, **layer)
                return flow.masked_fill(~valid, float("nan"))
            parts = read_vectors(path)
            if direction not in parts or f"occlusion.{direction}" not in parts:
                raise InputError(
                    f"{path}: has no layers {direction} and occlusion.{direction}; it has {', '.join(parts)}"
                )
            return parts[direction].masked_fill(parts[f"occlusion.{direction}"] > 0.5, float("nan"))

        return read


def check_output(
    args: argparse.Namespace, numbers: Sequence[int], plates: Sequence[str], settings: dict[str, Any]
) -> tuple[Callable[[int], str], list[int]]:
    """The name of each picture, and the frames that are to be made: those that are not there.

    ``settings`` decide what the pictures hold, and are noted beside them. InputError where pictures are there that were
    made with others, or nobody knows how, without ``--overwrite``; and where one is a plate.
    """
    paths.check_suffix(args.output, "--output", SUFFIXES)
    if len(numbers) == 1 and not is_pattern(args.output):
        paths.check_output(args.output, "--output")
        paths.check_distinct([("--output", args.output)], plates)
        if Path(args.output).exists() and not args.overwrite:
            raise InputError(f"{args.output}: is there already; use --overwrite, or another name")
        return lambda _: str(args.output), list(numbers)
    if not is_pattern(args.output):
        raise InputError(f"--output {args.output}: expected a pattern for the files, such as out.%04d.exr")
    pattern = Pattern.parse(args.output)
    paths.check_folder(Path(pattern.before).parent, f"--output {args.output}")
    inputs = {str(Path(path).resolve()) for path in plates}
    taken = [pattern.path(n) for n in numbers if str(Path(pattern.path(n)).resolve()) in inputs]
    if taken:
        raise InputError(f"--output {args.output}: {taken[0]} is also an input; choose another name")
    from fullfield.sequences.outputs import Output

    left = Output(args.output).settle(settings, numbers, overwrite=args.overwrite)
    if len(left) < len(numbers) and not args.quiet:
        report.note(f"{len(numbers) - len(left)} of {len(numbers)} frames are there already")
    return pattern.path, left


def find_shot(text: str) -> Found:
    """The frames that a shot has as files."""
    shot = find_frames(text)
    if shot.video is not None:
        raise InputError(f"{text}: is a video; write its frames as files first")
    return shot


def write_all(
    args: argparse.Namespace,
    verb: str,
    left: Sequence[int],
    pictures: Iterable[tuple[int, Callable[[], Raw]]],
    name: Callable[[int], str],
) -> tuple[list[int], list[str]]:
    """Make and write the pictures of ``left``, in whatever order: which are written, and every problem once."""
    from fullfield.io.raw import write_raw

    written: list[int] = []
    problems: list[str] = []
    with Progress(verb, quiet=args.quiet) as progress:
        for done, (number, picture) in enumerate(pictures):
            progress(done / len(left), f"frame {number}")
            try:
                write_raw(name(number), picture())
                written.append(number)
            except (InputError, OSError) as error:
                if str(error) not in problems:
                    problems.append(str(error))
    return sorted(written), problems


def tell(args: argparse.Namespace, written: Sequence[int], problems: Sequence[str], **more: Any) -> int:
    """The end of either verb: problems, the report, the exit code."""
    for problem in problems:
        report.note(problem, kind="error")
    facts = {"output": args.output, "written": format_frames(written), "problems": list(problems), **more}
    lost = f", {len(problems)} problems" if problems else ""
    report.tell(args, facts, f"{args.output}: {len(written)} frames written{lost}")
    return 2 if problems else 0
