"""Write an HTML page to play a shot's motion and inspect its vectors.

Write one self-contained page for any browser, usable offline: flow over the frames, arrows, occlusion, confidence, a
wipe to the warped neighbour, the vector under the pointer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield import io, sequences
from fullfield._check import InputError
from fullfield.cli import argtypes, flow_visualization, paths, report
from fullfield.cli.options import add_vector_encoding_options, build_flow_read_options
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import format_size, rename_arguments_in_errors
from fullfield.io.files import write_atomically
from fullfield.io.names import DIRECTIONS, FLOW_SUFFIXES
from fullfield.sequences.names import (
    FrameFiles,
    choose_requested_or_all_frame_numbers,
    find_frame_files,
    format_frames,
    has_number_field,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.sequences.plates import Plates
    from fullfield.viz.page import ViewFrame

EPILOG = """\
examples:
  fullfield view 'mv.%04d.exr'
  fullfield view 'mv.%04d.exr' --plates 'plate.%04d.exr' --frames 1001-1050 -o shot.html
  fullfield view 'ref.%04d.exr' --paint paint.1001.exr  (files of fullfield follow)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield view``."""
    parser.add_argument("flow", metavar="FLOW", help="stored flow of a shot: mv.%%04d.exr")
    parser.add_argument("--plates", metavar="SHOT", help="the plates [those the flow was computed from]")
    parser.add_argument("--frames", metavar="RANGE", help="1001-1100, 1-10,20 [all that exist]")
    parser.add_argument("-o", "--output", metavar="PAGE", help="the page, .html [next to the flow]")
    parser.add_argument(
        "--width", type=argtypes.parse_positive_integer, default=960, help="width of the pictures, at most [960]"
    )
    parser.add_argument("--paint", metavar="FILE", help="of followed files: picture of the reference [a grid]")
    parser.add_argument(
        "--grid", type=argtypes.parse_positive_integer, metavar="PX", help="distance of the grid's lines [width / 16]"
    )
    flow_visualization.add_max_motion_option(parser)
    parser.add_argument("--layer", metavar="NAME", help="EXR layer to show as forward flow [forward and backward]")
    add_vector_encoding_options(parser)
    report.add_report_options(parser, has_quiet_option=True)


def run_command(args: argparse.Namespace) -> int:
    """Write the page and report it."""
    from fullfield.viz.page import build_html_page

    if not has_number_field(args.flow):
        raise InputError(f"{args.flow}: expected a pattern such as mv.%04d.exr")
    files = find_frame_files(args.flow)
    numbers = [number for number in choose_requested_or_all_frame_numbers(files, args.frames) if number in files.files]
    paths.get_checked_suffix(files.get_path(numbers[0]), "FLOW", FLOW_SUFFIXES)
    stem = files.pattern.before.rstrip("._- ") if files.pattern is not None else "view"
    output = args.output or f"{stem or 'view'}.html"
    paths.get_checked_suffix(output, "--output", (".html", ".htm"))
    paths.check_output_file_and_remove_temporaries(output, "--output")

    stored = sequences.Output(str(files.pattern))
    settings = stored.read_and_check_settings_or_empty()
    reference = settings.get("reference")
    draw = _build_reference_overlay_if_followed(args, reference)
    plates, reason = _open_plates_or_explain_absence(args, stored, settings.get("reading") or {})
    if plates is None and not args.quiet:
        report.print_note(f"the page has no plates: {reason}; name them with --plates")
    reading = build_flow_read_options(args, layer=args.layer)
    problems: list[str] = []

    def read_flows(number: int) -> list[tuple[Tensor, Tensor | None]]:
        vectors = io.read_flow_layers(files.get_path(number), reading)
        if reference is not None:  # behind a cut everything is hidden, and the motion only leads out of the frame
            names = "backward", "occlusion.backward"
            return [(vectors[names[0]], vectors[names[1]] < 0.5)] if {*names} <= vectors.keys() else []
        return [(vectors[name], None) for name in DIRECTIONS if name in vectors]

    with rename_arguments_in_errors(paint="--paint"), ProgressBar("view", quiet=args.quiet) as progress:
        scale = args.max_motion or flow_visualization.measure_max_motion_in_sampled_frames(numbers, read_flows) or 1.0
        shot = _iterate_readable_frames_appending_problems(files, numbers, reading, plates, problems, progress)
        if draw is not None:
            shot = map(draw, shot)
        page = {"max_motion": scale, "width": args.width, "step": settings.get("step", 1), "reference": reference}
        text = build_html_page(Path(args.flow).name, shot, **page)
    if plates is not None:
        plates.close()
    with write_atomically(output) as temporary:
        temporary.write_text(text, "utf-8")
    for problem in problems:
        report.print_note(problem, kind="error")
    frames = format_frames(numbers)
    properties = {"output": output, "frames": frames, "max_motion": scale, "problems": problems, "bytes": len(text)}
    summary = (
        f"{report.format_count(len(numbers), 'frame')}, {len(text) / 1e6:.1f} MB, colour scale: 0 to {scale:.4g} px"
    )
    report.print_report(args, properties, f"{report.escape_control_characters(output)}: {summary}")
    return 2 if problems else 0


def _open_plates_or_explain_absence(
    args: argparse.Namespace, stored: sequences.Output, reading: dict[str, Any]
) -> tuple[Plates | None, str]:
    """Return the plates, those of the flow's notes with its ``reading``, or None and why there are none."""
    source, reading = (
        (stored.read_plates_path_if_recorded(), {**reading, "window": None})
        if args.plates is None
        else (args.plates, {})
    )
    if source is None:
        return None, "no records next to the flow name them"
    try:
        return sequences.open_plates(source, **reading), ""
    except (InputError, OSError) as error:
        if args.plates:
            raise
        return None, str(error)


