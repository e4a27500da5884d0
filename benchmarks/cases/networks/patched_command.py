"""``python -m benchmarks patched``: ptlflow's models as they are and on our lookups."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from benchmarks.cases.networks import options
from fullfield._check import InputError
from fullfield.cli.argtypes import count, size

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


def add_parser(targets: Any) -> argparse.ArgumentParser:
    """Add ``python -m benchmarks patched``."""
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
    options.add_extension_option(parser, "beside the models' on-demand lookup instead of their volume: ")
    options.add_device_option(parser)
    options.add_result_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, measure, print."""
    options.check_results(args)
    if args.alt_cuda_corr and args.train:
        raise InputError("--alt-cuda-corr: has no gradient in ptlflow; leave out --train")

    from benchmarks.cases.networks import patched

    return options.measure(args, "patched", patched, _plan(args))


def _plan(args: argparse.Namespace) -> Plan:
    from benchmarks.cases.networks.patched import Plan
    from fullfield.estimators.ptlflow import import_ptlflow

    device, extension = options.set_up(args)
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
