"""Find the pose that brings one point cloud onto another, or the poses of several.

Find the rigid transform that brings the cloud SRC onto the cloud DST, from any pose. With more than two clouds, find
the poses of the largest group that accepted pairs connect, in the frame of its first cloud. With --apply, move one
cloud by a pose that is known.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield import io, viz
from fullfield._check import InputError
from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.io.files import join_to_one_line, raise_as_input_errors, write_atomically
from fullfield.io.names import IMAGE_WRITE_SUFFIXES, POINT_SUFFIXES, POINT_WRITE_SUFFIXES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fullfield.io.point_formats.coordinate_system import CoordinateSystem
    from fullfield.registration import Registration
    from fullfield.registration.group import GroupRegistration, PairResult

NOT_REGISTERED = 3
"""The exit code where no pose is accepted."""

_ERROR_VOXELS = 2.0  # top of the picture's scale

EPILOG = """\
examples:
  fullfield register scan_02.ply scan_01.ply -o aligned.ply --viz check.png
  fullfield register 000010.bin 000000.bin --json
  fullfield register a.pcd b.pcd --init guess.txt --voxel 0.05
  fullfield register a.ply b.ply --descriptor learned
  fullfield register a.ply b.ply c.ply d.ply --merge all.las
  fullfield register a.ply b.ply --pose pose.txt && fullfield register --apply pose.txt other.ply -o moved.ply

