"""``fullfield viz FLOW -o OUT``: pictures of a flow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, pictures, report
from fullfield.cli.errors import naming, same_size
from fullfield.cli.options import READING_WORDS, add_reading_options, positive, reading_arguments
from fullfield.cli.truth import read_truth
from fullfield.io.names import FLOW_SUFFIXES, IMAGE_WRITE_SUFFIXES

if TYPE_CHECKING:
    from torch import Tensor

EPILOG = """\
examples:
  fullfield viz flow.flo -o flow.png --max-motion 20
  fullfield viz flow.flo -o over.png --kind overlay --frame frame_0001.png
  fullfield viz flow.flo -o sheet.png --kind sheet --frame a.png --frame2 b.png --truth truth.flo
"""

KINDS = tuple(pictures.NEEDS)
_OPTIONS = {"frame1": "--frame", "frame2": "--frame2", "truth": "--truth"}


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``fullfield viz``."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "viz",
        help="draw a flow",
        description="Draw a flow in colours, over its frame, as a warped frame, as an error, or a sheet of all.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("flow", metavar="FLOW", help=f"flow: {' '.join(FLOW_SUFFIXES)} (.png: KITTI)")
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help=f"picture: {' '.join(IMAGE_WRITE_SUFFIXES)}"
    )
    parser.add_argument("--kind", choices=KINDS, default="flow", help="what to draw [%(default)s]")
    parser.add_argument("--frame", metavar="A", dest="frame1", help="first frame, for overlay and sheet")
    parser.add_argument("--frame2", metavar="B", help="second frame, for warped and sheet")
    parser.add_argument("--truth", metavar="FILE", help="true flow, for error and sheet")
    pictures.add_max_motion(parser)
    parser.add_argument("--max-error", type=positive, metavar="PX", help="error at the end of the scale [16]")
    parser.add_argument("--flow-layer", metavar="NAME", help="EXR layer of FLOW [forward]")
    parser.add_argument("--flow-part", metavar="PART", help="EXR part of FLOW, by name or number [the first with flow]")
    add_reading_options(parser)
    report.add_report_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, read, draw."""
    _check(args)

    from fullfield.io import read_flow, write_image

    flow, valid = read_flow(args.flow, layer=args.flow_layer, part=args.flow_part)
    truth, known = (None, None) if args.truth is None else read_truth(args.truth, flow, args.flow)
    scene = pictures.Scene(
        flow,
        valid,
        _frame(args, args.frame1, flow),
        _frame(args, args.frame2, flow),
        truth,
        known,
        args.max_motion,
        args.max_error,
    )
    write_image(args.output, scene.draw(args.kind))
    if args.json:
        report.print_json(
            {
                "output": args.output,
                "flow": args.flow,
                "kind": args.kind,
                "max_motion": scene.scale,
                "size": {"width": flow.shape[-1], "height": flow.shape[-2]},
                "versions": report.versions(),
            }
        )
    else:
        print(f"{args.output}: {args.kind}, the full colour is {scene.scale:.4g} px")
    return 0


def _check(args: argparse.Namespace) -> None:
    paths.check_suffix(args.flow, "FLOW", FLOW_SUFFIXES)
    paths.check_suffix(args.output, "--output", IMAGE_WRITE_SUFFIXES)
    for name in pictures.NEEDS[args.kind]:
        if getattr(args, name) is None:
            raise InputError(f"--kind {args.kind}: needs {_OPTIONS[name]}")
    if args.kind != "sheet":
        for name, option in _OPTIONS.items():
            if getattr(args, name) is not None and name not in pictures.NEEDS[args.kind]:
                raise InputError(f"{option}: is not used by --kind {args.kind}; leave it out")
    if args.max_motion is not None and args.kind in ("warped", "error"):
        raise InputError(f"--max-motion: is not used by --kind {args.kind}; leave it out")
    if args.max_error is not None and args.truth is None:
        raise InputError("--max-error: is the scale of the error, which needs --truth")
    inputs = [("FLOW", args.flow), ("--frame", args.frame1), ("--frame2", args.frame2), ("--truth", args.truth)]
    for what, path in inputs:
        if path is not None:
            paths.check_input(path, what)
    paths.check_output(args.output, "--output")
    paths.check_distinct([("--output", args.output)], [path for _, path in inputs])


def _frame(args: argparse.Namespace, path: str | None, flow: Tensor) -> Tensor | None:
    if path is None:
        return None
    from fullfield.io import read_frame

    with naming(**READING_WORDS):
        frame = read_frame(path, **reading_arguments(args))
    same_size(flow, args.flow, frame, path)
    return frame
