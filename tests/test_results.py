"""Stored results state their conditions, and the pages' numbers are theirs."""

from __future__ import annotations

import json
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.code_changes import is_same_code
from benchmarks.stored import OLDER

ROOT = Path(__file__).resolve().parent.parent


@cache
def load_script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "docs" / f"{name}.py"))


def test_numbers_on_pages_are_stored() -> None:
    script = load_script("page_numbers")
    assert [line for page in script["PAGES"] if (ROOT / page).is_file() for line in script["problems"](page)] == []


def test_sourced_numbers_of_notebooks_are_stored() -> None:
    script = load_script("page_numbers")
    assert [line for page in script["NOTES"] for line in script["problems"](page)] == []


def test_values_not_shown_reads_marked_paragraphs() -> None:
    values_not_shown = load_script("page_numbers")["values_not_shown"]
    stored = json.loads((ROOT / "benchmarks" / "results" / "refine_h200.json").read_text("utf-8"))
    measured = stored["cases"][0]["rows"][0]["median_ms"]
    text = 'Once 7 ms, now {:.2f}. <!-- = refine_h200["cases"][0]["rows"][0]["median_ms"] -->'
    assert values_not_shown(text.format(measured)) == []
    assert len(values_not_shown(text.format(measured + 0.01))) == 1


def test_page_numbers_script_reads_all_pages_with_check(monkeypatch: pytest.MonkeyPatch) -> None:
    main = load_script("page_numbers")["main"]
    read_pages = list[str]()
    monkeypatch.setitem(main.__globals__, "problems", lambda page: read_pages.append(page) or [])
    assert main(["--check"]) == 0
    assert {"README.md", "docs/measured.md", "benchmarks/notes/not_run.md"} <= set(read_pages)
    assert main(["docs/no_such_page.md"]) == 1


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("One pair takes 12.9 ms.", ["12.9"]),
        ("From 7.7 to 14 ms, 236 MB.", ["7.7", "14", "236"]),
        ("A frame of 1920×1080, 12 updates, ptlflow 0.4.2, 26 options.", []),
        ("`--max 3 px` in 3 [steps of 5 px](page.md).", ["5"]),
        ("The calibration error is 0.069.", ["0.069"]),
        ("It takes 3.8 times as long, 2.7× its floor, 4×4 tiles.", ["3.8", "2.7"]),
        ("It takes twice the time of others, which take half as long.", ["2", "0.5"]),
        ("It needs 8 %. <!-- in src/fullfield/registration/verdict.py -->", []),
        ("It needs 7 %. <!-- in src/fullfield/registration/verdict.py -->", ["7"]),
    ],
)  # fmt: skip
def test_page_number_needs_stored_source(block: str, expected: list[str]) -> None:
    assert load_script("page_numbers")["unsupported"](block) == expected


def test_page_number_equals_stored_value() -> None:
    unsupported = load_script("page_numbers")["unsupported"]
    stored = json.loads((ROOT / "benchmarks" / "results" / "refine_h200.json").read_text("utf-8"))
    measured = stored["cases"][0]["rows"][0]["median_ms"]
    block = 'One takes {:.2f} ms. <!-- = refine_h200["cases"][0]["rows"][0]["median_ms"] -->'
    assert unsupported(block.format(measured)) == []
    assert unsupported(block.format(measured + 0.01)) == [f"{measured + 0.01:.2f}"]


