"""Verdicts of the points benchmark: who is ahead, in what, and that nothing is left out."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cases.points.verdict import judged, line

pytestmark = pytest.mark.unit

Row = dict[str, Any]


def row(name: str, seconds: tuple[float, float], megabytes: tuple[float, float], kept: float, **more: Any) -> Row:
    found: Row = {"name": name, "ours": name == "cuda", "status": "ok", "kept_bytes": kept * 1e6}
    for way, time, size in zip(("forward", "training"), seconds, megabytes, strict=True):
        found[way] = {"median_s": time, "seconds": [time]}
        found[f"{way}_peak_bytes"] = size * 1e6
    return found | more


def case_of(*rows: Row, part: str = "sizes") -> dict[str, Any]:
    return {"part": part, "label": "a cloud", "rows": list(rows)}


OURS = row("cuda", (1.0, 3.0), (10.0, 50.0), 60.0)
SLOW = row("slow", (8.0, 9.0), (20.0, 100.0), 180.0)


def test_judged_reports_ahead_in_all_ratios() -> None:
    verdict = judged(case_of(OURS, SLOW))
    assert verdict is not None
    assert verdict["ahead"]
    assert [(entry["what"], entry["way"], round(entry["ratio"], 3)) for entry in verdict["ratios"]] == [
        ("time", "forward", 8.0),
        ("time", "training", 3.0),
        ("memory", "forward", 2.0),
        ("memory", "training", 2.0),
        ("memory with triplets", "forward", round(200 / 70, 3)),
        ("memory with triplets", "training", round(280 / 110, 3)),
    ]


def test_judged_names_measure_that_is_behind() -> None:
    """The best of all baselines counts, in each measure another."""
    lean = row("lean", (99.0, 99.0), (20.0, 48.0), 180.0)
    verdict = judged(case_of(OURS, SLOW, lean))
    assert verdict is not None
    assert not verdict["ahead"]
    memory = next(e for e in verdict["ratios"] if (e["what"], e["way"]) == ("memory", "training"))
    assert (memory["against"], memory["ratio"] < 1) == ("lean", True)
    text = line(case_of(OURS, SLOW, lean))
    assert text is not None
    assert text.startswith("NOT ahead in training memory; time: forward 8.00× (slow)")
