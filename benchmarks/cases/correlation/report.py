"""The correlation benchmark's results as text, in the form of the paper's tables 4 and 10."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fullfield.cli.report import format_aligned_columns

VARIABLES = {"size": "map width", "updates": "lookups", "channels": "channels"}
# Against what improvements are stated, as the paper does: time against on-demand, memory against the volume.
SLOW, LARGE = "alt_cuda_corr", "dense"
Case = dict[str, Any]
Row = dict[str, Any]


def way_of(row: Row) -> str | None:
    """Return how the row's best comparable time was taken; None if there is none."""
    return next((way for way in ("graph", "eager") if way in row), None)


def milliseconds(rows: Sequence[Row], way: str | None = None) -> tuple[float, float] | None:
    """Return mean and standard deviation over scenes, or over the repetitions of the only scene."""
    timed = []
    for row in rows:
        selected = way or way_of(row)
        if row["status"] == "ok" and selected in row:
            timed.append(row[selected])
    if not timed:
        return None
    values = [1e3 * t["median_s"] for t in timed] if len(timed) > 1 else [1e3 * s for s in timed[0]["seconds"]]
    middle = statistics.fmean(values) if len(timed) > 1 else statistics.median(values)
    return middle, statistics.pstdev(values)


def names(cases: Sequence[Case]) -> list[str]:
    """Return all contenders in their order."""
    return list(dict.fromkeys(row["name"] for case in cases for row in case["rows"]))


def by_value(cases: Sequence[Case]) -> dict[int, list[Case]]:
    """Return the cases of every value of the swept variable."""
    result: dict[int, list[Case]] = {}
    for case in cases:
        result.setdefault(case["value"], []).append(case)
    return result


def rows_of(cases: Sequence[Case], name: str) -> list[Row]:
    """Return the rows of one contender."""
    return [row for case in cases for row in case["rows"] if row["name"] == name]


def report(results: dict[str, Any]) -> list[str]:
    """Return each case, then the tables."""
    lines: list[str] = []
    for case in results["cases"]:
        lines += [*_case(case), ""]
    if any(shares_by_step(case) for case in results["cases"]):
        return lines + [line for case in results["cases"] for line in steps_of(case)]
    lines += table10(results["cases"])
    steps = table4(results["cases"])
    return [*lines, "", *steps] if steps else lines


def _case(case: Case) -> list[str]:
    width = (
        f"{case['lookups']['mean_window']:.0f} columns mean window, {100 * case['lookups']['inside']:.1f} % in the map"
    )
    kind = f"batch {case['batch']}, {case['levels']} levels, radius {case['radius']}, {case['pass']}"
    formats = f"{case['dtype']} ({case['precision']}) -> {case['out_dtype']} {case['layout']}"
    head = [f"{case['label']}: {kind}, {formats}", f"  lookups: {width}"]
    return head + [f"  {row['name']:<18} {_row(row)}" for row in case["rows"]]


def _row(row: Row) -> str:
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    parts = [f"{way} {_time(row[way])}" for way in ("graph", "eager", "prepare") if way in row]
    if "no_graph" in row:
        parts.insert(0, f"no graph ({row['no_graph']})")
    for key, text in (("host_s", "host"), ("host_with_grad_s", "host with gradients")):
        if key in row:
            parts.append(f"{text} {1e6 * row[key]:.1f} us a lookup")
    if "peak_bytes" in row:
        parts.append(f"peak {row['peak_bytes'] / 1e6:.0f} MB, {row['peak_with_inputs_bytes'] / 1e6:.0f} with inputs")
    check = row.get("check")
    return ", ".join([*parts, f"error {check['error']:.1e} of {check['allowed']:.1e}" if check else "steps left out"])


def _time(spread: dict[str, Any]) -> str:
    return f"{1e3 * spread['median_s']:.3f} ms ({1e3 * spread['min']:.3f} ... {1e3 * spread['max']:.3f})"


