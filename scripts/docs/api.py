"""Write docs/api: the public names of each module with their signatures and the first line of their docstrings.

python scripts/docs/api.py           write the pages
python scripts/docs/api.py --check   exit with 1 if a page differs from the code

The site shows the whole docstrings in place of these lists (docs/conf.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

from fullfield.datasets import FlowDataset
from fullfield.datasets.scans import ScanDataset

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "api"
PUBLIC_NAMES = ROOT / "tests" / "public_names.txt"
MAX_PARAMETERS = 4
MAX_SHOWN = 2
"""Parameters after which those with a default are left out."""
MIN_WORDS = 4
"""Words before a colon that say enough without what follows it."""
ASIDE = re.compile(
    r", (?:which|in order|in memory|in plain|in linear|recursively|usable|replacing|nearest|the one|the first|where"
    r"|as papers|for `DataLoader|for pairs|without a batch|and where|and pictures|read by|read on)\b"
)
"""A part of a sentence that a list of names can do without."""
TITLES = {
    "flow-of-frames": "Flow of frames",
    "networks": "Networks",
    "operators": "Operators",
    "point-clouds": "Point clouds",
    "data-and-scores": "Data and scores",
}
GROUPS = {
    "fullfield": "flow-of-frames",
    "fullfield.estimators": "flow-of-frames",
    "fullfield.sequences": "flow-of-frames",
    "fullfield.io": "flow-of-frames",
    "fullfield.viz": "flow-of-frames",
    "fullfield.integrations": "networks",
    "fullfield.nn": "networks",
    "fullfield.models": "networks",
    "fullfield.training.flow": "networks",
    "fullfield.registration": "point-clouds",
    "fullfield.models.pointcnnpp": "point-clouds",
    "fullfield.training": "point-clouds",
    "fullfield.datasets": "data-and-scores",
    "fullfield.metrics": "data-and-scores",
    "fullfield.evaluation": "data-and-scores",
    "fullfield.testing": "data-and-scores",
}
"""Page of each module, in the order of the pages; modules that are not listed are operators."""


def list_modules() -> dict[str, list[str]]:
    """Return the public modules of each page."""
    modules = [line for line in PUBLIC_NAMES.read_text("utf-8").splitlines() if line and not line[0].isspace()]
    order = [*GROUPS, *modules]
    pages: dict[str, list[str]] = {page: [] for page in TITLES}
    for module in sorted(modules, key=order.index):
        pages[GROUPS.get(module, "operators")].append(module)
    return pages


def format_parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter without its type; long defaults are shortened."""
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    default = repr(parameter.default)
    is_short = len(default) <= 10 and " " not in default and "<" not in default
    return f"{parameter.name}={default if is_short else '…'}"


def format_signature(value: object) -> str:
    """Return the first parameters with their defaults, ``…`` for others; empty if the object cannot be called."""
    if not callable(value):
        return ""
    if inspect.isclass(value) and (issubclass(value, BaseException) or getattr(value, "_is_protocol", False)):
        return ""
    parameters = list(inspect.signature(value).parameters.values())
    is_record = dataclasses.is_dataclass(value) or hasattr(value, "_fields")
    if is_record and len(parameters) > MAX_PARAMETERS:
        return "(…)"
    positional = [one for one in parameters if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)][:MAX_PARAMETERS]
    empty = inspect.Parameter.empty
    positional = [one for i, one in enumerate(positional) if i < MAX_SHOWN or one.default is empty]
    words = [format_parameter(parameter) for parameter in positional]
    if len(positional) < len(parameters):
        words.append("…")
    return f"({', '.join(words)})"


def summarize(value: object) -> str:
    """Return the first clause of a docstring as Markdown."""
    line = (inspect.getdoc(value) or "").partition("\n")[0]
    line = re.sub(r" \([^()]*(?:19|20)\d\d[^()]*\)", "", line)  # the publication
    first = re.split(r"; (?![^(]*\))|(?<!\bal)\. (?=[A-Z:])", line)[0].rstrip(".")
    head, _, rest = first.partition(": ")
    first = head if rest and len(head.split()) >= MIN_WORDS and "`" not in rest[:1] else first
    if len((head := ASIDE.split(first)[0]).split()) >= MIN_WORDS:
        first = head
    first = re.sub(r":\w+:`~?([^`]+)`", lambda match: f"`{match[1].rpartition('.')[2]}`", first)
    first = re.sub(r"^Return (?:the |an? )?", "", first)
    return first[:1].upper() + first[1:].replace("``", "`") + "."


def format_module(module: str, seen: dict[int, str]) -> str:
    """Return the section of a module; objects that an earlier module has are listed by name."""
    home = import_module(module)
    lines: list[str] = []
    constants: list[str] = []
    data_sets: list[str] = []
    elsewhere: list[str] = []
    for name in sorted(home.__all__, key=str.lower):
        value = getattr(home, name)
        if name == "explain_backends":
            elsewhere.append("`explain_backends(…)`")
        elif not callable(value):
            constants.append(f"`{name}`")
        elif inspect.isclass(value) and value is not FlowDataset and issubclass(value, (FlowDataset, ScanDataset)):
            data_sets.append(f"`{name}`")
        elif id(value) in seen:
            elsewhere.append(f"`{name}`")
        else:
            seen[id(value)] = module
            lines.append(f"- `{name}{format_signature(value)}`: {summarize(value)}")
    lines += [f"- [Data sets](../evaluation.md#data-sets): {', '.join(data_sets)}."] if data_sets else []
    lines += [f"- Constants: {', '.join(constants)}."] if constants else []
    lines += [f"- Also here: {', '.join(elsewhere)}."] if elsewhere else []
    return f"## {module}\n\n{summarize(home)}\n\n" + "\n".join(lines) + "\n"


def build_pages() -> dict[Path, str]:
    """Return the text of every page."""
    pages = list_modules()
    seen: dict[int, str] = {}
    texts: dict[Path, str] = {}
    index = [
        "# Python interface",
        "",
        "These pages list every public name; other names may change without notice. Most keywords are left out (`…`):\n"
        "`help(fullfield.estimate)` prints all parameters, their types and their meaning.\n"
        "`explain_backends` of an operator lists what runs here, and why others do not.",
        "",
    ]
    for page, modules in pages.items():
        sections = [format_module(module, seen) for module in modules]
        texts[PAGES / f"{page}.md"] = f"# {TITLES[page]}\n\n" + "\n".join(sections)
        links = (f"[`{module}`]({page}.md#{module.replace('.', '')})" for module in modules)
        index.append(f"- [{TITLES[page]}]({page}.md): {', '.join(links)}")
    texts[PAGES / "index.md"] = "\n".join(index) + "\n"
    return texts


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit code."""
    texts = build_pages()
    outdated = [page for page, text in texts.items() if not page.is_file() or page.read_text("utf-8") != text]
    if arguments == ["--check"]:
        names = ", ".join(page.name for page in outdated)
        print(f"{names}: run scripts/docs/api.py" if outdated else "every page is current")
        return int(bool(outdated))
    for page in outdated:
        page.write_text(texts[page], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