Exits with 3 when no pose can be accepted, and says why. Of more than two clouds, each needs a pose, and no pairs may
contradict each other.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield register``."""
    parser.add_argument(
        "clouds", nargs="+", metavar="CLOUD", help=f"SRC and DST, or several: {' '.join(POINT_SUFFIXES)} (.bin: KITTI)"
    )
    parser.add_argument(
        "--columns", type=argtypes.parse_positive_integer, help="float32 numbers of a point in .bin files [by content]"
    )
    parser.add_argument(
        "--apply",
        metavar="POSE",
        help="move the only cloud by its pose: .json of --json (or FILE.json:CLOUD), .npy or text",
    )
    search = parser.add_argument_group("search")
    search.add_argument(
        "--voxel", type=argtypes.parse_positive_number, help="edge of a voxel, in the clouds' units [auto]"
    )
    search.add_argument("--init", metavar="POSE", help="start from this pose: text or .npy, 4x4 or 3x4 [search]")
    search.add_argument("--descriptor", choices=("fpfh", "learned"), help="features [fpfh; learned with --weights]")
    search.add_argument("--weights", metavar="FILE", help="weights of a learned descriptor [the published ones]")
    search.add_argument("--seed", type=argtypes.parse_nonnegative_integer, help="seed of the random draws [0]")
    search.add_argument(
        "--iterations", type=argtypes.parse_positive_integer, help="number of triples that RANSAC draws [50000]"
    )
    search.add_argument("--device", metavar="NAME", help="device of a learned descriptor [auto]")
    search.add_argument("--threads", type=argtypes.parse_thread_count, help="CPU threads [all]")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="FILE", help=f"write SRC, moved: {' '.join(POINT_WRITE_SUFFIXES)}")
    output.add_argument("--pose", metavar="FILE", help="write the pose as text, as --init and --apply read it")
    output.add_argument(
        "--merge", metavar="FILE", help="write the placed clouds as one, in the frame of DST or of their first"
    )
    output.add_argument(
        "--viz", metavar="FILE", help="write a picture of both clouds before and after, coloured by error"
    )
    output.add_argument(
        "--max-error", type=argtypes.parse_positive_number, help="end of the picture's error scale [2 voxels]"
    )
    report.add_report_options(output, has_quiet_option=True)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, read, register, write and report."""
    watch = report.Stopwatch()
    _check_file_options(args)
    if args.apply is not None:
        return _apply_pose_write_cloud_and_report(args)
    args.seed = 0 if args.seed is None else args.seed
    args.iterations = 50_000 if args.iterations is None else args.iterations
    if args.weights is not None and args.descriptor == "fpfh":
        raise InputError("--weights: expected --descriptor learned, got fpfh, which has no weights")

    import numpy as np

    from fullfield.io.pointcloud import check_lossless, select_common_fields_and_list_dropped, transform_cloud
    from fullfield.ops.devices import AUTO
    from fullfield.registration import read_pose
    from fullfield.registration.group import register_group
    from fullfield.registration.packages import check_packages_installed
    from fullfield.registration.register import Settings, load_descriptor_if_learned, register_clouds

    check_packages_installed()  # before any work
    methods.limit_cpu_threads_unless_none(args.threads)
    init = None if args.init is None else read_pose(args.init)
    with report.rename_arguments_in_errors(device="--device"):
        descriptor = load_descriptor_if_learned(
            Path(args.weights) if args.weights else args.descriptor, args.device or AUTO
        )
    settings = Settings(args.voxel, init, args.seed, args.iterations, descriptor=descriptor)
    with ProgressBar("register", quiet=args.quiet) as progress:
        progress(0.0, "reading")
        clouds = [_read_cloud(path, args.columns) for path in args.clouds]
        for path, cloud in zip(args.clouds, clouds, strict=True):
            if not np.isfinite(cloud.points).all(1).any():
                raise InputError(f"{path}: expected finite points, got {len(cloud)} points, none of them finite")
        if args.output is not None:
            check_lossless(args.output, clouds[0])
        if args.merge is not None:
            for cloud in select_common_fields_and_list_dropped(clouds)[0]:
                check_lossless(args.merge, cloud)
        _print_note_if_coordinate_systems_differ(args, args.clouds, [cloud.coordinate_system for cloud in clouds])
        watch.add_lap("load")
        if len(clouds) > 2:
            group = register_group(clouds, settings, progress.start_span_and_build_callback(0.1, 0.9))
            watch.add_lap("register")
            return _write_merged_print_poses_and_return_code(args, clouds, group, watch)
        has_output = any((args.output, args.merge, args.viz))
        registering = progress.start_span_and_build_callback(0.1, 0.7 if has_output else 1.0)
        result = register_clouds(clouds[0], clouds[1], settings, registering)
        watch.add_lap("register")
        system = clouds[1].coordinate_system
        if result.success and args.output is not None:
            progress(0.7, f"writing {Path(args.output).name}")
            transformed = replace(transform_cloud(clouds[0], result.transform), coordinate_system=system)
            io.write_point_cloud(args.output, transformed)
        if result.success and args.pose is not None:
            _write_pose(args.pose, result.transform)
        if result.success and args.merge is not None:
            merged = [transform_cloud(clouds[0], result.transform), clouds[1]]
            _write_merged_cloud_and_note_dropped_fields(args, merged, system)
        pose = result.transform if result.success else result.candidate
        drawn = False
        if args.viz is not None and pose is not None:
            _write_alignment_picture(args, clouds, result, pose, progress.start_span_and_build_callback(0.8, 1.0))
            drawn = True
        watch.add_lap("write")
    device = None if descriptor is None else str(descriptor.device)
    _print_report(args, result, drawn, clouds, device, watch.get_stage_seconds())
    return 0 if result.success else NOT_REGISTERED


def _check_file_options(args: argparse.Namespace) -> None:
    from fullfield.io.pointcloud import check_writer_installed

    names = ("SRC", "DST") if len(args.clouds) == 2 else ("CLOUD",) * len(args.clouds)
    inputs = [*zip(names, args.clouds, strict=True), ("--init", args.init), ("--weights", args.weights)]
    outputs = (
        ("--output", args.output, POINT_WRITE_SUFFIXES),
        ("--merge", args.merge, POINT_WRITE_SUFFIXES),
        ("--viz", args.viz, IMAGE_WRITE_SUFFIXES),
        ("--pose", args.pose, (".txt",)),
    )
    pose = None if args.apply is None else _split_pose_file_and_cloud_name(args.apply)[0]
    paths.check_files_and_remove_temporaries([*inputs, ("--apply", pose)], outputs)
    for name, path in zip(names, args.clouds, strict=True):
        paths.get_checked_suffix(path, name, POINT_SUFFIXES)
    for path in filter(None, (args.output, args.merge)):
        check_writer_installed(path)
    if args.max_error is not None and args.viz is None:
        raise InputError("--max-error: is the scale of --viz, which is absent")
    _check_options_match_cloud_count(args)


