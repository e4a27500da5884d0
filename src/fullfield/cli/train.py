"""Train a descriptor of points, or a network of flow.

Train a descriptor of points (see fullfield train descriptor --help), or a network of flow (see fullfield train flow
--help).
"""

from __future__ import annotations

import argparse

from fullfield.cli import train_descriptor, train_flow
from fullfield.cli.options import add_command

_KINDS = {"descriptor": train_descriptor, "flow": train_flow}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield train``."""
    kinds = parser.add_subparsers(dest="what", metavar="|".join(_KINDS), required=True)
    for name, module in _KINDS.items():
        add_command(kinds, name, module)
