"""Experiments: programs that judge data, constants and tests. They are run by hand, not by CI."""

from __future__ import annotations

import argparse


def build_program_parser(docstring: str | None) -> argparse.ArgumentParser:
    """Return a parser for a program whose help begins with its docstring."""
    return argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
