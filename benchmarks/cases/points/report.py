"""The points benchmark's results as text and Markdown, published values beside them."""

from __future__ import annotations

from typing import Any

from benchmarks.cases.points.verdict import line, summary
from benchmarks.markdown import table
from fullfield.cli.report import format_aligned_columns

Case = dict[str, Any]
Row = dict[str, Any]
WAYS = ("build", "geometry", "forward", "training", "whole")

_PAGE = "measured before on one H200, 918,797 real points, grid 7 mm, t = 3, 15.1 M triplets"
_SUPPLEMENT = "PointCNN++ (arXiv 2511.23227), supplement"
_PAPER = f"{_SUPPLEMENT}, RTX 4090"
PUBLISHED: tuple[tuple[str, str, str, str], ...] = (
    ("pointelligence v1.5.0, 64→64, forward / with backward, ms", "fp16", "1.56 / 5.30, 116 MB", _PAGE),
    ("", "bf16", "5.26 / 12.6, 568 MB", _PAGE),
    ("", "fp32", "8.17 / 40.7", _PAGE),
    ("pointelligence v1.5.0, 64→128, forward / with backward, ms", "fp16", "10.2 / 20.1, 792 MB", _PAGE),
    ("", "bf16", "10.1 / 20.1", _PAGE),
    ("", "fp32", "15.6 / 73.8", _PAGE),
    ("the listing in Triton, 64→64, forward / both gradients, ms", "fp32", "21.9 / 22.7 + 14.3", _PAGE),
    ("the listing in Triton, 64→128, forward / both gradients, ms", "fp32", "42 / 43 + 27", _PAGE),
    ("ResNet-18, number of points not stated, forward / backward, ms", "PointCNN++", "60.4 / 75.5", _PAPER),
    ("", "fVDB 0.3.1", "49.6 / 105.46", _PAPER),
    ("ResNet-18, number of points not stated, inference / training, GB", "PointCNN++", "0.37 / 0.59", _PAPER),
    ("", "fVDB 0.3.1", "0.82 / 1.79", _PAPER),
    ("ResNet-18 at 164,833 points, training step, ms", "pointelligence v1.2, width ×2", "126", "its authors, H200"),
    ("", "pointelligence v1.0", "215", "its authors, H200"),
    (
        "ResNet-18, training, largest cloud",
        "PointCNN++",
        "about 100 M points",
        f"{_SUPPLEMENT}, GPU not named",
    ),
)
"""(what, whose, value, source): of implementations that do not run beside ours."""


def _milliseconds(row: Row, way: str) -> str:
    if way not in row:
        return ""
    seconds = row[way]["seconds"]
    half = 0.5e3 * (max(seconds) - min(seconds))
    graph = "" if row.get(f"{way}_graph", True) else " e"
    return f"{_plain(1e3 * row[way]['median_s'], 3)} ± {_plain(half, 1)}{graph}"


def _plain(value: float, digits: int) -> str:
    """So many digits, never an exponent for large values."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def _megabytes(row: Row, way: str) -> str:
    return _in_megabytes(row.get(f"{way}_peak_bytes"))


def _in_megabytes(found: float | None) -> str:
    return "" if found is None else f"{found / 1e6:.0f}" if found >= 1e7 else f"{found / 1e6:.2g}"


def _table(case: Case) -> list[list[str]]:
    """Header and rows of one case."""
    rows = case["rows"]
    ways = [way for way in WAYS if any(way in row for row in rows)]
    sized = [way for way in ways if any(f"{way}_peak_bytes" in row for row in rows)]
    retained = ["kept, MB"] if any("kept_bytes" in row for row in rows) else []
    table = [["", *(f"{way}, ms" for way in ways), *(f"{way}, MB" for way in sized), *retained]]
    for row in rows:
        if row["status"] != "ok" and not any(way in row for way in ways):
            continue
        cells = [_milliseconds(row, way) for way in ways] + [_megabytes(row, way) for way in sized]
        cells += [_in_megabytes(row.get("kept_bytes")) for _ in retained]
        name = row["name"] if row["status"] == "ok" else f"{row['name']} ({row['status']})"
        table.append([name, *cells])
    return table


def _head(case: Case) -> str:
    parts = [case["label"]]
    if "triplets" in case and case.get("points"):
        parts.append(f"{case['points']:,} points, {case['triplets']:,} triplets")
    if "buckets_per_point" in case:
        parts.append(f"{case['buckets_per_point']} buckets a point")
    if "levels" in case:
        parts.append("levels of " + ", ".join(f"{n:,}" for n in case["levels"]))
    if "commit" in case:
        parts.append(f"of commit {case['commit']}")
    return ": ".join([parts[0], ", ".join(parts[1:])]) if parts[1:] else parts[0]


def _notes(case: Case) -> list[str]:
    """Return the verdict, the contenders without a time and why, and what a network's phases consist of."""
    verdict = line(case)
    notes = [] if verdict is None else [verdict]
    for row in case["rows"]:
        if row["status"] != "ok":
            notes.append(f"{row['name']}: {row['status']}: {row.get('reason', '')}")
        for way in WAYS:
            if f"{way}_launches" in row:
                launches, device, host = (row[f"{way}_{what}"] for what in ("launches", "device_s", "host_s"))
                notes.append(
                    f"{row['name']}, {way}: {launches} kernels and copies, {1e3 * device:.2f} ms on the device, "
                    f"{1e3 * host:.2f} ms on the host"
                )
    return notes


def report(results: Case) -> list[str]:
    """All cases as text."""
    lines: list[str] = []
    for case in results["cases"]:
        lines += [_head(case), *(f"  {line}" for line in format_aligned_columns(_table(case)))]
        lines += [f"  {note}" for note in _notes(case)] + [""]
    lines += [f"{name}: not measured: {reason}" for name, reason in results.get("absent", {}).items()]
    lines.append(
        "e: eager (waits for the device, or takes long); other times of a layer on a GPU are a CUDA graph's replay"
    )
    return [*lines, "", *summary(results["cases"])]


def markdown(results: Case) -> str:
    """Return the same as Markdown, with the conditions and published values."""
    e = results.get("environment", {})
    where = e.get("gpu") or e.get("cpu") or "unknown machine"
    versions = ", ".join(f"{name} {version}" for name, version in e.get("versions", {}).items())
    lines = [
        "# Convolution on native points",
        "",
        f"{where}; {versions}; commit {e.get('commit')}; {e.get('date')}.",
        "",
    ]
    lines.append(
        "Medians ± half the range; every result was compared with float64 before it was timed. Memory is what a call "
        "takes beyond its inputs; kept: triplets and what else stays between calls. e: eager (the call waits for the "
        "device, or takes more than 50 ms), else a CUDA graph's replay where the work is a layer on a GPU."
    )
    lines += ["", *(f"- {text}" for text in summary(results["cases"]))]
    for case in results["cases"]:
        lines += ["", f"## {_head(case)}", "", *table(_table(case))]
        notes = _notes(case)
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
    for name, reason in results.get("absent", {}).items():
        lines += ["", f"{name} was not measured: {reason}."]
    lines += ["", "## Published values, not of this run", ""]
    lines += table([["what", "whose", "value", "source"], *(list(line) for line in PUBLISHED)])
    return "\n".join(lines) + "\n"
