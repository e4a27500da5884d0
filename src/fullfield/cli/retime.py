"""Make a shot slower or faster, with frames in between from stored flow.

Output frames are numbered from the first plate. A frame between two plates is interpolated from both along forward and
backward flow; regions that only one of them shows come from that one.
"""

from __future__ import annotations

import argparse

from fullfield.cli import argtypes, pictures, report
from fullfield.cli.options import build_flow_read_options

EPILOG = """\
examples:
  fullfield shot 'plate.%04d.exr' --direction both -o 'mv.%04d.exr'
  fullfield retime 'plate.%04d.exr' --flow 'mv.%04d.exr' --factor 2.5 -o 'slow.%04d.exr'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield retime``."""
    parser.add_argument("plates", metavar="PLATES", help="a shot: plate.%%04d.exr, a folder, a glob, a video")
    parser.add_argument(
        "--factor",
        type=argtypes.parse_positive_number,
        metavar="F",
        required=True,
        help="output frames per plate; 2: half the speed",
    )
    pictures.add_warp_and_retime_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, interpolate and write the frames, report."""
    pictures.check_picture_options_and_remove_temporaries(args)

    from fullfield.sequences.retiming import RetimeSettings, build_retime_job
    from fullfield.sequences.stored_flow import StoredFlow

    with pictures.rename_picture_arguments_in_errors(args):
        flow = StoredFlow(args.flow, args.flow_scale, build_flow_read_options(args, layer=args.layer))
        settings = RetimeSettings(args.factor, args.mask)
        job = build_retime_job(args.plates, flow, args.output, settings, frames=args.frames, device=args.device)
        outcome, existing = pictures.write_missing_pictures_and_count_existing(args, "retime", job)
    if not args.quiet:
        for a, b in outcome.cuts:
            report.print_note(f"the shot changes between the frames {a} and {b}; no frame is interpolated across them")
    return pictures.print_picture_report_and_return_code(
        args, outcome, existing, factor=float(job.factor), cuts=outcome.cuts
    )
