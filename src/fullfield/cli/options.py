"""Options that several verbs share: reading frames, writing flow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.io.names import EXR_COMPRESSIONS, TRANSFERS

if TYPE_CHECKING:
    import argparse


def positive(text: str) -> float:
    """An argparse type: a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


positive.__name__ = "positive number"


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """How ``read_frame`` reads the frames."""
    group = parser.add_argument_group("reading frames")
    group.add_argument(
        "--input-transfer",
        metavar="NAME",
        default="auto",
        help=f"what the stored values are: {', '.join(TRANSFERS)}, or an OpenColorIO colour space [auto: by format]",
    )
    group.add_argument(
        "--alpha", choices=("ignore", "apply"), default="ignore", help="apply: composite over black [ignore]"
    )
    group.add_argument(
        "--window", choices=("display", "data"), default="display", help="EXR window to work in [display]"
    )
    group.add_argument("--part", metavar="PART", help="EXR part or TIFF page: name or number [the first in colour]")
    group.add_argument("--layer", metavar="NAME", help="EXR layer: NAME.R, NAME.G, NAME.B [R, G, B]")


def reading_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``read_frame`` that these options stand for."""
    return {
        "transfer": args.input_transfer,
        "alpha": args.alpha,
        "window": args.window,
        "part": args.part,
        "layer": args.layer,
    }


READING_WORDS = {"transfer": "--input-transfer", "part": "--part", "layer": "--layer"}
"""Arguments of ``read_frame`` in the user's words, for :func:`fullfield.cli.errors.naming`."""


_COMPRESSIONS = {".exr": EXR_COMPRESSIONS, ".flo5": ("gzip", "none")}


def add_packing_options(group: Any) -> None:
    """``--half`` and ``--compression``, for the flow that is written."""
    names = dict.fromkeys(name for found in _COMPRESSIONS.values() for name in found)
    group.add_argument("--half", action="store_true", help=".exr: half floats instead of floats")
    group.add_argument("--compression", choices=names, help="of .exr [zip] or .flo5 [gzip]")


def packing_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``write_flow`` that these options stand for; refused where the format has no such thing."""
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
