"""Find the pose that brings one point cloud onto another.

Find the rigid transform that brings the cloud SRC onto the cloud DST, from any pose.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield import io, viz
from fullfield._check import InputError
from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.io.names import IMAGE_WRITE_SUFFIXES, POINT_SUFFIXES, POINT_WRITE_SUFFIXES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fullfield.registration import Registration

NOT_REGISTERED = 3
"""The exit code where no pose is accepted."""

_ERROR_VOXELS = 2.0  # top of the picture's scale

EPILOG = """\
examples:
  fullfield register scan_02.ply scan_01.ply -o aligned.ply --viz check.png
  fullfield register 000010.bin 000000.bin --json
  fullfield register a.pcd b.pcd --init guess.txt --voxel 0.05
  fullfield register a.ply b.ply --descriptor learned

Exits with 3 when no pose can be accepted, and says why.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield register``."""
    parser.add_argument("source", metavar="SRC", help=f"cloud to move: {' '.join(POINT_SUFFIXES)} (.bin: KITTI)")
    parser.add_argument("target", metavar="DST", help="cloud that stays")
    search = parser.add_argument_group("search")
    search.add_argument("--voxel", type=argtypes.positive, help="edge of a voxel, in the clouds' units [auto]")
    search.add_argument("--init", metavar="POSE", help="start from this pose: text or .npy, 4x4 or 3x4 [search]")
    search.add_argument("--descriptor", choices=("fpfh", "learned"), help="features [fpfh; learned with --weights]")
    search.add_argument("--weights", metavar="FILE", help="weights of a learned descriptor [those in the package]")
    search.add_argument("--seed", type=argtypes.natural, default=0, help="seed of the random draws")
    search.add_argument("--iterations", type=argtypes.count, default=50_000, help="number of triples that RANSAC draws")
    search.add_argument("--threads", type=argtypes.threads, help="CPU threads [all]")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="FILE", help=f"write SRC, moved: {' '.join(POINT_WRITE_SUFFIXES)}")
    output.add_argument(
        "--viz", metavar="FILE", help="write a picture of both clouds before and after, coloured by error"
    )
    output.add_argument("--max-error", type=argtypes.positive, help="end of the picture's error scale [2 voxels]")
    report.add_report_options(output, progress=True)


def run(args: argparse.Namespace) -> int:
    """Check the arguments, read, register, write and report."""
    watch = report.Stopwatch()
    _check_files(args)
    if args.weights is not None and args.descriptor == "fpfh":
        raise InputError("--weights: expected --descriptor learned, got fpfh, which has no weights")

    import numpy as np

    from fullfield.io.pointcloud import check_kept
    from fullfield.registration import LearnedDescriptor, read_pose
    from fullfield.registration.register import Settings, register_clouds

    methods.use_threads(args.threads)
    init = None if args.init is None else read_pose(args.init)
    descriptor = args.descriptor if args.weights is None else LearnedDescriptor.load(args.weights)
    with ProgressBar("register", quiet=args.quiet) as progress:
        progress(0.0, "reading")
        clouds = [io.read_point_cloud(path) for path in (args.source, args.target)]
        for path, cloud in zip((args.source, args.target), clouds, strict=True):
            if not np.isfinite(cloud.points).all(1).any():
                raise InputError(f"{path}: expected finite points, got {len(cloud)} points, none of them finite")
        if args.output is not None:
            check_kept(args.output, clouds[0])
        watch.lap("load")
        settings = Settings(args.voxel, init, args.seed, args.iterations, descriptor=descriptor)
        found = register_clouds(clouds[0], clouds[1], settings, progress.part(0.1, 0.7))
        watch.lap("register")
        if found.success and args.output is not None:
            progress(0.7, f"writing {Path(args.output).name}")
            io.write_point_cloud(args.output, io.transformed(clouds[0], found.transform))
        shown = found.transform if found.success else found.candidate
        drawn = False
        if args.viz is not None and shown is not None:
            _draw(args, clouds, found, shown, progress.part(0.8, 1.0))
            drawn = True
        watch.lap("write")
    _report(args, found, drawn, [len(cloud) for cloud in clouds], watch.seconds())
    return 0 if found.success else NOT_REGISTERED


def _check_files(args: argparse.Namespace) -> None:
    inputs = (("SRC", args.source), ("DST", args.target), ("--init", args.init), ("--weights", args.weights))
    outputs = (("--output", args.output, POINT_WRITE_SUFFIXES), ("--viz", args.viz, IMAGE_WRITE_SUFFIXES))
    paths.check_files(inputs, outputs)
    for what, path in inputs[:2]:
        paths.check_suffix(path, what, POINT_SUFFIXES)
    if args.max_error is not None and args.viz is None:
        raise InputError("--max-error: is the scale of --viz, which is absent")


def _draw(
    args: argparse.Namespace,
    clouds: list[io.PointCloud],
    found: Registration,
    pose: NDArray[np.float64],  # the best one, accepted or not
    progress: Callable[[float, str], None],
) -> None:
    """Draw both clouds before and after; the title of a pose that was refused says so."""
    import numpy as np
    import torch

    from fullfield.registration import Alignment, alignment, alignment_errors

    source, target = clouds
    top = args.max_error or _ERROR_VOXELS * found.voxel
    stages = (
        ("before", np.eye(4), alignment(source, target, voxel=found.voxel)),
        ("after" if found.success else "refused", pose, Alignment(found.fitness, found.rmse)),
    )
    panels = []
    for at, (name, transform, fit) in enumerate(stages):
        progress(at / 2, f"drawing {name}")
        errors = alignment_errors(source, target, transform, most=top)
        moved = io.transformed(source, transform).points
        tensors = (torch.from_numpy(np.ascontiguousarray(part, np.float64)) for part in (target.points, moved, errors))
        rmse = f", RMSE {fit.rmse:.4g}" if fit.fitness else ""
        title = f"{name}: {fit.fitness:.1%} within {found.voxel:.4g}{rmse}"
        panels.append((title, viz.alignment_view(*tensors, max_error=top), viz.alignment_legend(max_error=top)))
    io.write_image(args.viz, viz.sheet(panels, columns=2))


def _advice(args: argparse.Namespace, found: Registration) -> str:
    """Return what to try next, as the end of a message."""
    options = {
        "descriptor": "--descriptor learned",
        "voxel": f"--voxel with another edge than {found.voxel:.3g}" if found.voxel else "",
        "init": "--init with a rough pose",
    }
    if args.weights is None and args.descriptor == "learned":
        options["descriptor"] = ""
    words = [options[name] for name in found.untried if options[name]]
    return f"; try {' or '.join(words)}" if words else ""


def _report(
    args: argparse.Namespace, found: Registration, drawn: bool, points: list[int], seconds: dict[str, float]
) -> None:
    if found.transform is None and not args.json:
        unwritten = [Path(path).name for path, there in ((args.output, False), (args.viz, drawn)) if path and not there]
        files = f"; {' and '.join(unwritten)} not written" if unwritten else ""
        files += f"; {Path(args.viz).name} shows the refused pose" if drawn else ""
        report.note(f"not registered: {found.reason}{files}{_advice(args, found)}", kind="register")
        return
    pose, candidate = (None if one is None else one.tolist() for one in (found.transform, found.candidate))
    facts = {
        **report.picked(args, "source", "target", "seed", "init", "weights"),
        **report.picked(found, "success", "reason", "confidence", "matches", "inliers", "fitness", "rmse", "voxel"),
        "points": points,
        "untried": list(found.untried),
        "transform": pose,
        "candidate": candidate,
        "descriptor": "fpfh" if args.weights is None and args.descriptor != "learned" else "learned",
        "output": args.output if found.success else None,
        "picture": args.viz if drawn else None,
        "seconds": seconds,
    }
    lines = [" ".join(f"{value:>17.10g}" for value in row) for row in pose or ()]
    lines.append(
        f"confidence {found.confidence:.3f}, {found.inliers} of {found.matches} matches agree, "
        f"{found.fitness:.1%} of the source touches the target within {found.voxel:.4g}, RMSE {found.rmse:.4g}"
    )
    report.tell(args, facts, "\n".join(lines), memory=True)
