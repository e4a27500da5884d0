"""``python -m benchmarks windows``: fixed windows and global matching beside their peers."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.options import add_sizes_option
from fullfield._check import InputError

PARTS = ("pwc", "liteflownet", "flownetc", "matching")
DTYPES = ("float32", "float16", "bfloat16")
DESCRIPTION = """\
Time the spatial correlation (PWC-Net's levels, LiteFlowNet's stride of two, FlowNetC's window of 21 x 21) and GMFlow's
global matching, forward and with gradients, beside localcorr's Triton sampler, the compiled
spatial_correlation_sampler, ptlflow's own sampler and the whole matrix, where they are here. Every result is compared
with float64 before its time counts; all take turns. Eager calls from Python; on a GPU ours also as a CUDA graph, for
the work without the host.
"""
EPILOG = """\
examples:
  python -m benchmarks windows --sizes 1024x436 --localcorr localcorr-0.1.1-py3-none-any.whl -o results.json
  python -m benchmarks windows --parts matching --sizes 1024x436 4096x1716 --dtype float32 float16
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    add_sizes_option(parser, "frames [1024x436]", [(436, 1024)])
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, default=("float32", "float16"), help="of features [float32 float16]"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="pairs at a time [%(default)s]")
    parser.add_argument("--localcorr", metavar="PATH", help="its wheel, or a folder that holds the package")


def _check(args: argparse.Namespace) -> list[str | None]:
    if args.batch < 1:
        raise InputError(f"--batch: expected at least 1, got {args.batch}")
    if args.localcorr and not Path(args.localcorr).exists():
        raise InputError(f"--localcorr {args.localcorr}: no such file or folder")
    return [args.localcorr]


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.windows import contenders, measure
    from benchmarks.harness import timing_device

    device = timing_device(args.device)
    peers, absent = contenders.peers(args.localcorr)
    for name, reason in absent.items():
        note(f"{name} is not measured: {reason}")
    plan = measure.Plan(args.parts, args.sizes, args.dtype, args.batch, device, peers, args.repeats)
    return Session(measure.cases(plan, note), {"absent": absent}, device=device)


def _report(results: Result) -> list[str]:
    from benchmarks.cases.windows.measure import report

    return report(results)


WINDOWS = Bench(
    "windows",
    "fixed windows and global matching",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
    repeats=21,
)
