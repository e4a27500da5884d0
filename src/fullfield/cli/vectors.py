"""Stored flow, and the pictures that ``warp`` and ``retime`` make from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fullfield import io
from fullfield._check import InputError
from fullfield._ledger.records import Journal
from fullfield._ledger.versions import Checksums, stamp_of
from fullfield.cli import paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.io.names import FLOW_SUFFIXES, is_exr
from fullfield.sequences.names import FrameFiles, find_frames, format_frames, is_pattern

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.io.raw import Raw
    from fullfield.sequences.outputs import Inputs, Plan

SUFFIXES = (".exr", ".tif", ".tiff", ".png")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both verbs take."""
    parser.add_argument("--flow", metavar="FLOW", required=True, help="stored flow: mv.%%04d.exr, or one file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help=f"pictures: {' '.join(SUFFIXES)}")
    parser.add_argument("--frames", metavar="RANGE", help="1001-1100, 1-10,20 [all that exist]")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    report.add_report_options(parser, progress=True)


class ShotEndsError(InputError):
    """Direction in which the shot has no further frame."""


class Vectors:
    """Flow files of a shot, by frame and direction."""

    def __init__(self, pattern: str) -> None:
        from fullfield.sequences.outputs import Output

        self.pattern = pattern
        if is_pattern(pattern):
            found = find_frames(pattern)
            self.numbers = list(found.files)
            self._path: Callable[[int], str] = found.path
            self._settings = Output(str(found.pattern)).read_settings()
        else:
            paths.check_input(pattern, "--flow")
            self.numbers, self._path, self._settings = [1], lambda _: pattern, {}
        self._known = set(self.numbers)
        self._stamps: dict[int, object] = {}
        paths.check_suffix(self._path(self.numbers[0]), "--flow", FLOW_SUFFIXES)
        step = self._settings.get("step", 1)
        if step != 1:
            raise InputError(f"--flow {pattern}: expected flow to the neighbouring frame, got flow over {step} frames")

    def require(self, *directions: str) -> None:
        """Raise InputError if the files, by their notes or format, have not all of these directions."""
        stored = self._settings.get("direction", "both")
        if stored == "both" and len(directions) > 1 and not is_exr(self.paths[0]):
            stored = "one"
        if stored != "both" and not {*directions} <= {stored}:
            wanted = " and ".join(directions)
            raise InputError(
                f"--flow {self.pattern}: expected {wanted} vectors, got {stored} direction; store both as .exr with "
                "flow --direction both, or choose other --frames"
            )

    @property
    def paths(self) -> list[str]:
        """Names of all files."""
        return [self._path(number) for number in self.numbers]

    def path(self, number: int) -> str | None:
        """Return the name of a frame's file; None if it does not exist."""
        return self._path(number) if number in self._known else None

    def check_unchanged(self) -> None:
        """Raise InputError if a file was replaced since it was read; each is checked once."""
        while self._stamps:
            number, stamp = self._stamps.popitem()
            if stamp_of(self._path(number)) != stamp:
                raise InputError(f"{self._path(number)}: was replaced during the run; run the command again")

    def field(self, direction: str, *, hide: bool = False) -> Callable[[int], Tensor]:
        """Return a reader of flow in that direction; unknown vectors, and with ``hide`` hidden ones, are NaN."""
        from fullfield.io.vectors import ENDS_NOTE, INCOMPLETE_NOTE, read_note

        def read(number: int) -> Tensor:
            path = self._path(number)
            if number not in self._known:
                raise InputError(f"{path}: no such file")
            self._stamps[number] = stamp_of(path)
            if is_exr(path):
                gone = [read_note(path, note).split(",") for note in (ENDS_NOTE, INCOMPLETE_NOTE)]
                if direction in gone[0]:
                    raise ShotEndsError(f"{path}: has no {direction} vectors: the shot ends there")
                if direction in gone[1]:
                    raise InputError(f"{path}: has no {direction} vectors: a plate was bad")
            if not hide:
                layer: dict[str, Any] = {"layer": direction} if is_exr(path) else {}
                flow, valid = io.read_flow(path, **layer)
                return flow.masked_fill(~valid, float("nan"))
            parts = io.read_vectors(path)
            if direction not in parts or f"occlusion.{direction}" not in parts:
                raise InputError(
                    f"{path}: has no layers {direction} and occlusion.{direction}; it has {', '.join(parts)}"
                )
            return parts[direction].masked_fill(parts[f"occlusion.{direction}"] > 0.5, float("nan"))

        return read


class Job(NamedTuple):
    """Pictures of a verb: their names, the missing ones, and the contents of their records."""

    name: Callable[[int], str]
    plan: Plan
    made_by: dict[str, Any]
    journal: Journal | None = None
    """None for a single picture."""


def check_output(
    args: argparse.Namespace,
    numbers: Sequence[int],
    pictures: Sequence[str],
    flow: Vectors,
    settings: dict[str, Any],
    inputs: Inputs,
) -> Job:
    """Return the pictures of ``numbers`` that have to be made; none of the files that are read may be written.

    InputError if existing pictures have other settings or were not written by fullfield, and ``--overwrite`` is absent.
    """
    from fullfield.sequences.outputs import Output, Plan

    paths.check_suffix(args.output, "--output", SUFFIXES)
    if Path(args.output).suffix.lower() == ".png" and is_exr(pictures[0]):
        raise InputError(f"--output {args.output}: PNG holds no floats, as {pictures[0]} has; write .exr or .tif")
    read = [*pictures, *flow.paths]
    if len(numbers) == 1 and not is_pattern(args.output):
        paths.check_output(args.output, "--output")
        paths.check_distinct([("--output", args.output)], read)
        if Path(args.output).exists() and not args.overwrite:
            raise InputError(f"{args.output}: already exists; use --overwrite or another name")
        return Job(lambda _: str(args.output), Plan(list(numbers)), {})
    pattern = paths.check_pattern(args.output, "--output", ".exr")
    protected = {str(Path(path).resolve()) for path in read}
    taken = [pattern.path(n) for n in numbers if str(Path(pattern.path(n)).resolve()) in protected]
    if taken:
        raise InputError(f"--output {args.output}: {taken[0]} is also an input; choose another name")
    output = Output(args.output)
    plan = output.settle(settings, numbers, inputs, overwrite=args.overwrite)
    if not args.quiet:
        report.note_plan(numbers, plan)
    return Job(pattern.path, plan, output.made_by(settings), output.journal())


def find_shot(text: str) -> FrameFiles:
    """Return the frame files of a shot."""
    shot = find_frames(text)
    if shot.video is not None:
        raise InputError(f"{text}: is a video; write its frames as files first")
    return shot


def write_all(
    args: argparse.Namespace,
    verb: str,
    job: Job,
    pictures: Iterable[tuple[int, Callable[[], Raw]]],
    inputs: Inputs,
) -> tuple[list[int], list[str]]:
    """Make and write the pictures of ``job``; return the written frames, and every problem once.

    The run ends when no further file can be written, such as on a full disk.
    """
    from fullfield.io.raw import write_raw
    from fullfield.sequences.writing import ends_writing

    written: list[int] = []
    problems: dict[str, None] = {}
    checksums, left = Checksums(), job.plan.left
    with ProgressBar(verb, quiet=args.quiet) as progress:
        for done, (number, picture) in enumerate(pictures):
            progress(done / len(left), f"frame {number}")
            try:
                before = inputs(number, checksums)
                made = picture()
                if inputs(number, checksums) != before:
                    raise InputError(f"frame {number}: an input was replaced during the run")
                noting: AbstractContextManager[None] = nullcontext()
                if job.journal is not None:
                    for path, identity in checksums.take_new():
                        job.journal.add_input(path, identity)
                    noting = job.journal.noting(job.name(number), {**job.made_by, "inputs": before, "start": None})
                with noting:
                    write_raw(job.name(number), made)
                written.append(number)
            except OSError as error:
                problems[str(error)] = None
                if ends_writing(error):
                    problems[f"stopped: {error.strerror}; run the same command again to continue"] = None
                    break
            except InputError as error:
                problems[str(error)] = None
    return sorted(written), list(problems)


def finish(args: argparse.Namespace, written: Sequence[int], problems: Sequence[str], **more: Any) -> int:
    """Print problems and the report, and return the exit code."""
    for problem in problems:
        report.note(problem, kind="error")
    facts = {"output": args.output, "written": format_frames(written), "problems": list(problems), **more}
    lost = f", {len(problems)} problems" if problems else ""
    report.tell(args, facts, f"{report.printable(args.output)}: {len(written)} frames written{lost}")
    return 2 if problems else 0
