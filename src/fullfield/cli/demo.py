"""Estimate, score and draw a synthetic scene.

Generate a textured scene with known motion, estimate its flow, score it against the truth and write the frames, the
flow and the pictures into a folder.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield import io
from fullfield._check import InputError
from fullfield.cli import argtypes, flow_visualization, methods, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.cli.score import format_score_lines

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("frame1.png", "frame2.png", "truth.flo", "flow.flo", "flow.png", "error.png", "sheet.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield demo``."""
    parser.add_argument("-o", "--output", metavar="DIR", default="fullfield-demo", help="folder for the files")
    parser.add_argument("--size", type=argtypes.parse_wxh_as_height_width, default="640x360", help="size of the frames")
    parser.add_argument("--seed", type=argtypes.parse_integer, default=0, help="seed of the scene")
    methods.add_method_option_group(parser)
    report.add_report_options(parser, has_quiet_option=True)
    methods.add_parameter_options(parser)


def _refuse_partial_earlier_demo(folder: Path) -> None:
    """Refuse a folder that holds some of the files; only a complete set is an earlier demo's and may be replaced."""
    existing = [name for name in FILES if (folder / name).exists()]
    if existing and len(existing) < len(FILES):
        raise InputError(f"--output {folder}: holds {existing[0]}, which may not be a demo's; choose another folder")


@contextmanager
def _stage_files_and_move_on_success(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder inside ``folder``, and move its files there together when the block succeeds."""
    fresh = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as hidden:
            yield Path(hidden)
            for name in FILES:
                (Path(hidden) / name).replace(folder / name)
    except BaseException:
        if fresh:
            with suppress(OSError):
                folder.rmdir()
        raise


def _round_to_8_bits(frame: Tensor) -> Tensor:
    """Round a frame to 8 bits, so that an estimate from the written files gives the same flow."""
    return (frame.clamp(0, 1) * 255).round() / 255


def run_command(args: argparse.Namespace) -> int:
    """Generate the scene, estimate, score and draw."""
    watch = report.Stopwatch()
    choice = methods.choose_method(args)
    folder = Path(args.output)
    if folder.exists():
        paths.check_folder_writable_and_remove_temporaries(folder, "--output")
        _refuse_partial_earlier_demo(folder)
    else:
        paths.check_folder_writable_and_remove_temporaries(folder.parent, f"--output {folder}")

    from fullfield.metrics import FlowMetrics
    from fullfield.testing import sample_textured_scene

    height, width = args.size
    methods.limit_cpu_threads_unless_none(args.threads)
    words = {**methods.map_arguments_to_options(args.method), "height": "--size", "width": "--size", "seed": "--seed"}
    with ProgressBar("demo", quiet=args.quiet) as progress, rename_arguments_in_errors(**words):
        progress(0.0, "generating the scene")
        textured = sample_textured_scene(height, width, seed=args.seed)
        frame1, frame2 = _round_to_8_bits(textured.frame1), _round_to_8_bits(textured.frame2)
        watch.add_lap("scene")

        choice.load_weights_and_kernels(
            (height, width), progress.start_span_and_build_callback(0.1, 0.2), quiet=args.quiet
        )
        watch.add_lap("compile")

        flow = choice.estimate(frame1, frame2, progress=progress.start_span_and_build_callback(0.2, 0.8))
        watch.add_lap("estimate")

        progress(0.8, "scoring and drawing")
        metrics = FlowMetrics()
        metrics.update(flow.flow, textured.flow, textured.valid, textured.occluded)
        scores = metrics.compute()
        visualization = flow_visualization.FlowVisualization(
            flow.flow, flow.valid, frame1, frame2, textured.flow, textured.valid
        )
        drawn = {kind: visualization.draw_picture(kind) for kind in ("flow", "error", "sheet")}
        with _stage_files_and_move_on_success(folder) as hidden:
            io.write_flow(hidden / "truth.flo", textured.flow, textured.valid)
            io.write_flow(hidden / "flow.flo", flow.flow, flow.valid)
            for name, picture in {"frame1": frame1, "frame2": frame2, **drawn}.items():
                io.write_image(hidden / f"{name}.png", picture)
        watch.add_lap("write")
    seconds = watch.get_stage_seconds()
    content = {
        "output": str(folder),
        "files": list(FILES),
        "size": {"width": width, "height": height},
        "method": choice.method,
        "preset": choice.preset,
        "parameters": dict(flow.parameters),
        "backend": flow.backend,
        "scores": scores,
        "max_motion": visualization.color_scale_px,
        "seconds": seconds,
    }
    lines = [
        f"{width}x{height} pixels, {choice.title}, {seconds['estimate']:.2f} s",
        *format_score_lines(scores, "pooled"),
        f"{report.escape_control_characters(folder)}: {', '.join(FILES)}",
        f"{report.escape_control_characters(folder / 'sheet.png')}: "
        f"colour scale: 0 to {visualization.color_scale_px:.4g} px",
    ]
    report.print_report(args, content, "\n".join(lines), has_peak_memory=True)
    return 0
