"""Options that several benchmarks have."""

from __future__ import annotations

import argparse

from fullfield.cli.argtypes import parse_wxh_as_height_width


def add_sizes_option(
    parser: argparse._ActionsContainer, what: str, default: list[tuple[int, int]] | None = None
) -> None:
    """``--sizes WxH ...`` of ``what``, read as (height, width)."""
    parser.add_argument("--sizes", nargs="+", type=parse_wxh_as_height_width, default=default, metavar="WxH", help=what)