@pytest.mark.parametrize(
    "marker",
    ["<!-- = 12.9 -->", "<!-- = 13 -->", "<!-- in benchmarks/results/like_raft_hd.json -->", "<!-- in README.md -->"],
)
def test_page_marker_names_result_or_code(marker: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        load_script("page_numbers")["unsupported"](f"One takes 13 ms. {marker}")


def test_results_script_lists_owed_results(capsys: pytest.CaptureFixture[str]) -> None:
    script = load_script("results")
    if script["is_shallow"]():
        pytest.skip("the history of this checkout is cut, so the age of results is unknown")
    assert script["main"](["--check"]) == 0, capsys.readouterr().out
    assert all(entry["command"] != script["NO_COMMAND"] for entry in script["owed"]().values())


def test_owed_commands_have_their_options() -> None:
    from benchmarks import runner

    owed = json.loads((ROOT / "benchmarks" / "owed.json").read_text("utf-8"))
    for command in (part for entry in owed.values() for part in entry["command"].split(" && ")):
        words = shlex.split(command, comments=True)
        if words[:3] == ["python", "-m", "benchmarks"]:
            assert runner.build_parser().parse_known_args(words[3:])[1] == [], command


def test_pages_mark_results_older_than_code() -> None:
    script = load_script("page_numbers")
    older = script["older_results"]()
    unmarked = {
        page: names
        for page in (*script["PAGES"], *script["NOTES"])
        if (names := script["unmarked_results"]((ROOT / page).read_text("utf-8"), older, page in script["NOTES"]))
    }
    assert unmarked == {}


def test_generated_captions_mark_results_older_than_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import like_for_like  # its captions name the results that are shown, of many that are read

    numbers, tables = load_script("page_numbers"), load_script("tables")
    older = {f"{name}.json" for name in numbers["older_results"]()}
    read_text, files = Path.read_text, set[str]()

    def record_file(path: Path, *arguments: Any, **keywords: Any) -> str:
        files.add(path.name)
        return read_text(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "read_text", record_file)
    unmarked = []
    for page, parts in tables["PAGES"].items():
        for mark, make in parts:
            if (mark, make) in like_for_like.PAGES.get(page, ()):
                continue
            files.clear()
            text = make()
            shown = read_text(ROOT / page, "utf-8") if page in numbers["NOTES"] else text
            for name in sorted(files & older):
                stored = json.loads(read_text(ROOT / "benchmarks" / "results" / name, "utf-8"))
                measured = stored.get("environment", {}), *stored.get("made", {}).values()  # parts state their own
                commits = [about["commit"][:7] for about in measured if "commit" in about]
                if OLDER not in shown or not (name in shown or any(commit in shown for commit in commits)):
                    unmarked.append((page, mark.strip(), name))
    assert unmarked == []


def test_chart_of_lookup_shows_stored_results() -> None:
    script = load_script("charts")
    assert script["is_current"](ROOT / "docs" / "images" / script["NAME"]), "run scripts/docs/charts.py"


@pytest.mark.parametrize(
    ("text", "is_notebook", "expected"),
    [
        ("It takes 4 ms. <!-- = a_h200[\"x\"] -->", False, ["a_h200"]),
        (f"It takes 4 ms ({OLDER}). <!-- = a_h200[\"x\"] -->", False, []),
        (f"It takes 4 ms ({OLDER}).\n\nAnd 5 ms. <!-- = a_h200[\"x\"] -->", False, ["a_h200"]),
        ("It takes 4 ms ([stored](results/a_h200.json)).", False, ["a_h200"]),
        ("All of it: [stored](results/a_h200.json).", False, []),
        (f"Times, {OLDER}:\n\n| a |\n| --- |\n| 4 ms <!-- = a_h200[\"x\"] --> |", False, []),
        (f"| a |\n| --- |\n| 4 ms <!-- = a_h200[\"x\"] --> |\n\nH200, {OLDER}.", False, []),
        (f"In ms ([stored](results/a_h200.json)):\n\n| a |\n| --- |\n| 4 |\n\nH200 ({OLDER}).", False, []),
        ("On 30 November 4 ms ([stored](results/a_h200.json)).", True, []),
        ("On 30 November 4 ms ([stored](results/a_h200.json)).", False, ["a_h200"]),
        ("It takes 4 ms. <!-- = other_h200[\"x\"] -->", False, []),
    ],
)  # fmt: skip
def test_unmarked_results_reads_each_paragraph(text: str, is_notebook: bool, expected: list[str]) -> None:
    assert load_script("page_numbers")["unmarked_results"](text, ["a_h200"], is_notebook) == expected


def test_missing_conditions_requires_repeats_and_spread() -> None:
    lacks = load_script("results")["missing_conditions"]
    about = {"gpu": "H100", "versions": {"torch": "2.11"}, "commit": "40d2fae184cb", "date": "2026-11-26"}
    timing: dict[str, Any] = {"median_s": 1.0, "min": 0.9, "repeats": 3}
    whole = {"environment": about, "sources": ["src"]}
    assert lacks({**whole, "rows": [timing]}) == []
    assert lacks({**whole, "rows": [{"median_s": 1.0}]}) == ["no repeats and spread"]
    dirty = {**about, "commit": "40d2fae184cb with changes"}
    assert lacks({**whole, "environment": dirty, "rows": [timing]}) == ["no clean commit"]
    for stated in ({"measured_as": "d503562d with changes"}, {"commit_is": "that of the change that stored this file"}):
        assert lacks({**whole, "environment": {**about, **stated}, "rows": [timing]}) == ["no clean commit"]
    assert lacks({"rows": [timing]}) == ["no machine", "no versions", "no clean commit", "no date", "no sources"]


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ([{"median_s": 1.0, "min": 1.0, "repeats": 1}], ["no repeats and spread"]),
        ([{"median_s": 1.0, "seconds": [1.0]}], ["no repeats and spread"]),
        ([{"frame_s": 0.2, "pair_s": 0.1}], ["no repeats and spread"]),
        ([{"seconds": 0.2, "threads": 2}], ["no repeats and spread"]),
        ([{"seconds": [0.2, 0.3], "threads": 2}], []),
        ([{"median_s": 1.0, "min": 0.9, "repeats": 3}, {"median_s": 1.0, "min": 1.0, "repeats": 1}],
         ["some times are of one run"]),
    ],
)  # fmt: skip
def test_missing_conditions_reports_times_of_one_run(timings: list[dict[str, Any]], expected: list[str]) -> None:
    about = {"gpu": "H100", "versions": {"torch": "2.11"}, "commit": "40d2fae184cb", "date": "2026-11-26"}
    stored = {"environment": about, "sources": ["src/fullfield/ops/tvl1/*.py"], "rows": timings}
    assert load_script("results")["missing_conditions"](stored) == expected


