"""Draw a flow.

Draw a flow in colours, over its frame, as a warped frame, as an error, or a sheet of all.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fullfield import io
from fullfield._check import InputError
from fullfield.cli import paths, report, scenes
from fullfield.cli.argtypes import positive
from fullfield.cli.options import (
    FOUR_VALUES,
    READING_WORDS,
    add_flow_choice,
    add_four_values,
    add_reading_options,
    check_flow_choice,
    flow_choice,
    read_truth,
    truth_values,
    unused_reading_options,
)
from fullfield.cli.report import naming, same_size
from fullfield.io.names import FLOW_SUFFIXES, IMAGE_WRITE_SUFFIXES, is_exr
from fullfield.io.windows import Box

if TYPE_CHECKING:
    from torch import Tensor

EPILOG = """\
examples:
  fullfield viz flow.flo -o flow.png --max-motion 20
  fullfield viz flow.flo -o over.png --kind overlay --frame frame_0001.png
  fullfield viz flow.flo -o sheet.png --kind sheet --frame a.png --frame2 b.png --truth truth.flo
"""

KINDS = tuple(scenes.NEEDS)
_OPTIONS = {"frame1": "--frame", "frame2": "--frame2", "truth": "--truth"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield viz``."""
    parser.add_argument("flow", metavar="FLOW", help=f"flow: {' '.join(FLOW_SUFFIXES)} (.png: KITTI)")
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help=f"picture: {' '.join(IMAGE_WRITE_SUFFIXES)}"
    )
    parser.add_argument("--kind", choices=KINDS, default="flow", help="what to draw")
    parser.add_argument("--frame", metavar="A", dest="frame1", help="first frame, for overlay and sheet")
    parser.add_argument("--frame2", metavar="B", help="second frame, for warped and sheet")
    parser.add_argument("--truth", metavar="FILE", help="true flow, for error and sheet")
    scenes.add_max_motion(parser)
    parser.add_argument("--max-error", type=positive, metavar="PX", help="error at the end of the scale [16]")
    add_flow_choice(parser, "flow", "FLOW")
    add_flow_choice(parser, "truth", "--truth")
    add_four_values(parser)
    add_reading_options(parser)
    report.add_report_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the arguments, read the flow and draw it."""
    from fullfield.io.flow import read_flow_window

    _check(args)

    choice: dict[str, Any] = flow_choice(args, "flow")
    if args.window == "data" and is_exr(args.flow):
        choice["window"] = read_flow_window(args.flow, **choice).data
    flow, valid = io.read_flow(args.flow, **choice)
    area = choice.get("window")
    truth, truth_valid = _truth(args, flow, area)
    frame1, frame2 = _frames(args, flow, area)
    scene = scenes.Scene(flow, valid, frame1, frame2, truth, truth_valid, args.max_motion, args.max_error)
    io.write_image(args.output, scene.contents_for_file(args.kind, args.output))
    properties = {
        **report.select(args, "output", "flow", "kind"),
        **scene.scales(args.kind),
        "truth_values": None if truth is None else truth_values(truth),
        "size": {"width": flow.shape[-1], "height": flow.shape[-2]},
    }
    report.print_report(args, properties, f"{report.printable(args.output)}: {scene.legend(args.kind)}")
    return 0


def _check(args: argparse.Namespace) -> None:
    paths.check_suffix(args.flow, "FLOW", FLOW_SUFFIXES)
    for name in scenes.NEEDS[args.kind]:
        if getattr(args, name) is None:
            raise InputError(f"--kind {args.kind}: requires {_OPTIONS[name]}")
    if args.kind != "sheet":
        for name, option in _OPTIONS.items():
            if getattr(args, name) is not None and name not in scenes.NEEDS[args.kind]:
                raise InputError(f"{option}: is not used by --kind {args.kind}; leave it out")
    if args.max_motion is not None and args.kind in ("warped", "error"):
        raise InputError(f"--max-motion: is not used by --kind {args.kind}; leave it out")
    if args.max_error is not None and args.truth is None:
        raise InputError("--max-error: applies to the error, which requires --truth")
    check_flow_choice(args, "truth", args.truth, "--truth")
    if args.four_values and args.truth is None:
        raise InputError("--four-values: describes --truth, which is absent")
    unused = unused_reading_options(args) if args.frame1 is None and args.frame2 is None else []
    if is_exr(args.flow) and "--window" in unused:
        unused.remove("--window")
    if unused:
        raise InputError(f"{unused[0]}: applies to frames, and none is given; leave it out")
    inputs = [("FLOW", args.flow), ("--frame", args.frame1), ("--frame2", args.frame2), ("--truth", args.truth)]
    paths.check_files(inputs, [("--output", args.output, IMAGE_WRITE_SUFFIXES)])


def _truth(args: argparse.Namespace, flow: Tensor, area: Box | None) -> tuple[Tensor | None, Tensor | None]:
    if args.truth is None:
        return None, None
    choice: dict[str, Any] = flow_choice(args, "truth")
    if area is not None and is_exr(args.truth):
        choice["window"] = area
    truth, valid = read_truth(args.truth, flow, args.flow, four=args.four_values, **choice)
    if truth_values(truth) == 4 and not args.four_values:
        report.note(f"{args.truth}: {FOUR_VALUES}")
    return truth, valid


def _frames(args: argparse.Namespace, flow: Tensor, area: Box | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the first and the second frame on the grid of the flow; ``area`` is its data window, if it has one."""
    from fullfield.cli.options import read_frames

    paths = [path for path in (args.frame1, args.frame2) if path is not None]
    if not paths:
        return None, None
    with naming(**READING_WORDS):
        frames = dict(zip(paths, read_frames(args, paths, area).frames, strict=True))
    for path, frame in frames.items():
        same_size(flow, args.flow, frame, path)
    return frames.get(args.frame1), frames.get(args.frame2)
