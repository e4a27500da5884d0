"""Find where every pixel of one frame is in all others.

Follow each pixel of a reference frame through a shot. Each file has the motion from the reference to its frame
(forward), the inverse (backward), occlusion and confidence.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import methods, paths, report
from fullfield.cli.options import (
    READING_WORDS,
    add_frame_reading_options,
    get_frame_reading_arguments,
    parse_device_names,
)
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.io.names import EXR_COMPRESSIONS
from fullfield.sequences.names import (
    FrameFiles,
    FramePattern,
    choose_requested_or_all_frame_numbers,
    find_frame_files,
    format_frames,
)

if TYPE_CHECKING:
    from fullfield.sequences import FollowJob, Outcome
    from fullfield.sequences.outputs import Output, WritePlan
    from fullfield.sequences.plates import Plates

USAGE = "fullfield follow PLATES --reference N -o OUT [options]"

_FIELD = "{reference}"
_LOSSLESS = tuple(name for name in EXR_COMPRESSIONS if name in ("none", "zip", "zips", "rle", "piz"))

EPILOG = """\
examples:
  fullfield follow 'plate.%04d.exr' --reference 1001 -o 'ref.%04d.exr'
  fullfield follow 'plate.%04d.exr' --reference 1001 -o 'ref.%04d.exr' --frames 990-1100 --st-map 'st.%04d.exr'
  fullfield follow 'plate.%04d.exr' --reference 1001 1050 -o 'ref{reference}.%04d.exr'
  fullfield follow 'plate.%04d.exr' --reference 1001 -o 'ref.%04d.exr' --points points.csv --tracks tracks.nk

The same command continues a run that was stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield follow``."""
    parser.add_argument("plates", metavar="PLATES", help="plate.%%04d.exr, plate.####.exr, a folder, a glob or a video")
    parser.add_argument(
        "--reference", metavar="N", type=int, nargs="+", required=True, help="frame that is followed, or several"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="ref.%%04d.exr; for several references ref{reference}.%%04d.exr",
    )
    methods.add_method_option_group(parser, common_group=parser)
    parser.add_argument("--frames", metavar="RANGE", help="1001-1100, 1-10,20 [all that exist]")
    parser.add_argument("--st-map", metavar="FILES", help="also write ST maps, which move the reference: st.%%04d.exr")
    parser.add_argument(
        "--points", metavar="FILE", help="points of the reference: .csv with columns x and y, in pixels"
    )
    parser.add_argument(
        "--tracks", metavar="FILE", help="positions of the points in all frames: .csv, .nk (Nuke) or .txt (3DEqualizer)"
    )
    parser.add_argument("--half", action="store_true", help="half floats instead of floats")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    report.add_report_options(parser, has_quiet_option=True)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--compression", choices=_LOSSLESS, help="lossless compression of the files [zip, or none if zip saves little]"
    )
    farm = parser.add_argument_group("several GPUs")
    farm.add_argument(
        "--devices", metavar="LIST", help="all, or cuda:0,cuda:1: each takes one side of a reference after the other"
    )
    add_frame_reading_options(parser)
    methods.add_parameter_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, follow every reference, report."""
    choice = methods.choose_method(args)
    outputs = _check_files_and_build_outputs(args)

    from fullfield import sequences

    methods.limit_cpu_threads_unless_none(args.threads)
    devices = parse_device_names(args.devices, choice.device)
    if args.devices is not None:
        choice = replace(choice, device=devices[0])
    words = {
        **methods.map_arguments_to_options(args.method),
        **READING_WORDS,
        "frames": "--frames",
        "reference": "--reference",
    }
    start_s, written = time.perf_counter(), 0
    with rename_arguments_in_errors(**words), ProgressBar("follow", quiet=args.quiet) as progress:
        reading = get_frame_reading_arguments(args)
        if reading.get("window") == "data":
            raise InputError("--window data: following works on the display window; leave it out")
        frame_files = find_frame_files(args.plates)
        numbers = _list_frames_to_write(frame_files, args.frames, reading)
        jobs = [
            sequences.FollowJob(
                frame_files,
                numbers,
                reference,
                output,
                choice.method,
                choice.config,
                choice.backend,
                reading,
                choice.device,
                args.threads,
            )
            for reference, output in outputs.items()
        ]
        _check_references_points_and_outputs(args, jobs)
        progress(0.0, "preparing")
        choice.load_weights_and_kernels(None, lambda *_: None, quiet=args.quiet)
        tasks = [_settle_job_and_print_plan(args, job, choice) for job in jobs]
        outcome = sequences.Outcome()
        for (job, plan), job_outcome in zip(
            tasks, _write_references_and_yield_outcomes(tasks, choice, devices, progress), strict=False
        ):
            outcome.merge_parallel_outcome(job_outcome)
            written += len(job_outcome.written)
            if args.tracks is not None and job_outcome.stopped is None:
                current = {*job.numbers} - {*plan.missing} | {*job_outcome.written}  # others may have old files
                _write_point_tracks_if_any_frame(args, job, sorted(current))
    report.print_problems(outcome.problems)
    existing = sum(len(numbers) - len(plan.missing) for _, plan in tasks)
    st_maps = sum(len(plan.st_maps) for _, plan in tasks)
    _print_report(args, choice, devices, outcome, numbers, written, existing, st_maps, time.perf_counter() - start_s)
    return 0 if outcome.is_complete else 2