def _check_options_match_cloud_count(args: argparse.Namespace) -> None:
    """Check that the options fit the number of clouds."""
    count = len(args.clouds)
    if args.apply is not None:
        if count != 1 or args.output is None:
            clouds = f"{report.format_count(count, 'cloud')}{'' if args.output else ' without --output'}"
            raise InputError(f"--apply: expected one cloud and --output, got {clouds}")
        search = ("voxel", "init", "descriptor", "weights", "seed", "iterations", "device", "threads")
        options: tuple[str, ...] = (*search, "viz", "merge", "pose")
        words = "--apply moves a cloud by a known pose"
    elif count == 1:
        raise InputError("CLOUD: expected at least two clouds, or --apply with a pose, got one cloud")
    else:
        options = ("init", "viz", "output", "pose") if count > 2 else ()
        words = "is for two clouds; --json has the poses of several, for --apply; --merge writes them as one"
    for option in options:
        if getattr(args, option) is not None:
            raise InputError(f"--{option}: {words}")


def _read_cloud(path: str, columns: int | None) -> io.PointCloud:
    """Read a cloud; the number of columns is for files of numbers without a header."""
    with report.rename_arguments_in_errors(columns="--columns"):
        return io.read_point_cloud(path, columns=columns if path.lower().endswith(".bin") else None)


def _apply_pose_write_cloud_and_report(args: argparse.Namespace) -> int:
    """Move one cloud by a known pose."""
    from fullfield.io.pointcloud import check_lossless, read_coordinate_system_or_none, transform_cloud

    pose, frame = _read_pose_and_target_cloud_name(args.apply, args.clouds[0])
    cloud = _read_cloud(args.clouds[0], args.columns)
    check_lossless(args.output, cloud)
    transformed = transform_cloud(cloud, pose)
    if frame is not None and Path(frame).is_file():
        transformed = replace(transformed, coordinate_system=read_coordinate_system_or_none(frame))
        _print_note_if_coordinate_systems_differ(
            args, (args.clouds[0], frame), (cloud.coordinate_system, transformed.coordinate_system)
        )
    io.write_point_cloud(args.output, transformed)
    values = {"source": args.clouds[0], "output": args.output, "points": len(cloud), "transform": pose.tolist()}
    report.print_report(args, values, f"moved {report.format_count(len(cloud), 'point')}")
    return 0


def _split_pose_file_and_cloud_name(argument: str) -> tuple[str, str | None]:
    """Split ``poses.json:NAME`` into the file and the name of the cloud, None without one.

    A drive letter of Windows is followed by a colon as well, so only one behind ``.json`` counts.
    """
    match = re.fullmatch(r"(.*?\.json):(.+)", argument, re.IGNORECASE | re.DOTALL)
    return (argument, None) if match is None or Path(argument).exists() else (match[1], match[2])


def _read_pose_and_target_cloud_name(argument: str, cloud: str) -> tuple[NDArray[np.float64], str | None]:
    """Read a pose, the one of ``cloud`` or of the named one where the file is what ``register --json`` printed.

    Also return the cloud to whose frame the pose leads, None where the file does not name it. Of two clouds, the target
    has no pose of its own: it stays where it is. The source's pose serves any other cloud.
    """
    import numpy as np

    from fullfield.io.pointcloud import check_and_orthonormalize_pose
    from fullfield.registration import read_pose

    path, name = _split_pose_file_and_cloud_name(argument)
    if not path.lower().endswith(".json"):
        return read_pose(path), None
    kinds = (OSError, ValueError, LookupError, TypeError, AttributeError)
    with raise_as_input_errors(Path(path), "expected what register --json printed", *kinds):
        printed = json.loads(Path(path).read_text("utf-8"))
        if "poses" in printed:
            poses = {one["cloud"]: one["pose"] for one in printed["poses"]}
            frame = printed.get("frame")
        else:
            frame = printed.get("target")
            poses = {printed.get("source", ""): printed["transform"]}
            if "target" in printed:
                poses[printed["target"]] = None if printed["transform"] is None else np.eye(4)
        matches = _select_names_by_path_name_or_stem(poses, name or cloud)
        if not matches and name is None and "poses" not in printed:
            matches = list(poses)[:1]
        if len(matches) != 1:
            option = "CLOUD" if name is None else f"--apply {path}:{name}"
            number = f"; its name fits {' and '.join(matches)}" if matches else ""
            raise InputError(
                f"{option}: expected one of {', '.join(poses)}, whose poses {path} has, got {name or cloud}{number}; "
                f"--apply {path}:{next(iter(poses))} names the pose to take"
            )
        pose = poses[matches[0]]
    if pose is None:
        raise InputError(f"{path}: expected an accepted pose of {matches[0]}, got none")
    return check_and_orthonormalize_pose(pose, path), frame


