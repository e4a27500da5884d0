"""``python -m benchmarks points``: convolution on native points beside other ways to compute it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, Note, Result, Session
from fullfield._check import InputError
from fullfield.cli import paths
from fullfield.cli.argtypes import parse_positive_integer

if TYPE_CHECKING:
    from benchmarks.cases.points.measure import Plan

PARTS = ("build", "layer", "worst", "voxels", "lowering", "order", "knn", "sizes", "network", "limit")
DEFAULT_PARTS = ("build", "layer", "worst", "voxels", "network")
DTYPES = ("float32", "float16", "bfloat16")
# On a GPU, on the CPU.
SIZES = {True: (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000), False: (5_000, 20_000)}
ABLATION_SIZES = {True: (100_000, 1_000_000), False: (5_000, 20_000)}
LIMIT_SIZES = {True: (10_000_000, 100_000_000, 300_000_000, 400_000_000), False: (5_000, 20_000)}
NETWORK_POINTS = {True: 164_833, False: 5_000}
FULL_CELL = {True: 10_000, False: 1_000}
MADE_UP = {True: 1_000_000, False: 30_000}
DESCRIPTION = """\
Time neighbour search, the building of triplets and the convolution, apart, and a ResNet-18 with its geometry, beside
a gather-GEMM-scatter in PyTorch, the kernels that PointCNN++'s supplement prints (reimplemented), and spconv, ocnn and
a checkout of pointelligence where they are here. All get the same triplets. Every result is compared with float64 at a
sample of places before its time counts; all take turns. A line below each size says whether ours is ahead of all.
"""
EPILOG = """\
parts: build, layer, worst, voxels, network by default; figures: A lowering, B order, C knn, D, E, H to J sizes, K limit

examples:
  python -m benchmarks points --clouds scan_0.ply scan_1.ply --grid 0.007 -o results.json --markdown results.md
  python -m benchmarks points --parts all --pointelligence pointelligence --plots figures -o all.json
  python -m benchmarks points --parts layer --channels 64x64 64x128 --dtype float16 --pointelligence pointelligence
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--parts",
        nargs="+",
        choices=(*PARTS, "all"),
        default=DEFAULT_PARTS,
        metavar="PART",
        help=f"of {', '.join(PARTS)}, or all",
    )
    what.add_argument(
        "--clouds", nargs="+", default=(), metavar="FILE", help="scans, one batch of clouds [a made-up room]"
    )
    what.add_argument("--grid", type=_length, default=0.007, metavar="G", help="kernel cell, metres [%(default)s]")
    what.add_argument(
        "--coarse", type=_length, default=0.02, metavar="G", help="grid of the thinned cloud, metres [%(default)s]"
    )
    what.add_argument(
        "--kernel", type=parse_positive_integer, default=3, metavar="T", help="cells a side, 1 to 8 [%(default)s]"
    )
    what.add_argument(
        "--channels", nargs="+", type=_channels, default=((64, 64), (64, 128)), metavar="INxOUT", help="[64x64 64x128]"
    )
    what.add_argument("--dtype", nargs="+", choices=DTYPES, help="[bfloat16 on a GPU, else float32]")
    what.add_argument("--sizes", nargs="+", type=parse_positive_integer, metavar="N", help="points of sizes and voxels")
    what.add_argument(
        "--ablation-sizes", nargs="+", type=parse_positive_integer, metavar="N", help="points of figures A to C"
    )
    what.add_argument(
        "--network-points", type=parse_positive_integer, metavar="N", help="points of ResNet-18 [164833 on a GPU]"
    )
    what.add_argument(
        "--limit-sizes", nargs="+", type=parse_positive_integer, metavar="N", help="points of figure K, rising"
    )
    who = parser.add_argument_group("who takes part")
    who.add_argument("--pointelligence", metavar="DIR", help="a checkout of ant-research/pointelligence")
    parser.add_argument("--seconds", type=_length, metavar="S", help="begin no case after so many")


def _length(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def _channels(text: str) -> tuple[int, int]:
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"expected INxOUT such as 64x128, got {text!r}")
    return int(parts[0]), int(parts[1])


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.points import measure
    from benchmarks.cases.points.verdict import summary

    plan, absent = _plan(args)
    known = earlier(Path(args.output), args.grid) if args.resume and Path(args.output).exists() else []
    for name, reason in absent.items():
        note(f"{name} is not measured: {reason}")

    def judged(cases: Sequence[Result]) -> Result:
        return {"parts": list(dict.fromkeys(case["part"] for case in cases)), "verdicts": summary(cases)}

    return Session(
        measure.cases(plan, note),
        {"grid": args.grid, "absent": absent},
        known,
        order=PARTS,
        seconds=args.seconds or math.inf,
        device=plan.device,
        summary=judged,
    )


