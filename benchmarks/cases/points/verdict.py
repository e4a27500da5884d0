"""Whether ours is ahead of every baseline of a case: in time and in memory, forward and with both gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Case = dict[str, Any]
Row = dict[str, Any]
PARTS = ("layer", "sizes", "voxels")
"""Parts whose cases are judged."""
WAYS = ("forward", "training")


def _seconds(row: Row, way: str) -> float | None:
    return row[way]["median_s"] if way in row else None


def _bytes(row: Row, way: str) -> float | None:
    return row.get(f"{way}_peak_bytes")


def _bytes_with_kept(row: Row, way: str) -> float | None:
    taken = _bytes(row, way)
    return None if taken is None or "kept_bytes" not in row else taken + row["kept_bytes"]


MEASURES: dict[str, Callable[[Row, str], float | None]] = {
    "time": _seconds,
    "memory": _bytes,
    "memory with triplets": _bytes_with_kept,
}
"""What is compared: a call's time, what it takes beyond its inputs, and that with what is kept between calls."""
LEVEL = {"time": 1.0, "memory": 0.98, "memory with triplets": 1.0}
"""The ratios that have to be exceeded. Results and gradients, which all have, are nearly all of what a call takes."""


def judged(case: Case) -> Case | None:
    """Return the verdict on one case; None where there is nobody to compare with.

    ``{"ahead": bool, "ratios": [{"what", "way", "ratio", "against", "behind"}], "against": [names], "out": [names]}``:
    a ratio is the best baseline's value over our best backend's, above 1 where ours is ahead; ``out`` baselines that do
    not fit into memory.
    """
    ours = [row for row in case["rows"] if row.get("ours") and row["status"] == "ok"]
    others = [row for row in case["rows"] if not row.get("ours") and row["status"] == "ok"]
    out = [row["name"] for row in case["rows"] if not row.get("ours") and row["status"] == "out of memory"]
    if case["part"] not in PARTS or not (ours or others) or not (others or out):
        return None
    ratios: list[Case] = []
    for what, value in MEASURES.items():
        for way in WAYS:
            mine = [result for row in ours if (result := value(row, way)) is not None]
            theirs = [(result, row["name"]) for row in others if (result := value(row, way)) is not None]
            if mine and theirs:
                best, name = min(theirs)
                ratios.append({"what": what, "way": way, "ratio": best / max(min(mine), 1e-12), "against": name})
    for entry in ratios:
        entry["behind"] = entry["ratio"] <= LEVEL[entry["what"]]
    ahead = bool(ours) and not any(entry["behind"] for entry in ratios)
    return {"ahead": ahead, "ratios": ratios, "against": [row["name"] for row in others], "out": out}


def line(case: Case) -> str | None:
    """Return the verdict as one line, or None."""
    verdict = judged(case)
    if verdict is None:
        return None
    parts = []
    for what in MEASURES:
        result = [entry for entry in verdict["ratios"] if entry["what"] == what]
        if result:
            texts = [f"{entry['way']} {entry['ratio']:.2f}× ({entry['against']})" for entry in result]
            parts.append(f"{what}: {', '.join(texts)}")
    behind = [f"{entry['way']} {entry['what']}" for entry in verdict["ratios"] if entry["behind"]]
    head = "ahead of every baseline" if verdict["ahead"] else f"NOT ahead in {', '.join(behind) or 'anything'}"
    tail = f"; out of memory: {', '.join(verdict['out'])}" if verdict["out"] else ""
    return f"{head}; {'; '.join(parts)}{tail}"


def summary(cases: Sequence[Case]) -> list[str]:
    """Return a line for every judged case, and one for all."""
    lines, ahead, number = [], 0, 0
    for case in cases:
        text = line(case)
        if text is not None:
            lines.append(f"{case['label']}: {text}")
            number += 1
            ahead += text.startswith("ahead")
    if lines:
        lines.append(f"ahead of every baseline in all that was measured in {ahead} of {number} cases")
    return lines