def _select_names_by_path_name_or_stem(names: Iterable[str], cloud_path: str) -> list[str]:
    """Return which of ``names`` mean ``cloud_path``: by path, else by file name, else by file name without suffix."""
    rules: tuple[Callable[[str], bool], ...] = (
        lambda name: name == cloud_path,
        lambda name: _is_same_file(name, cloud_path),
        lambda name: _get_last_path_component(name) == _get_last_path_component(cloud_path),
        lambda name: Path(_get_last_path_component(name)).stem == Path(_get_last_path_component(cloud_path)).stem,
    )
    selections = ([name for name in names if is_same(name)] for is_same in rules)
    return next(filter(None, selections), [])


def _get_last_path_component(path: str) -> str:
    """Return the last part of a path of any system: poses may have been computed on another one."""
    return re.split(r"[/\\]", path)[-1]


def _is_same_file(first: str, second: str) -> bool:
    return Path(first).resolve() == Path(second).resolve()


def _write_pose(path: str, pose: NDArray[np.float64]) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text("".join(f"{' '.join(f'{value:.17g}' for value in row)}\n" for row in pose), "ascii")


def _write_merged_cloud_and_note_dropped_fields(
    args: argparse.Namespace, clouds: list[io.PointCloud], system: CoordinateSystem | None
) -> None:
    """Write one cloud of all in the coordinate system of their frame, and name what only some of them have."""
    from fullfield.io.pointcloud import merge_clouds_and_list_dropped_fields

    merged, dropped = merge_clouds_and_list_dropped_fields(clouds)
    if dropped and not args.quiet:
        report.print_note(f"{args.merge}: without {', '.join(dropped)}, which only some of the clouds have")
    io.write_point_cloud(args.merge, replace(merged, coordinate_system=system))


def _print_note_if_coordinate_systems_differ(
    args: argparse.Namespace, paths: Sequence[str], systems: Sequence[CoordinateSystem | None]
) -> None:
    """Print a note where clouds name different coordinate systems: their units or axes may differ."""
    names = {path: system.name for path, system in zip(paths, systems, strict=True) if system is not None}
    if not args.quiet and len(set(names.values())) > 1:
        listed = ", ".join(f"{path} in {join_to_one_line(name, 60)}" for path, name in names.items())
        report.print_note(f"the coordinate systems differ: {listed}; they are not converted")


