"""``python -m benchmarks points``: convolution on native points beside other ways to compute it."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield import _check
from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import count

if TYPE_CHECKING:
    from benchmarks.cases.points.measure import Plan

PARTS = ("build", "layer", "voxels", "lowering", "order", "knn", "sizes", "network", "limit")
DEFAULT_PARTS = ("build", "layer", "voxels", "network")
DTYPES = ("float32", "float16", "bfloat16")
# On a GPU, on the CPU.
SIZES = {True: (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000), False: (5_000, 20_000)}
ABLATION_SIZES = {True: (100_000, 1_000_000), False: (5_000, 20_000)}
LIMIT_SIZES = {True: (10_000_000, 100_000_000, 300_000_000, 400_000_000), False: (5_000, 20_000)}
NETWORK_POINTS = {True: 164_833, False: 5_000}
MADE_UP = {True: 1_000_000, False: 30_000}
DESCRIPTION = """\
Time neighbour search, the building of triplets and the convolution, apart, and a ResNet-18 with its geometry, beside
a gather-GEMM-scatter in PyTorch, the kernels that PointCNN++'s supplement prints (written anew), and spconv, ocnn and a
checkout of pointelligence where they are here. All get the same triplets. Every result is compared with float64 at a
sample of places before its time counts; all take turns. A line below each size says whether ours is ahead of all.
"""
EPILOG = """\
parts: build, layer, voxels, network by default; figures: A lowering, B order, C knn, D, E, H to J sizes, K limit

examples:
  python -m benchmarks points --clouds scan_0.ply scan_1.ply --grid 0.007 -o results.json --markdown results.md
  python -m benchmarks points --parts all --pointelligence pointelligence --plots figures -o all.json
  python -m benchmarks points --parts layer --channels 64x64 64x128 --dtype float16 --pointelligence pointelligence
