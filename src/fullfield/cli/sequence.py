"""Motion vectors of a whole shot, for ``fullfield flow SEQUENCE -o PATTERN``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield import _check as check
from fullfield import sequences
from fullfield._check import InputError
from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.options import READING_WORDS, packing_arguments, reading_arguments
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import naming
from fullfield.io.names import FLOW_WRITE_SUFFIXES, FRAME_SUFFIXES
from fullfield.sequences.names import Found, Pattern, choose, find_frames, format_frames, is_sequence

if TYPE_CHECKING:
    from fullfield.sequences.outputs import Plan

_MANY = 3  # missing plates that are reported in one line
_DIRECTIONS = ("forward", "backward", "both")
# Options of ``flow`` for one pair only.
_REFUSED = ("previous", "viz", "viz_kind", "max_motion", "initial_flow", "initial_layer", "initial_part")
_OWN = ("frames", "direction", "step", "warm_start", "y_axis", "devices", "ray", "farm")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a whole shot to the parser of ``flow``."""
    group = parser.add_argument_group("a whole shot: A is a pattern, a folder, a glob or a video, and B is absent")
    group.add_argument("--frames", metavar="RANGE", help="1001-1100, 1001-1100x2, 1-10,20 [all that exist]")
    group.add_argument(
        "--direction", choices=_DIRECTIONS, help="to the next frame, the previous one, or both (.exr) [forward]"
    )
    group.add_argument("--step", type=argtypes.count, metavar="K", help="distance between the frames of a pair [1]")
    group.add_argument("--warm-start", action="store_true", help="start from the flow of the previous frame")
    group.add_argument("--y-axis", choices=("up", "down"), help=".exr: direction of y; up as in Nuke [up]")
    group.add_argument("--overwrite", action="store_true", help="recompute or replace existing files")
    group.add_argument("--devices", metavar="LIST", help="several GPUs: all, or cuda:0,cuda:1")
    group.add_argument("--ray", metavar="ADDRESS", help="Ray cluster, with an actor for each GPU")
    group.add_argument("--farm", choices=("openjd",), help="print progress on stdout in the format of a render farm")


def check_absent(args: argparse.Namespace) -> None:
    """Raise InputError if options of a shot are given for one pair."""
    _refuse(args, _OWN, "only for a whole shot (a pattern, folder or video in place of A and B); leave it out")


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')}: {why}")


def run(args: argparse.Namespace) -> int:
    """Check the arguments, prepare, estimate missing frames, report."""
    chosen = methods.chosen(args)
    found, output = _check(args)

    from fullfield.sequences.run import run as run_here

    methods.use_threads(args.threads)
    devices = _devices(args)
    reading = reading_arguments(args)
    words = {**methods.words(args.method), **READING_WORDS, "frames": "--frames", "warm_start": "--warm-start"}
    with naming(**words), ProgressBar("flow", quiet=args.quiet) as progress:
        maps: dict[str, Any] = {name: getattr(args, name) is not None for name in ("occlusion", "confidence")}
        how = {"direction": args.direction or "forward", "step": args.step or 1, "warm_start": args.warm_start}
        setting = sequences.Setting(**how, **maps, device=devices[0], refine=args.refine)
        how = {"backend": chosen.backend, "setting": setting, "reading": reading, "threads": args.threads}
        work = sequences.Work(args.frame1, output, chosen.method, chosen.config, **how)
        plates = work.open(choose(found, args.frames) if found.video is None else args.frames)
        numbers = list(plates.numbers)
        progress(0.0, "preparing")
        size = _size(plates) if devices[0].startswith("cuda") else None
        replace(chosen, device=devices[0]).prepare(size, lambda *_: None, quiet=args.quiet)
        settings = work.settings(chosen.estimator)
        plan = work.settle(settings, plates, overwrite=args.overwrite)
        work = replace(work, made_by=output.made_by(settings))
        absent, missing = _missing(args, plates, plan)
        left = sorted(set(plan.left).difference(missing))
        if not args.quiet:
            report.note_plan(numbers, plan)
        tell = _teller(args, progress, left)
        if args.ray is not None and left:
            plates.close()
            outcome = _on_cluster(args, work, left, numbers, tell)
        elif len(devices) > 1 and left:
            plates.close()
            outcome = sequences.run_on_devices(replace(work), left, devices, tell=tell, every=numbers)
        else:
            outcome = run_here(work, left, estimator=chosen.estimator, plates=plates, tell=tell)
    missing_paths = {plates.path(number) for number in missing}
    outcome.problems = [problem for problem in outcome.problems if problem.path not in missing_paths]
    for problem in outcome.problems:
        report.note(str(problem), kind="error")
    if absent is not None:
        outcome.problems.insert(0, absent)
    _report(args, chosen, work, devices, numbers, plan, outcome)
    return 0 if outcome.is_good else 2