def test_is_older_compares_result_with_sources() -> None:
    script = load_script("results")
    if script["is_shallow"]():
        pytest.skip("the history of this checkout is cut")
    source = "src/fullfield/ops/matching/positions.cu"
    last = script["git"]("log", "-1", "--format=%h", "--", source).strip()
    about = {"sources": [source], "environment": {"commit": last}}
    assert not script["is_older"](about)
    before = script["git"]("rev-parse", "--short", f"{last}~1").strip()
    older = {"sources": [source], "environment": {"commit": before}}
    assert script["is_older"](older)
    assert not script["is_older"]({**older, "sources": [f"{source}@{last}"]})
    assert script["is_older"]({**older, "sources": [f"{source}@{before}"]})


def test_results_name_commits_that_exist() -> None:
    script = load_script("results")
    if script["is_shallow"]():
        pytest.skip("the history of this checkout is cut")
    head = script["git"]("rev-parse", "--short=12", "HEAD").strip()
    parts = [{"commit": f"{head}+changes"}, {"commit": "unknown"}, {"commit": None}, {"note": "0000000"}]
    stored = {"environment": {"commits": [head]}, "cases": [{"rows": parts}]}
    assert [*script["named_commits"](stored)] == [head, head]
    assert script["is_in_history"](head)
    absent = {"environment": {"commit": head}, "runs": [{"commit": "0000000 with changes"}]}
    assert [*script["named_commits"](absent)] == [head, "0000000"]
    assert not script["is_in_history"]("0000000")


