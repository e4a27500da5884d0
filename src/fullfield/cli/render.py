"""``fullfield render SCENE -o SHOT``: frames with the true motion of every pixel, by Blender."""

from __future__ import annotations

import argparse
from pathlib import Path

from fullfield._check import InputError
from fullfield.cli import argtypes, paths, report
from fullfield.cli.progress import Progress

OWN_SCENE = "own"

HELP = "render frames with true flow, by Blender"
DESCRIPTION = (
    "Render a shot with Blender: frames, and flow with four true values for each pixel, with masks of "
    "what is unknown and what is occluded. Motion blur, volumes, lens flares and compositing are switched off."
)
EPILOG = """\
examples:
  fullfield render own -o scene/demo --frames 1 4 --width 960 --samples 64
  fullfield render 010_0050.blend -o charge/010_0050 --blender /opt/blender/blender
  fullfield render shot.blend -o set/shot --frames 101 196 --python ~/bpy/bin/python

A render that was stopped goes on where it was. The folder that holds the shots is a data set:
  fullfield evaluate tvl1 rendered:scene
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``fullfield render``."""
    parser.add_argument("scene", metavar="SCENE", help=f"a .blend file, or {OWN_SCENE}: fullfield's own scene")
    parser.add_argument("-o", "--output", metavar="SHOT", required=True, help="folder of the shot")
    parser.add_argument(
        "--frames",
        type=argtypes.integer,
        nargs=2,
        metavar=("FIRST", "LAST"),
        help="both rendered, the last without truth [1 4 of the own scene; those of Charge-8K for its three shots]",
    )
    parser.add_argument("--width", type=argtypes.count, default=8192, metavar="PX", help="of the frames")
    parser.add_argument("--samples", type=argtypes.count, default=1024, help="rays for each pixel")
    parser.add_argument("--seed", type=argtypes.integer, help="of the own scene [0]")
    blender = parser.add_argument_group("Blender (4.2 or newer; it runs in a process of its own)")
    blender.add_argument("--blender", metavar="FILE", help="Blender itself [blender]")
    blender.add_argument("--python", metavar="FILE", help="instead: the Python of an environment with bpy")
    blender.add_argument("--gpu", action="store_true", help="let Cycles use the GPU of Blender's preferences")
    report.add_report_options(parser, progress=True)


def run(args: argparse.Namespace) -> int:
    """Check, render, work out the truth, report."""
    own = args.scene == OWN_SCENE
    if not own:
        paths.check_input(args.scene, "SCENE")
        paths.check_suffix(args.scene, "SCENE", (".blend",))
    if args.seed is not None and not own:
        raise InputError(f"--seed: belongs to the scene {OWN_SCENE}; leave it out")
    if args.blender is not None and args.python is not None:
        raise InputError("--blender and --python: name one of the two")
    first, last = _frames(args, own=own)
    if last <= first:
        raise InputError(f"--frames: expected a first before a last, got {first} {last}")
    target = Path(args.output)
    paths.check_new_folder(args.output, "--output")

    from fullfield.rendering import Blender, Shot, render_shot

    shot = Shot(None if own else args.scene, first, last, args.width, args.samples, seed=args.seed or 0, gpu=args.gpu)
    watch = report.Stopwatch()
    with Progress("render", quiet=args.quiet) as progress:
        flows = render_shot(shot, target, Blender(args.blender or "blender", args.python), progress=progress)
    watch.lap("render")
    seconds = watch.seconds()
    files = [str(path) for path in flows]
    facts = {"output": str(target), "frames": [first, last], "flow": files, "seconds": seconds}
    told = f"frames {first} to {last}, {len(flows)} with true flow, {seconds['render']:.1f} s"
    report.tell(args, facts, f"{report.printable(target)}: {told}")
    return 0


def _frames(args: argparse.Namespace, *, own: bool) -> tuple[int, int]:
    if args.frames is not None:
        first, last = args.frames
        return first, last
    if own:
        return 1, 4

    from fullfield.datasets import CHARGE_SHOTS

    shot = next((name for name in CHARGE_SHOTS if Path(args.scene).stem.startswith(name)), None)
    if shot is None:
        raise InputError(f"--frames: say which; {args.scene} is none of {', '.join(CHARGE_SHOTS)}")
    return CHARGE_SHOTS[shot]
