"""Estimate the motion vectors of a shot.

Write the flow of every frame of a shot. A run that was stopped continues where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fullfield import sequences
from fullfield._check import InputError
from fullfield.cli import argtypes, methods, paths, report, shot_pictures
from fullfield.cli.options import (
    READING_WORDS,
    add_compression_options,
    add_frame_reading_options,
    get_compression_arguments_fitting_output,
    get_frame_reading_arguments,
    parse_device_names,
)
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.io.names import FLOW_WRITE_SUFFIXES, FRAME_SUFFIXES
from fullfield.sequences.names import (
    FrameFiles,
    FramePattern,
    choose_requested_or_all_frame_numbers,
    find_frame_files,
    format_frames,
)

if TYPE_CHECKING:
    from fullfield.estimators import Estimator
    from fullfield.sequences.outputs import Output, WritePlan
    from fullfield.sequences.plates import Plates

_MISSING_IN_ONE_LINE = 3  # missing plates from which they are reported in one line
_DIRECTIONS = ("forward", "backward", "both")

USAGE = "fullfield shot PLATES -o OUT [options]"

EPILOG = """\
examples:
  fullfield shot 'plate.%04d.exr' -o 'mv.%04d.exr' --direction both
  fullfield shot 'plate.####.exr' --frames 1001-1100 -o vectors/ --half --occlusion
  fullfield shot clip.mp4 -o 'mv.%06d.exr' --preset fast
  fullfield shot 'plate.%04d.exr' -o 'mv.%04d.exr' --devices all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield shot``."""
    parser.add_argument("plates", metavar="PLATES", help="plate.%%04d.exr, plate.####.exr, a folder, a glob or a video")
    parser.add_argument("others", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help=f"pattern such as mv.%%04d.exr, or a folder: {' '.join(FLOW_WRITE_SUFFIXES)} (.png: KITTI)",
    )
    methods.add_scale_option(methods.add_method_option_group(parser, common_group=parser))
    parser.add_argument("--frames", metavar="RANGE", help="1001-1100, 1001-1100x2, 1-10,20 [all that exist]")
    parser.add_argument(
        "--direction",
        choices=_DIRECTIONS,
        default="forward",
        help="to the next frame, the previous one, or both (.exr)",
    )
    parser.add_argument("--refine", action="store_true", help=methods.REFINE_HELP)
    parser.add_argument("--half", action="store_true", help=".exr: half floats instead of floats")
    parser.add_argument("--occlusion", action="store_true", help="store which pixels are hidden (.exr)")
    parser.add_argument("--overwrite", action="store_true", help="recompute or replace existing files")
    report.add_report_options(parser, has_quiet_option=True)

    output = parser.add_argument_group("output")
    output.add_argument("--confidence", action="store_true", help="store how reliable the flow of each pixel is (.exr)")
    output.add_argument("--y-axis", choices=("up", "down"), help=".exr: direction of y; up as in Nuke [up]")
    output.add_argument("--st-map", metavar="FILES", help="also write ST maps: st.%%04d.exr")
    add_compression_options(output, has_half_option=False)
    shot_pictures.add_arguments(parser)
    pairs = parser.add_argument_group("pairs")
    pairs.add_argument(
        "--step",
        type=argtypes.parse_positive_integer,
        default=1,
        metavar="K",
        help="distance between the frames of a pair",
    )
    pairs.add_argument("--warm-start", action="store_true", help="start from the flow of the previous frame")
    farm = parser.add_argument_group("several GPUs and farms")
    farm.add_argument("--devices", metavar="LIST", help="several GPUs: all, or cuda:0,cuda:1")
    farm.add_argument("--ray", metavar="ADDRESS", help="Ray cluster; with --device cuda an actor for each GPU")
    farm.add_argument("--farm", choices=("openjd",), help="print progress on stdout in the format of a render farm")
    add_frame_reading_options(parser)
    methods.add_parameter_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, settle the job, estimate missing frames, report."""
    if args.others:
        names = 1 + len(args.others)
        raise InputError(f"PLATES: expected one pattern, got {names} names; quote a glob, as in 'plate.*.exr'")
    choice = replace(methods.choose_method(args), scale=args.scale)
    frame_files = find_frame_files(args.plates)
    args.output = _choose_output_pattern(args.output, frame_files)
    output = _check_options_and_build_output(args, frame_files)

    from fullfield.sequences.plates import open_found_plates

    if args.ray is not None:  # the nodes of a cluster have other working directories
        frame_files, output = _make_paths_absolute(frame_files, output)
    methods.limit_cpu_threads_unless_none(args.threads)
    devices = _parse_devices_or_use_cpu_for_ray(args, choice.device)
    if args.devices is not None:
        choice = replace(choice, device=devices[0])
    words = {
        **methods.map_arguments_to_options(args.method),
        **READING_WORDS,
        "frames": "--frames",
        "warm_start": "--warm-start",
    }
    with rename_arguments_in_errors(**words), ProgressBar("shot", quiet=args.quiet) as progress:
        reading = get_frame_reading_arguments(args)
        is_video = frame_files.video is not None
        numbers = (
            None
            if is_video and args.frames is None
            else choose_requested_or_all_frame_numbers(frame_files, args.frames)
        )
        shot_pictures.check_picture_options(args, frame_files, numbers)
        plates = open_found_plates(frame_files, numbers, **reading)
        job = sequences.ShotJob(
            frame_files,
            tuple(plates.numbers),
            output,
            _build_shot_settings(args, devices[0]),
            choice.method,
            choice.config,
            choice.backend,
            reading,
            args.threads,
        )
        progress(0.0, "preparing")
        size = _measure_first_readable_size_without_bars(plates) if devices[0].startswith("cuda") else None
        choice.load_weights_and_kernels(size, lambda *_: None, quiet=args.quiet)
        job, plan = job.write_settings_and_get_job_and_plan(choice.estimator, plates, overwrite=args.overwrite)
        outcome = _write_planned_frames_and_print_problems(args, job, plan, choice.estimator, plates, devices, progress)
        pictures = None if args.viz is None else shot_pictures.write_shot_pictures_and_summarize(args, job, progress)
    _print_report(args, choice, job, devices, plan, outcome, pictures)
    return 0 if outcome.is_complete else 2


