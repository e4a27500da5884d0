"""Options, checks and reports of ``warp`` and ``retime``."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.methods import DEVICE_HELP
from fullfield.cli.options import add_vector_encoding_options
from fullfield.cli.progress import ProgressBar
from fullfield.io.names import VIDEO_CODECS, VIDEO_WRITE_SUFFIXES
from fullfield.sequences.names import format_frames, has_number_field

if TYPE_CHECKING:
    from fullfield.sequences.pictures import PictureJob
    from fullfield.sequences.results import Outcome

SUFFIXES = (".exr", ".tif", ".tiff", ".png", *VIDEO_WRITE_SUFFIXES)


def add_warp_and_retime_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both verbs take."""
    parser.add_argument("--flow", metavar="FLOW", required=True, help="stored flow: mv.%%04d.exr, or one file")
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help=f"pictures, or a video: {' '.join(SUFFIXES)}"
    )
    parser.add_argument("--frames", metavar="RANGE", help="1001-1100, 1-10,20 [all that exist]")
    parser.add_argument(
        "--flow-scale", metavar="FRACTION", default="1", help="size of FLOW relative to the pictures, such as 1/2"
    )
    parser.add_argument(
        "--mask",
        metavar="MASK",
        help="where pictures are known: picture, mask.%%04d.png, EXR channel or FILE:CHANNEL; unknown where 0",
    )
    parser.add_argument("--codec", choices=VIDEO_CODECS, help="of a video; prores: .mov, .mkv; dnxhr: .mov [h264]")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_argument("--device", metavar="NAME", default="auto", help=DEVICE_HELP)
    parser.add_argument("--layer", metavar="NAME", help="EXR layer of the flow: forward, backward, ... [by direction]")
    add_vector_encoding_options(parser)
    report.add_report_options(parser, has_quiet_option=True)


def check_picture_options_and_remove_temporaries(args: argparse.Namespace) -> None:
    """Check the names of the flow and of the pictures that are written."""
    if not has_number_field(args.flow):
        paths.check_input_file(args.flow, "--flow")
    paths.get_checked_suffix(args.output, "--output", SUFFIXES)
    if has_number_field(args.output):
        paths.parse_pattern_and_remove_temporaries(args.output, "--output", ".exr")
    else:
        paths.check_output_file_and_remove_temporaries(args.output, "--output")
    is_video = args.output.lower().endswith(VIDEO_WRITE_SUFFIXES)
    if args.codec is not None and not is_video:
        raise InputError(f"--codec: is for a video, and the output is {args.output}; leave it out")
    if is_video and not args.quiet:
        report.print_note(f"{args.output}: is written without sound")


def rename_picture_arguments_in_errors(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Return a context in which errors name options in place of arguments."""
    names = {
        "flow": f"--flow {args.flow}",
        "output": f"--output {args.output}",
        "scale": "--flow-scale",
        "codec": "--codec",
    }
    names |= {name: f"--{name}" for name in ("reference", "factor", "frames", "device")}
    return report.rename_arguments_in_errors(**names)


def write_missing_pictures_and_count_existing(
    args: argparse.Namespace, command: str, job: PictureJob
) -> tuple[Outcome, int]:
    """Settle the job and write its pictures; return the outcome, and how many pictures existed."""
    from fullfield.sequences.pictures import write_job_pictures

    settled, plan = job.write_settings_and_get_job_and_plan(overwrite=args.overwrite)
    if not args.quiet and job.has_records:
        report.print_existing_and_outdated_counts(job.numbers, plan)
    with ProgressBar(command, quiet=args.quiet) as progress:
        codec, count = args.codec or VIDEO_CODECS[0], len(plan.missing)
        outcome = write_job_pictures(settled, plan.missing, codec=codec, report=progress.build_frame_callback(count))
    return outcome, len(job.numbers) - count


def print_picture_report_and_return_code(
    args: argparse.Namespace, outcome: Outcome, existing_count: int, action: str = "", **content: Any
) -> int:
    """Print problems and the report, which says the action, and return the exit code."""
    report.print_problems(outcome.problems)
    if outcome.stopped is not None:
        report.print_note(f"stopped: {outcome.stopped}; run the same command again to continue", kind="error")
    values = {
        "output": args.output,
        "written": format_frames(outcome.written),
        "existing": existing_count,
        "problems": [problem._asdict() for problem in outcome.problems],
        "stopped": outcome.stopped,
        **content,
    }
    lost = f", {report.format_count(len(outcome.problems), 'problem')}" if outcome.problems else ""
    written = report.format_count(len(outcome.written), "frame")
    text = f"{report.escape_control_characters(args.output)}: {written} written{lost}"
    report.print_report(args, values, f"{text}, {action}" if action else text)
    return 0 if outcome.is_complete else 2
