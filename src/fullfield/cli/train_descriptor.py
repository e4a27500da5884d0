"""A descriptor of points, for fullfield register.

Train a descriptor of points on pairs of partial clouds, cut from synthetic scenes and from your own clouds, rotated at
random, thinned, with noise and occlusion.
"""

from __future__ import annotations

import argparse

from fullfield.cli import argtypes, methods, paths, report
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors
from fullfield.io.names import POINT_SUFFIXES

EPILOG = """\
examples:
  fullfield train descriptor -o runs/descriptor --clouds scans/*.ply --device cuda --workers 12
  fullfield register a.ply b.ply --weights runs/descriptor/weights.safetensors

The same command continues a run that was stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield train descriptor``."""
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder of the run")
    data = parser.add_argument_group("data")
    data.add_argument("--clouds", nargs="+", default=[], metavar="FILE", help=f"clouds: {' '.join(POINT_SUFFIXES)}")
    data.add_argument(
        "--posed-pairs",
        nargs=3,
        action="append",
        default=[],
        metavar=("SRC", "DST", "POSE"),
        help="two clouds of one place and the file of the transform from the first into the second; may be repeated",
    )
    data.add_argument("--synthetic", type=argtypes.parse_finite_number, default=0.5, help="share of synthetic scenes")
    data.add_argument(
        "--cells", type=argtypes.parse_positive_integer, default=5000, help="approximate number of voxels of a cloud"
    )
    network = parser.add_argument_group("network")
    network.add_argument("--channels", type=argtypes.parse_positive_integer, default=64, help="channels of the layers")
    network.add_argument("--layers", type=argtypes.parse_integer, default=3, help="layers of the finest resolution")
    network.add_argument(
        "--scales",
        type=argtypes.parse_positive_integer,
        default=1,
        help="resolutions, each with cells twice as wide, 1 to 4",
    )
    network.add_argument("--start", metavar="FILE", help="initial weights, or learned: the published ones")
    loop = parser.add_argument_group("training")
    loop.add_argument("--steps", type=argtypes.parse_positive_integer, default=20_000, help="number of steps")
    loop.add_argument(
        "--minutes", type=argtypes.parse_positive_number, help="end after that time, with a complete schedule"
    )
    loop.add_argument("--pairs", type=argtypes.parse_positive_integer, default=4, help="pairs a step")
    loop.add_argument("--block", type=argtypes.parse_positive_integer, default=256, help="pairs that are cut together")
    loop.add_argument("--reuse", type=argtypes.parse_positive_integer, default=4, help="times each pair is shown")
    loop.add_argument(
        "--learning-rate", type=argtypes.parse_positive_number, default=1e-3, help="highest learning rate"
    )
    loop.add_argument("--seed", type=argtypes.parse_nonnegative_integer, default=0, help="seed of everything")
    loop.add_argument("--every", type=argtypes.parse_positive_integer, default=500, help="steps between checkpoints")
    loop.add_argument("--device", default="auto", metavar="NAME", help=methods.DEVICE_HELP)
    loop.add_argument(
        "--workers",
        type=argtypes.parse_thread_count,
        default=1,
        help="processes that cut pairs; 1: a thread of this one",
    )
    loop.add_argument("--threads", type=argtypes.parse_thread_count, help="CPU threads of this process [all]")
    report.add_report_options(parser, has_quiet_option=True)


def run_command(args: argparse.Namespace) -> int:
    """Check, train, report."""
    clouds = [(path, "--clouds") for path in args.clouds]
    posed_clouds = [(path, "--posed-pairs") for pair in args.posed_pairs for path in pair[:2]]
    for path, option in clouds + posed_clouds:
        paths.check_input_file(path, option)
        paths.get_checked_suffix(path, option, POINT_SUFFIXES)
    for *_, pose in args.posed_pairs:
        paths.check_input_file(pose, "--posed-pairs")
    if args.start not in (None, "learned"):
        paths.check_input_file(args.start, "--start")
    paths.check_folder_creatable_and_remove_temporaries(args.output, "--output")

    from fullfield.registration.learned_network import DescriptorConfig
    from fullfield.training import DescriptorTraining, train_descriptor
    from fullfield.training.descriptor import DescriptorRow

    methods.limit_cpu_threads_unless_none(args.threads)
    watch = report.Stopwatch()
    with (
        ProgressBar("train", quiet=args.quiet) as progress,
        rename_arguments_in_errors(**report.map_arguments_to_options(args)),
        report.name_resume_step_in_interruption(args.output, DescriptorRow),
    ):
        fields = ("start", "steps", "pairs", "block", "reuse", "cells", "synthetic", "learning_rate", "seed")
        training = DescriptorTraining(
            descriptor=DescriptorConfig(channels=args.channels, layers=args.layers, scales=args.scales),
            seconds=None if args.minutes is None else 60 * args.minutes,
            **{name: getattr(args, name) for name in fields},
        )
        args.device = methods.resolve_auto_device(args.device)
        options = {"device": args.device, "workers": args.workers, "checkpoint_every": args.every, "progress": progress}
        trained = train_descriptor(args.output, training, args.clouds, args.posed_pairs, **options)
    watch.add_lap("train")
    last = trained.history[-1]
    weights = f"{args.output.rstrip('/')}/weights.safetensors"
    properties = {
        **report.select_attributes(args, "output", "clouds", "posed_pairs", "device"),
        "weights": weights,
        "training": training.as_dict(),
        "history": [row._asdict() for row in trained.history],
        "seconds": watch.get_stage_seconds(),
    }
    summary = (
        f"{last.step} steps in {last.seconds:.0f} s on {args.device}, loss {last.loss:.3f}, "
        f"{last.precision:.1%} of the mutual matches right on synthetic pairs that it has not seen"
    )
    text = f"{report.escape_control_characters(weights)}: {summary}"
    text += report.format_next_command_unless_quiet(
        args, "fullfield", "register", "a.ply", "b.ply", "--weights", weights
    )
    report.print_report(args, properties, text, has_peak_memory=True)
    return 0
