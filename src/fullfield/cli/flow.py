"""Estimate the flow between two frames.

Estimate the flow from frame A to frame B. The suffix of OUT selects the format. For a whole shot use fullfield shot.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fullfield import io, viz
from fullfield._check import InputError
from fullfield.cli import flow_visualization, methods, paths, report
from fullfield.cli.options import (
    READING_WORDS,
    add_compression_options,
    add_frame_reading_options,
    add_layer_options,
    get_compression_arguments_fitting_output,
    get_layer_arguments,
    refuse_layer_options_without_flow,
)
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import check_same_size, format_size, rename_arguments_in_errors
from fullfield.io.names import FLOW_WRITE_SUFFIXES, IMAGE_WRITE_SUFFIXES, has_exr_suffix
from fullfield.sequences.names import is_sequence_or_video_path

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.estimators.flow import Flow
    from fullfield.io.windows import FrameWindow

MAPS = ("occlusion", "confidence")
"""Maps that can be written with the flow."""

KINDS = ("sheet", "flow", "overlay", "warped", *MAPS)
"""Pictures of ``--viz``, the default first."""

USAGE = "fullfield flow A B -o OUT [options]"

_FETCH = (0.0, 0.02)
_ESTIMATE = (0.02, 0.95)  # part of the progress bar

EPILOG = """\
examples:
  fullfield flow frame_0001.png frame_0002.png -o flow.flo --viz flow.png
  fullfield flow plate.1002.exr plate.1003.exr --previous plate.1001.exr -o vectors.1002.exr --half
  fullfield flow a.dpx b.dpx -o flow.exr --st-map st.exr --preset fast
  fullfield flow a.png b.png -o flow.exr --occlusion --viz hidden.png --viz-kind occlusion
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield flow``."""
    parser.add_argument("frame1", metavar="A", help="first frame, whose pixels move")
    parser.add_argument("frame2", metavar="B", nargs="?", help="second frame, of the same size")
    parser.add_argument("others", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help=f"flow file: {' '.join(FLOW_WRITE_SUFFIXES)} (.png: KITTI)",
    )
    estimation = methods.add_method_option_group(parser, common_group=parser)
    parser.add_argument("--refine", action="store_true", help=methods.REFINE_HELP)
    parser.add_argument("--viz", metavar="FILE", help=f"write a picture: {' '.join(IMAGE_WRITE_SUFFIXES)}")
    parser.add_argument("--half", action="store_true", help=".exr: half floats instead of floats")
    parser.add_argument("--occlusion", action="store_true", help="store which pixels are hidden in B (.exr)")
    parser.add_argument("--overwrite", action="store_true", help="replace files that fullfield did not write")
    report.add_report_options(parser, has_quiet_option=True)

    picture = parser.add_argument_group("picture")
    picture.add_argument(
        "--viz-kind", choices=KINDS, help="occlusion: white where hidden; confidence: white where reliable [sheet]"
    )
    flow_visualization.add_max_motion_option(picture)
    output = parser.add_argument_group("output")
    output.add_argument("--confidence", action="store_true", help="store how reliable the flow of each pixel is (.exr)")
    output.add_argument(
        "--previous", metavar="FRAME", help="frame before A: write the flow to it as layer backward (.exr)"
    )
    output.add_argument("--st-map", metavar="FILE", help="also write the flow as an ST map (.exr)")
    add_compression_options(output, has_half_option=False)
    methods.add_scale_option(estimation)
    estimation.add_argument("--initial-flow", metavar="FILE", help="start from this flow of the frames' size")
    add_layer_options(estimation, "initial", "--initial-flow")
    add_frame_reading_options(parser)
    methods.add_parameter_options(parser)


def _require_two_frames(args: argparse.Namespace) -> None:
    """Refuse a shot, and more frames than two."""
    if args.others:
        count = 2 + len(args.others)
        raise InputError(f"flow: expected two frames, got {count}; for a shot use fullfield shot with a quoted pattern")
    for frame in (args.frame1, args.frame2):
        if frame and is_sequence_or_video_path(frame):
            raise InputError(f"{frame}: is a whole shot; use fullfield shot {shlex.quote(frame)} -o OUT")
    if args.frame2 is None:
        raise InputError("B: expected a second frame, got none; for a whole shot use fullfield shot PATTERN")


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, read, estimate, write, report."""
    watch = report.Stopwatch()
    _require_two_frames(args)
    _check_file_options(args)
    choice = replace(methods.choose_method(args), scale=args.scale)

    from fullfield.cli.options import read_frames_and_fill_unknown_pixels
    from fullfield.estimators.bars import measure_picture_size

    methods.limit_cpu_threads_unless_none(args.threads)
    choice.start_compiling_refinement_if_cold()
    names = {"frame1": args.frame1, "frame2": args.frame2, "frames": args.frame1}
    words = {**methods.map_arguments_to_options(args.method), **READING_WORDS, **names}
    with ProgressBar("flow", quiet=args.quiet) as progress, rename_arguments_in_errors(**words):
        progress(0.0, "reading")
        listed = [args.frame1, args.frame2, args.previous]
        files = read_frames_and_fill_unknown_pixels(args, [path for path in listed if path is not None])
        (frame1, frame2, *previous), window = files.frames, files.window
        initial = None if args.initial_flow is None else _read_initial_flow_with_unknown_as_zero(args, frame1, window)
        watch.add_lap("load")

        choice.load_weights_and_kernels(
            measure_picture_size(frame1, frame2), progress.start_span_and_build_callback(*_FETCH), quiet=args.quiet
        )
        watch.add_lap("compile")

        start, end = _ESTIMATE
        middle = (start + end) / 2 if previous else end
        needs_maps = args.occlusion or args.confidence or args.viz_kind in MAPS
        span = progress.start_span_and_build_callback(start, middle)
        valid1, valid2, *_ = files.valid
        options = {"initial_flow": initial, "refine": args.refine, "reliability": needs_maps}
        flow = choice.estimate(frame1, frame2, progress=span, valid1=valid1, valid2=valid2, **options)
        span = progress.start_span_and_build_callback(middle, end)
        backward = [
            choice.estimate(frame1, frame, progress=span, refine=args.refine, valid1=valid1) for frame in previous
        ]
        watch.add_lap("estimate")

        progress(end, "writing")
        valid = flow.valid & backward[0].valid if backward else flow.valid
        visualization = flow_visualization.FlowVisualization(
            flow.flow, valid, frame1, frame2, max_motion=args.max_motion
        )
        maps = {name: getattr(flow, name) for name in MAPS if getattr(args, name)}
        layers = {"backward": backward[0].flow if backward else None, "maps": maps}
        visualization.maps = {name: getattr(flow, name) for name in MAPS if args.viz_kind == name}
        outcome = _write_outputs_and_rescue_out_of_range_flow(args, visualization, layers, window)
        watch.add_lap("write")
    if not args.quiet:
        _print_note_if_frames_too_small_for_levels(choice, frame1)
        for frame, result in zip((args.frame2, args.previous), (flow, *backward), strict=False):
            if result.bars is not None:
                report.print_note(f"{args.frame1}, {frame}: {report.describe_bars(result.bars)}")
    _print_report(args, choice, [flow, *backward], visualization, outcome, watch.get_stage_seconds())
    return 0 if outcome.problem is None else 2