"""


def add_parser(targets: Any) -> argparse.ArgumentParser:
    """Add ``python -m benchmarks points``."""
    parser: argparse.ArgumentParser = targets.add_parser(
        "points",
        help="convolution on native points, its geometry and a ResNet-18",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
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
    what.add_argument("--kernel", type=count, default=3, metavar="T", help="cells a side, 1 to 8 [%(default)s]")
    what.add_argument(
        "--channels", nargs="+", type=_channels, default=((64, 64), (64, 128)), metavar="INxOUT", help="[64x64 64x128]"
    )
    what.add_argument("--dtype", nargs="+", choices=DTYPES, help="[bfloat16 on a GPU, else float32]")
    what.add_argument("--sizes", nargs="+", type=count, metavar="N", help="points of sizes and voxels")
    what.add_argument("--ablation-sizes", nargs="+", type=count, metavar="N", help="points of figures A to C")
    what.add_argument("--network-points", type=count, metavar="N", help="points of ResNet-18 [164833 on a GPU]")
    what.add_argument("--limit-sizes", nargs="+", type=count, metavar="N", help="points of figure K, rising")
    who = parser.add_argument_group("who takes part")
    who.add_argument("--pointelligence", metavar="DIR", help="a checkout of ant-research/pointelligence")
    who.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... [cuda where there is one]")
    parser.add_argument("--repeats", type=count, default=5, metavar="N", help="rounds [%(default)s]")
    parser.add_argument("--seconds", type=_length, metavar="S", help="begin no case after so many")
    parser.add_argument("--resume", action="store_true", help="measure only what --output FILE does not hold yet")
    parser.add_argument("--plots", metavar="DIR", help="also draw the figures into this folder (matplotlib)")
    parser.add_argument("--markdown", metavar="FILE", help="also write tables, with published values beside (.md)")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write results and environment (.json)")
    report.add_report_options(parser, progress=True)
    return parser


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


def run(args: argparse.Namespace) -> int:
    """Check, measure, print, draw."""
    _check_arguments(args)

    from benchmarks.cases.points import measure as points
    from benchmarks.cases.points.verdict import summary
    from benchmarks.harness import CheckFailed, environment, write_results

    def note(text: str) -> None:
        if not args.quiet:
            report.note(text, kind="bench")

    plan, absent = _plan(args)
    known = earlier(Path(args.output), args.grid) if args.resume and Path(args.output).exists() else []
    for name, reason in absent.items():
        note(f"{name} is not measured: {reason}")

    def results_of(cases: list[dict[str, Any]]) -> dict[str, Any]:
        parts = list(dict.fromkeys(case["part"] for case in cases))
        header = {"bench": "points", "parts": parts, "grid": args.grid, "absent": absent}
        return {**header, "cases": cases, "verdicts": summary(cases)}

    def keep(cases: list[dict[str, Any]]) -> None:
        if args.output:
            write_results(args.output, results_of(cases))

    try:
        cases = points.measure(plan, note, keep, known)
    except CheckFailed as failure:
        report.note(str(failure), kind="check failed")
        return 1
    results = {**results_of(cases), "environment": environment()}
    _write(args, results, note)
    problems = points.failed(cases)
    for problem in problems:
        report.note(problem, kind="check failed")
    return 1 if problems else 0


def earlier(path: Path, grid: float) -> list[dict[str, Any]]:
    """The cases of a file of results that need not be measured again, with their commit where it is another than now.

    Raises InputError for a file that is none, or whose numbers are of another machine or grid than this run's.
    """
    from benchmarks.harness import environment

    here = environment()
    try:
        stored = json.loads(path.read_text("utf-8"))
        there = stored["environment"]
        if stored["bench"] != "points":
            raise ValueError(stored["bench"])
        kept = [case for case in stored["cases"] if _is_done(case)]
        facts = [("grid", stored["grid"], grid), *((name, there.get(name), here.get(name)) for name in ("gpu", "cpu"))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--resume: expected results of this benchmark in {path}, got something else") from error
    for name, got, wanted in facts:
        _check.require(got == wanted, "--resume", f"results of {name} {wanted}", str(got))
    for case in kept:
        if there.get("commit") != here["commit"]:
            case.setdefault("commit", there.get("commit"))
    return kept


def _is_done(case: dict[str, Any]) -> bool:
    """Whether ours was measured; of figure K also that it did not fit."""
    fine = ("ok", "out of memory") if case["part"] == "limit" else ("ok",)
    return all(row["status"] in fine for row in case["rows"] if row.get("ours"))


def _write(args: argparse.Namespace, results: dict[str, Any], note: Any) -> None:
    from benchmarks.cases.points.report import markdown
    from benchmarks.cases.points.report import report as lines
    from fullfield.io import atomic_path

    if args.markdown:
        with atomic_path(args.markdown) as temporary:
            temporary.write_text(markdown(results), "utf-8")
    if args.plots:
        from benchmarks.cases.points.plots import draw

        for path in draw(results, Path(args.plots)):
            note(f"{path} is drawn")
    if args.json:
        report.print_json(results)
    else:
        print("\n".join(lines(results)))


def _check_arguments(args: argparse.Namespace) -> None:
    """Everything that can be wrong without loading a library."""
    if args.kernel > 8:
        raise InputError(f"--kernel: expected 1 to 8, got {args.kernel}")
    for path in args.clouds:
        paths.check_input(path, "--clouds")
    for value, name, suffix in ((args.output, "results", ".json"), (args.markdown, "tables", ".md")):
        if value:
            paths.check_suffix(value, name, (suffix,))
            paths.check_output(value, name)
    if args.resume and not args.output:
        raise InputError("--resume: goes on with what --output FILE holds, and --output is absent")
    if args.plots:
        paths.check_folder(Path(args.plots), "--plots")
    if args.pointelligence and not Path(args.pointelligence).is_dir():
        raise InputError(f"--pointelligence {args.pointelligence}: no such folder")


def _plan(args: argparse.Namespace) -> tuple[Plan, dict[str, str]]:
    """And who is not here, with the reasons."""
    import torch

    from benchmarks.cases.points import clouds
    from benchmarks.cases.points import contenders as who
    from benchmarks.cases.points.measure import Plan
    from benchmarks.harness import timing_device
    from fullfield.ops.point_conv import BACKENDS, backends

    parts = PARTS if "all" in args.parts else args.parts
    device = timing_device(args.device)
    gpu = device.type == "cuda"
    dtypes = [getattr(torch, name) for name in args.dtype or (["bfloat16"] if gpu else ["float32"])]
    told = dict(backends(device, dtypes[0]))
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
        kernel=args.kernel,
        repeats=args.repeats,
        seconds=args.seconds or math.inf,
    )
    return plan, {**absent, **missing}
