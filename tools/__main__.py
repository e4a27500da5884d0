"""``python -m tools VERB``, from the root of a checkout."""

import sys
from importlib import import_module

from fullfield.cli.main import Parser
from fullfield.cli.main import main as run
from fullfield.cli.options import add_command

VERBS = ("render", "textures", "meshes", "training")
"""Names of the verbs, each a folder of this package with a module ``command``."""


def build_parser() -> Parser:
    """Build the parser of all verbs."""
    parser = Parser(
        prog="python -m tools",
        description="Render test sets with Blender, build the pack of pictures and meshes, pack training runs.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name in VERBS:
        add_command(verbs, name, import_module(f"tools.{name}.command"))
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command line (default: ``sys.argv[1:]``) and return its exit code, as ``fullfield`` does."""
    return run(argv, build_parser)


if __name__ == "__main__":
    sys.exit(main())
