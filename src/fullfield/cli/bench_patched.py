"""``fullfield bench patched``: ptlflow's models as they are and on our lookups."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli import paths, report
from fullfield.cli.argtypes import count, size

if TYPE_CHECKING:
    from fullfield.bench.patched import Plan

DESCRIPTION = """\
Time models of ptlflow with and without fullfield.patch: the same random weights and frames, in turns. The patched flow
(in training its gradients too) is compared with the model's own before its time counts; peak memory and the positions
that were looked up stand beside.
"""
EPILOG = """\
examples:
  fullfield bench patched raft gma skflow --sizes 1024x436 1242x375 -o results.json
  fullfield bench patched raft sea_raft_m --train --batch 2 --sizes 496x368
  fullfield bench patched ms_raft_p ccmr dpflow --sizes 4096x1716 --alt-cuda-corr RAFT/alt_cuda_corr
"""


def add_parser(targets: Any) -> argparse.ArgumentParser:
    """Add ``fullfield bench patched``."""
    parser: argparse.ArgumentParser = targets.add_parser(
        "patched",
        help="ptlflow's models as they are and on our lookups",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ptlflow's names: raft, dpflow, ...")
    parser.add_argument("--sizes", nargs="+", type=size, default=[(436, 1024)], metavar="WxH", help="frames [1024x436]")
    parser.add_argument("--train", action="store_true", help="a training step instead of an estimate")
    parser.add_argument("--batch", type=count, default=1, metavar="N", help="pairs at a time [%(default)s]")
    parser.add_argument(
        "--alt-cuda-corr",
        metavar="DIR",
        help="beside the models' on-demand lookup instead of their volume: folder with correlation.cpp and "
        "correlation_kernel.cu of RAFT; compiled here (nvcc, ninja)",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... [cuda where there is one]")
    parser.add_argument("--repeats", type=count, default=5, metavar="N", help="rounds [%(default)s]")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write results and environment (.json)")
    report.add_report_options(parser, progress=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, measure, print."""
    if args.output:
        paths.check_suffix(args.output, "results", (".json",))
        paths.check_output(args.output, "results")
    if args.alt_cuda_corr and not Path(args.alt_cuda_corr).is_dir():
        raise InputError(f"--alt-cuda-corr {args.alt_cuda_corr}: no such folder")
    if args.alt_cuda_corr and args.train:
        raise InputError("--alt-cuda-corr: has no gradient in ptlflow; leave out --train")

    def note(text: str) -> None:
        if not args.quiet:
            report.note(text, kind="bench")

    plan = _plan(args, note)

    from fullfield.bench import patched
    from fullfield.bench.run import environment, write_results

    def keep(cases: list[dict[str, Any]]) -> None:
        if args.output:
            write_results(args.output, {"bench": "patched", "cases": cases})

    cases = patched.measure(plan, note, keep)
    if args.json:
        report.print_json({"bench": "patched", "cases": cases, "environment": environment()})
    else:
        print("\n".join(patched.report({"cases": cases})))
    problems = patched.failed(cases)
    for problem in problems:
        report.note(problem, kind="check failed")
    return 1 if problems else 0


def _plan(args: argparse.Namespace, note: Any) -> Plan:
    import torch

    from fullfield.bench.patched import Plan
    from fullfield.bench.run import timing_device
    from fullfield.estimators.ptlflow import import_ptlflow

    device = timing_device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if args.alt_cuda_corr:
        from fullfield.bench.contenders import alt_cuda_corr_extension

        # ptlflow looks for it when it is imported.
        sys.modules["alt_cuda_corr"] = alt_cuda_corr_extension(args.alt_cuda_corr, note)
    names = import_ptlflow().get_model_names()
    for name in args.models:
        if name not in names:
            raise InputError(f"MODEL: expected names of ptlflow's models ({', '.join(names)}), got {name!r}")
    return Plan(
        args.models,
        args.sizes,
        device,
        train=args.train,
        batch=args.batch,
        alternate=args.alt_cuda_corr is not None,
        repeats=args.repeats,
    )
