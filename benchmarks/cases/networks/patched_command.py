"""``python -m benchmarks patched``: ptlflow's models as they are and on our lookups."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.cases.networks import options
from benchmarks.options import add_sizes_option
from fullfield._check import InputError
from fullfield.cli.argtypes import parse_positive_integer

if TYPE_CHECKING:
    from benchmarks.cases.networks.patched import Plan

DESCRIPTION = """\
Time models of ptlflow with and without fullfield.patch: the same random weights and frames, in turns. The patched flow
(in training its gradients too) is compared with the model's own before its time counts; peak memory and the positions
that were looked up stand beside.
"""
EPILOG = """\
examples:
  python -m benchmarks patched raft gma skflow --sizes 1024x436 1242x375 -o results.json
  python -m benchmarks patched raft sea_raft_m --train --batch 2 --sizes 496x368
  python -m benchmarks patched ms_raft_p ccmr dpflow --sizes 4096x1716 --alt-cuda-corr RAFT/alt_cuda_corr
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="ptlflow's names: raft, dpflow, ...")
    add_sizes_option(parser, "frames [1024x436]", [(436, 1024)])
    parser.add_argument("--train", action="store_true", help="a training step instead of an estimate")
    parser.add_argument(
        "--batch", type=parse_positive_integer, default=1, metavar="N", help="pairs at a time [%(default)s]"
    )
    options.add_extension_option(parser, "beside the models' on-demand lookup instead of their volume: ")


def _check(args: argparse.Namespace) -> list[str]:
    if not args.models:
        raise InputError("MODEL: expected one or several names of ptlflow's models, got none")
    options.check_extension(args)
    if args.alt_cuda_corr and args.train:
        raise InputError("--alt-cuda-corr: has no gradient in ptlflow; leave out --train")
    return []


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.networks import patched

    plan = _plan(args, note)
    return Session(patched.cases(plan, note), device=plan.device)


def _report(results: Result) -> list[str]:
    from benchmarks.cases.networks.patched import report

    return report(results)


def _plan(args: argparse.Namespace, note: Note) -> Plan:
    from benchmarks.cases.networks.patched import Plan
    from fullfield.estimators.ptlflow import import_ptlflow

    device, extension = options.set_up(args, note)
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
        alternate=extension is not None,
        repeats=args.repeats,
    )


PATCHED = Bench(
    "patched",
    "ptlflow's models as they are and on our lookups",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
)
