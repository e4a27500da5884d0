"""``fullfield pairs -o FOLDER``: made-up pairs with exact flow, as a data set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.errors import naming
from fullfield.cli.progress import Progress

EPILOG = """\
examples:
  fullfield pairs -o made --count 10 --size 320x240
  fullfield pairs -o made-photos --count 1000 --textures pack.zip --device cuda
  fullfield evaluate tvl1 made:made

A run that was stopped goes on where it was, and a larger --count adds pairs: give the command again.
"""


def add_parser(verbs: Any) -> argparse.ArgumentParser:
    """Add ``fullfield pairs``."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "pairs",
        help="write made-up pairs with exact flow",
        description="Write pairs of frames made up from a seed: things that hide each other before a moving camera, "
        "with exact flow, occlusions and where the flow is known. The folder is the data set 'made'. A GPU makes "
        "thousands of pairs a second; a CPU needs seconds for each.",
        epilog=EPILOG,
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder of the data set")
    parser.add_argument("--count", type=argtypes.count, default=20, metavar="N", help="pairs [%(default)s]")
    parser.add_argument(
        "--size", type=argtypes.size, default="640x360", metavar="WxH", help="of the frames [%(default)s]"
    )
    parser.add_argument("--seed", type=argtypes.natural, default=0, metavar="N", help="of everything [%(default)s]")
    parser.add_argument(
        "--textures", metavar="PACK", help="pictures of a pack (fullfield textures) [drawn from a fixed seed]"
    )
    parser.add_argument(
        "--flow-format", choices=("flo", "png"), default="flo", help="png is KITTI's 16-bit one [%(default)s]"
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where to make them [%(default)s]")
    parser.add_argument("--threads", type=argtypes.threads, metavar="N", help="CPU threads [all]")
    report.add_report_options(parser, progress=True)
    return parser


def run(args: argparse.Namespace) -> int:
    """Check, make, write, report."""
    if args.textures is not None:
        paths.check_input(args.textures, "--textures")
    paths.check_new_folder(args.output, "--output")

    from fullfield.training.flow.pair_files import write_pairs
    from fullfield.training.flow.pairs import PairMaker
    from fullfield.training.flow.pictures import load_pictures

    methods.use_threads(args.threads)
    watch = report.Stopwatch()
    with Progress("pairs", quiet=args.quiet) as progress, naming(size="--size", device="--device"):
        progress(0.0, "reading pictures")
        pictures = load_pictures(args.textures)
        watch.lap("pictures")
        pairs = PairMaker(args.size, seed=args.seed, device=args.device, pictures=pictures)
        written = write_pairs(
            args.output,
            pairs,
            args.count,
            textures=args.textures,
            flow_format=args.flow_format,
            progress=progress,
        )
    watch.lap("pairs")
    seconds = watch.seconds()
    if args.json:
        height, width = args.size
        report.print_run(
            {
                "output": args.output,
                "made": written.made,
                "kept": written.kept,
                "size": {"width": width, "height": height},
                "seed": args.seed,
                "textures": args.textures,
                "seconds": seconds,
            }
        )
        return 0
    kept = f", {written.kept} were there" if written.kept else ""
    print(f"{Path(args.output)}: {written.made} pairs made in {seconds['pairs']:.1f} s{kept}")
    return 0
