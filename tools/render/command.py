"""Render frames with true flow in Blender.

Render a shot with Blender: frames, flow with four true values for each pixel, and masks of unknown and occluded pixels.
Motion blur, volumes, lens flares and compositing are switched off.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fullfield._check import InputError
from fullfield.cli import argtypes, paths, report
from fullfield.cli.progress import ProgressBar

OWN_SCENE = "own"

EPILOG = """\
examples:
  python -m tools render own -o scene/demo --frames 1 4 --width 960 --samples 64
  python -m tools render own -o scene/fast --fast --thin 8 --speed 2 --frames 1 3 --width 4096 --height 2160
  python -m tools render 010_0050.blend -o charge/010_0050 --blender /opt/blender/blender
  python -m tools render shot.blend -o set/shot --frames 101 196 --python ~/bpy/bin/python

A render that was stopped continues with the same command. The folder of the shots is a data set:
  fullfield evaluate tvl1 rendered:scene
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("scene", metavar="SCENE", help=f"a .blend file, or {OWN_SCENE}: fullfield's own scene")
    parser.add_argument("-o", "--output", metavar="SHOT", required=True, help="folder of the shot")
    parser.add_argument(
        "--frames",
        type=argtypes.parse_integer,
        nargs=2,
        metavar=("FIRST", "LAST"),
        help="first and last frame; the last has no flow [1 4 for the own scene, the shot's for Charge-8K]",
    )
    parser.add_argument(
        "--width", type=argtypes.parse_positive_integer, default=8192, metavar="PX", help="width of the frames"
    )
    parser.add_argument(
        "--height", type=argtypes.parse_positive_integer, metavar="PX", help="height of the frames [the scene's shape]"
    )
    parser.add_argument("--samples", type=argtypes.parse_positive_integer, help="samples for each pixel [1024]")
    own = parser.add_argument_group("own scene")
    own.add_argument("--seed", type=argtypes.parse_integer, help="seed [0]")
    own.add_argument(
        "--thin",
        type=argtypes.parse_positive_integer,
        metavar="N",
        help="add N branches, fans of hairs and grids [none]",
    )
    own.add_argument("--speed", type=argtypes.parse_positive_number, metavar="X", help="factor of all motion [1]")
    own.add_argument("--fast", action="store_true", help="shade by angle, without shadows; four samples for each pixel")
    blender = parser.add_argument_group("Blender (4.2 or newer, in a process of its own)")
    blender.add_argument("--blender", metavar="FILE", help="path or name of Blender [blender]")
    blender.add_argument("--python", metavar="FILE", help="Python of an environment with bpy, instead of --blender")
    blender.add_argument("--gpu", action="store_true", help="render on the GPU of Blender's preferences")
    report.add_report_options(parser, has_quiet_option=True)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, render, compute the flow, report."""
    own = args.scene == OWN_SCENE
    if not own:
        paths.check_input_file(args.scene, "SCENE")
        paths.get_checked_suffix(args.scene, "SCENE", (".blend",))
        values = {"seed": args.seed, "thin": args.thin, "speed": args.speed, "fast": args.fast or None}
        for option in (name for name, value in values.items() if value is not None):
            raise InputError(f"--{option}: only the scene {OWN_SCENE} takes it; leave it out")
    if args.fast and args.samples is not None:
        raise InputError("--samples and --fast: expected one of the two, got both")
    if args.blender is not None and args.python is not None:
        raise InputError("--blender and --python: expected one of the two, got both")
    first, last = _frames(args, own=own)
    if last <= first:
        raise InputError(f"--frames: expected a first before a last, got {first} {last}")
    target = Path(args.output)
    paths.check_folder_creatable_and_remove_temporaries(args.output, "--output")

    from tools.render import Blender, Shot, render_shot
    from tools.render.launch import FAST_SAMPLES

    shot = Shot(
        None if own else args.scene,
        first,
        last,
        args.width,
        args.samples or (FAST_SAMPLES if args.fast else 1024),
        seed=args.seed or 0,
        thin=args.thin or 0,
        speed=args.speed or 1.0,
        fast=args.fast,
        height=args.height,
        gpu=args.gpu,
    )
    watch = report.Stopwatch()
    with ProgressBar("render", quiet=args.quiet) as progress:
        flows = render_shot(shot, target, Blender(args.blender or "blender", args.python), progress=progress)
    watch.add_lap("render")
    seconds = watch.get_stage_seconds()
    files = [str(path) for path in flows]
    facts = {"output": str(target), "frames": [first, last], "flow": files, "seconds": seconds}
    summary = f"frames {first} to {last}, {len(flows)} with true flow, {seconds['render']:.1f} s"
    report.print_report(args, facts, f"{report.escape_control_characters(target)}: {summary}")
    return 0


def _frames(args: argparse.Namespace, *, own: bool) -> tuple[int, int]:
    if args.frames is not None:
        first, last = args.frames
        return first, last
    if own:
        return 1, 4

    from fullfield.datasets.own import CHARGE_SHOTS

    shot = next((name for name in CHARGE_SHOTS if Path(args.scene).stem.startswith(name)), None)
    if shot is None:
        raise InputError(f"--frames: required, since {args.scene} is none of {', '.join(CHARGE_SHOTS)}")
    return CHARGE_SHOTS[shot]
