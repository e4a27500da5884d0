"""Write the options in docs/commands from the parsers of the command line.

Options that several verbs share are described once, in docs/commands/options.md.

python scripts/docs/commands.py           write them; a verb without a page gets one
python scripts/docs/commands.py --check   exit with 1 if a page differs from the parsers
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fullfield.cli.main import build_parser
from fullfield.estimators import METHODS
from fullfield.io.names import TRANSFERS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "commands"
SHARED_PAGE = PAGES / "options.md"
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"
PARAMETERS = "Parameters of "
TRANSFER_NAMES = "../formats.md#transfer-the-encoding-of-the-stored-values"
NEARLY_ALL = ("--json", "--quiet")
"""Options that a sentence in the page of shared options names, so that the other pages need not."""
VECTORS = "Reading the vectors of "
COMMON = "Common"
MIN_VERBS = 3
"""Verbs that share a meaning of an option that has others too; an option with one meaning is shared by two."""

Sections = dict[str, dict[str, str]]
"""Entries of options by the title of their group and their names."""


def list_verbs(
    parser: argparse.ArgumentParser | None = None, path: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every verb that runs and its parser, also nested ones such as ``train flow``."""
    parser = parser or build_parser()
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield path, parser
    for name, verb_parser in nested[0].choices.items() if nested else ():
        yield from list_verbs(verb_parser, f"{path} {name}".strip())


def page_of(verb: str) -> Path:
    """Return the page of a verb."""
    return PAGES / f"{verb.replace(' ', '-')}.md"


def format_names(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the names of an option with the placeholder of its value."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    formatter = parser._get_formatter()
    names = list(action.option_strings)
    if action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction):
        names[-1] += " " + formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    return ", ".join(f"`{name}`" for name in names)