def _write_merged_print_poses_and_return_code(
    args: argparse.Namespace, clouds: list[io.PointCloud], group: GroupRegistration, stopwatch: report.Stopwatch
) -> int:
    """Print the pose of each cloud in the frame of the group's first one, and write the merged cloud."""
    from fullfield.io.pointcloud import transform_cloud

    posed = [(cloud, pose) for cloud, pose in zip(clouds, group.poses, strict=True) if pose is not None]
    left_out = [path for path, pose in zip(args.clouds, group.poses, strict=True) if pose is None]
    is_merged = args.merge is not None and len(posed) > 1
    if is_merged:
        system = clouds[group.frame].coordinate_system
        transformed = [transform_cloud(cloud, pose) for cloud, pose in posed]
        _write_merged_cloud_and_note_dropped_fields(args, transformed, system)
    stopwatch.add_lap("write")
    frame = args.clouds[group.frame]
    lines = list[str]()
    if group.frame:
        lines.append(f"poses in the frame of {frame}, since no accepted pair connects it with {args.clouds[0]}")
    for path, pose in zip(args.clouds, group.poses, strict=True):
        lines.append(path if pose is not None else f"{path}: no accepted pair connects it with {frame}")
        lines += [" ".join(f"{value:>17.10g}" for value in row) for row in (pose if pose is not None else ())]
    pairs = []
    for pair in group.pairs:
        source, target, one = args.clouds[pair.source], args.clouds[pair.target], pair.registration
        values = report.select_attributes(
            one, "success", "reason", "cause", "confidence", "matches", "inliers", "fitness", "rmse", "voxel"
        )
        transform = None if one.transform is None else one.transform.tolist()
        pairs.append({"source": source, "target": target, **values, "transform": transform, "residual": pair.residual})
        words = (
            f"confidence {one.confidence:.3f}{_describe_doubt_if_any(one)}, {_describe_residual(pair, frame)}"
            if one.success
            else f"refused: {one.reason}{_format_next_step_hint(args, one, (clouds[pair.source], clouds[pair.target]))}"
        )
        lines.append(
            f"{source} on {target}: {words}" + ("; contradicts the others" if pair in group.contradictions else "")
        )
    if is_merged:
        merged = [path for path in args.clouds if path not in left_out]
        words = f"; without {' and '.join(left_out)}, which no accepted pair connects" if left_out else ""
        lines.append(f"{args.merge}: {' and '.join(merged)}{words}")
    elif args.merge is not None:
        lines.append(f"{args.merge}: not written, since no pair of clouds was accepted")
    values = {
        "success": group.is_complete,
        "frame": frame,
        "poses": [
            {"cloud": path, "pose": None if pose is None else pose.tolist()}
            for path, pose in zip(args.clouds, group.poses, strict=True)
        ],
        "pairs": pairs,
        "contradictions": [[args.clouds[one.source], args.clouds[one.target]] for one in group.contradictions],
        "merged": args.merge if is_merged else None,
        "left_out": left_out,
        "seconds": stopwatch.get_stage_seconds(),
    }
    report.print_report(args, values, "\n".join(lines), has_peak_memory=True)
    return 0 if group.is_complete else NOT_REGISTERED


def _describe_doubt_if_any(result: Registration) -> str:
    return f" (limited: {result.doubt})" if result.doubt else ""


def _describe_residual(pair: PairResult, frame: str) -> str:
    if math.isnan(pair.residual):
        return f"not connected with {frame}"
    return f"differs by {pair.residual:.4g} (RMS) from the poses above"


def _write_alignment_picture(
    args: argparse.Namespace,
    clouds: list[io.PointCloud],
    result: Registration,
    pose: NDArray[np.float64],  # the best one, accepted or not
    progress: Callable[[float, str], None],
) -> None:
    """Draw both clouds before and after; the title of a pose that was refused says so."""
    import numpy as np
    import torch

    from fullfield.io.pointcloud import transform_cloud
    from fullfield.registration import compute_alignment_errors, measure_alignment
    from fullfield.registration.alignment import Alignment
    from fullfield.viz.points import draw_alignment_legend

    source, target = clouds
    top = args.max_error or _ERROR_VOXELS * result.voxel
    stages = (
        ("before", np.eye(4), measure_alignment(source, target, voxel=result.voxel)),
        ("after" if result.success else "refused", pose, Alignment(result.fitness, result.rmse)),
    )
    panels = []
    for at, (name, transform, fit) in enumerate(stages):
        progress(at / 2, f"drawing {name}")
        errors = compute_alignment_errors(source, target, transform, max_distance=top)
        transformed_points = transform_cloud(source, transform).points
        tensors = (
            torch.from_numpy(np.ascontiguousarray(values, np.float64))
            for values in (target.points, transformed_points, errors)
        )
        rmse = f", RMSE {fit.rmse:.4g}" if fit.fitness else ""
        title = f"{name}: {fit.fitness:.1%} within {result.voxel:.4g}{rmse}"
        panels.append((title, viz.draw_alignment(*tensors, max_error=top), draw_alignment_legend(max_error=top)))
    io.write_image(args.viz, viz.draw_sheet(panels, columns=2))


_ADVICE = {
    "points": "a cloud with more points",
    "plane": "a scan that shows more than one plane",
    "scale": "converting one of the clouds to the unit or size of the other",
    "shape": "scans without that distortion (calibration, drift of the scanner)",
    "mirror": "the source with one axis negated, if its axes are left-handed",
    "free": "a scan with something across that direction",
    "init": "leaving --init out",
    "repetition": "a scan that also shows something that is there only once",
}
"""Advice by the cause of a refusal. The advice for other causes depends on the arguments."""
_OTHER_VOXEL = 1.5  # ratio to the automatic voxel from which the one that was chosen is the likely cause


