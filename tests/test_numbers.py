"""No page states a measured number that is not made from a stored result.

What looks like a measurement (a number with a unit, or a ratio) may stand in a block that ``scripts/tables.py`` writes,
in code, or in ALLOWED below with the reason why it is none.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "recipe").glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "src").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
    *(ROOT / "tools").rglob("*.md"),
]
FREE = {
    "CHANGELOG.md": "tells what was",
    "docs/fullfield-s-pictures.md": "a list of files",
    "benchmarks/notes": "the notebook: dated records of trials, which the site leaves out",
}
ALLOWED: dict[str, tuple[str, tuple[str, ...]]] = {
    "README.md": ("how its script draws the frames", ("motion up to 12 px",)),
    "benchmarks/README.md": (
        "what the options say, and the limits of checks",
        (
            "5, 10, 20 and 40 ms",
            "less than 1 % of the time",
            "twice the error of plain PyTorch",
            "more than 20 s in all",
            "up to 2 % behind counts as level",
            "until 5 % are left",
            "[0.007 m]",
            "[0.02 m]",
            "by 2 % of its length",
            "in place of 1e-6",
        ),
    ),
    "docs/commands/flow.md": ("limits of formats; a setting", ("512 px", "65504 px", "up to 40 % of the GPU")),
    "docs/commands/live.md": ("how often a line is written", ("Every half second", "every ten seconds")),
    "docs/commands/pairs.md": ("limit of a format", ("beyond 511 px",)),
    "tools/README.md": ("sizes of files", ("20 MB", "2.1 GB", "4 GB")),
    "docs/commands/train-descriptor.md": ("size of a file", ("10 MB",)),
    "docs/compositors.md": ("the angle of a shutter", ("180°",)),
    "docs/conventions.md": (
        "definitions",
        (
            "1, 3, 5 px",
            "above 3 px **and** above 5 %",
            "128 px (`lm_threshold`)",
            "from 40 px",
            "below 140 px",
            "5 % of `fl_all`",
            "75 % of the brightness",
            "to 16 px (and more)",
        ),
    ),
    "docs/evaluation.md": (
        "bytes of a pixel times pixels; limits of formats, data sets and the renderer",
        (
            "8 bytes a pixel: 3.6 MB at Sintel's size, 225 MB at 8192×3432, 75 GB",
            "32 bytes a pixel",
            "0.9 GB at 8192×3432",
            "±512 px",
            "below 5° and",
            "5° or 2 m",
            "below 1° and",
            "below 1° with",
            "threshold 0.01",
        ),
    ),
    "docs/formats.md": (
        "limits of formats",
        ("511.98 px", "65504 px", "64 px on", "512 px on", "ten minutes", "two seconds for"),
    ),
    "docs/fullfield-s.md": (
        "the recipe of the training; the size of the file; definitions",
        (
            "4.6 MB as float16",
            "8e-4, then 5e-4, in runs 10 and 11 4e-4; warm-up of 3 %, then 4 %, then 2 %",
            "last 40 %, then 50 %, then 70 %; weight decay 1e-5",
            "γ 0.85",
            "after 30 % of",
            "weights 0.999",
            "under 1 px",
            "over 0.01 (|forward|²",
            "more than 2 % of the cells",
            "1.5 times the averaged",
            "30 to 35 % of the objects",
            "(run 10: 0.998)",
            "0.5, 0.3, 0.2 and 0 in run 8, 0.6, 0.25, 0.15 and 0 in run 9, 0.45, 0.2, 0.2 and 0.15 in",
        ),
    ),
    "docs/integrations.md": (
        "a setting; products counted from the sizes of the maps",
        ("64 MiB and more", "N² = 1.93 · 10¹¹", "2.6 GB: nothing to save of the N² (772 GB)", "772 GB as a whole"),
    ),
    "docs/migrating.md": (
        "defaults, which tests/test_guides.py reads from both libraries",
        (
            "`lambda` 0.15 | `lambda_` 0.35",
            "`tau` 0.25 | `theta` 0.15, `tau` 0.25",
            "10 × `innerIterations`",
            "`epsilon` 0.01",
        ),
    ),
    "docs/models.md": (
        "definitions of a table; the size of a file",
        ("over 128 px", "within 0.5 px", "zip file of some 80 MB"),
    ),
    "docs/registration.md": (
        "constants of the method, of the training and of the trials; the size of a file",
        (
            "1.5 times as wide",
            "within 26°",
            "overlap is at least 8 %",
            "at least 2 % of the matches",
            "at least 15 % of the matches",
            "1.5 times as many",
            "the share 25 %",
            "35 to 95 %",
            "short ones up to 0.25",
            "times 0.75 to 1.25",
            "At least 10 %",
            "up to 60 % of them",
            "temperature 0.03",
            "2,228,408 bytes",
            "below 0.2 m",
            "1.2 m",
            "thinned to 10 %",
            "cropped to 60 %, and cropped to 40 %",
            "one above 5 %",
        ),
    ),
    "src/fullfield/ops/correlation/README.md": (
        "sizes that the code sets",
        ("32 MB of gathered", "elsewhere 1 GiB", "e = 2 bytes", "(× 1.33 for four"),
    ),
    "src/fullfield/ops/matching/README.md": (
        "a matrix of all pairs, counted; sizes that the code sets",
        ("it would take 48 GB", "multiples of 16 bytes", "64 MiB of float32", "32 MiB more"),
    ),
    "src/fullfield/ops/neighbors/README.md": (
        "bytes that the code sets",
        ("4 bytes each", "28 to 36 bytes", "radius 1.86 cells"),
    ),
    "src/fullfield/ops/point_conv/README.md": (
        "sizes that the code sets; a formula's values",
        ("chunk (16 MB", "up to 64 MB", "1.86, 3.10, 4.34 grid", "radius 1.86 grid"),
    ),
    "src/fullfield/ops/point_conv/cuda/README.md": (
        "sizes that the code sets",
        ("216 KiB", "4 bytes with padded", "most 64 MiB", "8 MiB or one", "off 16 bytes"),
    ),
    "src/fullfield/ops/spatial_correlation/README.md": (
        "operations and bytes counted from the sizes",
        ("38 % of it (53 %)", "0.15 GFLOP and 17 MB", "1.6 GFLOP and 27 MB"),
    ),
    "src/fullfield/ops/tvl1/README.md": (
        "constants of the method; IPOL's parameters",
        ("by more than 0.2 %", "at least 0.05", "and 0.01 for everybody", "IPOL's 0.15, 0.3 and 0.25"),
    ),
    "src/fullfield/ops/tvl1/cuda/README.md": (
        "bytes counted; limits of half precision",
        ("34 bytes a pixel", "moves 60 bytes", "more than 256 px", "two pixels a word"),
    ),
}
UNITS = (
    r"ms|µs|us|ns|s|seconds?|minutes?|hours?|days?|px|[KMGT]iB|[kKMGT]B|bytes|"
    r"%|per ?cent|[GT]FLOP\S*|fps|G?Hz|nJ|W|°|degrees"
)
COUNTS = (
    "half|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|forty|fifty|hundred|several|twice"
)
NUMBER = r"(?<![\w.,/×^·-])\d(?:[\d,.]*\d)?"
MEASURED = re.compile(
    rf"{NUMBER}\s?(?:{UNITS})(?![\w/²³])"  # 3.5 ms
    rf"|{NUMBER}(?:\s?×(?!\s?[\d(]|\s?\w\b)|\stimes\b(?! \d))"  # 3.5×, 3.5 times
    rf"|\b(?:{COUNTS}) times (?:as|faster|slower|longer|less|more|the)"
    rf"|\b(?:{COUNTS}) (?:as (?:fast|long|much)|the (?:time|memory|error))"
    rf"|\b(?:{COUNTS}|half an?) (?:milliseconds?|seconds?|minutes?|hours?|per ?cent|pixels)\b"
    r"|(?<![\w.])\d+(?:\.\d+)?e-\d+"  # 3e-6
    r"|\d\s?·\s?10⁻"  # 3·10⁻⁶
    r"|(?<![\w.])\d+\.\d\d+(?![\w.])"  # 0.31
)
FENCE = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2", re.DOTALL | re.MULTILINE)
NAMES = "Python|Python before|PyTorch|NumPy|numba|pyoutline|onnxruntime|torchvision|build|arXiv|ptlflow"
LEFT_OUT = (  # in this order
    FENCE,
    re.compile(r"<!-- [^>]*: begin -->\n.*?<!-- [^>]*: end -->", re.DOTALL),  # made by scripts
    re.compile(r"(?<=\n)\n(?: {4}.*\n)+"),  # indented: formulas
    re.compile(r"(?<=\])\([^)\s]*\)"),  # where links lead
    re.compile(rf"\b(?:{NAMES}) \d[\d.]*"),  # versions
    re.compile(
        r", (?:train|test), (?:EPE|Fl|1px %) [\d.]+"
    ),  # the authors' own, which tests/models/test_weights.py checks
)


def found_in(text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """What looks measured in the words of a page."""
    for pattern in LEFT_OUT:
        text = pattern.sub("", text)
    for phrase in allowed:
        text = text.replace(phrase, "")
    return [hit[0].strip() for hit in MEASURED.finditer(re.sub(r"`[^`\n]+`", "`code`", text))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_numbers_are_made_from_stored_results(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    if not name.startswith(tuple(FREE)):
        _, phrases = ALLOWED.get(name, ("", ()))
        assert found_in(page.read_text("utf-8"), phrases) == []


WRITTEN_BY_OTHERS = {"options", "support", "measured"}
"""By ``scripts/commands.py``; held to code and results by tests/integrations/test_support_table.py."""


def strange_marks(text: str, known: set[str]) -> list[str]:
    """Names of blocks that a page marks as made by a script, and none makes."""
    return [name for name in re.findall(r"<!-- ([^>]*): begin -->", text) if name not in known | WRITTEN_BY_OTHERS]


def test_every_marked_block_is_made_by_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = runpy.run_path(str(ROOT / "scripts" / "tables.py"))["PAGES"]
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        known = {begin.removeprefix("<!-- ").removesuffix(": begin -->\n") for begin, _ in made.get(name, ())}
        assert strange_marks(page.read_text("utf-8"), known) == [], name
    assert strange_marks("<!-- mine: begin -->\n3 ms\n<!-- mine: end -->\n<!-- x: begin -->", {"x"}) == ["mine"]


def test_what_is_allowed_is_there() -> None:
    for name, (_, phrases) in ALLOWED.items():
        text = (ROOT / name).read_text("utf-8")
        assert [phrase for phrase in phrases if phrase not in text] == [], name
