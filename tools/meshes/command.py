"""Add meshes to a picture pack.

Add the models of a folder (.glb, .gltf) to a pack of pictures: their triangles, at most some hundred to a few thousand
each, and key poses of their clips. Only models under CC0, public domain, CC-BY or MIT are taken, each is listed in the
pack with author and licence. A file that cannot be read or has no triangles is named in one line and left out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fullfield._check import InputError
from fullfield.cli import argtypes, paths, report
from fullfield.cli.progress import ProgressBar

EPILOG = """\
examples:
  python -m tools meshes -o pack.zip --pack pictures.zip --folder glb --package quaternius-showcase \\
      --author Quaternius --licence CC0-1.0 --statement License.txt --version eab2e43
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("-o", "--output", metavar="PACK", required=True, help="zip file to write")
    parser.add_argument("--pack", metavar="PACK", required=True, help="pack to add the meshes to")
    source = parser.add_argument_group("models")
    source.add_argument("--folder", metavar="FOLDER", required=True, help="folder of the models")
    source.add_argument("--package", metavar="NAME", required=True, help="name of their package, for the list")
    source.add_argument("--version", metavar="TEXT", default="", help="version of the package")
    source.add_argument("--author", metavar="TEXT", required=True, help="their author")
    source.add_argument("--licence", metavar="NAME", required=True, help="CC0-1.0, public-domain, CC-BY or MIT")
    source.add_argument("--statement", metavar="FILE", required=True, help="file of the package with the licence")
    source.add_argument("--skip", metavar="PATTERN", default=r"(?!)", help="leave out the paths that match")
    parser.add_argument(
        "--max-triangles", type=argtypes.parse_positive_integer, default=1500, help="largest number of a mesh"
    )
    parser.add_argument(
        "--max-meshes",
        type=argtypes.parse_positive_integer,
        default=1 << 20,
        help="number from which only animated meshes are added",
    )
    report.add_report_options(parser, has_quiet_option=True)


def run_command(args: argparse.Namespace) -> int:
    """Check the arguments, add the meshes and report."""
    paths.check_output_file_and_remove_temporaries(args.output, "--output")
    paths.get_checked_suffix(args.output, "--output", (".zip",))
    paths.check_input_file(args.pack, "--pack")
    paths.check_input_file(args.statement, "--statement")
    folder = Path(args.folder)
    if not folder.is_dir():
        raise InputError(f"--folder {args.folder}: expected a folder, got {'a file' if folder.exists() else 'nothing'}")

    from tools.meshes.pack import Origin, add_meshes

    origin = Origin(folder, args.package, args.version, args.author, args.licence, Path(args.statement))
    with ProgressBar("meshes", quiet=args.quiet) as progress:
        pack = add_meshes(
            Path(args.output),
            Path(args.pack),
            origin,
            max_triangles=args.max_triangles,
            max_files=args.max_meshes,
            skip=args.skip,
            progress=progress,
        )
    for line in pack.left_out:
        print(line, file=sys.stderr)
    facts = {"output": args.output, "meshes": pack.meshes, "animated": pack.animated, "triangles": pack.triangles}
    facts |= {"bytes": pack.size, "left_out": len(pack.left_out)}
    text = f"{pack.meshes} meshes added, {pack.animated} with clips, {pack.triangles} triangles"
    text += f"; {len(pack.left_out)} left out; {pack.size / 1e6:.1f} MB"
    report.print_report(args, facts, f"{report.escape_control_characters(args.output)}: {text}")
    return 0
