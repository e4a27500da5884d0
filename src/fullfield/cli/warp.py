"""Warp a plate, a matte or a paint-over along stored flow.

With --reference, warp a picture of that frame onto every frame, along the flow in between. Without it, warp each
frame's neighbour onto the frame. Files of fullfield follow name their reference, and pixels that are hidden there are
0. All channels are warped, in float; unknown pixels are 0.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fullfield._check import InputError
from fullfield.cli import argtypes, paths, pictures, report
from fullfield.cli.options import build_flow_read_options
from fullfield.sequences.names import format_frames, is_sequence_or_video_path

if TYPE_CHECKING:
    from fullfield.sequences.warping import WarpSettings

EPILOG = """\
examples:
  fullfield warp paint.1001.exr --reference 1001 --flow 'mv.%04d.exr' --frames 1001-1040 -o 'paint_on.%04d.exr'
  fullfield warp 'plate.%04d.exr' --flow 'mv.%04d.exr' -o 'next_on_this.%04d.exr'
  fullfield warp paint.1001.exr --flow 'ref.%04d.exr' -o 'paint_on.%04d.exr'  (files of fullfield follow)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield warp``."""
    parser.add_argument(
        "image", metavar="IMAGE", help="a picture, or a shot: plate.%%04d.exr, a folder, a glob, a video"
    )
    parser.add_argument("--reference", type=argtypes.parse_integer, metavar="FRAME", help="frame that IMAGE belongs to")
    parser.add_argument("--direction", choices=("forward", "backward"), help="neighbour, without --reference [forward]")
    parser.add_argument(
        "--hide-occluded", action="store_true", help="0 where an occlusion layer marks a pixel as hidden"
    )
    pictures.add_warp_and_retime_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, warp and write the pictures, report."""
    if not is_sequence_or_video_path(args.image):
        paths.check_input_file(args.image, "IMAGE")
    if args.reference is not None and args.direction is not None:
        raise InputError("--direction: not used with --reference; leave it out")
    pictures.check_picture_options_and_remove_temporaries(args)

    from fullfield.sequences.stored_flow import StoredFlow
    from fullfield.sequences.warping import WarpSettings, build_warp_job

    with pictures.rename_picture_arguments_in_errors(args):
        settings = WarpSettings(args.reference, args.direction or "forward", args.hide_occluded, args.mask)
        flow = StoredFlow(args.flow, args.flow_scale, build_flow_read_options(args, layer=args.layer))
        if flow.reference is not None and args.direction is not None:
            raise InputError("--direction: not used with files of fullfield follow; leave it out")
        job = build_warp_job(args.image, flow, args.output, settings, frames=args.frames, device=args.device)
        outcome, existing = pictures.write_missing_pictures_and_count_existing(args, "warp", job)
    if outcome.shot_ends and not args.quiet:
        reason = "the shot ends there" if flow.reference is None else "a cut lies between them and the reference"
        report.print_note(f"no picture for {format_frames(outcome.shot_ends)}: {reason}")
    action = _describe_warped_frames(args, job.settings)
    return pictures.print_picture_report_and_return_code(args, outcome, existing, action, reference=args.reference)


def _describe_warped_frames(args: argparse.Namespace, settings: WarpSettings) -> str:
    """Return which frame's picture lies on which frame."""
    name = report.escape_control_characters(args.image)
    if settings.reference is not None:
        return f"{name} of frame {settings.reference} moved onto each frame"
    neighbour = "next" if settings.direction == "forward" else "previous"
    if is_sequence_or_video_path(args.image):
        return f"on each frame lies its {neighbour} frame"
    return (
        f"{name}, read as the {neighbour} frame, moved onto the frame of {report.escape_control_characters(args.flow)}"
    )
