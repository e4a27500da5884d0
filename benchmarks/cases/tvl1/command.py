"""``python -m benchmarks tvl1``: beside OpenCV and scikit-image on the CPU, by schedule and precision on a GPU."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import count, positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from benchmarks.cases.tvl1.cpu import Pair

# Options that mean something with --device cuda alone, of those the ones that show results, and those for all devices.
_ON_GPU = ("parts", "resume", "sides", "depths", "steps", "calls", "joule_seconds", "tune", "plots", "tables")
_SHOWING = ("plots", "tables")
_MEASURING = ("pair", "presets", "large", "repeats", "output")
# As benchmarks.cases.tvl1.gpu has them, which would import PyTorch.
PARTS = ("frames", "schedules", "quality", "realtime", "depths", "energy", "peers")

EPILOG = """\
examples:
  python -m benchmarks tvl1
  python -m benchmarks tvl1 --pair frame_0002.png frame_0003.png truth.flo -o results.json
  python -m benchmarks tvl1 --presets middlebury/Grove2 middlebury/Venus --large 4k_01.png 4k_02.png
  python -m benchmarks tvl1 --device cuda --presets middlebury/* --pair a.png b.png t.flo -o gpu.json
  python -m benchmarks tvl1 --device cuda --parts energy --resume -o gpu.json
  python -m benchmarks tvl1 --stored gpu.json --plots figures --tables tables.md
  python -m benchmarks tvl1 --device cuda --tune

Peers are measured where they are installed: pip install 'fullfield[bench]'.
"""


def add_parser(targets: Any) -> argparse.ArgumentParser:
    """Add ``python -m benchmarks tvl1``."""
    parser: argparse.ArgumentParser = targets.add_parser(
        "tvl1",
        help="TV-L1, beside OpenCV and scikit-image",
        description="Time TV-L1. On the CPU: the rate at a fixed number of iterations, each library end to end with "
        "its own defaults, and the whole command. On a GPU: the schedules by size, precision and pipeline depth, whole "
        "frames, errors against time, the largest real-time frame, energy. Results are checked before their times "
        "count; candidates take turns.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--pair", nargs=3, metavar=("A", "B", "TRUTH"), help="frames and their true flow [a textured scene, 1024×436]"
    )
    parser.add_argument(
        "--presets", nargs="+", default=(), metavar="DIR", help="Middlebury folders: error and time of every preset"
    )
    parser.add_argument(
        "--large", nargs=2, metavar=("A", "B"), help="frames to crop and enlarge to 8192×3432: time and peak memory"
    )
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda, cuda:1, ... [%(default)s]")
    parser.add_argument("--repeats", type=count, metavar="N", help="rounds [3]")
    gpu = parser.add_argument_group("on a GPU")
    gpu.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)} [all]")
    gpu.add_argument(
        "--resume", action="store_true", help="keep what --output holds: parts that are not in it [or --parts]"
    )
    gpu.add_argument("--sides", nargs="+", type=count, metavar="PX", help="of the square frames [128 ... 8192]")
    gpu.add_argument("--depths", nargs="+", type=count, metavar="N", help="of the pipelines [1 ... 15]")
    gpu.add_argument("--steps", nargs="+", type=count, metavar="N", help="iterations of quality [3 ... 100]")
    gpu.add_argument("--calls", type=count, metavar="N", help="of whole frames, for a median and p99 [100]")
    gpu.add_argument("--joule-seconds", type=positive, metavar="S", help="work of one measurement of energy [0.6]")
    gpu.add_argument(
        "--tune", action="store_true", help="measure every shape of the kernels and keep the fastest, no more"
    )
    gpu.add_argument(
        "--stored", metavar="FILE", help="tables and figures of stored results: measures nothing, needs no GPU"
    )
    gpu.add_argument("--plots", metavar="DIR", help="draw the paper's figures 8, 11, 12 and 13 (matplotlib)")
    gpu.add_argument("--tables", metavar="FILE", help="write the tables (.md)")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write results and environment (.json)")
    report.add_report_options(parser, progress=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, measure, print."""
    if args.stored is not None:
        if args.device != "cpu":
            raise InputError("--device: --stored measures nothing; leave it out")
        return _stored(args)
    if args.output:
        paths.check_suffix(args.output, "results", (".json",))
        paths.check_output(args.output, "results")
    for name in ("pair", "large"):
        for path in getattr(args, name) or ():
            paths.check_input(path, f"--{name}")
    for folder in args.presets:
        if not Path(folder).is_dir():
            raise InputError(f"--presets: folder {folder} does not exist")
    if args.device != "cpu":
        if args.large:
            raise InputError("--large: is for the CPU; on a GPU that size is always measured")
        return _tune(args) if args.tune else _on_gpu(args)
    _refuse(args, _ON_GPU, "is for --device cuda")

    from benchmarks.cases.tvl1 import cpu as tvl1
    from benchmarks.harness import CheckFailed, environment, write_results

    def note(text: str) -> None:
        if not args.quiet:
            report.note(text, kind="bench")

    scenes = [_middlebury(Path(folder)) for folder in args.presets]
    pair = tvl1.load_pair(*map(Path, args.pair)) if args.pair else tvl1.synthetic_pair()
    missing = {"opencv", "scikit-image"} - set(tvl1.peers())
    if missing:
        note(f"not installed here, so not measured: {', '.join(sorted(missing))} (pip install 'fullfield[bench]')")
    try:
        work = (tvl1.fixed_work, tvl1.own_defaults, tvl1.whole_command)
        cases = [measure(pair, args.repeats or 3, note) for measure in work]
        if scenes:
            cases.append(tvl1.presets(scenes, note))
        if args.large:
            cases.append(tvl1.large(Path(args.large[0]), Path(args.large[1]), note))
    except CheckFailed as failure:
        report.note(str(failure), kind="check failed")
        return 1
    results = {"bench": args.verb, "cases": cases}
    if args.output:
        write_results(args.output, results)
    if args.json:
        report.print_json({**results, "environment": environment()})
    else:
        print("\n".join(tvl1.report(results)))
    return 0


def _check_shown(args: argparse.Namespace) -> None:
    if args.plots is not None:
        paths.check_folder(Path(args.plots), "--plots")
        import_module("matplotlib")  # now, not when everything has been measured
    if args.tables is not None:
        paths.check_suffix(args.tables, "--tables", (".md",))
        paths.check_output(args.tables, "--tables")


def _refuse(args: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    for name in names:
        if getattr(args, name) not in (None, False, ()):
            raise InputError(f"--{name.replace('_', '-')}: {reason}; leave it out")


def _gpu(args: argparse.Namespace) -> torch.device:
    from benchmarks.harness import timing_device

    device = timing_device(args.device)
    if args.device.startswith("cpu"):
        raise InputError(f"--device: expected cpu, cuda, cuda:1, ..., got {args.device}")
    return device


def _on_gpu(args: argparse.Namespace) -> int:
    _check_shown(args)
    if args.resume and not args.output:
        raise InputError("--resume: goes on with what --output FILE holds, and --output is absent")
    if "quality" in (args.parts or ()) and not (args.presets or args.pair):
        raise InputError("--parts quality: needs pairs with true flow: --presets DIR ... or --pair A B TRUTH")

    from benchmarks.cases.tvl1 import cpu as tvl1
    from benchmarks.cases.tvl1 import gpu as tvl1_gpu
    from benchmarks.cases.tvl1 import schedules as tvl1_schedules
    from benchmarks.harness import environment, write_results

    device = _gpu(args)
    known = tvl1_gpu.earlier(Path(args.output)) if args.resume and Path(args.output).exists() else []
    there = {case["case"] for case in known}
    groups: dict[str, Sequence[Pair]] = {}
    if args.presets:
        groups["middlebury"] = [_middlebury(Path(folder)) for folder in args.presets]
    if args.pair:
        groups["sintel"] = [tvl1.load_pair(*map(Path, args.pair))]
    given = {"sides": args.sides, "depths": args.depths, "steps": args.steps, "frames": args.calls}
    plan = tvl1_gpu.GpuPlan(
        device,
        groups,
        args.parts or [part for part, case in tvl1_gpu.CASES.items() if case not in there],
        repeats=args.repeats or 3,
        **{name: value for name, value in {**given, "seconds": args.joule_seconds}.items() if value is not None},
    )

    def note(text: str) -> None:
        if not args.quiet:
            report.note(text, kind="bench")

    def done(cases: list[dict[str, Any]]) -> None:
        if args.output:
            write_results(args.output, {"bench": args.verb, "cases": cases})

    results = {"bench": args.verb, "cases": tvl1_gpu.measure(plan, note, done, known), "environment": environment()}
    _show(args, results)
    wrong = tvl1_schedules.failed(results["cases"])
    for line in wrong:
        report.note(line, kind="check failed")
    return 1 if wrong else 0


def _show(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Figures, tables, and the results on stdout."""
    from benchmarks.cases.tvl1 import report as tvl1_report

    if args.plots is not None:
        from benchmarks.cases.tvl1.plots import draw

        draw(results, Path(args.plots))
    if args.tables is not None:
        from fullfield.io import atomic_path

        with atomic_path(args.tables) as temporary:
            temporary.write_text(tvl1_report.markdown(results), "utf-8")
    if args.json:
        report.print_json(results)
    else:
        print("\n".join(tvl1_report.report(results)))


def _stored(args: argparse.Namespace) -> int:
    """Tables and figures of results that ``--output`` wrote."""
    _refuse(args, [name for name in (*_MEASURING, *_ON_GPU) if name not in _SHOWING], "--stored measures nothing")
    paths.check_input(args.stored, "--stored")
    _check_shown(args)
    try:
        results = json.loads(Path(args.stored).read_text("utf-8"))
        kinds = {case["case"] for case in results["cases"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--stored: expected results of this benchmark in {args.stored}, got something else"
        ) from error
    if "ceilings" not in kinds:
        raise InputError(
            f"--stored: expected results of --device cuda in {args.stored}, got {', '.join(sorted(kinds))}"
        )
    _show(args, results)
    return 0


def _tune(args: argparse.Namespace) -> int:
    """Measure the shapes of the kernels and keep the fastest for this model of GPU."""
    _refuse(
        args, [name for name in (*_MEASURING, *_ON_GPU) if name != "tune"], "--tune measures shapes of kernels alone"
    )

    from benchmarks.harness import environment
    from fullfield.ops.tvl1.cuda.tuning import kept_at, tune

    index = _gpu(args).index
    times, place = tune(index), kept_at(index)
    if args.json:
        kept_in = None if place is None else str(place)
        report.print_json({"milliseconds": times, "kept_in": kept_in, "environment": environment()})
        return 0
    for kind, shapes in times.items():
        best = min(shapes, key=lambda shape: shapes[shape])
        print(kind)
        for shape, milliseconds in shapes.items():
            print(f"  {milliseconds:8.4f} ms  {shape}{'  fastest' if shape == best else ''}")
    print("nothing is kept: no cache folder can be written" if place is None else f"the fastest are kept in {place}")
    return 0


def _middlebury(folder: Path) -> Pair:
    from benchmarks.cases.tvl1.cpu import load_pair

    names = ("frame10.png", "frame11.png", "flow10.flo")
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise InputError(f"--presets: expected {', '.join(names)} in {folder}, {absent[0]} is missing")
    return load_pair(*(folder / name for name in names))
