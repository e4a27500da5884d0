"""Write a network as ONNX.

Write a network with its weights as a graph: inputs frame1 and frame2 [B, 3, H, W], RGB 0 ... 1, output flow [B, 2, H,
W] in pixels. ONNX needs fullfield[export].
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield.cli import argtypes, paths, report
from fullfield.cli.methods import build_download_callback
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.estimators.registry import ALIASES, METHODS
from fullfield.models.weights import DEFAULTS

if TYPE_CHECKING:
    from fullfield.models.network import FlowNetwork

LOOKUPS = ("linear", "dense")
SUFFIXES = (".onnx",)
EPILOG = """\
examples:
  fullfield export -o flow.onnx --size 1024x436
  fullfield export -o raft.onnx --method raft --size 1024x436 --updates 12
  fullfield export -o sea.onnx --method sea-raft-m --weights sea-raft-m-spring --size 960x544 --dynamic
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield export``."""
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help=f"file to write: {', '.join(SUFFIXES)}")
    parser.add_argument(
        "--method", type=_parse_network_name_or_alias, metavar="NAME", default=METHODS["auto"].network, help="network"
    )
    parser.add_argument("--weights", metavar="FILE|NAME", help="file, entry of the list, or random [the method's]")
    parser.add_argument("--size", type=argtypes.parse_wxh_as_height_width, required=True, help="size of the frames")
    parser.add_argument("--dynamic", action="store_true", help="any size in multiples of 8, from 128x128")
    parser.add_argument("--batch", type=argtypes.parse_positive_integer, default=1, help="pairs at a time")
    parser.add_argument("--updates", type=argtypes.parse_integer, help="flow updates [the method's lowest number]")
    parser.add_argument(
        "--lookup", choices=LOOKUPS, default=LOOKUPS[0], help="gathered features, or the volume of all pairs [linear]"
    )
    report.add_report_options(parser, has_quiet_option=True)


def _parse_network_name_or_alias(text: str) -> str:
    name = ALIASES.get(text, text)
    if name not in DEFAULTS:
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(DEFAULTS)})")
    return name


def run_command(args: argparse.Namespace) -> int:
    """Load the network, export it and report."""
    paths.get_checked_suffix(args.output, "-o", SUFFIXES)
    paths.check_output_file_and_remove_temporaries(args.output, "-o")
    watch = report.Stopwatch()

    from fullfield.models.export import export_onnx, require_onnx

    require_onnx()  # before any download
    model, weights = _load_network_and_weights_name(args)
    watch.add_lap("load")

    height, width = args.size
    options = {"batch": args.batch, "updates": args.updates, "dynamic": args.dynamic, "lookup": args.lookup}
    with rename_arguments_in_errors(height="--size", width="--size", updates="--updates", batch="--batch"):
        export_onnx(model, args.output, height, width, **options)
    watch.add_lap("export")
    updates = model.config.updates if args.updates is None else args.updates
    written = Path(args.output).stat().st_size
    properties = {
        **report.select_attributes(args, "output", "method", "dynamic", "batch", "lookup"),
        "weights": weights,
        "updates": updates,
        "size": {"width": width, "height": height},
        "bytes": written,
        "seconds": watch.get_stage_seconds(),
    }
    sizes = "multiples of 8 from 128x128" if args.dynamic else f"{width}x{height}"
    summary = f"{args.method}, weights {weights}, {sizes}, {updates} updates, {written / 1e6:.1f} MB"
    report.print_report(args, properties, f"{report.escape_control_characters(args.output)}: {summary}")
    return 0


def _load_network_and_weights_name(args: argparse.Namespace) -> tuple[FlowNetwork, str]:
    """Return the network with its weights, and their name."""
    from fullfield.models.weights import find_weights_origin, load_weights

    with rename_arguments_in_errors(weights="--weights"):
        origin = find_weights_origin(args.method, args.weights)
    with ProgressBar("export", quiet=args.quiet) as progress:
        return load_weights(args.method, origin, build_download_callback(progress, origin.name)), origin.name
