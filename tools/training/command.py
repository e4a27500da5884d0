"""Pack a training run into few small files, or unpack it.

A packed run takes 3.7 bytes per parameter, split into files of limited size. A training continues from the unpacked run
(fullfield train flow --after) as from the run itself, within the noise of its loss.
"""

from __future__ import annotations

import argparse

from fullfield.training.packing import pack_run_lossily, unpack_run

EPILOG = """\
examples:
  python -m tools training pack runs/mine packed
  python -m tools training unpack packed runs/mine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("action", choices=("pack", "unpack"), help="what to do")
    parser.add_argument("source", metavar="SOURCE", help="folder of the run, or of its packed form")
    parser.add_argument("target", metavar="TARGET", help="new or empty folder")


def run_command(args: argparse.Namespace) -> int:
    """Pack or unpack a run, and print what was written."""
    if args.action == "pack":
        for path in pack_run_lossily(args.source, args.target):
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    else:
        print(unpack_run(args.source, args.target))
    return 0