def _check_file_options(args: argparse.Namespace) -> None:
    suffix = paths.get_checked_suffix(args.output, "--output", FLOW_WRITE_SUFFIXES)
    get_compression_arguments_fitting_output(args)
    if args.previous is not None and suffix != ".exr":
        raise InputError(f"--previous: expected an .exr output, which holds both directions, got {args.output}")
    refuse_layer_options_without_flow(args, "initial", args.initial_flow, "--initial-flow")
    for name in MAPS:
        if getattr(args, name) and suffix != ".exr":
            raise InputError(f"--{name}: expected an .exr output, got {args.output}; or use --viz-kind {name}")
    if args.viz is None:
        for option, value in (("--viz-kind", args.viz_kind), ("--max-motion", args.max_motion)):
            if value is not None:
                raise InputError(f"{option}: applies to the picture of --viz, which is absent")
    if args.max_motion is not None and args.viz_kind in ("warped", *MAPS):
        raise InputError(f"--max-motion: is not used by --viz-kind {args.viz_kind}; leave it out")
    inputs = [
        ("A", args.frame1),
        ("B", args.frame2),
        ("--previous", args.previous),
        ("--initial-flow", args.initial_flow),
    ]
    outputs = [
        ("--output", args.output, FLOW_WRITE_SUFFIXES),
        ("--st-map", args.st_map, (".exr",)),
        ("--viz", args.viz, IMAGE_WRITE_SUFFIXES),
    ]
    paths.check_files_and_remove_temporaries(inputs, outputs)
    if not args.overwrite:
        paths.refuse_replacing_unrecorded_files([(option, path) for option, path, _ in outputs])


