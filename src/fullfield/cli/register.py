"""``fullfield register SRC DST``: the pose that brings one point cloud onto another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield._check import InputError
from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.io.names import IMAGE_WRITE_SUFFIXES, POINT_SUFFIXES, POINT_WRITE_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from fullfield.io import PointCloud
    from fullfield.registration import Registration

NOT_REGISTERED = 3
"""The exit code where no pose is accepted."""

_ERROR_VOXELS = 2.0  # top of the picture's scale
_SEARCHED, _SAMPLED = 8.0, 20_000  # times the top, points: within which, and of how many, the median is measured

HELP = "find the pose that brings one point cloud onto another"
DESCRIPTION = "Find the rigid transform that brings the cloud SRC onto the cloud DST, from any pose."
EPILOG = """\
examples:
  fullfield register scan_02.ply scan_01.ply -o aligned.ply --viz check.png
  fullfield register 000010.bin 000000.bin --json
  fullfield register a.pcd b.pcd --init guess.txt --voxel 0.05
  fullfield register a.ply b.ply --descriptor learned

Exits with 3 when no pose can be accepted, and says why.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``fullfield register``."""
    parser.add_argument("source", metavar="SRC", help=f"cloud to move: {' '.join(POINT_SUFFIXES)} (.bin: KITTI)")
    parser.add_argument("target", metavar="DST", help="cloud that stays")
    search = parser.add_argument_group("search")
    search.add_argument("--voxel", type=argtypes.positive, help="edge of a voxel, in the clouds' units [auto]")
    search.add_argument(
        "--init", metavar="POSE", help="start from this pose instead of searching: text or .npy, 4x4 or 3x4"
    )
    search.add_argument(
        "--descriptor", choices=("fpfh", "learned"), help="what is matched by [fpfh; learned with --weights]"
    )
    search.add_argument(
        "--weights",
        metavar="FILE",
        help="of a learned descriptor, as fullfield train descriptor writes it [the one that comes with fullfield]",
    )
    search.add_argument("--seed", type=argtypes.natural, default=0, help="of the random draws")
    search.add_argument("--iterations", type=argtypes.count, default=50_000, help="of RANSAC")
    search.add_argument("--threads", type=argtypes.threads, help="CPU threads [all]")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="FILE", help=f"write SRC, moved: {' '.join(POINT_WRITE_SUFFIXES)}")
    output.add_argument("--viz", metavar="FILE", help="write a picture, before and after, coloured by alignment error")
    output.add_argument("--max-error", type=argtypes.positive, help="error at the end of its scale [2 voxels]")
    report.add_report_options(output, progress=True)


def run(args: argparse.Namespace) -> int:
    """Check, read, register, write, report."""
    watch = report.Stopwatch()
    _check_files(args)
    if args.weights is not None and args.descriptor == "fpfh":
        raise InputError("--weights: FPFH has none; leave it or --descriptor fpfh out")

    from fullfield.io import read_point_cloud, transformed, write_point_cloud
    from fullfield.io.pointcloud import check_kept
    from fullfield.registration import LearnedDescriptor, read_pose
    from fullfield.registration.register import Settings, registered

    methods.use_threads(args.threads)
    init = None if args.init is None else read_pose(args.init)
    descriptor = args.descriptor if args.weights is None else LearnedDescriptor.load(args.weights)
    with ProgressBar("register", quiet=args.quiet) as progress:
        progress(0.0, "reading")
        clouds = [read_point_cloud(path) for path in (args.source, args.target)]
        for path, cloud in zip((args.source, args.target), clouds, strict=True):
            _check_points(path, cloud)
        if args.output is not None:
            check_kept(args.output, clouds[0])
        watch.lap("load")
        settings = Settings(args.voxel, init, args.seed, args.iterations, descriptor=descriptor)
        found = registered(clouds[0], clouds[1], settings, progress.part(0.1, 0.7))
        watch.lap("register")
        if found.transform is not None:
            if args.output is not None:
                progress(0.7, f"writing {Path(args.output).name}")
                write_point_cloud(args.output, transformed(clouds[0], found.transform))
            if args.viz is not None:
                top = args.max_error or _ERROR_VOXELS * found.voxel
                _draw(args, clouds, found.transform, top, progress.part(0.8, 1.0))
            watch.lap("write")
    _report(args, found, [len(cloud) for cloud in clouds], watch.seconds())
    return 0 if found.success else NOT_REGISTERED


def _check_files(args: argparse.Namespace) -> None:
    inputs = (("SRC", args.source), ("DST", args.target), ("--init", args.init), ("--weights", args.weights))
    outputs = (("--output", args.output, POINT_WRITE_SUFFIXES), ("--viz", args.viz, IMAGE_WRITE_SUFFIXES))
    paths.check_files(inputs, outputs)
    for what, path in inputs[:2]:
        paths.check_suffix(path, what, POINT_SUFFIXES)
    if args.max_error is not None and args.viz is None:
        raise InputError("--max-error: is the scale of --viz, which is absent")


def _check_points(path: str, cloud: PointCloud) -> None:
    import numpy as np

    finite = int(np.isfinite(cloud.points).all(1).sum())
    if not finite:
        raise InputError(f"{path}: holds {len(cloud)} points, none of them finite; nothing can be registered")


def _draw(
    args: argparse.Namespace,
    clouds: list[PointCloud],
    transform: NDArray[np.float64],
    top: float,
    progress: Callable[[float, str], None],
) -> None:
    import numpy as np
    import torch

    from fullfield.io import transformed, write_image
    from fullfield.registration import alignment_errors
    from fullfield.viz import alignment_legend, alignment_view, sheet

    source, target = clouds
    panels = []
    # Beyond the top of the scale all is red: how far, where no point is near, takes most of the time at millions of
    # points, and is asked only of a sample, for the median.
    chosen = np.random.default_rng(0).permutation(len(source))[:_SAMPLED]
    for part, (name, pose) in enumerate((("before", np.eye(4)), ("after", transform))):
        progress(part / 2, f"drawing {name}")
        errors = alignment_errors(source, target, pose, most=top)
        some = alignment_errors(source.points[chosen], target, pose, most=_SEARCHED * top)
        median = float(np.nanmedian(some))
        words = f"median error {median:.3g}" if np.isfinite(median) else f"median error above {_SEARCHED * top:.3g}"
        moved = transformed(source, pose).points
        tensors = (torch.from_numpy(np.ascontiguousarray(part, np.float64)) for part in (target.points, moved, errors))
        panels.append((f"{name}: {words}", alignment_view(*tensors, max_error=top), alignment_legend(max_error=top)))
    write_image(args.viz, sheet(panels, columns=2))


def _advice(args: argparse.Namespace, found: Registration) -> str:
    """What to try next."""
    options = {
        "descriptor": "--descriptor learned",
        "voxel": f"--voxel with another edge than {found.voxel:.3g}" if found.voxel else "",
        "init": "--init with a rough pose",
    }
    if args.weights is None and args.descriptor == "learned":
        options["descriptor"] = ""
    words = [options[name] for name in found.untried if options[name]]
    return f"; try {' or '.join(words)}" if words else ""


def _report(args: argparse.Namespace, found: Registration, points: list[int], seconds: dict[str, float]) -> None:
    if found.transform is None and not args.json:
        unwritten = [Path(path).name for path in (args.output, args.viz) if path is not None]
        nothing = f"; {' and '.join(unwritten)} not written" if unwritten else ""
        report.note(f"not registered: {found.reason}{nothing}{_advice(args, found)}", kind="register")
        return
    pose = None if found.transform is None else found.transform.tolist()
    facts = {
        "source": args.source,
        "target": args.target,
        "points": points,
        "success": found.success,
        "reason": found.reason,
        "untried": list(found.untried),
        "transform": pose,
        "confidence": found.confidence,
        "matches": found.matches,
        "inliers": found.inliers,
        "fitness": found.fitness,
        "rmse": found.rmse,
        "voxel": found.voxel,
        "seed": args.seed,
        "init": args.init,
        "descriptor": "fpfh" if args.weights is None and args.descriptor != "learned" else "learned",
        "weights": args.weights,
        "output": args.output if found.success else None,
        "picture": args.viz if found.success else None,
        "seconds": seconds,
    }
    lines = [" ".join(f"{value:>17.10g}" for value in row) for row in pose or ()]
    lines.append(
        f"confidence {found.confidence:.3f}, {found.inliers} of {found.matches} matches agree, "
        f"{found.fitness:.1%} of the source touches the target within {found.voxel:.4g}, RMSE {found.rmse:.4g}"
    )
    report.tell(args, facts, "\n".join(lines), memory=True)
