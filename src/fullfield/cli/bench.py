"""``fullfield bench``: measure here, beside the peers."""

from __future__ import annotations

import argparse
from typing import Any

from fullfield.cli import bench_correlation, bench_models, bench_patched, bench_points, bench_tvl1


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``fullfield bench`` and what it can measure."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "bench",
        help="measure on this machine, beside other implementations",
        description="Time an operator or a network beside its peers. Every result is checked before its time counts; "
        "all candidates take turns.",
        allow_abbrev=False,
    )
    targets = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for target in (bench_tvl1, bench_correlation, bench_points, bench_models, bench_patched):
        target.add_parser(targets).set_defaults(run_target=target.run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the chosen benchmark."""
    code: int = args.run_target(args)
    return code