def _check(args: argparse.Namespace) -> tuple[Found, Any]:
    _refuse(args, _REFUSED, "only for one pair of frames; leave it out")
    if not is_sequence(args.frame1) and Path(args.frame1).is_file():
        raise InputError(f"{args.frame1}: is one frame; give the second frame, or a sequence such as plate.%04d.exr")
    found = find_frames(args.frame1)
    output = _output_pattern(args.output, found)
    args.output = output
    suffix = paths.check_suffix(output, "--output", FLOW_WRITE_SUFFIXES)
    packing = packing_arguments(args)
    maps = [name for name in ("occlusion", "confidence") if getattr(args, name) is not None]
    for name in maps:
        if getattr(args, name):
            raise InputError(f"--{name} {getattr(args, name)}: for a shot the output holds it; leave the file out")
    several = [f"--{name}" for name in maps] + (["--y-axis"] if args.y_axis else [])
    if args.direction == "both":
        several.insert(0, "--direction both")
    if several and suffix != ".exr":
        raise InputError(f"{several[0]}: expected an .exr output, got {output}")
    if args.warm_start and suffix == ".png":
        raise InputError(
            "--warm-start: KITTI's .png rounds the flow, so a run could not continue from it; choose another format"
        )
    if args.warm_start and args.devices:
        raise InputError("--warm-start: runs on one device, from frame to frame; leave --devices out")
    if args.ray and (args.devices or args.warm_start):
        raise InputError(f"{'--devices' if args.devices else '--warm-start'}: not used with --ray; leave it out")
    if args.devices and args.device != "cpu":
        raise InputError(f"--device {args.device}: not used with --devices; leave it out")
    for option, pattern in (("--output", output), ("--st-map", args.st_map)):
        if pattern is None:
            continue
        if option == "--st-map":
            paths.check_suffix(pattern, option, (".exr",))
        paths.check_pattern(pattern, option, suffix)
    _check_distinct(args, found)

    from fullfield.sequences.outputs import Output

    return found, Output(output, packing.get("dtype"), packing.get("compression"), args.y_axis or "up", args.st_map)


def _check_distinct(args: argparse.Namespace, found: Found) -> None:
    """Raise InputError if an output pattern names a plate, a later plate, or a file of the other pattern."""
    plates = {os.path.realpath(path) for path in found.files.values()}
    number = next(iter(found.files), 1)
    names = [(option, pattern) for option, pattern in (("--output", args.output), ("--st-map", args.st_map)) if pattern]
    for option, pattern in names:
        made = Pattern.parse(pattern)
        if plates & {os.path.realpath(made.path(n)) for n in found.files or [number]}:
            raise InputError(f"{option} {pattern}: names the plates; choose another name")
        if _is_among(made.path(number), args.frame1):
            raise InputError(
                f"{option} {pattern}: {args.frame1} would hold plates and results; choose another folder, or name the "
                "plates by a pattern such as plate.####.exr"
            )
    if len({os.path.realpath(Pattern.parse(pattern).path(number)) for _, pattern in names}) < len(names):
        raise InputError(f"--st-map {args.st_map}: is also written by --output; choose another file")


def _is_among(path: str, text: str) -> bool:
    """Return whether the folder or glob ``text`` finds the file ``path`` once it exists."""
    (folder, name), (where, names) = os.path.split(path), os.path.split(text)
    if Path(text).is_dir():
        where, names = text, "*" if Path(name).suffix.lower() in FRAME_SUFFIXES else ""
    return fnmatch(os.path.realpath(folder), os.path.realpath(where)) and fnmatch(name, names)


def _output_pattern(text: str, found: Found) -> str:
    """Return the output pattern; for a folder, files in it with the names of the plates."""
    if not (Path(text).is_dir() or text.endswith(("/", os.sep))):
        return text
    paths.check_folder(Path(text), f"--output {text}")
    folder = text.rstrip("/" + os.sep) or os.sep
    if found.video is not None:
        return f"{folder}/{Path(found.video).stem}.%06d.exr"
    if found.pattern is None:
        return f"{folder}/flow.%04d.exr"
    before, after = os.path.split(found.pattern.before)[1], Path(found.pattern.after).stem
    after = "" if after.startswith(".") or after == found.pattern.after else after
    return f"{folder}/{before}%0{found.pattern.digits}d{after}.exr"


