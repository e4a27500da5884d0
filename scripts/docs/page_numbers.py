"""Check that the measured numbers in the sentences of the pages equal what is stored.

python scripts/docs/page_numbers.py [--check] [PAGE ...]   print numbers without a source; exit with 1 if there are any

A number counts as measured when a unit of time, memory, length, error, ratio, rate or energy follows it, or when it
follows the name of a score; "twice the time" and "half the memory" count as well. Sizes in pixels, counts of options,
versions and dates have no such unit. A paragraph, list item or table row that holds such numbers ends with a comment,
which the reader of the page does not see:

    <!-- = refine_h200["cases"][0]["rows"][0]["median_ms"]; 4 * 436 * 1024 / 1e6 -->
    <!-- in src/fullfield/registration/limits.py -->

``=`` has Python expressions, one for each number, of stored results (the name of a file in benchmarks/results without
its suffix) and of whole numbers. ``pick(rows, name="cuda")`` returns the one object with this value,
``row(results, label, name)`` the row of a case. ``in`` names files of code that hold the numbers, such as limits and
defaults. A number has to equal one of them in the digits that the page shows. Not read are code, the targets of links,
and what a script writes.

Where benchmarks/owed.json calls a result older than the code, the paragraph that shows its numbers has to say so in
these words. For a table the paragraph before or after it may, for one that ends with a colon the next two; in the
notebooks a commit or a date will do. Notebooks may have numbers without a source, but the value of each of their
expressions stands in its paragraph or in the two after it.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.stored import OLDER, OWED, RESULTS, stored_result  # noqa: E402  the benchmarks read their results

DEFINITIONS = ("conventions.md", "formats.md")  # of metrics and files; nothing on them was measured
PAGES = (
    "README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name not in DEFINITIONS),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("README.md")),
)
UNITS = (
    r"(?: ?(?:ms|µs|s|seconds?|minutes?|hours?|[kMGT]i?B|[TG]B/s|px|%|m|cm|mm|nJ|J|[MGT]?FLOP/s|GFLOP)(?![\w/])"
    r"| ?°| ?×(?! ?\d)| times | million| billion)"
)
NUMBER = r"(?<![\w.,²³⁄/^×:-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
MEASURED = re.compile(rf"({NUMBER}(?:(?: to | and | or | / |, | ± | against |–){NUMBER})*){UNITS}")
SCORE = re.compile(rf"(?:error|recall|precision)(?: is| of| was)? ({NUMBER})")
MULTIPLE = re.compile(r"\b(half|twice) (?:the (?:time|memory)|as (?:long|much))\b")
MULTIPLES = {"half": "0.5", "twice": "2"}
NOTES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks" / "notes").glob("*.md")))
STATE = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,12}\b|\b20\d\d-\d\d-\d\d\b|\b\d+ November\b|\bNovember 20\d\d\b")
"""Commit or date of a run, as notebooks name it."""
MARKER = re.compile(r"<!-- (=|in) (.*?) -->", re.DOTALL)
CODE_SUFFIXES = {".py", ".cu", ".cuh", ".json"}


def pick(rows: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """Return the only object of a list with these values."""
    (row,) = (row for row in rows if all(row.get(key) == value for key, value in facts.items()))
    return row


class Results(dict[str, Any]):
    """Stored results by the name of their file without its suffix, and the functions of the expressions."""

    def __missing__(self, name: str) -> Any:
        if not (RESULTS / f"{name}.json").is_file():
            raise KeyError(name)
        return self.setdefault(name, stored_result(f"{name}.json"))


def row(stored: dict[str, Any], label: str, name: str) -> dict[str, Any]:
    """Return the row called ``name`` of the case ``label``."""
    return pick(pick(stored["cases"], label=label)["rows"], name=name)


def file_bytes(name: str) -> int:
    """Return the size of a file of the repository."""
    return (ROOT / name).stat().st_size


FUNCTIONS = {
    "pick": pick,
    "row": row,
    "file_bytes": file_bytes,
    "min": min,
    "max": max,
    "sum": sum,
    "len": len,
    "mean": statistics.mean,
}


def written_blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items and table rows that a person wrote."""
    text = re.sub(r"<!-- [^>]*: begin -->.*?<!-- .*? -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.split(r"\n\s*\n|\n(?= *(?:[-*#]|\d+\.) |\|)", text)


def measured_numbers(block: str) -> list[str]:
    """Return the measured numbers of a block, as it shows them."""
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", re.sub(r"<!--.*?-->", "", block, flags=re.DOTALL)))
    text = re.sub(r"\s+", " ", text)
    matches = (match for pattern in (MEASURED, SCORE) for match in pattern.finditer(text))
    numbers = [number for match in matches for number in re.findall(NUMBER, match[1])]
    return list(dict.fromkeys([*numbers, *(MULTIPLES[word] for word in MULTIPLE.findall(text))]))


def allowed_values(block: str) -> tuple[list[float], str]:
    """Return the values and the code that a block's comments name; ValueError for one that names nothing stored."""
    values, code = [], ""
    for kind, content in MARKER.findall(block):
        if kind == "in":
            paths = [ROOT / name for name in content.split()]
            if any(path.suffix not in CODE_SUFFIXES or RESULTS in path.parents for path in paths):
                raise ValueError(f"{content}: expected files of code")
            code += "\n".join(path.read_text("utf-8") for path in paths)
            continue
        for expression in filter(None, map(str.strip, content.split(";"))):
            if not re.search(r"[a-z]\w*[\[(,]", expression) and (
                re.search(r"\d\.\d", expression) or not re.search(r"\d\D+\d", expression)
            ):
                raise ValueError(f"{expression}: expected a stored result, or a product of whole numbers")
            values.append(float(eval(expression, {"__builtins__": {}, **FUNCTIONS}, Results())))
    return values, code


def equals_as_printed(number: str, value: float) -> bool:
    """Return whether a number equals a value in the digits that the page shows."""
    digits = len(number.partition(".")[2])
    return abs(float(number) - value) <= 0.501 * 10.0**-digits


def unsupported(block: str) -> list[str]:
    """Return the measured numbers of a block that none of its sources holds."""
    numbers = measured_numbers(block)
    values, code = allowed_values(block) if numbers or MARKER.search(block) else ([], "")
    result = []
    for number in numbers:
        plain = number.replace(",", "")
        is_stored = any(equals_as_printed(plain, value) for value in values)
        in_code = "|".join(map(re.escape, (plain, f"{float(plain) / 100:g}")))  # a share may be printed in per cent
        if not is_stored and not re.search(rf"(?<![\w.])(?:{in_code})(?:\.0)?(?!\.?\d)", code):
            result.append(number)
    return result


def older_results() -> list[str]:
    """Return the names of the stored results that are older than their code."""
    owed = json.loads(OWED.read_text("utf-8"))
    return [name.removesuffix(".json") for name, entry in owed.items() if OLDER in entry["why"]]


def unmarked_results(text: str, older: Iterable[str], is_notebook: bool = False) -> list[str]:
    """Return those of the ``older`` results whose numbers a text shows without saying that they are older."""
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))
    found = []
    for index, paragraph in enumerate(paragraphs):
        shown = re.sub(r"<!--.*?-->", "", paragraph, flags=re.DOTALL).strip()
        near = [paragraph]
        if shown.startswith("|"):
            near = paragraphs[max(index - 1, 0) : index + 2]
        elif shown.endswith(":"):
            near = paragraphs[index : index + 3]
        if any(OLDER in each.lower() for each in near) or (is_notebook and STATE.search(paragraph)):
            continue
        expressions = " ".join(content for _, content in MARKER.findall(paragraph))
        where = paragraph if measured_numbers(paragraph) or shown.endswith(":") else expressions
        found += [name for name in older if re.search(rf"\b{name}\b", where)]
    return found


def values_not_shown(text: str) -> list[str]:
    """Return one line for each value of a marker that stands neither in its paragraph nor in the two after it."""
    paragraphs = re.split(r"\n\s*\n", text)
    found = []
    for index, paragraph in enumerate(paragraphs):
        shown = re.sub(r"<!--.*?-->", "", "\n".join(paragraphs[index : index + 3]), flags=re.DOTALL)
        numbers = [number.rstrip(",").replace(",", "") for number in re.findall(NUMBER, shown)]
        for value in allowed_values(paragraph)[0]:
            if not any(equals_as_printed(number, value) for number in numbers):
                found.append(f"{value:.4g} is stored, but not in: {' '.join(paragraph.split())[:160]}")
    return found


def problems(page: str) -> list[str]:
    """Return one line for each block of a page with numbers that are not stored, and for each unmarked result."""
    text = (ROOT / page).read_text("utf-8")
    unmarked = unmarked_results(text, older_results(), is_notebook=page in NOTES)
    lines = [f"{page}: {name} is {OLDER}, and its paragraph does not say so" for name in unmarked]
    if page in NOTES:  # notebooks keep numbers that no result holds
        return [*lines, *(f"{page}: {line}" for line in values_not_shown(text))]
    for block in written_blocks(text):
        try:
            numbers = unsupported(block)
        except (ValueError, LookupError, TypeError, NameError, SyntaxError, OSError, ArithmeticError) as error:
            numbers = [f"{type(error).__name__}: {error}"]
        if numbers:
            lines.append(f"{page}: {', '.join(numbers)} in: {' '.join(block.split())[:160]}")
    return lines


def main(arguments: list[str]) -> int:
    """Print the numbers without a source; return the exit code. ``--check`` changes nothing: no page is written."""
    pages = [page for page in arguments if page != "--check"]
    missing = [f"{page}: no such page" for page in pages if not (ROOT / page).is_file()]
    existing = [page for page in pages or (*PAGES, *NOTES) if (ROOT / page).is_file()]
    lines = [*missing, *(line for page in existing for line in problems(page))]
    print("\n".join(lines) or "every number of the pages is stored")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
