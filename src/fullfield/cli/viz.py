"""Draw a flow.

Draw a flow in colours, over its frame, as a warped frame, as an error, or a sheet of all.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fullfield import io
from fullfield._check import InputError
from fullfield.cli import flow_visualization, paths, report
from fullfield.cli.argtypes import parse_positive_number
from fullfield.cli.options import (
    FOUR_VALUES,
    READING_WORDS,
    add_four_vectors_per_pixel_option,
    add_frame_reading_options,
    add_layer_options,
    count_truth_vectors_per_pixel,
    get_layer_arguments,
    list_used_frame_reading_options,
    read_truth_and_valid_mask,
    refuse_layer_options_without_flow,
)
from fullfield.cli.report import check_same_size, rename_arguments_in_errors
from fullfield.io.names import FLOW_SUFFIXES, IMAGE_WRITE_SUFFIXES, has_exr_suffix
from fullfield.io.windows import Box

if TYPE_CHECKING:
    from torch import Tensor

EPILOG = """\
examples:
  fullfield viz flow.flo -o flow.png --max-motion 20
  fullfield viz flow.flo -o over.png --kind overlay --frame frame_0001.png
  fullfield viz flow.flo -o sheet.png --kind sheet --frame a.png --frame2 b.png --truth truth.flo
"""

KINDS = tuple(flow_visualization.INPUTS_BY_KIND)
_OPTIONS = {"frame1": "--frame", "frame2": "--frame2", "truth": "--truth"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield viz``."""
    parser.add_argument("flow", metavar="FLOW", help=f"flow: {' '.join(FLOW_SUFFIXES)} (.png: KITTI)")
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help=f"picture: {' '.join(IMAGE_WRITE_SUFFIXES)}"
    )
    parser.add_argument("--kind", choices=KINDS, default="flow", help="what to draw")
    parser.add_argument("--frame", metavar="A", dest="frame1", help="first frame, for overlay and sheet")
    parser.add_argument("--frame2", metavar="B", help="second frame, for warped and sheet")
    parser.add_argument("--truth", metavar="FILE", help="true flow, for error and sheet")
    flow_visualization.add_max_motion_option(parser)
    parser.add_argument(
        "--max-error", type=parse_positive_number, metavar="PX", help="error at the end of the scale [16]"
    )
    add_layer_options(parser, "flow", "FLOW")
    add_layer_options(parser, "truth", "--truth")
    add_four_vectors_per_pixel_option(parser)
    add_frame_reading_options(parser)
    report.add_report_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, read the flow and draw it."""
    from fullfield.io.flow import read_flow_window

    _check_kind_and_file_options(args)

    choice: dict[str, Any] = get_layer_arguments(args, "flow")
    if args.window == "data" and has_exr_suffix(args.flow):
        choice["window"] = read_flow_window(args.flow, **choice).data
    flow, valid = io.read_flow(args.flow, **choice)
    area = choice.get("window")
    truth, truth_valid = _read_truth_and_valid_if_requested(args, flow, area)
    frame1, frame2 = _read_frame1_and_frame2_if_requested(args, flow, area)
    visualization = flow_visualization.FlowVisualization(
        flow, valid, frame1, frame2, truth, truth_valid, args.max_motion, args.max_error
    )
    io.write_image(args.output, visualization.draw_picture_or_floats_for_file(args.kind, args.output))
    properties = {
        **report.select_attributes(args, "output", "flow", "kind"),
        **visualization.get_scale_maxima_px(args.kind),
        "truth_values": None if truth is None else count_truth_vectors_per_pixel(truth),
        "size": {"width": flow.shape[-1], "height": flow.shape[-2]},
    }
    report.print_report(
        args, properties, f"{report.escape_control_characters(args.output)}: {visualization.format_legend(args.kind)}"
    )
    return 0


def _check_kind_and_file_options(args: argparse.Namespace) -> None:
    paths.get_checked_suffix(args.flow, "FLOW", FLOW_SUFFIXES)
    for name in flow_visualization.INPUTS_BY_KIND[args.kind]:
        if getattr(args, name) is None:
            raise InputError(f"--kind {args.kind}: requires {_OPTIONS[name]}")
    if args.kind != "sheet":
        for name, option in _OPTIONS.items():
            if getattr(args, name) is not None and name not in flow_visualization.INPUTS_BY_KIND[args.kind]:
                raise InputError(f"{option}: is not used by --kind {args.kind}; leave it out")
    if args.max_motion is not None and args.kind in ("warped", "error"):
        raise InputError(f"--max-motion: is not used by --kind {args.kind}; leave it out")
    if args.max_error is not None and args.truth is None:
        raise InputError("--max-error: applies to the error, which requires --truth")
    refuse_layer_options_without_flow(args, "truth", args.truth, "--truth")
    if args.four_values and args.truth is None:
        raise InputError("--four-values: describes --truth, which is absent")
    unused = list_used_frame_reading_options(args) if args.frame1 is None and args.frame2 is None else []
    if has_exr_suffix(args.flow) and "--window" in unused:
        unused.remove("--window")
    if unused:
        raise InputError(f"{unused[0]}: applies to frames, and none is given; leave it out")
    inputs = [("FLOW", args.flow), ("--frame", args.frame1), ("--frame2", args.frame2), ("--truth", args.truth)]
    paths.check_files_and_remove_temporaries(inputs, [("--output", args.output, IMAGE_WRITE_SUFFIXES)])


def _read_truth_and_valid_if_requested(
    args: argparse.Namespace, flow: Tensor, display_box: Box | None
) -> tuple[Tensor | None, Tensor | None]:
    if args.truth is None:
        return None, None
    choice: dict[str, Any] = get_layer_arguments(args, "truth")
    if display_box is not None and has_exr_suffix(args.truth):
        choice["window"] = display_box
    truth, valid = read_truth_and_valid_mask(
        args.truth, flow, args.flow, has_four_vectors_per_pixel=args.four_values, **choice
    )
    if count_truth_vectors_per_pixel(truth) == 4 and not args.four_values:
        report.print_note(f"{args.truth}: {FOUR_VALUES}")
    return truth, valid


def _read_frame1_and_frame2_if_requested(
    args: argparse.Namespace, flow: Tensor, display_box: Box | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the first and second frame on the flow's grid; ``display_box`` is its data window, if it has one."""
    from fullfield.cli.options import read_frames_and_fill_unknown_pixels

    paths = [path for path in (args.frame1, args.frame2) if path is not None]
    if not paths:
        return None, None
    with rename_arguments_in_errors(**READING_WORDS):
        frames = dict(zip(paths, read_frames_and_fill_unknown_pixels(args, paths, display_box).frames, strict=True))
    for path, frame in frames.items():
        check_same_size(flow, args.flow, frame, path)
    return frames.get(args.frame1), frames.get(args.frame2)
