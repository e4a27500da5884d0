"""``fullfield train``: a descriptor of points, or a network of flow."""

from __future__ import annotations

import argparse
from typing import Any

from fullfield.cli import train_descriptor, train_flow

_KINDS = {"descriptor": train_descriptor, "flow": train_flow}


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``fullfield train``."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "train",
        help="train a descriptor of points, or a network of flow",
        description="Train a descriptor of points (see fullfield train descriptor --help), or a network of flow (see "
        "fullfield train flow --help).",
    )
    kinds = parser.add_subparsers(dest="what", metavar="|".join(_KINDS), required=True)
    for module in _KINDS.values():
        module.add_parser(kinds)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the one that was asked for."""
    code: int = _KINDS[args.what].run(args)
    return code
