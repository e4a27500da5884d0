"""The tables in the documents are the table in the code and the stored measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fullfield.integrations.ptlflow import SUPPORT, TESTED

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "integrations.md"
RESULTS = ROOT / "benchmarks" / "results" / "patched_h200.json"
COLUMNS = [((436, 1024), False), ((375, 1242), False), ((368, 496), True)]


def between(name: str) -> str:
    return PAGE.read_text("utf-8").split(f"<!-- {name}: begin -->\n")[1].split(f"\n<!-- {name}: end -->")[0]


def support() -> str:
    rows = [f"| {', '.join(f'`{name}`' for name in s.models)} | {s.state} | {s.note} |" for s in SUPPORT]
    return "\n".join(["| models | state | |", "|---|---|---|", *rows])


def measured() -> str:
    cases = [c for c in json.loads(RESULTS.read_text("utf-8"))["cases"] if c["own_lookup"] == "dense"]
    lines = ["| model | 1024×436 | 1242×375 | training step, 2 × 496×368 |", "|---|---|---|---|"]
    for model in dict.fromkeys(c["model"] for c in cases):
        found = {(tuple(c["size"]), c["train"]): c["rows"] for c in cases if c["model"] == model}
        lines.append(f"| `{model}` | " + " | ".join(cell(found.get(column)) for column in COLUMNS) + " |")
    return "\n".join(lines)


def cell(rows: list[dict[str, Any]] | None) -> str:
    if rows is None:
        return ""
    own, ours = rows
    after = f"{1e3 * ours['median_s']:.1f}"
    if own["status"] != "ok":
        return f"its volume fails → {after} ms"
    change = 100 * (ours["median_s"] / own["median_s"] - 1)
    return f"{1e3 * own['median_s']:.1f} → {after} ms ({change:+.0f} %)"


def test_the_page_holds_the_tables() -> None:
    assert between("support") == support()
    assert between("measured") == measured()
    assert f"ptlflow {TESTED}" in PAGE.read_text("utf-8")