def _write_planned_frames_and_print_problems(
    args: argparse.Namespace,
    job: sequences.ShotJob,
    plan: WritePlan,
    estimator: Estimator,
    plates: Plates,
    devices: Sequence[str],
    progress: ProgressBar,
) -> sequences.Outcome:
    """Write the frames of the plan where the options say; missing plates of many frames become one problem."""
    from fullfield.sequences.results import Problem

    if not args.quiet:
        report.print_existing_and_outdated_counts(job.numbers, plan)
        if plan.missing and not any(len(job.settings.list_input_frames(plates, number)) > 1 for number in plan.missing):
            ends = {"forward": "later", "backward": "earlier", "both": "later or earlier"}[job.settings.direction]
            report.print_note(
                f"frames {format_frames(plan.missing)}: no frame is {job.settings.step} {ends}; the vectors are 0"
            )
    missing = [number for number in plan.missing if plates.is_in_range(number) and not plates.has_frame(number)]
    missing = missing if len(missing) >= _MISSING_IN_ONE_LINE else []
    numbers = sorted(set(plan.missing).difference(missing))
    reason = f"{len(missing)} plates are missing: {format_frames(missing)}"
    problems = [Problem(args.plates, reason)] if missing else []
    for problem in problems:
        report.print_note(str(problem), kind="error")
    openjd_report = partial(_print_openjd_progress, sys.stdout) if args.farm == "openjd" else None
    frame_report = progress.build_frame_callback(len(numbers), openjd_report)
    if args.ray is not None and numbers:
        plates.close()
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints its own messages
            from fullfield.sequences.cluster import write_shot_flow_on_cluster

            outcome = write_shot_flow_on_cluster(job, numbers, args.ray, report=frame_report)
    elif len(devices) > 1 and numbers:
        plates.close()
        outcome = sequences.write_shot_flow_on_devices(job, numbers, devices, report=frame_report)
    else:
        outcome = sequences.write_shot_flow(job, numbers, estimator, plates, report=frame_report)
    missing_names = {plates.get_frame_name(number) for number in missing}
    outcome.problems = [problem for problem in outcome.problems if problem.path not in missing_names]
    report.print_problems(outcome.problems)
    outcome.problems[:0] = problems
    return outcome


def _build_shot_settings(args: argparse.Namespace, device: str) -> sequences.ShotSettings:
    return sequences.ShotSettings(
        args.direction,
        args.step,
        args.warm_start,
        args.occlusion,
        args.confidence,
        device,
        args.refine,
        args.scale,
    )


