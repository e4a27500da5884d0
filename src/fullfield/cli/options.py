"""Options that several verbs share: reading frames and writing flow."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import Any

from fullfield._check import InputError
from fullfield.io.names import EXR_COMPRESSIONS, TRANSFERS


def add_verb(verbs: Any, name: str, module: ModuleType) -> None:
    """Add the verb that a module defines.

    The module has ``HELP``, ``DESCRIPTION``, perhaps ``EPILOG`` with examples, ``add_options(parser)``, and
    ``run(args) -> int`` unless it only has verbs of its own, which define it.
    """
    epilog = getattr(module, "EPILOG", None)
    parser = verbs.add_parser(name, help=module.HELP, description=module.DESCRIPTION, epilog=epilog)
    parser.set_defaults(run=getattr(module, "run", None))
    module.add_options(parser)


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that control how ``read_frame`` reads the frames."""
    group = parser.add_argument_group("reading frames")
    group.add_argument(
        "--input-transfer",
        metavar="NAME",
        help=f"encoding of the stored values: {', '.join(TRANSFERS)}, or an OpenColorIO colour space [auto: by format]",
    )
    group.add_argument("--alpha", choices=("ignore", "apply"), help="apply: composite over black [ignore]")
    group.add_argument("--window", choices=("display", "data"), help="EXR window to work in [display]")
    group.add_argument("--part", metavar="PART", help="EXR part or TIFF page: name or number [the first in colour]")
    group.add_argument("--layer", metavar="NAME", help="EXR layer: NAME.R, NAME.G, NAME.B [R, G, B]")


READING_WORDS = {
    "transfer": "--input-transfer",
    "alpha": "--alpha",
    "window": "--window",
    "part": "--part",
    "layer": "--layer",
}
"""Options of the arguments of ``read_frame``, for :func:`fullfield.cli.errors.naming`."""


def reading_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``read_frame`` that were given."""
    values = {name: getattr(args, option[2:].replace("-", "_")) for name, option in READING_WORDS.items()}
    return {name: value for name, value in values.items() if value is not None}


def unused_reading_options(args: argparse.Namespace) -> list[str]:
    """Return the reading options that were given, for a command that reads no frame."""
    return [READING_WORDS[name] for name in reading_arguments(args)]


def add_flow_choice(group: Any, prefix: str, what: str) -> None:
    """Add ``--PREFIX-layer`` and ``--PREFIX-part``, for a flow that is read."""
    group.add_argument(f"--{prefix}-layer", metavar="NAME", help=f"EXR layer of {what} [forward]")
    group.add_argument(
        f"--{prefix}-part", metavar="PART", help=f"EXR part of {what}, by name or number [the first with flow]"
    )


def flow_choice(args: argparse.Namespace, prefix: str) -> dict[str, str | None]:
    """Return the arguments of ``read_flow`` for these options."""
    return {name: getattr(args, f"{prefix}_{name}") for name in ("layer", "part")}


def check_flow_choice(args: argparse.Namespace, prefix: str, path: str | None, what: str) -> None:
    """Refuse a layer or part of a flow that is absent."""
    for name, value in flow_choice(args, prefix).items():
        if value is not None and path is None:
            raise InputError(f"--{prefix}-{name}: describes {what}, which is absent")


_COMPRESSIONS = {".exr": EXR_COMPRESSIONS, ".flo5": ("gzip", "none")}


def add_packing_options(group: Any) -> None:
    """Add ``--half`` and ``--compression``, for the flow that is written."""
    names = dict.fromkeys(name for found in _COMPRESSIONS.values() for name in found)
    group.add_argument("--half", action="store_true", help=".exr: half floats instead of floats")
    group.add_argument(
        "--compression", choices=names, help="compression of .exr [zip, or none if zip saves little] or .flo5 [gzip]"
    )


def packing_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``write_flow`` for these options; InputError if the format does not support one."""
    suffix = Path(args.output).suffix.lower()
    packing: dict[str, Any] = {}
    if args.half:
        if suffix != ".exr":
            raise InputError(f"--half: is for .exr, and the output is {args.output}; leave it out")
        packing["dtype"] = "half"
    if args.compression is not None:
        known = _COMPRESSIONS.get(suffix, ())
        if args.compression not in known:
            expected = f"{suffix} takes {', '.join(known)}" if known else "is for .exr and .flo5"
            raise InputError(f"--compression {args.compression}: {expected}, and the output is {args.output}")
        packing["compression"] = args.compression
    return packing
