"""The command ``python -m benchmarks``: which benchmark, with which options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.cases.correlation import command as correlation
from benchmarks.cases.networks import models_command, patched_command
from benchmarks.cases.points import command as points
from benchmarks.cases.tvl1 import command as tvl1
from benchmarks.paper import command as reproduce
from fullfield.cli.main import Parser
from fullfield.cli.main import main as run_command

BENCHES = (tvl1, correlation, points, models_command, patched_command, reproduce)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all benchmarks; imports nothing heavy."""
    parser = Parser(
        prog="python -m benchmarks",
        description="Time an operator or a network beside its peers. Every result is checked before its time counts; "
        "all candidates take turns.",
        allow_abbrev=False,
    )
    targets = parser.add_subparsers(dest="verb", metavar="WHAT", required=True)
    for bench in BENCHES:
        bench.add_parser(targets).set_defaults(run=bench.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 fine, 1 a check failed, 2 a mistake of the user."""
    return run_command(argv, build_parser)