def table10(cases: Sequence[Case]) -> list[str]:
    """Runtime and peak memory by the swept variable."""
    columns = names(cases)
    ours = next((row["name"] for case in cases for row in case["rows"] if row["ours"] and way_of(row)), None)
    counted = any("peak_bytes" in row for case in cases for row in case["rows"])
    measured = columns if counted else []
    header = [VARIABLES[cases[0]["variable"]], *(f"{n} ms" for n in columns), *(f"{n} MB" for n in measured)]
    better = []
    if ours is not None:
        better = [n for n in (SLOW, LARGE) if n in columns and n != ours and (counted or n == SLOW)]
        header += [f"{ours}: {'time' if n == SLOW else 'memory'} saved over {n}" for n in better]
    table = [header]
    for value, group in by_value(cases).items():
        each = {name: rows_of(group, name) for name in columns}
        line = [str(value), *(_cell(each[n]) for n in columns), *(_memory_cell(each[n]) for n in measured)]
        table.append(line + [_saved(each[ours or n], each[n], n == SLOW) for n in better])
    title = "Runtime of pooling, layout and all lookups (e: eager, else graph replay)"
    title += ", peak memory with inputs" if counted else ""
    return [title, *format_aligned_columns(table)]


def _cell(rows: Sequence[Row]) -> str:
    result = milliseconds(rows)
    if result is None:
        return "OOM" if any(row["status"] == "out of memory" for row in rows) else "-"
    eager = " e" if any(way_of(row) == "eager" for row in rows) else ""
    return f"{result[0]:.3g} ± {result[1]:.2g}{eager}"


def memory(rows: Sequence[Row]) -> float | None:
    """Mean peak in MB, inputs included."""
    result = [row["peak_with_inputs_bytes"] / 1e6 for row in rows if "peak_with_inputs_bytes" in row]
    return statistics.fmean(result) if result else None


def _memory_cell(rows: Sequence[Row]) -> str:
    result = memory(rows)
    if result is None:
        return "OOM" if any(row["status"] == "out of memory" for row in rows) else "-"
    return f"{result:.0f}" if result >= 10 else f"{result:.2g}"


def _saved(ours: Sequence[Row], theirs: Sequence[Row], time: bool) -> str:
    pair = [milliseconds(ours), milliseconds(theirs)] if time else [memory(ours), memory(theirs)]
    if pair[0] is None or pair[1] is None:
        return "-"
    first, second = (p[0] if isinstance(p, tuple) else p for p in pair if p is not None)
    return f"{100 * (1 - first / second):.1f} %"


def shares_by_step(case: Case) -> dict[str, tuple[dict[str, float], float]]:
    """Return by kernel the share of each of its steps, in its order, and the seconds of all, by graph replays.

    A kernel has forms that end after one of the steps; a step's share is the difference of two such times over the
    total. Kernels of which a form has no time are left out.
    """
    kernels: dict[str, list[Row]] = {}
    for row in case["rows"]:
        name, separator, _ = row["name"].partition(": ")
        if separator:
            kernels.setdefault(name, []).append(row)
    result = {}
    for name, rows in kernels.items():
        if all("graph" in row for row in rows):
            ends = [row["graph"]["median_s"] for row in rows]
            times = [end - before for before, end in zip([0.0, *ends], ends, strict=False)]
            steps = (row["name"].partition(": ")[2] for row in rows)
            result[name] = ({step: time / ends[-1] for step, time in zip(steps, times, strict=True)}, ends[-1])
    return result


def steps_of(case: Case) -> list[str]:
    """Return each kernel's shares in a case."""
    return [
        f"{case['label']}, {name}, {1e3 * seconds:.3f} ms: "
        + ", ".join(f"{step} {100 * share:.1f} %" for step, share in shares.items())
        for name, (shares, seconds) in shares_by_step(case).items()
    ]


def table4(cases: Sequence[Case]) -> list[str]:
    """Where the time of our backends goes, as far as it shows from outside."""
    table = [["case", "backend", "total ms", "pooling and layout", "lookups", "writing the results alone"]]
    for case in cases:
        for row in case["rows"]:
            way = way_of(row)
            if not row["ours"] or way is None or "prepare" not in row or not case.get("write"):
                continue
            total = row["eager"]["median_s"]
            prepare = min(row["prepare"]["median_s"] / total, 1.0)
            write = case["write"]["median_s"] / total
            table.append(
                [
                    case["label"],
                    row["name"],
                    f"{1e3 * total:.3f}",
                    f"{100 * prepare:.1f} %",
                    f"{100 * (1 - prepare):.1f} %",
                    f"{100 * write:.1f} %",
                ]
            )
    if len(table) == 1:
        return []
    return ["Share of the eager runtime by step", *format_aligned_columns(table)]