PYTHON = """
from fullfield.ops import lookup

def sample(image, window, *, rows=4):
    "Sample."
    if rows < 1:
        raise ValueError("rows")
    check_tensor(image, "image", ("H", "W"))
    total = lookup(image, window)
    best = total * 2
    return [total + best + one for one in range(rows)]

updates = create_field(12, "number of updates", metavar="N")
"""
CUDA = """
#include "common.cuh"
#define TILE 8
#ifndef SPAN
#define SPAN 4
#endif
struct Params { const float *first; int rows; };
static __device__ float scaled(float value, float factor) { return value * rsqrtf(factor); }
extern "C" __global__ void lookup(Params p) {
    float sum = 0.f;
    for (int i = 0; i < TILE; i++) sum += scaled(p.first[i], 2.f);  // the sum
    asm volatile("bar.sync %0;" : : "r"(p.rows));
}
"""


@pytest.mark.parametrize(
    ("suffix", "code", "changes", "is_same"),
    [
        ("py", PYTHON, [], True),
        ("py", PYTHON, [('"Sample."', '"Sample all."'), ('("rows")', '(f"{rows}")'), ("=4", ": int = 4")], True),
        ("py", PYTHON, [("total", "products"), ("one", "index"), ("best", "doubled")], True),
        ("py", PYTHON, [("window", "radius"), ("sample", "sample_all")], True),
        ("py", PYTHON, [('"image"', '"frame"')], True),
        ("py", PYTHON, [('("H", "W")', '("H", 4)')], False),
        ("py", PYTHON, [('"number of updates"', '"updates"')], True),
        ("py", PYTHON, [("create_field(12", "create_field(8")], False),
        ("py", PYTHON, [("image, window, *", "window, image, *")], False),
        ("py", PYTHON, [("total * 2", "total * 3")], False),
        ("py", PYTHON, [("lookup", "other_lookup")], False),
        ("py", PYTHON, [("total + best", "best + best")], False),
        ("py", PYTHON, [("rows=4", "rows=5")], False),
        ("cu", CUDA, [("// the sum", "/* all */"), ("sum", "total"), ("factor", "square")], True),
        ("cu", CUDA, [("scaled", "divide"), ("Params", "Arguments"), ("TILE", "ROWS")], True),
        ("cu", CUDA, [("SPAN", "WIDTH")], False),
        ("cu", CUDA, [("rsqrtf", "sqrtf")], False),
        ("cu", CUDA, [("0.f", "1.f")], False),
        ("cu", CUDA, [("TILE 8", "TILE 16")], False),
        ("cu", CUDA, [("float value, float factor", "float factor, float value")], False),
        ("cu", CUDA, [("bar.sync", "bar.arrive")], False),
        ("cu", CUDA, [("int i", "short i")], False),
        ("cu", CUDA, [("p.first", "p.rows")], False),
    ],
)  # fmt: skip
def test_is_same_code_ignores_renamed_names(
    suffix: str, code: str, changes: list[tuple[str, str]], is_same: bool
) -> None:
    changed = code
    for old, new in changes:
        assert old in changed
        changed = changed.replace(old, new)
    path = f"src/a.{suffix}"
    assert is_same_code({path: code.encode()}, {path: changed.encode()}) == is_same
    assert not is_same_code({path: code.encode()}, {path: changed.encode(), f"src/b.{suffix}": b""})


def test_is_same_code_follows_renamed_imports() -> None:
    old, new = {"src/a.py": PYTHON.encode()}, {"src/a.py": PYTHON.replace("lookup", "look_up").encode()}
    calls = []

    def is_renamed(*names: str) -> bool:
        calls.append(names)
        return True

    assert is_same_code(old, new, is_renamed)
    assert calls == [("fullfield.ops", "lookup", "look_up")]
    assert not is_same_code(old, new)
    keyword = {"src/a.py": PYTHON.replace("(image, window)", "(image, span=window)").encode()}
    renamed_keyword = {"src/a.py": PYTHON.replace("(image, window)", "(image, width=window)").encode()}
    assert is_same_code(keyword, renamed_keyword, is_renamed)
    assert calls[-1] == ("", "span", "width")
    assert not is_same_code(keyword, renamed_keyword)
    moved = {"src/a.py": PYTHON.replace("fullfield.ops import", "fullfield.ops.other import").encode()}
    assert not is_same_code(old, moved, is_renamed)
