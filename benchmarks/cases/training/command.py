"""``python -m benchmarks training``: a step of training with our lookup, the dense volume and localcorr."""

from __future__ import annotations

import argparse

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.options import add_sizes_option
from fullfield._check import InputError
from fullfield.cli.argtypes import parse_positive_integer

NETWORKS = ("raft", "raft-small", "fullfield-s")
CORRELATIONS = ("fullfield", "dense", "localcorr")
DESCRIPTION = """\
Time whole steps of training (forward, loss, backward, clipping, AdamW, average of the weights) on one batch of made
pairs: with our lookup, with the dense volume, and with localcorr's Triton blocks where that package is installed. All
start from the same weights, and the loss of the first step is compared before a time counts. Peak memory stands beside.
"""
EPILOG = """\
examples:
  python -m benchmarks training --networks raft --sizes 496x368 --batches 8 -o results.json
  python -m benchmarks training --sizes 1920x1080 4096x2048 --batches 2 1
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    networks = ["raft", "fullfield-s"]
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=networks, help="[raft fullfield-s]")
    parser.add_argument("--correlations", nargs="+", choices=CORRELATIONS, default=list(CORRELATIONS), help="[all]")
    add_sizes_option(parser, "[496x368]", [(368, 496)])
    parser.add_argument(
        "--batches", nargs="+", type=parse_positive_integer, metavar="N", default=[8], help="pairs, for each size [8]"
    )
    parser.add_argument(
        "--updates", type=parse_positive_integer, metavar="N", help="of the flow [12 of RAFT, 4 of fullfield-s]"
    )
    parser.add_argument("--graph", action="store_true", help="forward and backward recorded as a CUDA graph")
    parser.add_argument("--precision", choices=("float32", "bfloat16", "float16"), help="[bfloat16 on a GPU]")


def _check(args: argparse.Namespace) -> list[str]:
    if len(args.batches) not in (1, len(args.sizes)):
        raise InputError(f"--batches: expected one number or one for each of {len(args.sizes)} sizes")
    return []


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.training.steps import Plan, cases
    from benchmarks.harness import timing_device

    device = timing_device(args.device)
    batches = args.batches * len(args.sizes) if len(args.batches) == 1 else args.batches
    precision = args.precision or ("bfloat16" if device.type == "cuda" else "float32")
    problems = tuple(zip(args.sizes, batches, strict=True))
    plan = Plan(args.networks, args.correlations, problems, device, args.updates, precision, args.graph, args.repeats)
    return Session(cases(plan, note), device=device)


def _report(results: Result) -> list[str]:
    lines = []
    for case in results["cases"]:
        lines.append(f"{case['label']}, {case['precision']}{', recorded' if case.get('graph') else ''}:")
        for row in case["rows"]:
            told = row.get("reason", row["status"])
            if row["status"] == "ok":
                told = f"{1e3 * row['median_s']:.1f} ms, {row['pairs_per_second']:.1f} pairs/s"
                told += f", {row['peak_bytes'] / 2**30:.2f} GiB" if "peak_bytes" in row else ""
            lines.append(f"  {row['name']}: {told}")
    return lines


TRAINING = Bench(
    "training",
    "steps of training, beside the dense volume and localcorr",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
    repeats=10,
)
