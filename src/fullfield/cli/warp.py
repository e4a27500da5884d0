"""Warp a plate, a matte or a paint-over along stored flow.

With --reference, warp a picture of that frame onto every frame, along the flow in between. Without it, warp each
frame's neighbour onto the frame. All channels are warped, in float; unknown pixels are 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fullfield import viz
from fullfield._check import InputError
from fullfield._ledger.versions import Checksums, digest
from fullfield.cli import argtypes, paths, report, vectors
from fullfield.sequences.names import FrameFiles, choose_frames, find_frames, format_frames, is_sequence

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.io.raw import Raw
    from fullfield.sequences.outputs import Inputs

EPILOG = """\
examples:
  fullfield warp paint.1001.exr --reference 1001 --flow 'mv.%04d.exr' --frames 1001-1040 -o 'paint_on.%04d.exr'
  fullfield warp 'plate.%04d.exr' --flow 'mv.%04d.exr' -o 'next_on_this.%04d.exr'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield warp``."""
    parser.add_argument("image", metavar="IMAGE", help="a picture, or a shot: plate.%%04d.exr, a folder, a glob")
    parser.add_argument("--reference", type=argtypes.integer, metavar="FRAME", help="frame that IMAGE belongs to")
    parser.add_argument("--direction", choices=("forward", "backward"), help="neighbour, without --reference [forward]")
    parser.add_argument(
        "--hide-occluded", action="store_true", help="0 where an occlusion layer marks a pixel as hidden"
    )
    vectors.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the arguments, warp and write the pictures, report."""
    shot = vectors.find_shot(args.image) if is_sequence(args.image) else None
    if shot is None:
        paths.check_input(args.image, "IMAGE")
    if args.reference is not None and args.direction is not None:
        raise InputError("--direction: not used with --reference; leave it out")
    flow = vectors.Vectors(args.flow)
    if args.reference is None and shot is None and len(flow.numbers) > 1:
        raise InputError(f"{args.image}: is one picture; give the number of its frame with --reference")
    first, last = flow.numbers[0] - 1, flow.numbers[-1] + 1
    if args.reference is not None and not first <= args.reference <= last:
        raise InputError(f"--reference: expected {first} to {last}, which the flow reaches, got {args.reference}")
    numbers = _numbers(args, flow)
    flow.require(*_directions(args, numbers))
    plates = [args.image] if shot is None else [str(path) for path in shot.files.values()]
    made = {
        "picture": Path(args.image).name,
        "flow": Path(args.flow).name,
        "reference": args.reference,
        "direction": args.direction,
        "hide_occluded": args.hide_occluded,
    }
    inputs = _inputs(args, flow, shot)
    job = vectors.check_output(args, numbers, plates, flow, made, inputs)
    left = job.plan.left
    ends: list[int] = []
    fields = _fields(args, flow, left, shot, ends) if left else ()
    pictures = ((number, partial(_warped, number, field, path, flow)) for number, path, field in fields)
    written, problems = vectors.write_all(args, "warp", job, pictures, inputs)
    if ends and not args.quiet:
        report.note(f"no picture for {format_frames(ends)}: the shot ends there")
    return vectors.finish(args, written, problems, there_before=len(numbers) - len(left), reference=args.reference)


def _inputs(args: argparse.Namespace, flow: vectors.Vectors, shot: FrameFiles | None) -> Inputs:
    """Return a callback for the inputs of a frame: the picture, and the flow of every frame in between."""
    known: WeakKeyDictionary[Checksums, dict[int, str]] = WeakKeyDictionary()

    def along(number: int, checksums: Checksums) -> str:
        """Return the digest of the flow of all frames between the reference and ``number``, each read once."""
        totals = known.setdefault(checksums, {args.reference: ""})
        step = 1 if number > args.reference else -1
        at = number
        while at not in totals:
            at -= step
        for n in range(at + step, number + step, step):
            totals[n] = digest([totals[n - step], checksums.of(flow.path(n))])
        return totals[number]

    def inputs(number: int, checksums: Checksums) -> dict[str, str | None]:
        if args.reference is not None:
            picture = args.image if shot is None else shot.path(args.reference)
            return {"picture": checksums.of(picture), "flow": along(number, checksums)}
        picture = args.image if shot is None else shot.path(number + (-1 if args.direction == "backward" else 1))
        return {"picture": checksums.of(picture), "flow": checksums.of(flow.path(number))}

    return inputs


def _numbers(args: argparse.Namespace, flow: vectors.Vectors) -> list[int]:
    """Return the numbers of the frames to warp."""
    if args.frames is None:
        every = flow.numbers
        return every if args.reference is None else sorted({*every, args.reference})
    return choose_frames(find_frames(args.flow), args.frames) if len(flow.numbers) > 1 else flow.numbers


def _directions(args: argparse.Namespace, numbers: Sequence[int]) -> list[str]:
    """Return the directions of the flow that is needed."""
    if args.reference is None:
        return [args.direction or "forward"]
    sides = (("forward", min(numbers) < args.reference), ("backward", max(numbers) > args.reference))
    return [direction for direction, is_needed in sides if is_needed]


def _fields(
    args: argparse.Namespace, flow: vectors.Vectors, numbers: Sequence[int], shot: FrameFiles | None, ends: list[int]
) -> Iterator[tuple[int, str, Tensor | InputError | None]]:
    """Yield each frame, the picture to sample, and the flow to sample along; None copies the picture.

    Frames without a neighbour are appended to ``ends``.
    """
    if args.reference is None:
        step = -1 if args.direction == "backward" else 1
        field = flow.field(args.direction or "forward", hide=args.hide_occluded)
        for number in numbers:
            try:
                positions: Tensor | InputError = field(number)
            except vectors.ShotEndsError:
                ends.append(number)
                continue
            except (InputError, OSError) as error:
                positions = error if isinstance(error, InputError) else InputError(str(error))
            yield number, args.image if shot is None else shot.path(number + step), positions
        return
    from fullfield.sequences.motion import accumulated

    path = args.image if shot is None else shot.path(args.reference)
    if args.reference in numbers:
        yield args.reference, path, None
    fields = [flow.field(direction, hide=args.hide_occluded) for direction in ("forward", "backward")]
    for number, total in accumulated(args.reference, numbers, fields[0], fields[1]):
        yield number, path, total


def _warped(number: int, field: Tensor | InputError | None, path: str, flow: vectors.Vectors) -> Raw:
    from fullfield.io.raw import read_raw

    if isinstance(field, InputError):
        raise InputError(f"frame {number}: {field}")
    flow.check_unchanged()
    raw = read_raw(path)
    if field is None:
        return raw
    report.same_size(field, f"the flow {flow.pattern}", raw.pixels, path)
    return raw._replace(pixels=viz.warp(raw.pixels, field)[0])