def _format_next_step_hint(args: argparse.Namespace, result: Registration, clouds: Sequence[io.PointCloud]) -> str:
    """Return what to try next, as the end of a message."""
    from fullfield.models.weights import can_obtain_weights, format_source_to_cache_copy_instructions, get_weights_entry
    from fullfield.registration.learned import PUBLISHED
    from fullfield.registration.scan import choose_voxel, compute_median_point, take_finite_points

    if args.voxel is not None and result.cause not in ("scale", "place"):
        points = [take_finite_points(cloud, "cloud") for cloud in clouds]
        automatic = choose_voxel(*(cloud - compute_median_point(cloud) for cloud in points))
        if automatic > 0 and not automatic / _OTHER_VOXEL <= args.voxel <= automatic * _OTHER_VOXEL:
            size = "smaller" if args.voxel > automatic else "larger"
            return f"; try a {size} --voxel: without the option it is {automatic:.3g}"
    if result.cause not in ("overlap", "contradiction"):
        return f"; try {_ADVICE[result.cause]}" if result.cause in _ADVICE else ""
    preparation = ""
    if not can_obtain_weights(PUBLISHED):
        preparation = f" ({format_source_to_cache_copy_instructions(get_weights_entry(PUBLISHED))} first)"
    options = {"descriptor": f"--descriptor learned{preparation}", "init": "--init with a rough pose"}
    words = [options[name] for name in result.untried]
    if args.init is not None:
        words.insert(0, _ADVICE["init"])
    if "init" in result.untried:
        words.append("a third cloud that overlaps both")
    return f"; if both show the same place, try {' or '.join(words)}" if words else ""


def _print_report(
    args: argparse.Namespace,
    result: Registration,
    has_picture: bool,
    clouds: Sequence[io.PointCloud],
    device: str | None,  # of the learned descriptor
    seconds: dict[str, float],
) -> None:
    if result.transform is None and not args.json:
        outputs = ((args.output, False), (args.merge, False), (args.pose, False), (args.viz, has_picture))
        unwritten = [Path(path).name for path, is_written in outputs if path and not is_written]
        files = f"; {' and '.join(unwritten)} not written" if unwritten else ""
        files += f"; {Path(args.viz).name} shows the refused pose" if has_picture else ""
        report.print_note(
            f"not registered: {result.reason}{files}{_format_next_step_hint(args, result, clouds)}", kind="register"
        )
        return
    pose, candidate = (None if one is None else one.tolist() for one in (result.transform, result.candidate))
    values = {
        "source": args.clouds[0],
        "target": args.clouds[1],
        **report.select_attributes(args, "seed", "init", "weights"),
        **report.select_attributes(
            result, "success", "reason", "confidence", "matches", "inliers", "fitness", "rmse", "voxel"
        ),
        "points": [len(cloud) for cloud in clouds],
        "cause": result.cause,
        "doubt": result.doubt,
        "untried": list(result.untried),
        "transform": pose,
        "candidate": candidate,
        "free_directions": [
            {"motion": one.motion, "axis": one.axis.tolist(), "point": one.point.tolist()}
            for one in result.free_directions
        ],
        "alternatives": [pose.tolist() for pose in result.alternatives],
        "descriptor": "fpfh" if device is None else "learned",
        "device": device or "cpu",
        "output": args.output if result.success else None,
        "picture": args.viz if has_picture else None,
        "seconds": seconds,
    }
    lines = [" ".join(f"{value:>17.10g}" for value in row) for row in pose or ()]
    lines.append(
        f"confidence {result.confidence:.3f}{_describe_doubt_if_any(result)}, "
        f"{result.inliers} of {result.matches} matches agree, "
        f"{result.fitness:.1%} of the source touches the target within {result.voxel:.4g}, RMSE {result.rmse:.4g}"
        + (f"; descriptor on {device}" if device else "")
    )
    report.print_report(args, values, "\n".join(lines), has_peak_memory=True)
