"""Write a network as ONNX, or as a program of torch.export.

Write a network with its weights as a graph: inputs frame1 and frame2 [B, 3, H, W], RGB 0 ... 1, output flow [B, 2, H,
W] in pixels. ONNX needs fullfield[export].
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield._check import InputError
from fullfield.cli import argtypes, paths, report
from fullfield.cli.methods import fetching
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import naming
from fullfield.estimators.registry import ALIASES, AUTO_NETWORK
from fullfield.models.weights import DEFAULTS

if TYPE_CHECKING:
    from fullfield.models.network import FlowNetwork

LOOKUPS = ("linear", "dense")
SUFFIXES = (".onnx", ".pt2")
EPILOG = """\
examples:
  fullfield export -o flow.onnx --size 1024x440
  fullfield export -o raft.onnx --method raft --size 1024x440 --updates 12
  fullfield export -o sea.onnx --method sea-raft-m --weights sea-raft-m-spring --size 960x544 --dynamic
  fullfield export -o raft.pt2 --method raft-small --size 1024x440
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield export``."""
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help=f"file to write: {', '.join(SUFFIXES)}")
    parser.add_argument("--method", type=_method, metavar="NAME", default=AUTO_NETWORK, help="network")
    parser.add_argument("--weights", metavar="FILE|NAME", help="file, entry of the list, or random [the method's]")
    parser.add_argument("--size", type=argtypes.size, required=True, help="size of the frames")
    parser.add_argument("--dynamic", action="store_true", help="any size in multiples of 8, from 128x128")
    parser.add_argument("--batch", type=argtypes.count, default=1, help="pairs at a time")
    parser.add_argument("--updates", type=argtypes.integer, help="flow updates [the method's]")
    parser.add_argument(
        "--lookup", choices=LOOKUPS, help="ONNX: gathered features, or the volume of all pairs [linear]"
    )
    report.add_report_options(parser, progress=True)


def _method(text: str) -> str:
    name = ALIASES.get(text, text)
    if name not in DEFAULTS:
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(DEFAULTS)})")
    return name


def run(args: argparse.Namespace) -> int:
    """Load the network, export it and report."""
    suffix = paths.check_suffix(args.output, "-o", SUFFIXES)
    paths.check_output(args.output, "-o")
    if suffix == ".pt2" and args.lookup is not None:
        raise InputError("--lookup: only .onnx has a choice, a program keeps the lookup as an operator; leave it out")
    watch = report.Stopwatch()

    from fullfield.models.export import export_onnx, export_program, require_onnx

    if suffix == ".onnx":  # before any download
        require_onnx()
    model, weights = _network(args)
    watch.lap("load")

    height, width = args.size
    common = {"batch": args.batch, "updates": args.updates, "dynamic": args.dynamic}
    with naming(height="--size", width="--size", updates="--updates", batch="--batch"):
        if suffix == ".onnx":
            export_onnx(model, args.output, height, width, lookup=args.lookup or LOOKUPS[0], **common)
        else:
            import torch

            from fullfield.io.files import atomic_path

            program, data = export_program(model, height, width, **common), io.BytesIO()
            torch.export.save(program, data)  # in memory: on a full disk it would end with a trace of PyTorch's
            with atomic_path(args.output) as path:
                path.write_bytes(data.getbuffer())
    watch.lap("export")
    updates = model.config.updates if args.updates is None else args.updates
    written = Path(args.output).stat().st_size
    facts = {
        **report.picked(args, "output", "method", "dynamic", "batch"),
        "weights": weights,
        "updates": updates,
        "size": {"width": width, "height": height},
        "lookup": (args.lookup or LOOKUPS[0]) if suffix == ".onnx" else None,
        "bytes": written,
        "seconds": watch.seconds(),
    }
    sizes = "any size" if args.dynamic else f"{width}x{height}"
    summary = f"{args.method}, weights {weights}, {sizes}, {updates} updates, {written / 1e6:.1f} MB"
    report.tell(args, facts, f"{report.printable(args.output)}: {summary}")
    return 0


def _network(args: argparse.Namespace) -> tuple[FlowNetwork, str]:
    """Return the network with its weights, and their name."""
    from fullfield.models.weights import load_weights, origin_of

    with naming(weights="--weights"):
        origin = origin_of(args.method, args.weights)
    with ProgressBar("export", quiet=args.quiet) as progress:
        return load_weights(args.method, origin, fetching(progress, origin.name)), origin.name