def _check_options_and_build_output(args: argparse.Namespace, frame_files: FrameFiles) -> Output:
    """Check the output's name and the options that depend on it, and return the output."""
    from fullfield.sequences.outputs import Output

    output = args.output
    suffix = paths.get_checked_suffix(output, "--output", FLOW_WRITE_SUFFIXES)
    packing = get_compression_arguments_fitting_output(args)
    maps = [name for name in ("occlusion", "confidence") if getattr(args, name)]
    exr_options = [f"--{name}" for name in maps] + (["--y-axis"] if args.y_axis else [])
    if args.direction == "both":
        exr_options.insert(0, "--direction both")
    if exr_options and suffix != ".exr":
        raise InputError(f"{exr_options[0]}: expected an .exr output, got {output}")
    if args.warm_start and suffix == ".png":
        raise InputError(
            "--warm-start: KITTI's .png rounds the flow, so a run could not continue from it; choose another format"
        )
    if args.warm_start and args.devices:
        raise InputError("--warm-start: runs on one device, from frame to frame; leave --devices out")
    if args.ray and (args.devices or args.warm_start):
        raise InputError(f"{'--devices' if args.devices else '--warm-start'}: not used with --ray; leave it out")
    if args.devices and args.device != "auto":
        raise InputError(f"--device {args.device}: not used with --devices; leave it out")
    for option, pattern in (("--output", output), ("--st-map", args.st_map)):
        if pattern is None:
            continue
        if option == "--st-map":
            paths.get_checked_suffix(pattern, option, (".exr",))
        paths.parse_pattern_and_remove_temporaries(pattern, option, suffix)
    _check_outputs_name_no_plate(args, frame_files)
    y_axis = args.y_axis or "up"
    return Output(output, packing.get("dtype"), packing.get("compression"), y_axis, args.st_map)


def _make_paths_absolute(frame_files: FrameFiles, output: Output) -> tuple[FrameFiles, Output]:
    """Return both with absolute names."""

    def make_absolute(text: str | None) -> str | None:
        return None if text is None else str(Path(text).absolute())

    files = find_frame_files(str(Path(frame_files.text).absolute()))
    return files, replace(output, pattern=make_absolute(output.pattern), st_map=make_absolute(output.st_map))  # type: ignore[arg-type]


def _check_outputs_name_no_plate(args: argparse.Namespace, frame_files: FrameFiles) -> None:
    """Raise InputError if an output pattern names a plate, a later plate, or a file of the other pattern."""
    plates = {os.path.realpath(path) for path in frame_files.files.values()}
    number = next(iter(frame_files.files), 1)
    names = [(option, pattern) for option, pattern in (("--output", args.output), ("--st-map", args.st_map)) if pattern]
    for option, pattern in names:
        output = FramePattern.parse(pattern)
        if plates & {os.path.realpath(output.format_path(n)) for n in frame_files.files or [number]}:
            raise InputError(f"{option} {pattern}: names the plates; choose another name")
        if _is_listed_when_written(output.format_path(number), args.plates):
            raise InputError(
                f"{option} {pattern}: {args.plates} would hold plates and results; choose another folder, or name the "
                "plates by a pattern such as plate.####.exr"
            )
    if len({os.path.realpath(FramePattern.parse(pattern).format_path(number)) for _, pattern in names}) < len(names):
        raise InputError(f"--st-map {args.st_map}: is also written by --output; choose another file")


def _is_listed_when_written(path: str, folder_or_glob: str) -> bool:
    """Return whether ``folder_or_glob`` finds the file ``path`` once it exists."""
    (folder, name), (folder_glob, name_glob) = os.path.split(path), os.path.split(folder_or_glob)
    if Path(folder_or_glob).is_dir():
        folder_glob, name_glob = folder_or_glob, "*" if Path(name).suffix.lower() in FRAME_SUFFIXES else ""
    return fnmatch(os.path.realpath(folder), os.path.realpath(folder_glob)) and fnmatch(name, name_glob)


def _choose_output_pattern(text: str, frame_files: FrameFiles) -> str:
    """Return the output pattern; for a folder, files in it with the names of the plates."""
    if not (Path(text).is_dir() or text.endswith(("/", os.sep))):
        return text
    paths.check_folder_writable_and_remove_temporaries(Path(text), f"--output {text}")
    folder = text.rstrip("/" + os.sep) or os.sep
    if frame_files.video is not None:
        return f"{folder}/{Path(frame_files.video).stem}.%06d.exr"
    if frame_files.pattern is None:
        return f"{folder}/flow.%04d.exr"
    before, after = os.path.split(frame_files.pattern.before)[1], Path(frame_files.pattern.after).stem
    after = "" if after.startswith(".") or after == frame_files.pattern.after else after
    return f"{folder}/{before}%0{frame_files.pattern.digits}d{after}.exr"


