"""Write synthetic pairs with exact flow.

Write synthetic pairs of frames, drawn from a seed: objects that hide each other before a moving camera, with exact
flow, occlusions and a mask of known flow. The folder is the data set 'synthetic'. A CPU needs seconds for each pair and
more for large frames; a GPU draws them much faster.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.training.flow.config import SceneStyle

EPILOG = """\
examples:
  fullfield pairs -o synthetic --count 10 --size 320x240
  fullfield pairs -o synthetic-photos --count 1000 --textures pack.zip --device cuda
  fullfield pairs -o synthetic-figures --style figures --device cuda
  fullfield evaluate tvl1 synthetic:synthetic

The same command continues a run that was stopped; with a larger --count it adds pairs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield pairs``."""
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder of the data set")
    parser.add_argument("--count", type=argtypes.parse_positive_integer, default=20, help="number of pairs")
    parser.add_argument("--size", type=argtypes.parse_wxh_as_height_width, default="640x360", help="size of the frames")
    parser.add_argument(
        "--seed",
        type=argtypes.parse_nonnegative_integer,
        default=0,
        help="seed; training starts at 0 too, so validate with another",
    )
    parser.add_argument(
        "--textures", metavar="PACK", help="picture pack (python -m tools textures) [procedural pictures]"
    )
    parser.add_argument("--style", default="usual", metavar="NAME", help="usual, small, figures, bodies or meshes")
    parser.add_argument("--flow-format", choices=("flo", "png"), default="flo", help="png: KITTI's, steps of 1/64 px")
    parser.add_argument("--device", default="auto", metavar="NAME", help=methods.DEVICE_HELP)
    parser.add_argument("--threads", type=argtypes.parse_thread_count, help="CPU threads [all]")
    report.add_report_options(parser, has_quiet_option=True)


def run_command(args: argparse.Namespace) -> int:
    """Check, make, write, report."""
    if args.textures is not None:
        paths.check_input_file(args.textures, "--textures")
    paths.check_folder_creatable_and_remove_temporaries(args.output, "--output")

    from fullfield.training.flow.pair_files import write_missing_pairs
    from fullfield.training.flow.pairs import PairGenerator
    from fullfield.training.flow.pictures import load_or_create_picture_pack

    methods.limit_cpu_threads_unless_none(args.threads)
    watch = report.Stopwatch()
    with (
        ProgressBar("pairs", quiet=args.quiet) as progress,
        rename_arguments_in_errors(size="--size", device="--device", style="--style"),
    ):
        style = SceneStyle.from_preset(args.style)
        progress(0.0, "reading pictures")
        pictures = load_or_create_picture_pack(args.textures)
        watch.add_lap("pictures")
        args.device = methods.resolve_auto_device(args.device)
        pairs = PairGenerator(args.size, seed=args.seed, device=args.device, pictures=pictures, style=style)
        how = {"textures": args.textures, "flow_format": args.flow_format, "progress": progress}
        written = write_missing_pairs(args.output, pairs, args.count, **how)
    watch.add_lap("pairs")
    seconds = watch.get_stage_seconds()
    properties = {
        **report.select_attributes(args, "output", "seed", "flow_format", "device", "style", "textures"),
        "made": written.written_count,
        "kept": written.existing_count,
        "size": {"width": args.size[1], "height": args.size[0]},
        "seconds": seconds,
    }
    existing = f", {written.existing_count} existed" if written.existing_count else ""
    count = report.format_count(written.written_count, "pair")
    text = f"{Path(args.output)}: {count} written in {seconds['pairs']:.1f} s on {args.device}{existing}"
    report.print_report(args, properties, text, has_peak_memory=True)
    return 0