def _read_initial_flow_with_unknown_as_zero(
    args: argparse.Namespace, frame: Tensor, window: FrameWindow | None
) -> Tensor:
    """Return the initial flow; unknown vectors start from zero."""
    choice: dict[str, Any] = get_layer_arguments(args, "initial")
    if window is not None and args.window == "data" and has_exr_suffix(args.initial_flow):
        choice["window"] = window.data
    flow, valid = io.read_flow(args.initial_flow, **choice)
    check_same_size(frame, args.frame1, flow, args.initial_flow)
    unknown = int((~valid).sum())
    if unknown and not args.quiet:
        report.print_note(f"{args.initial_flow}: {unknown} unknown vectors start from zero")
    return flow


def _print_note_if_frames_too_small_for_levels(choice: methods.MethodChoice, frame: Tensor) -> None:
    """Print a note if the frames are too small for the requested levels."""
    requested, factor = (getattr(choice.config, name, None) for name in ("scales", "scale_factor"))
    if requested is None or factor is None:
        return
    from fullfield.ops.tvl1.frames import compute_level_sizes

    height, width = frame.shape[-2:]
    used = len(compute_level_sizes(height, width, requested, factor))
    if used < requested:
        report.print_note(
            f"--scales {requested}: {width}x{height} has {used} levels; a side of the next would be under 16"
        )


class _WrittenFlowFile(NamedTuple):
    """File of the flow, and the reason if it is not the requested one."""

    path: str
    problem: str | None = None


def _write_outputs_and_rescue_out_of_range_flow(
    args: argparse.Namespace,
    visualization: flow_visualization.FlowVisualization,
    layers: dict[str, Any],
    window: FrameWindow | None,
) -> _WrittenFlowFile:
    contents: dict[str, Any] = {"valid": visualization.valid}
    if has_exr_suffix(args.output):
        from fullfield.io.vectors import build_named_map_planes

        planes = build_named_map_planes(layers["maps"], visualization.valid)
        contents = {"window": window, "backward": layers["backward"], "planes": planes}
    outcome = _WrittenFlowFile(args.output)
    try:
        with paths.record_file_written_in_block(args.output):
            io.write_flow(args.output, visualization.flow, **contents, **get_compression_arguments_fitting_output(args))
    except io.FlowRangeError as error:  # keep the work
        rescue = paths.build_unused_name(args.output, ".float.exr" if has_exr_suffix(args.output) else ".npy")
        with paths.record_file_written_in_block(rescue):
            io.write_flow(rescue, visualization.flow, **contents)
        reason = str(error).removeprefix("flow: ")
        outcome = _WrittenFlowFile(rescue, f"{args.output}: {reason}; the flow is kept in {rescue}")
        report.print_note(f"{args.output}: {reason}; the flow is kept in {rescue}", kind="error")
    if args.st_map is not None:
        with paths.record_file_written_in_block(args.st_map):
            io.write_st_map(args.st_map, visualization.flow, window=window)
    if args.viz is not None:
        picture = visualization.draw_picture_or_floats_for_file(args.viz_kind or KINDS[0], args.viz)
        with paths.record_file_written_in_block(args.viz):
            io.write_image(args.viz, picture)
    return outcome


def _print_report(
    args: argparse.Namespace,
    choice: methods.MethodChoice,
    flows: list[Flow],  # and the one to the frame before
    visualization: flow_visualization.FlowVisualization,
    outcome: _WrittenFlowFile,
    seconds: dict[str, float],
) -> None:
    kind = args.viz_kind or KINDS[0]
    flow = flows[0]
    longest = max(viz.measure_max_motion(result.flow, result.valid) for result in flows)
    refined = flow.parameters.get("refinement") is not None
    title = f"{choice.title}{'' if flow.method == choice.method else f': {flow.method}'}"
    title += ", refined by TV-L1" if refined else ""
    text = (
        f"{report.escape_control_characters(outcome.path)}: {format_size(flow.flow)}, {title}, "
        f"on {choice.device} (backend {flow.backend}), longest motion {longest:.4g} px, "
        f"{seconds['estimate']:.2f} s"
    )
    picture = None
    if args.viz is not None:
        picture = {
            "path": args.viz,
            "kind": kind,
            "max_motion": visualization.get_scale_maxima_px(kind)["max_motion"],
        }
        text += f"\n{report.escape_control_characters(args.viz)}: {visualization.format_legend(kind)}"
    content = {
        "output": outcome.path,
        "problem": outcome.problem,
        "st_map": args.st_map,
        "picture": picture,
        **choice.collect_method_settings(flow),
        "refined": refined,
        "device": choice.device,
        "previous": args.previous,
        "size": report.select_attributes(flow, "width", "height"),
        "longest_motion": longest,
        "bars": None if flow.bars is None else flow.bars._asdict(),
        "seconds": seconds,
        "estimate_seconds": {name: round(stage_seconds, 3) for name, stage_seconds in flow.stages.items()},
    }
    report.print_report(args, content, text, has_peak_memory=True)