def earlier(path: Path, grid: float) -> list[Result]:
    """Return the stored cases that need not be measured again, with their commit where it is another than now.

    Raises InputError for a file that is none, or whose numbers are of another machine or grid than this run's.
    """
    from benchmarks.stored import check_same, environment, read_results

    stored, here = read_results(path, "points", "--resume", ("part", "label")), environment()
    there = stored["environment"]
    machine = ((name, there.get(name), here.get(name)) for name in ("gpu", "cpu"))
    check_same("--resume", [("grid", stored.get("grid"), grid), *machine])
    retained = [case for case in stored["cases"] if case["part"] in PARTS and _is_done(case)]
    for case in retained:
        if there.get("commit") != here["commit"]:
            case.setdefault("commit", there.get("commit"))
    return retained


def _is_done(case: Result) -> bool:
    """Whether ours was measured; of figure K also that it did not fit."""
    fine = ("ok", "out of memory") if case["part"] == "limit" else ("ok",)
    return all(row.get("status") in fine for row in case["rows"] if row.get("ours"))


def _report(results: Result) -> list[str]:
    from benchmarks.cases.points.report import report

    return report(results)


def _tables(results: Result) -> str:
    from benchmarks.cases.points.report import markdown

    return markdown(results)


def _draw(results: Result, folder: Path, _: argparse.Namespace) -> list[Path]:
    from benchmarks.cases.points.plots import draw

    return draw(results, folder)


def _check(args: argparse.Namespace) -> Sequence[str]:
    if args.kernel > 8:
        raise InputError(f"--kernel: expected 1 to 8, got {args.kernel}")
    for path in args.clouds:
        paths.check_input_file(path, "--clouds")
    if args.pointelligence and not Path(args.pointelligence).is_dir():
        raise InputError(f"--pointelligence {args.pointelligence}: no such folder")
    return list(args.clouds)


def _plan(args: argparse.Namespace) -> tuple[Plan, dict[str, str]]:
    """And who is not here, with the reasons."""
    import torch

    from benchmarks.cases.points import clouds
    from benchmarks.cases.points import contenders as who
    from benchmarks.cases.points.measure import Plan
    from benchmarks.harness import timing_device
    from fullfield.ops.point_conv import explain_backends
    from fullfield.ops.point_conv.protocol import BACKENDS

    parts = PARTS if "all" in args.parts else args.parts
    device = timing_device(args.device)
    gpu = device.type == "cuda"
    dtypes = [getattr(torch, name) for name in args.dtype or (["bfloat16"] if gpu else ["float32"])]
    told = dict(explain_backends(device, dtypes[0]))
    absent = {name: reason for name, reason in told.items() if reason is not None}
    names = [name for name in BACKENDS if told[name] is None and (name != "reference" or not gpu)]
    contenders = [*who.our_contenders(names), *who.baselines()]
    if args.pointelligence:
        contenders.append(who.pointelligence(args.pointelligence))
    peers, missing = who.voxel_peers() if "voxels" in parts else ([], {})
    scene = clouds.read(args.clouds) if args.clouds else clouds.room(MADE_UP[gpu])
    plan = Plan(
        scene,
        device,
        [*contenders, *peers],
        parts,
        grid=args.grid,
        coarse=args.coarse,
        channels=args.channels,
        dtypes=dtypes,
        sizes=args.sizes or SIZES[gpu],
        network_points=args.network_points or NETWORK_POINTS[gpu],
        limit_sizes=args.limit_sizes or LIMIT_SIZES[gpu],
        ablation_sizes=args.ablation_sizes or ABLATION_SIZES[gpu],
        network_dtype=torch.float16 if gpu else torch.float32,
        voxel_dtype=torch.float16 if gpu and (not args.dtype or torch.float16 in dtypes) else dtypes[0],
        full_cell=FULL_CELL[gpu],
        kernel=args.kernel,
        repeats=args.repeats,
    )
    return plan, {**absent, **missing}


POINTS = Bench(
    "points",
    "convolution on native points, its geometry and a ResNet-18",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
    _tables,
    _draw,
    resumes=True,
)
