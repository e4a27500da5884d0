"""``fullfield pairs -o FOLDER``: made-up pairs with exact flow, as a data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.errors import naming
from fullfield.cli.progress import ProgressBar

HELP = "write made-up pairs with exact flow"
DESCRIPTION = (
    "Write pairs of frames made up from a seed: things that hide each other before a moving camera, "
    "with exact flow, occlusions and where the flow is known. The folder is the data set 'made'. A GPU makes "
    "thousands of pairs a second; a CPU needs seconds for each."
)
EPILOG = """\
examples:
  fullfield pairs -o made --count 10 --size 320x240
  fullfield pairs -o made-photos --count 1000 --textures pack.zip --device cuda
  fullfield pairs -o made-figures --style figures --device cuda
  fullfield evaluate tvl1 made:made

A run that was stopped goes on where it was, and a larger --count adds pairs: give the command again.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield pairs``."""
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder of the data set")
    parser.add_argument("--count", type=argtypes.count, default=20, help="pairs")
    parser.add_argument("--size", type=argtypes.size, default="640x360", help="of the frames")
    parser.add_argument(
        "--seed",
        type=argtypes.natural,
        default=0,
        help="of everything; training begins at 0 too, so take another one for pairs to judge by",
    )
    parser.add_argument(
        "--textures", metavar="PACK", help="pictures of a pack (python -m tools textures) [drawn from a fixed seed]"
    )
    parser.add_argument(
        "--style",
        default="usual",
        metavar="NAME",
        help="usual, small or large motion, bars (thin things), figures (with limbs)",
    )
    parser.add_argument("--flow-format", choices=("flo", "png"), default="flo", help="png is KITTI's 16-bit one")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where to make them")
    parser.add_argument("--threads", type=argtypes.threads, help="CPU threads [all]")
    report.add_report_options(parser, progress=True)


def run(args: argparse.Namespace) -> int:
    """Check, make, write, report."""
    if args.textures is not None:
        paths.check_input(args.textures, "--textures")
    paths.check_new_folder(args.output, "--output")

    from fullfield.training.flow.pair_files import write_pairs
    from fullfield.training.flow.pairs import PairGenerator
    from fullfield.training.flow.pictures import load_pictures
    from fullfield.training.flow.scene import SceneStyle

    methods.use_threads(args.threads)
    watch = report.Stopwatch()
    with ProgressBar("pairs", quiet=args.quiet) as progress, naming(size="--size", device="--device", style="--style"):
        style = SceneStyle.preset(args.style)
        progress(0.0, "reading pictures")
        pictures = load_pictures(args.textures)
        watch.lap("pictures")
        pairs = PairGenerator(args.size, seed=args.seed, device=args.device, pictures=pictures, style=style)
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
    facts = {
        "output": args.output,
        "made": written.made,
        "kept": written.kept,
        "size": {"width": args.size[1], "height": args.size[0]},
        "seed": args.seed,
        "flow_format": args.flow_format,
        "device": args.device,
        "style": args.style,
        "textures": args.textures,
        "seconds": seconds,
    }
    kept = f", {written.kept} were there" if written.kept else ""
    text = f"{Path(args.output)}: {written.made} pairs made in {seconds['pairs']:.1f} s{kept}"
    report.tell(args, facts, text, memory=True)
    return 0
