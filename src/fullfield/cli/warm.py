"""Compile the kernels of a method ahead and fill the cache.

Download the method's weights and compile its kernels, so that the next process need not. Kernels for a CPU serve every
size; on a GPU some depend on the size of the frames.
"""

from __future__ import annotations

import argparse

from fullfield.cli import argtypes, methods, report
from fullfield.cli.progress import ProgressBar
from fullfield.cli.report import rename_arguments_in_errors

EPILOG = """\
examples:
  fullfield warm
  fullfield warm --method tvl1 --preset realtime --device cuda --size 1920x1080
"""

_SIZE = (48, 64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield warm``."""
    parser.add_argument("--size", type=argtypes.parse_wxh_as_height_width, help="size of the frames, for a GPU")
    methods.add_method_option_group(parser)
    report.add_report_options(parser, has_quiet_option=True)
    methods.add_parameter_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Prepare the method, estimate the flow of two pictures of noise with all options, and report."""
    choice = methods.choose_method(args)
    watch = report.Stopwatch()

    import torch

    from fullfield._kernels.cache_folder import find_or_create_writable_folder_or_none

    methods.limit_cpu_threads_unless_none(args.threads)
    size = args.size or _SIZE
    frames = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    with (
        rename_arguments_in_errors(**methods.map_arguments_to_options(args.method)),
        ProgressBar("warm", quiet=args.quiet) as progress,
    ):
        choice.load_weights_and_kernels(size if args.size else None, progress, quiet=args.quiet)
        watch.add_lap("prepare")
        for options in ({}, {"refine": True, "reliability": True}):  # the first has passes of its own
            flow = choice.estimate(frames[0], frames[1], **options)
        watch.add_lap("estimate")
    folder = find_or_create_writable_folder_or_none(".")
    properties = {
        **choice.collect_method_settings(flow),
        "device": choice.device,
        "cache": None if folder is None else str(folder.resolve()),
        "seconds": watch.get_stage_seconds(),
    }
    cached = (
        "no cache folder can be written" if folder is None else f"kernels in {report.escape_control_characters(folder)}"
    )
    text = (
        f"{choice.title}, backend {flow.backend}, on {choice.device}: "
        f"ready in {watch.get_stage_seconds()['total']:.1f} s, {cached}"
    )
    report.print_report(args, properties, text)
    return 0
