"""Make a shot slower or faster, with frames in between from stored flow.

Output frames are numbered from the first plate. A frame between two plates is interpolated from both along forward and
backward flow; regions that only one of them shows come from that one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield import io
from fullfield._check import InputError
from fullfield._ledger.versions import Checksums, stamp_of
from fullfield.cli import argtypes, report, vectors
from fullfield.sequences.names import choose_frames, format_frames

if TYPE_CHECKING:
    from fullfield.io.raw import Raw
    from fullfield.sequences.changes import GreyPicture

EPILOG = """\
examples:
  fullfield flow 'plate.%04d.exr' --direction both -o 'mv.%04d.exr' --device cuda
  fullfield retime 'plate.%04d.exr' --flow 'mv.%04d.exr' --factor 2.5 -o 'slow.%04d.exr'
"""
_MOST = 1_000_000
_FACTORS = (0.001, 1000.0)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield retime``."""
    parser.add_argument("plates", metavar="PLATES", help="a shot: plate.%%04d.exr, a folder, a glob")
    parser.add_argument(
        "--factor",
        type=argtypes.positive,
        metavar="F",
        required=True,
        help="output frames per plate; 2: half the speed",
    )
    vectors.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the arguments, interpolate and write the frames, report."""
    shot = vectors.find_shot(args.plates)
    sources = choose_frames(shot, args.frames)
    flow = vectors.Vectors(args.flow)
    if not _FACTORS[0] <= args.factor <= _FACTORS[1]:
        raise InputError(f"--factor: expected {_FACTORS[0]:g} to {_FACTORS[1]:g}, got {args.factor:g}")
    factor = Fraction(args.factor).limit_denominator(10_000)
    first, last = sources[0], sources[-1]
    longer = int((last - first) * max(factor, Fraction(1)))
    if longer > _MOST:
        raise InputError(f"--factor: expected at most {_MOST} frames, got {longer}")
    every = range(first, last + 1)
    if (args.frames is not None or shot.requested is not None) and sources != [*every]:
        raise InputError("--frames: expected consecutive frames")
    missing = [number for number in every if number not in shot.files]
    if missing:
        raise InputError(f"{args.plates}: expected the plates {first}-{last}, missing: {format_frames(missing)}")
    numbers = list(range(first, first + int((last - first) * factor) + 1))
    if factor.numerator > 1 and len(numbers) > 1:  # else every output frame is a plate
        flow.require("forward", "backward")
    made = {"plates": Path(args.plates).name, "flow": Path(args.flow).name, "factor": str(factor), "first": first}

    def time_of(number: int) -> Fraction:
        return first + Fraction(number - first) / factor

    def inputs(number: int, checksums: Checksums) -> dict[str, str | None]:
        time = time_of(number)
        before = int(time // 1)
        if time == before:
            return {"plate": checksums.of(shot.path(before))}
        pairs = {
            "plates": (shot.path(before), shot.path(before + 1)),
            "flow": (flow.path(before), flow.path(before + 1)),
        }
        return {f"{name} {at}": checksums.of(path) for name, pair in pairs.items() for at, path in enumerate(pair)}

    job = vectors.check_output(args, numbers, [*map(str, shot.files.values())], flow, made, inputs)
    reader = _Reader(shot.path, flow)
    pictures = ((number, partial(reader.at, time_of(number))) for number in job.plan.left)
    written, problems = vectors.write_all(args, "retime", job, pictures, inputs)
    if not args.quiet:
        for a, b in reader.cuts:
            report.note(f"the shot changes between the frames {a} and {b}; no frame is interpolated across them")
    more = {"there_before": len(numbers) - len(job.plan.left), "cuts": [list(pair) for pair in reader.cuts]}
    return vectors.finish(args, written, problems, factor=float(factor), **more)


def _cached(read: Callable[[int], Any], path: Callable[[int], str], most: int = 2) -> Callable[[int], Any]:
    """Return ``read`` that keeps its last ``most`` results; a file that is replaced is read again."""
    kept = lru_cache(maxsize=most)(lambda number, _stamp: read(number))
    return lambda number: kept(number, stamp_of(path(number)))


class _Reader:
    """Pictures by time; keeps the plates and flows of the last one."""

    def __init__(self, path: Callable[[int], str], flow: vectors.Vectors) -> None:
        from fullfield.io.raw import read_raw
        from fullfield.sequences.changes import reduce_frame

        self._path, self._flow = path, flow
        self._plate: Callable[[int], Raw] = _cached(lambda number: read_raw(path(number)), path)
        self._small: Callable[[int], GreyPicture] = _cached(
            lambda number: reduce_frame(io.read_frame(path(number))), path
        )
        self._forward, self._backward = (
            _cached(flow.field(name), lambda number: flow.path(number) or "", most=1)
            for name in ("forward", "backward")
        )
        self._checked: dict[tuple[object, ...], bool] = {}
        self.cuts: list[tuple[int, int]] = []
        """Pairs of frames across which the shot changes."""

    def at(self, time: Fraction) -> Raw:
        """Return the picture at that time."""
        from fullfield.sequences.motion import between

        number = int(time // 1)
        part = float(time - number)
        if part == 0:
            return self._plate(number)
        if self._is_cut(number):
            return self._plate(number if part < 0.5 else number + 1)
        first, second = self._plate(number), self._plate(number + 1)
        if first.channels != second.channels or first.pixels.shape != second.pixels.shape:
            raise InputError(f"{self._path(number + 1)}: has another size or other channels than {self._path(number)}")
        forward, backward = self._forward(number), self._backward(number + 1)
        for at, field in ((number, forward), (number + 1, backward)):
            report.same_size(field, f"the flow {self._flow.path(at)}", first.pixels, self._path(at))
        picture = between(first.pixels, second.pixels, forward, backward, part).picture
        nearer = first if part < 0.5 else second
        return nearer._replace(pixels=picture)

    def _is_cut(self, number: int) -> bool:
        """Return whether a cut follows that frame; it is detected on display-referred pictures, as in ``flow``."""
        from fullfield.sequences.changes import is_cut

        pair = (number, number + 1)
        key = (*pair, *(stamp_of(self._path(n)) for n in pair))
        if key not in self._checked:
            try:
                found = is_cut(self._small(number), self._small(number + 1))
            except InputError:  # not a picture in colour: depth, masks
                found = False
            self._checked[key] = found
            if found and pair not in self.cuts:
                self.cuts.append(pair)
        return self._checked[key]