def _list_frames_to_write(frame_files: FrameFiles, frame_range: str | None, reading: dict[str, Any]) -> tuple[int, ...]:
    """Return the frames that get a file; for a video without a range all that it has."""
    from fullfield.sequences.plates import open_found_plates

    if frame_files.video is None or frame_range is not None:
        return tuple(choose_requested_or_all_frame_numbers(frame_files, frame_range))
    plates = open_found_plates(frame_files, None, **reading)
    try:
        return tuple(plates.numbers)
    finally:
        plates.close()


def _check_references_points_and_outputs(args: argparse.Namespace, jobs: Sequence[FollowJob]) -> None:
    """Raise InputError for a reference that is absent, outputs that name plates or each other, and unusable points."""
    from fullfield.sequences.tracks import check_points_inside_frame, read_points_csv

    points = {} if args.points is None else read_points_csv(args.points)
    if args.points is not None:
        paths.check_outputs_are_distinct([("--tracks", args.tracks)], [args.points])
    for job in jobs:
        plates = job.open_plates()
        try:
            files = {plates.get_containing_file(number) for number in plates.numbers}
            read = {os.path.realpath(file) for file in files if file is not None}
            if points:
                height, width = _read_reference_size(job, plates)
                check_points_inside_frame(points, height, width, plates.get_frame_name(job.reference))
        finally:
            plates.close()
        for option, pattern in (("--output", job.output.pattern), ("--st-map", job.output.st_map)):
            if pattern is None:
                continue
            names = {os.path.realpath(FramePattern.parse(pattern).format_path(number)) for number in job.numbers}
            if names & read:
                raise InputError(f"{option} {pattern}: names the plates; choose another name")
            if option == "--st-map" and os.path.realpath(job.output.get_path(job.numbers[0])) in names:
                raise InputError(f"--st-map {pattern}: is also written by --output; choose another file")


def _read_reference_size(job: FollowJob, plates: Plates) -> tuple[int, int]:
    """Return height and width of the reference; of a plate in its own file no pixel is read."""
    from fullfield.io import read_frame_window
    from fullfield.io.windows import resolve_window_to_box

    path = plates.get_containing_file(job.reference)
    if path is None or job.frame_files.video is not None:
        height, width = plates.read(job.reference).frame.shape[-2:]
        return height, width
    channels = {name: job.reading[name] for name in ("part", "layer") if job.reading.get(name) is not None}
    window = read_frame_window(path, **channels)
    _, _, width, height = resolve_window_to_box(job.reading.get("window") or "display", window.data, window.display)
    return height, width


def _check_files_and_build_outputs(args: argparse.Namespace) -> dict[int, Output]:
    """Check the names of files, and return the output of each reference."""
    from fullfield.sequences.outputs import Output
    from fullfield.sequences.tracks import TRACK_SUFFIXES

    references = sorted(set(args.reference))
    if len(references) > 1 and _FIELD not in args.output:
        raise InputError(f"--output {args.output}: expected {_FIELD} in the name, for {len(references)} references")
    if args.devices is not None and args.device != "auto":
        raise InputError(f"--device {args.device}: not used with --devices; leave it out")
    if (args.points is None) != (args.tracks is None):
        raise InputError("--points and --tracks: expected both, got one")
    if args.points is not None:
        paths.check_input_file(args.points, "--points")
        paths.get_checked_suffix(args.tracks, "--tracks", TRACK_SUFFIXES)
    if len(references) > 1 and args.tracks is not None and _FIELD not in args.tracks:
        raise InputError(f"--tracks {args.tracks}: expected {_FIELD} in the name, for {len(references)} references")
    if len(references) > 1 and args.st_map is not None and _FIELD not in args.st_map:
        raise InputError(f"--st-map {args.st_map}: expected {_FIELD} in the name, for {len(references)} references")
    outputs: dict[int, Output] = {}
    for reference in references:
        names = [None if name is None else name.replace(_FIELD, str(reference)) for name in (args.output, args.st_map)]
        for option, name in zip(("--output", "--st-map"), names, strict=True):
            if name is not None:
                paths.get_checked_suffix(name, option, (".exr",))
                paths.parse_pattern_and_remove_temporaries(name, option, ".exr")
        if args.tracks is not None:
            tracks = args.tracks.replace(_FIELD, str(reference))
            paths.check_output_file_and_remove_temporaries(tracks, "--tracks")
        half = "half" if args.half else None
        outputs[reference] = Output(str(names[0]), half, args.compression, "up", names[1])
    return outputs