def _devices(args: argparse.Namespace) -> list[str]:
    if args.devices is None:
        return [args.device]
    if args.devices == "all":
        import torch

        count = torch.cuda.device_count()
        if count == 0:
            raise InputError("--devices all: expected GPUs, PyTorch finds none")
        return [f"cuda:{index}" for index in range(count)]
    devices = [name.strip() for name in args.devices.split(",")]
    for name in devices:
        check.device(name, "--devices")
    return devices


def _on_cluster(
    args: argparse.Namespace,
    work: sequences.Work,
    left: Sequence[int],
    numbers: Sequence[int],
    tell: Callable[[int], None],
) -> sequences.Outcome:
    from fullfield.sequences.cluster import run_on_cluster

    patterns = {"pattern": work.output.pattern, "st_map": work.output.st_map}
    absolute: dict[str, Any] = {name: text and str(Path(text).absolute()) for name, text in patterns.items()}
    whole = replace(work, source=str(Path(work.source).absolute()), output=replace(work.output, **absolute))
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its own messages
        return run_on_cluster(whole, left, args.ray, every=numbers, tell=tell)


def _size(plates: sequences.Plates) -> tuple[int, int] | None:
    """Return height and width of the first plate that can be read."""
    for number in plates.numbers:
        with contextlib.suppress(InputError, OSError):
            height, width = plates.read(number).frame.shape[-2:]
            return height, width
    return None


def _missing(
    args: argparse.Namespace, plates: sequences.Plates, plan: Plan
) -> tuple[sequences.Problem | None, list[int]]:
    """Return the frames whose plates are missing, reported as one problem, if there are more than a few."""
    missing = [number for number in plan.left if plates.has(number) is False]
    if len(missing) < _MANY:
        return None, []
    problem = sequences.Problem(args.frame1, f"{len(missing)} plates are missing: {format_frames(missing)}")
    report.note(str(problem), kind="error")
    return problem, missing


def _teller(args: argparse.Namespace, progress: ProgressBar, left: Sequence[int]) -> Callable[[int], None]:
    """Return a callback that counts finished frames, from any thread."""
    lock, count, stdout = threading.Lock(), [0], sys.stdout

    def tell(number: int) -> None:
        with lock:
            count[0] += 1
            progress(count[0] / len(left), f"frame {number}, {count[0]} of {len(left)}")
            if args.farm == "openjd":
                print(f"openjd_progress: {100 * count[0] / len(left):.1f}", file=stdout, flush=True)

    return tell


def _report(
    args: argparse.Namespace,
    chosen: methods.Chosen,
    work: sequences.Work,
    devices: Sequence[str],
    numbers: Sequence[int],
    plan: Plan,
    outcome: sequences.Outcome,
) -> None:
    if not args.quiet:
        for a, b in outcome.cuts:
            report.note(f"the shot changes between the frames {a} and {b}; the vectors across the cut have no meaning")
        for a, b in outcome.held:
            report.note(f"the frames {a} and {b} are the same picture")
    if outcome.stopped is not None:
        report.note(f"stopped: {outcome.stopped}; run the same command again to continue", kind="error")
    unmade = sorted(set(plan.left) - set(outcome.written))
    refined = work.setting.refine or chosen.estimator.parameters.get("refinement") is not None
    facts = {
        "output": args.output,
        "frames": format_frames(numbers),
        "written": format_frames(outcome.written),
        "there_before": len(numbers) - len(plan.left),
        "made_again": {reason: format_frames(frames) for reason, frames in plan.again.items()},
        "not_made": format_frames(unmade),
        "incomplete": format_frames(outcome.incomplete),
        "problems": [problem._asdict() for problem in outcome.problems],
        **report.picked(outcome, "stopped", "cuts", "held"),
        **report.picked(work.setting, "direction", "step"),
        **chosen.facts(),
        "refined": refined,
        "devices": list(devices),
        "seconds": {"estimate": outcome.busy_s, "total": outcome.wall_s},
    }
    summary = f"{len(outcome.written)} frames written, {len(numbers) - len(plan.left)} kept"
    for frames, what in ((unmade, "not written"), (outcome.incomplete, "with only one direction")):
        summary += f", {len(frames)} {what} ({format_frames(frames)})" if frames else ""
    summary += f", {chosen.title}{', refined' if refined else ''}, {outcome.wall_s:.1f} s"
    report.tell(args, facts, f"{report.printable(args.output)}: {summary}", memory=True)
