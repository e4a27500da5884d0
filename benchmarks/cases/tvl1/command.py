"""``python -m benchmarks tvl1``: beside OpenCV and scikit-image on the CPU, by schedule and precision on a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, Note, Result, Session
from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import parse_positive_integer, parse_positive_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from benchmarks.cases.tvl1.cpu import Pair

# Options that mean something with --device cuda alone, and those for all devices.
_ON_GPU = ("parts", "resume", "sides", "depths", "steps", "calls", "joule_seconds", "tune", "plots", "tables")
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


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pair", nargs=3, metavar=("A", "B", "TRUTH"), help="frames and their true flow [a textured scene, 1024×436]"
    )
    parser.add_argument(
        "--presets", nargs="+", default=(), metavar="DIR", help="Middlebury folders: error and time of every preset"
    )
    parser.add_argument(
        "--large", nargs=2, metavar=("A", "B"), help="frames to crop and enlarge to 8192×3432: time and peak memory"
    )
    gpu = parser.add_argument_group("on a GPU")
    gpu.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)} [all]")
    gpu.add_argument(
        "--sides", nargs="+", type=parse_positive_integer, metavar="PX", help="of the square frames [128 ... 8192]"
    )
    gpu.add_argument(
        "--depths", nargs="+", type=parse_positive_integer, metavar="N", help="of the pipelines [1 ... 15]"
    )
    gpu.add_argument(
        "--steps", nargs="+", type=parse_positive_integer, metavar="N", help="iterations of quality [3 ... 100]"
    )
    gpu.add_argument(
        "--calls", type=parse_positive_integer, metavar="N", help="of whole frames, for a median and p99 [100]"
    )
    gpu.add_argument(
        "--joule-seconds", type=parse_positive_number, metavar="S", help="work of one measurement of energy [0.6]"
    )
    gpu.add_argument(
        "--tune",
        action="store_true",
        help="measure the shapes of the schedules' kernels and keep the fastest, no more",
    )


def _check(args: argparse.Namespace) -> list[str]:
    inputs = []
    for name in ("pair", "large"):
        for path in getattr(args, name) or ():
            paths.check_input_file(path, f"--{name}")
            inputs.append(path)
    for folder in args.presets:
        if not Path(folder).is_dir():
            raise InputError(f"--presets: folder {folder} does not exist")
    if args.device == "cpu":
        _refuse(args, _ON_GPU, "is for --device cuda")
        return inputs
    if args.large:
        raise InputError("--large: is for the CPU; on a GPU that size is always measured")
    if args.tune:
        others = [name for name in (*_MEASURING, *_ON_GPU) if name != "tune"]
        _refuse(args, others, "--tune measures shapes of kernels alone")
    if "quality" in (args.parts or ()) and not (args.presets or args.pair):
        raise InputError("--parts quality: needs pairs with true flow: --presets DIR ... or --pair A B TRUTH")
    return inputs


def _open(args: argparse.Namespace, note: Note) -> Session:
    return _on_cpu(args, note) if args.device == "cpu" else _on_gpu(args, note)


def _on_cpu(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.tvl1 import cpu

    scenes = [_middlebury(Path(folder)) for folder in args.presets]
    pair = cpu.load_pair(*map(Path, args.pair)) if args.pair else cpu.synthetic_pair()
    missing = {"opencv", "scikit-image"} - set(cpu.peers())
    if missing:
        note(f"not installed here, so not measured: {', '.join(sorted(missing))} (pip install 'fullfield[bench]')")
    return Session(cpu.cases(pair, scenes, [Path(path) for path in args.large or ()], args.repeats, note))


def _on_gpu(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.tvl1 import cpu, gpu

    device = _gpu(args)
    known = gpu.earlier(Path(args.output)) if args.resume and Path(args.output).exists() else []
    there = {case["case"] for case in known}
    groups: dict[str, Sequence[Pair]] = {}
    if args.presets:
        groups["middlebury"] = [_middlebury(Path(folder)) for folder in args.presets]
    if args.pair:
        groups["sintel"] = [cpu.load_pair(*map(Path, args.pair))]
    given = {"sides": args.sides, "depths": args.depths, "steps": args.steps, "frames": args.calls}
    plan = gpu.GpuPlan(
        device,
        groups,
        args.parts or [part for part, case in gpu.CASES.items() if case not in there],
        repeats=args.repeats,
        **{name: value for name, value in {**given, "seconds": args.joule_seconds}.items() if value is not None},
    )
    return Session(gpu.cases(plan, note), known=known, order=gpu.ORDER, device=device)


def _is_of_gpu(results: Result) -> bool:
    from benchmarks.cases.tvl1.gpu import LIMITS

    return any(case.get("case") == LIMITS for case in results["cases"])


def _report(results: Result) -> list[str]:
    from benchmarks.cases.tvl1 import cpu, report

    return report.report(results) if _is_of_gpu(results) else cpu.report(results)


def _tables(results: Result) -> str:
    from benchmarks.cases.tvl1.report import markdown

    return markdown(_of_gpu(results, "--tables"))


def _draw(results: Result, folder: Path, _: argparse.Namespace) -> list[Path]:
    from benchmarks.cases.tvl1.plots import draw

    return draw(_of_gpu(results, "--plots"), folder)


def _of_gpu(results: Result, option: str) -> Result:
    if not _is_of_gpu(results):
        raise InputError(f"{option}: expected results of --device cuda; those of the CPU are lines of text")
    return results


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


def _tune(args: argparse.Namespace) -> int | None:
    """With ``--tune``: measure the shapes of the kernels and keep the fastest for this model of GPU."""
    if not args.tune:
        return None
    from benchmarks.cases.tvl1.tuning import kept_at, tune
    from benchmarks.stored import environment

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


TVL1 = Bench(
    "tvl1",
    "TV-L1, beside OpenCV and scikit-image",
    "Time TV-L1. On the CPU: the rate at a fixed number of iterations, each library end to end with its own defaults, "
    "and the whole command. On a GPU: the schedules by size, precision and pipeline depth, whole frames, errors "
    "against time, the largest real-time frame, energy. Results are checked before their times count; all take turns.",
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
    _tables,
    _draw,
    _tune,
    resumes=True,
    device="cpu",
    repeats=3,
)
