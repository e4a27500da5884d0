"""Write the options in docs/commands from the parsers of the command line.

python scripts/docs/commands.py           write them; a verb without a page gets one
python scripts/docs/commands.py --check   exit with 1 when a page says something else
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from fullfield.cli.main import build_parser

PAGES = Path(__file__).resolve().parents[2] / "docs" / "commands"
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"
FULL = "flow"  # the page with the options that several verbs share
SHARED = ("Reading frames",)


def verbs(
    parser: argparse.ArgumentParser | None = None, path: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every verb that runs and its parser, also nested ones such as ``train flow``."""
    parser = parser or build_parser()
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield path, parser
    for name, sub in below[0].choices.items() if below else ():
        yield from verbs(sub, f"{path} {name}".strip())


def page_of(verb: str) -> Path:
    """Return the page of a verb."""
    return PAGES / f"{verb.replace(' ', '-')}.md"


def shown(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    """Return the options of a group that its help shows."""
    actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
    return [action for action in actions if "--help" not in action.option_strings]


def row(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the row of a table: names, value, meaning."""
    formatter = parser._get_formatter()
    value = (
        "" if action.nargs == 0 else formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    )
    names = [f"`{name}`" for name in action.option_strings] or [f"`{action.metavar or action.dest}`"]
    if not action.option_strings or isinstance(action, argparse.BooleanOptionalAction):
        value = ""
    cells = (", ".join(names), f"`{value}`" if value else "", formatter._expand_help(action))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def groups(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the rows of each group of options, by title."""
    found = {}
    for group in parser._action_groups:
        rows = [row(action, parser) for action in shown(group)]
        if rows:
            title = "Arguments" if group.title == "positional arguments" else str(group.title)
            found[title[0].upper() + title[1:]] = rows
    return found


def options(verb: str, parser: argparse.ArgumentParser, shared: dict[str, list[str]]) -> str:
    """Return the options of a verb as tables; groups shared with ``flow`` become a link."""
    lines: list[str] = []
    elsewhere: list[str] = []
    for title, rows in groups(parser).items():
        if verb != FULL and title.startswith("Parameters of"):
            elsewhere = [*dict.fromkeys([*elsewhere, "the parameters of the methods"])]
        elif verb != FULL and title in SHARED and rows == shared[title]:
            elsewhere.append(title[0].lower() + title[1:])
        else:
            lines += [f"**{title}**", "", "| name | value | meaning |", "| --- | --- | --- |", *rows, ""]
    if elsewhere:
        lines += [f"As for [`flow`]({FULL}.md#options): {', '.join(elsewhere)}.", ""]
    return "\n".join(lines)


def filled(text: str, tables: str) -> str:
    """Return the page with the tables of its options replaced."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + tables + END + rest.partition(END)[2]


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit code."""
    parsers = dict(verbs())
    shared = groups(parsers[FULL])
    different = []
    for verb, parser in parsers.items():
        page = page_of(verb)
        text = (
            page.read_text("utf-8")
            if page.is_file()
            else f"# fullfield {verb}\n\n{parser.description}\n\n## Options\n\n"
        )
        wanted = filled(text, options(verb, parser, shared))
        if not page.is_file() or text != wanted:
            different.append(page.name)
            if arguments != ["--check"]:
                page.write_text(wanted, "utf-8")
    if arguments == ["--check"]:
        pages = ", ".join(different)
        print(f"{pages}: run scripts/docs/commands.py" if different else "every page agrees with the parsers")
        return int(bool(different))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