def _settle_job_and_print_plan(
    args: argparse.Namespace, job: FollowJob, choice: methods.MethodChoice
) -> tuple[FollowJob, WritePlan]:
    """Return the settled job, and the frames that it has to write."""
    plates = job.open_plates()
    try:
        job, plan = job.write_settings_and_get_job_and_plan(choice.estimator, plates, overwrite=args.overwrite)
    finally:
        plates.close()
    if not args.quiet:
        report.print_existing_and_outdated_counts(job.numbers, plan)
    return job, plan


def _write_references_and_yield_outcomes(
    jobs_with_plans: Sequence[tuple[FollowJob, WritePlan]],
    choice: methods.MethodChoice,
    devices: Sequence[str],
    progress: ProgressBar,
) -> Iterator[Outcome]:
    """Yield the outcome of each task, until one cannot write any more."""
    from fullfield import sequences

    report_frame = progress.build_frame_callback(sum(len(plan.missing) for _, plan in jobs_with_plans))
    if len(devices) > 1:
        requested = [(job, plan.missing) for job, plan in jobs_with_plans]
        from fullfield.sequences.follow_pool import write_reference_flows_on_devices

        yield from write_reference_flows_on_devices(requested, devices, report_frame=report_frame)
        return
    for job, plan in jobs_with_plans:
        outcome = sequences.write_reference_flow(
            job, plan.missing, choice.estimator, job.open_plates(), report=report_frame
        )
        yield outcome
        if outcome.stopped is not None:
            return


def _write_point_tracks_if_any_frame(args: argparse.Namespace, job: FollowJob, frame_numbers: Sequence[int]) -> None:
    """Write the tracks of the points through frames of a job, whose files are up to date."""
    from fullfield.io import read_flow_layers
    from fullfield.sequences.tracks import read_points_csv, read_tracks_from_flow_files, write_tracks

    if frame_numbers:
        tracks = read_tracks_from_flow_files(read_points_csv(args.points), frame_numbers, job.output.get_path)
        height = read_flow_layers(job.output.get_path(frame_numbers[0]))["forward"].shape[-2]
        write_tracks(args.tracks.replace(_FIELD, str(job.reference)), tracks, height, job.reference)


def _print_report(
    args: argparse.Namespace,
    choice: methods.MethodChoice,
    devices: Sequence[str],
    outcome: Outcome,
    numbers: tuple[int, ...],
    written: int,
    existing: int,
    st_maps: int,
    seconds: float,
) -> None:
    if not args.quiet:
        for a, b in outcome.cuts:
            report.print_note(f"the shot changes between the frames {a} and {b}; nothing is followed across it")
    if outcome.stopped is not None:
        report.print_note(f"stopped: {outcome.stopped}; run the same command again to continue", kind="error")
    content: dict[str, Any] = {
        "output": args.output,
        "references": sorted(set(args.reference)),
        "frames": format_frames(numbers),
        "written": written,
        "existing": existing,
        "st_maps_from_existing": st_maps,
        "problems": [problem._asdict() for problem in outcome.problems],
        **report.select_attributes(outcome, "stopped", "cuts"),
        **choice.collect_method_settings(),
        "devices": list(devices),
        "seconds": {"total": seconds},
    }
    text = f"{report.escape_control_characters(args.output)}: {report.format_count(written, 'frame')} written"
    text += f", {existing} kept"
    if st_maps:
        text += f", {report.format_count(st_maps, 'ST map')} written from them"
    text += f", {choice.title} on {', '.join(devices)}, {seconds:.1f} s"
    if outcome.is_complete:
        text += report.format_next_command_unless_quiet(
            args, "fullfield", "view", args.output.replace(_FIELD, str(min(args.reference)))
        )
    report.print_report(args, content, text, has_peak_memory=True)
