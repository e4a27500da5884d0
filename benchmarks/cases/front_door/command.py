"""``python -m benchmarks front-door``: what users call, compared with the prepared network alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.options import add_sizes_option
from fullfield.cli.argtypes import parse_positive_integer, parse_wxh_as_height_width

PARTS = ("estimate", "auto", "batch", "files", "pairs", "methods")
DESCRIPTION = """\
Time the public calls with frames on the device: estimate compared with the prepared network alone, its result on the
host compared with the network and a copy at the bus's rate, the default method compared with its float32 form in time
and, on every shared pair, in error, and with TV-L1 on one of them, many small pairs in one call, and the way from PNG
files to a stored flow. Every flow is compared with the network's own, or with the known motion, before its time counts.
"""
EPILOG = """\
examples:
  python -m benchmarks front-door --device cuda -o front_door_h200.json
  python -m benchmarks front-door --parts estimate --sizes 1920x1080
  python -m benchmarks front-door --device cpu --parts methods --repeats 9 -o front_door_cpu.json
  python -m benchmarks front-door --device cpu --sizes 96x64 --auto-size 96x64 --file-size 96x64 --batch 2
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    sizes = [(1080, 1920), (3432, 8192)]
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to time [all]")
    add_sizes_option(parser, "estimate [1920x1080 8192x3432]", sizes)
    parser.add_argument(
        "--auto-size", type=parse_wxh_as_height_width, default=(1080, 1920), help="default method [1920x1080]"
    )
    parser.add_argument("--batch", type=parse_positive_integer, default=32, help="pairs in one call [%(default)s]")
    parser.add_argument(
        "--batch-size", type=parse_wxh_as_height_width, default=(384, 512), help="size of each [512x384]"
    )
    parser.add_argument(
        "--file-size", type=parse_wxh_as_height_width, default=(2160, 3840), help="PNG files [3840x2160]"
    )
    parser.add_argument("--data", metavar="FOLDER", help="pairs with true flow [FULLFIELD_DATA, or ../shared/data]")


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.front_door import measure
    from benchmarks.harness import timing_device
    from benchmarks.shared_pairs import data_folder

    device = timing_device(args.device)
    data = Path(args.data) if args.data else data_folder()
    plan = measure.Plan(
        device,
        args.repeats,
        args.parts,
        args.sizes,
        args.auto_size,
        args.batch,
        args.batch_size,
        args.file_size,
        data,
    )
    return Session(measure.cases(plan, note), device=device)


def _report(results: Result) -> list[str]:
    lines = []
    for case in results["cases"]:
        lines.append(f"{case['label']}")
        lines += [f"  {row['name']}: {1e3 * row['median_s']:.2f} ms" for row in case["rows"] if row["status"] == "ok"]
        lines += [f"  {row['name']}: {row['status']}: {row['reason']}" for row in case["rows"] if row["status"] != "ok"]
        lines += [f"  {name}: {value:.3f}" for name, value in case.get("facts", {}).items()]
        for name, (value, bar) in case.get("bars", {}).items():
            lines.append(f"  {name}: {value:.3f}, bar {bar:g}: {'met' if value <= bar else 'missed'}")
    return lines


FRONT_DOOR = Bench(
    "front-door",
    "public calls, compared with the prepared network alone",
    DESCRIPTION,
    EPILOG,
    _add_options,
    lambda _: [],
    _open,
    _report,
    repeats=20,
)