def _build_reference_overlay_if_followed(
    args: argparse.Namespace, reference: int | None
) -> Callable[[ViewFrame], ViewFrame] | None:
    """Return what draws the grid or the paint on the frames of a followed shot; None for flow to neighbours."""
    if reference is None:
        for option in ("paint", "grid"):
            if getattr(args, option) is not None:
                raise InputError(f"--{option}: expected files of fullfield follow, got {args.flow}")
        return None
    if args.layer is not None:
        raise InputError("--layer: not used with files of fullfield follow; leave it out")

    if args.paint is not None and args.grid is not None:
        raise InputError("--grid: not used with --paint; leave it out")

    from fullfield.sequences.follow_pictures import draw_paint_or_grid_and_hide_occluded, read_paint_color_and_alpha

    if args.paint is not None:
        paths.check_input_file(args.paint, "--paint")
    paint = None if args.paint is None else read_paint_color_and_alpha(args.paint)
    return partial(draw_paint_or_grid_and_hide_occluded, paint=paint, grid_px=args.grid)


def _iterate_readable_frames_appending_problems(
    files: FrameFiles,
    frame_numbers: Sequence[int],
    read_options: io.FlowReadOptions,
    plates: Plates | None,
    problems: list[str],
    progress: ProgressBar,
) -> Iterator[ViewFrame]:
    """Yield the readable frames; append a message to ``problems`` for each file that is not."""
    from fullfield.viz.page import ViewFrame

    for count, number in enumerate(frame_numbers):
        progress(count / len(frame_numbers), f"frame {number}")
        try:
            vectors = io.read_flow_layers(files.get_path(number), read_options)
        except (InputError, OSError) as error:
            problems.append(str(error))
            continue
        frame: Tensor | None = None
        if plates is not None:
            try:
                frame = plates.read(number).frame
                flow = next(iter(vectors.values()))
                (plate_height, plate_width), (height, width) = frame.shape[-2:], flow.shape[-2:]
                # A reduced size is rounded.
                if abs(plate_width * height - width * plate_height) > max(plate_width, width):
                    problems.append(
                        f"{plates.get_frame_name(number)}: is {format_size(frame)}, "
                        f"but the flow {files.get_path(number)} is {format_size(flow)}"
                    )
                    frame = None
            except (InputError, OSError) as error:
                problems.append(str(error))
        yield ViewFrame(number, frame, vectors)
