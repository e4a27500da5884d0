"""``python -m benchmarks sequence``: a shot of EXR files to EXR files, beside the estimation alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.options import add_sizes_option
from fullfield._check import InputError
from fullfield.cli import paths
from fullfield.cli.argtypes import parse_positive_integer
from fullfield.io.names import EXR_COMPRESSIONS

if TYPE_CHECKING:
    from benchmarks.cases.sequences.shots import Plan

DESCRIPTION = """\
Make a shot of EXR plates, then time "fullfield shot SHOT" from the plates to the written files beside the estimation of
the same pairs alone, from frames that are on the device already (some of them, and their time is scaled). Told are the
seconds, how many times the estimation the whole takes, what share of the time the device estimates, and what every
stage of a frame takes.
"""
EPILOG = """\
examples:
  python -m benchmarks sequence --frames 200 --sizes 2048x1024 -o results.json
  python -m benchmarks sequence --devices 2 --frames 100 --repeats 1 --folder /dev/shm
  python -m benchmarks sequence --method fullfield-s --presets fast --half
  python -m benchmarks sequence --frames 100 --sizes 3840x2160 --plates zip piz dwaa --pairs 8 --repeats 3
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", default="auto", help="of the estimation [auto]")
    parser.add_argument("--presets", nargs="+", metavar="NAME", default=["default"], help="of the method [default]")
    parser.add_argument("--frames", type=parse_positive_integer, default=200, metavar="N", help="of the shot [200]")
    add_sizes_option(parser, "frames [2048x1024 on a GPU, else 256x128]")
    parser.add_argument(
        "--plates", nargs="+", choices=EXR_COMPRESSIONS, default=["zip"], help="compressions of the plates [zip]"
    )
    parser.add_argument(
        "--pairs", type=parse_positive_integer, default=64, metavar="N", help="pairs estimated alone at most [64]"
    )
    parser.add_argument("--direction", choices=("forward", "backward", "both"), default="both", help="flow [both]")
    parser.add_argument("--devices", metavar="LIST", help="also with a process for each: all, 2, or cuda:0,cuda:1")
    parser.add_argument("--half", action="store_true", help="vectors as half floats")
    parser.add_argument("--compression", choices=EXR_COMPRESSIONS, help="of the vectors [as fullfield shot]")
    parser.add_argument(
        "--threads", type=parse_positive_integer, metavar="N", help="of PyTorch in this process [as it is]"
    )
    parser.add_argument("--folder", metavar="DIR", help="where plates and vectors are for a while [a temporary folder]")


def _check(args: argparse.Namespace) -> list[str]:
    from fullfield.estimators.registry import get_method, resolve_method_name

    presets = get_method(resolve_method_name(args.method)).load_presets()
    for preset in args.presets:
        if preset not in presets:
            raise InputError(f"--presets: {args.method} has {', '.join(presets)}, got {preset}")
    if args.frames < 3:
        raise InputError(f"--frames: expected 3 or more, got {args.frames}")
    if args.folder is not None:
        paths.check_folder_writable_and_remove_temporaries(Path(args.folder), "--folder")
    return []


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.sequences import shots

    plan = _plan(args)
    return Session(shots.cases(plan, note), device=plan.device)


def _plan(args: argparse.Namespace) -> Plan:
    import torch

    from benchmarks.cases.sequences.shots import Plan
    from benchmarks.harness import timing_device

    device = timing_device(args.device)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    devices: tuple[str, ...] = ()
    if args.devices is not None and (args.devices == "all" or args.devices.isdecimal()):
        there = torch.cuda.device_count()
        requested = there if args.devices == "all" else int(args.devices)
        if not 0 < requested <= there:
            raise InputError(f"--devices {args.devices}: expected GPUs, and PyTorch finds {there} here")
        devices = tuple(f"cuda:{index}" for index in range(requested))
    elif args.devices is not None:
        devices = tuple(str(timing_device(name.strip())) for name in args.devices.split(","))
    return Plan(
        args.method,
        args.presets,
        args.sizes or [(1024, 2048) if device.type == "cuda" else (128, 256)],
        args.frames,
        device,
        plates=args.plates,
        max_pairs=args.pairs,
        direction=args.direction,
        devices=devices,
        dtype="half" if args.half else None,
        compression=args.compression,
        folder=args.folder,
        repeats=args.repeats,
    )


def _report(results: Result) -> list[str]:
    from benchmarks.cases.sequences.shots import report

    return report(results)


SEQUENCE = Bench(
    "sequence",
    "a shot from files to files, beside the estimation alone",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
    repeats=2,
)