def format_help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the help of an option, in which long lists of methods are shorter."""
    text = parser._get_formatter()._expand_help(action)
    networks = [name for name in METHODS if name not in ("tvl1", "ptlflow:NAME")]
    without_raft = [name for name in networks if not name.startswith("raft")]
    text = text.replace(", ".join(METHODS), "a [method](../start.md#which-method)")
    text = text.replace(", ".join(TRANSFERS), f"[its name]({TRANSFER_NAMES})")
    for names, short in ((networks, "networks"), (without_raft, "networks but RAFT")):
        text = text.replace(f"{', '.join(names)}:", f"{short}:")
    return text


def read_sections(parser: argparse.ArgumentParser) -> Sections:
    """Return an entry for each option that the help shows, by group."""
    sections: Sections = {}
    for group in parser._action_groups:
        title = "Arguments" if group.title == "positional arguments" else str(group.title)
        if "(--method " in title:
            title = PARAMETERS + title.partition("(--method ")[2].rstrip(")")
        for action in group._group_actions:
            if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
                entry = f"{format_names(action, parser)}: {format_help(action, parser)}"
                sections.setdefault(title[0].upper() + title[1:], {})[action.dest] = entry
    return sections


def find_shared(verbs: dict[str, Sections]) -> Sections:
    """Return the most frequent meaning of each shared option, by the group in which most verbs have it."""
    titles: dict[tuple[str, str], Counter[str]] = {}
    for sections in verbs.values():
        for title, entries in sections.items():
            for name, entry in entries.items() if title != "Arguments" else ():
                titles.setdefault((name, entry), Counter())[title] += 1
    meaning_counts = Counter(name for name, _ in titles)
    meanings: dict[str, tuple[str, Counter[str]]] = {}
    for (name, entry), counts in titles.items():
        is_shared = counts.total() >= (2 if meaning_counts[name] == 1 else MIN_VERBS)
        if is_shared and (name not in meanings or counts.total() > meanings[name][1].total()):
            meanings[name] = entry, counts
    groups: Sections = {}
    for name, (entry, counts) in meanings.items():
        named = [title for title, count in counts.most_common() if title != "Options" and count > 1]
        groups.setdefault(named[0] if named else COMMON, {})[name] = entry
    shared: Sections = {COMMON: {}}
    for title, entries in groups.items():
        is_group = len(entries) > 1 or title.startswith(PARAMETERS)
        shared.setdefault(title if is_group else COMMON, {}).update(entries)
    return shared


def format_sections(sections: Sections) -> str:
    """Return lists of options with their titles."""
    lines: list[str] = []
    for title, entries in sections.items():
        lines += [] if title in ("Arguments", "Options") else [f"**{title}**", ""]
        lines += [*(f"- {entry}" for entry in entries.values()), ""]
    return "\n".join(lines)


def format_shared(shared: Sections) -> str:
    """Return the shared options as sections of a page, which other pages link to."""
    networks = [name for name in METHODS if name not in ("tvl1", "ptlflow:NAME")]
    short = {", ".join(networks): "networks", ", ".join(n for n in METHODS if n != "tvl1"): "networks and ptlflow:NAME"}
    short[", ".join(n for n in METHODS if n != "ptlflow:NAME")] = "tvl1 and networks"
    lines: list[str] = []
    for title, entries in sorted(shared.items(), key=lambda item: item[0].startswith(PARAMETERS)):
        owners = title.removeprefix(PARAMETERS)
        heading = f"{PARAMETERS}{short.get(owners, owners)}" if owners != title else title
        lines += [f"## {heading}", "", *(f"- {entry}" for entry in entries.values()), ""]
    return "\n".join(lines)


def format_options(sections: Sections, shared: Sections) -> str:
    """Return the options of a verb: its own with their meaning, the shared ones by name."""
    shared_entries = {entry for entries in shared.values() for entry in entries.values()}
    own: Sections = {}
    used: set[str] = set()
    for title, entries in sections.items():
        for name, entry in entries.items():
            if entry in shared_entries:
                used.add(entry)
            else:
                own.setdefault(title, {})[name] = entry
    for title in [title for title in own if title.startswith(VECTORS)]:
        names = ", ".join(entry.partition(" ")[0].rstrip("`") + "`" for entry in own.pop(title).values())
        own.setdefault("Options", {})[title] = (
            f"{names}: as [without the prefix](options.md#reading-the-vectors-of-flow)"
        )
    text = format_sections(own)
    used_names: list[str] = []
    for title, entries in shared.items():
        if title.startswith(PARAMETERS):
            continue
        if used >= set(entries.values()):
            used_names.append(title[0].lower() + title[1:])
        else:
            options = [entry.partition("`: ")[0].rpartition("`")[2] for entry in entries.values() if entry in used]
            firsts = [option.partition(" ")[0] for option in options]
            used_names += [f"`{option}`" for option in firsts if option not in NEARLY_ALL]
    if any(title.startswith(PARAMETERS) for title in sections):
        used_names.append("parameters of the method")
    text += "\n" if text and used_names else ""
    return text + (f"[Shared](options.md): {', '.join(used_names)}.\n" if used_names else "")


def replace_options(text: str, options: str) -> str:
    """Return the page with its options replaced."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + options + END + rest.partition(END)[2]


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit code."""
    parsers = dict(list_verbs())
    verbs = {verb: read_sections(parser) for verb, parser in parsers.items()}
    shared = find_shared(verbs)
    options = {SHARED_PAGE: format_shared(shared)}
    options |= {page_of(verb): format_options(sections, shared) for verb, sections in verbs.items()}
    introductions = {
        page_of(verb): f"# fullfield {verb}\n\n{parser.description}\n\n" for verb, parser in parsers.items()
    }
    outdated = []
    for page, lists in options.items():
        text = page.read_text("utf-8") if page.is_file() else introductions.get(page, "# Shared options\n\n")
        expected = replace_options(text, lists)
        if not page.is_file() or text != expected:
            outdated.append(page.name)
            if arguments != ["--check"]:
                page.write_text(expected, "utf-8")
    if arguments == ["--check"]:
        print(f"{', '.join(outdated)}: run scripts/docs/commands.py" if outdated else "every page is current")
        return int(bool(outdated))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