def _parse_devices_or_use_cpu_for_ray(args: argparse.Namespace, device: str) -> list[str]:
    if args.ray is not None and args.device == "auto":  # the nodes of a cluster are other machines
        return ["cpu"]
    return parse_device_names(args.devices, device)


def _measure_first_readable_size_without_bars(plates: Plates) -> tuple[int, int] | None:
    """Return height and width of the first plate that can be read, without bars."""
    from fullfield.estimators.bars import measure_picture_size

    for number in plates.numbers:
        with contextlib.suppress(InputError, OSError):
            size = measure_picture_size(plates.read(number).frame)
            plates.pop_nonfinite_messages()  # the run reads the plate again, and warns
            return size
    return None


def _print_openjd_progress(stdout: TextIO, fraction: float) -> None:
    print(f"openjd_progress: {100 * fraction:.1f}", file=stdout, flush=True)


def _print_report(
    args: argparse.Namespace,
    choice: methods.MethodChoice,
    job: sequences.ShotJob,
    devices: Sequence[str],
    plan: WritePlan,
    outcome: sequences.Outcome,
    pictures: str | None,
) -> None:
    frames_by_bars = outcome.group_frames_by_bars()
    if not args.quiet:
        for a, b in outcome.cuts:
            report.print_note(
                f"the shot changes between the frames {a} and {b}; the vectors across the cut have no meaning"
            )
        for a, b in outcome.duplicates:
            report.print_note(f"the frames {a} and {b} are the same picture")
        if outcome.bars:
            bars, frames = next(iter(frames_by_bars.items()))
            other_count = len(outcome.bars) - len(frames)
            further = f"; frames with other bars: {other_count}" if other_count else ""
            report.print_note(f"frames {format_frames(frames)}: {report.describe_bars(bars)}{further}")
        if 2 * len(outcome.mostly_masked) > len(outcome.written):
            report.print_note(
                f"--mask {args.mask}: hides more than half of {len(outcome.mostly_masked)} frames; it hides where it "
                "is black, so invert a matte that is white there"
            )
    if outcome.stopped is not None:
        report.print_note(f"stopped: {outcome.stopped}; run the same command again to continue", kind="error")
    not_written = sorted(set(plan.missing) - set(outcome.written))
    existing = len(job.numbers) - len(plan.missing)
    refined = job.settings.refine or choice.estimator.parameters.get("refinement") is not None
    content = {
        "output": args.output,
        "pictures": args.viz,
        "frames": format_frames(job.numbers),
        "written": format_frames(outcome.written),
        "existing": existing,
        "st_maps_from_existing": format_frames(plan.st_maps),
        "recomputed": {reason: format_frames(frames) for reason, frames in plan.outdated.items()},
        "not_written": format_frames(not_written),
        "incomplete": format_frames(outcome.incomplete),
        "problems": [problem._asdict() for problem in outcome.problems],
        **report.select_attributes(outcome, "stopped", "cuts", "duplicates"),
        "bars": [{"frames": format_frames(frames), **bars._asdict()} for bars, frames in frames_by_bars.items()],
        **report.select_attributes(job.settings, "direction", "step"),
        **choice.collect_method_settings(),
        "refined": refined,
        "devices": list(devices),
        "seconds": {"estimate": outcome.busy_s, "total": outcome.wall_s},
    }
    summary = f"{report.format_count(len(outcome.written), 'frame')} written, {existing} kept"
    summary += f", {report.format_count(len(plan.st_maps), 'ST map')} written from them" if plan.st_maps else ""
    for frames, state in ((not_written, "not written"), (outcome.incomplete, "with only one direction")):
        summary += f", {len(frames)} {state} ({format_frames(frames)})" if frames else ""
    summary += (
        f", {choice.title}{', refined by TV-L1' if refined else ''}, on {', '.join(devices)}, {outcome.wall_s:.1f} s"
    )
    text = f"{report.escape_control_characters(args.output)}: {summary}" + ("" if pictures is None else f"\n{pictures}")
    if outcome.is_complete:
        text += report.format_next_command_unless_quiet(args, "fullfield", "view", args.output)
    report.print_report(args, content, text, has_peak_memory=True)
