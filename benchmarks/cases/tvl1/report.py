"""The GPU benchmark of TV-L1 as text and as Markdown tables in the form of the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cases.tvl1.published import SOURCE, TABLE1, TABLE2, TABLE2_SCENES, TABLE3
from benchmarks.cases.tvl1.romera import AUTO, shown
from benchmarks.cases.tvl1.schedules import PRECISIONS, REFERENCE_SIDE, floor
from benchmarks.cases.tvl1.solver import LIMITS, at_equal_time, curve_of
from benchmarks.markdown import table
from benchmarks.stored import describe_faults
from fullfield.cli.report import format_aligned_columns

Case = dict[str, Any]
Table = list[list[str]]


def case_of(results: dict[str, Any], name: str) -> Case | None:
    """Return the case of that name, where it was measured."""
    cases = (case for case in results["cases"] if case.get("status", "ok") == "ok")
    return next((case for case in cases if case["case"] == name), None)


def tables(results: dict[str, Any]) -> list[tuple[str, Table]]:
    """(title with the conditions, rows with the header first) of everything that was measured."""
    makers = (size_table, work_table, depth_table, energy_table, frames_table, time_table, peers_table)
    result = [one for maker in makers if (one := maker(results)) is not None]
    return result + quality_tables(results)


def report(results: dict[str, Any]) -> list[str]:
    """Return the tables as lines of text."""
    lines: list[str] = []
    for title, rows in tables(results):
        lines += [title, *(f"  {line}" for line in format_aligned_columns(rows)), ""]
    return lines + [f"{where}: {one['status']}: {one.get('reason', '')}" for where, one in unmeasured(results)]


def unmeasured(results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Cases and rows without numbers, and where they stand."""
    result = [(case["case"], case) for case in results["cases"]]
    result += [(f"{case['case']}, {row.get('name', '')}", row) for case in results["cases"] for row in case["rows"]]
    return [(where, one) for where, one in result if one.get("status", "ok") != "ok"]


def markdown(results: dict[str, Any]) -> str:
    """Return a page of the tables."""
    environment = results.get("environment", {})
    return f"# TV-L1 on {environment.get('gpu') or environment.get('cpu', 'this machine')}\n\n{section(results)}"


def section(results: dict[str, Any]) -> str:
    """Return the tables as Markdown, without a heading."""
    environment = results.get("environment", {})
    parts = []
    for title, rows in tables(results):
        parts.append("\n".join([f"**{title}**\n", *table(rows), ""]))
    commit, date = environment.get("commit"), environment.get("date")
    told = [f"{where}: {one['status']}, {one.get('reason', '')}" for where, one in unmeasured(results)]
    if told:
        parts.append(f"Without numbers: {'; '.join(told)}.\n")
    parts.append(
        f"Commit {commit}, {date}{describe_faults(results)}; `python -m benchmarks tvl1 --device cuda`. "
        f"Rows marked as published: {SOURCE}.\n"
    )
    return "\n".join(parts)


def _work(setting: dict[str, Any]) -> str:
    """Scales × warps × iterations."""
    return f"{setting['scales']} × {setting['warps']} × {setting['iterations']}"


def _rounds(rows: Sequence[dict[str, Any]]) -> str:
    """How often was measured, and how far apart the times of one row lie at most."""
    timed = [row for row in rows if "min" in row and "median_s" in row]
    if not timed:
        return "not measured"
    widest = max((row["max"] - row["min"]) / row["median_s"] for row in timed)
    return f"medians of {max(row['repeats'] for row in timed)}, all of a row within {100 * widest:.0f} % of it"


def _status(row: dict[str, Any] | None, key: str, form: str = ".3g", scale: float = 1.0) -> str:
    if row is None:
        return ""
    return format(scale * row[key], form) if row.get(key) is not None else str(row.get("status", ""))


def size_table(results: dict[str, Any]) -> tuple[str, Table] | None:
    """Figures 8 to 10."""
    case = case_of(results, "schedules")
    if case is None:
        return None
    rows = case["rows"]
    sides = sorted({row["size"][0] for row in rows})
    names = list(dict.fromkeys(row["name"] for row in rows))
    at = {(row["name"], row["size"][0]): row for row in rows}
    header = ["ns per pixel", *(f"{side}²" for side in sides)]
    body = [[shown(name), *(_status(at.get((name, side)), "ns_per_pixel", ".4f") for side in sides)] for name in names]
    title = (
        f"Inner iterations by schedule and size, {_work(case['setting'])} (scales × warps × iterations), graph replay, "
        f"{_rounds(rows)}"
    )
    return title, [header, *body]


def work_table(results: dict[str, Any]) -> tuple[str, Table] | None:
    """Table 1 on the paper's 2048×2048 or the largest frame below, with the published rows."""
    case = case_of(results, "schedules")
    side = max((r["size"][0] for r in case["rows"] if r["size"][0] <= REFERENCE_SIDE), default=0) if case else 0
    rows = (
        [] if case is None else [r for r in case["rows"] if r["size"] == [side, side] and r.get("gflops") is not None]
    )
    if case is None or not rows:
        return None
    head = [
        "version",
        "operations a pixel",
        "bytes a pixel",
        "operations a byte",
        "ms",
        "ns a pixel",
        "GFLOP/s",
        "GB/s",
        "over floor",
    ]
    limits = case_of(results, "ceilings") or {}
    floors = {kind: floor(side**2, case["setting"]["iterations"], kind, limits) for kind in PRECISIONS}
    body = []
    for row in rows:
        moved = row["bytes_read"] + row["bytes_written"]
        numbers = [f"{row['operations']:.0f}", f"{moved:.0f}", f"{row['operations'] / moved:.2f}"]
        times = [f"{1e3 * row['median_s']:.4f}", f"{row['ns_per_pixel']:.4f}"]
        rates = [f"{row['gflops']:.0f}", f"{row['gbytes_per_s']:.0f}"]
        least = floors[row["precision"]]
        over = "" if least is None else f"{row['median_s'] / max(least.values()):.1f}"
        body.append([shown(row["name"]), *numbers, *times, *rates, over])
    for (schedule, precision), row in TABLE1.items():
        moved = row.accesses * (8 if precision == "float32" else 4)  # float2 and half2, as its intensities say
        numbers = [f"{row.operations}", f"{moved}", f"{row.operations / moved:.2f}"]
        times = [f"{row.ns_per_pixel * REFERENCE_SIDE**2 / 1e6:.1f}", f"{row.ns_per_pixel}"]
        name = f"{schedule} {precision}, published"
        body.append([name, *numbers, *times, str(row.gflops), str(row.gbytes_per_s), ""])
    title = (
        f"Work counted from the sources over measured time, {side}×{side}, {_work(case['setting'])}. Bytes are those "
        f"asked for: caches serve some (the paper's GB/s: of 2³⁰ bytes).{_limits(limits, floors)}"
    )
    return title, [head, *body]


def _limits(limits: Case, floors: dict[str, dict[str, float] | None]) -> str:
    """Return the least time of the iterations, in words."""
    told = []
    for kind, least in floors.items():
        if least is not None:
            special = f", special functions {1e3 * least['special_s']:.3f} ms" if "special_s" in least else ""
            told.append(f"{kind} {1e3 * least['memory_s']:.3f} ms{special}")
    if not told:
        return ""
    copied = f"at the {limits['bytes_per_s'] / 1e12:.2f} TB/s of a copy in the same run"
    return f" Floor, were every plane read and written once {copied}: {'; '.join(told)}"


def depth_table(results: dict[str, Any]) -> tuple[str, Table] | None:
    """Figure 11."""
    case = case_of(results, "depths")
    if case is None:
        return None
    rows = case["rows"]
    depths = sorted({row["depth"] for row in rows})
    names = list(dict.fromkeys(row["name"] for row in rows))
    at = {(row["name"], row["depth"]): row for row in rows}
    header = ["µs per iteration", *(f"depth {depth}" for depth in depths)]
    body = [
        [shown(name), *(_status(at.get((name, depth)), "ms_per_iteration", ".2f", 1e3) for depth in depths)]
        for name in names
    ]
    height, width = rows[0]["size"] if rows else (0, 0)
    title = (
        f"Time per iteration over the pipeline's depth, {width}×{height}, 1 scale × 1 warp, two passes, {_rounds(rows)}"
    )
    return title, [header, *body]


def energy_table(results: dict[str, Any]) -> tuple[str, Table] | None:
    """Figure 12."""
    case = case_of(results, "energy")
    if case is None:
        return None
    if not case["rows"]:
        return f"Energy: not measured, {case['meter']}", [["version"]]
    head = ["version", "nJ a pixel", "ns a pixel", "W"]
    body = [
        [
            shown(r["name"]),
            _status(r, "nj_per_pixel", ".3f"),
            _status(r, "ns_per_pixel", ".4f"),
            _status(r, "watts", ".0f"),
        ]
        for r in case["rows"]
    ]
    height, width = case["rows"][0]["size"]
    title = f"Energy, {width}×{height}, {_work(case['setting'])}; {case['meter']}, idle {case['idle_watts']:.0f} W"
    return title, [head, *body]


def frames_table(results: dict[str, Any]) -> tuple[str, Table] | None:
    """Presets on whole frames."""
    case = case_of(results, "whole frames")
    if case is None:
        return None
    head = [
        "preset",
        "scales × warps × iterations",
        "median ms",
        "p99 ms",
        "frames a second",
        "in sequence",
        "floor ms",
        "over floor",
    ]
    groups = list(dict.fromkeys(name for row in case["rows"] for name in row.get("epe", {})))
    body = []
    for row in case["rows"]:
        line = [row["name"], _work(row)]
        if row["status"] != "ok":
            body.append([*line, row["status"], *[""] * (5 + len(groups))])
            continue
        times = [f"{1e3 * row['median_s']:.3f}", f"{1e3 * row['p99_s']:.3f}", f"{row['frames_per_s']:.1f}"]
        floor = ["", ""]
        if "floor_s" in row:
            floor = [f"{1e3 * row['floor_s']:.3f}", f"{row['over_floor']:.2f}"]
        errors = [f"{row['epe'][name]:.4f}" for name in groups]
        body.append([*line, *times, f"{row['sequence']['frames_per_s']:.1f}", *floor, *errors])
    head += [f"{name} EPE px" for name in groups]
    return f"Whole frames, {case['frames']}, to flow on the device", [head, *body]


def time_table(results: dict[str, Any]) -> tuple[str, Table] | None:
    """Table 3."""
    case = case_of(results, "real time")
    if case is None:
        return None
    at = {(row["precision"], row["limit_s"]): row for row in case["rows"] if "limit_s" in row}
    body: Table = []
    for precision in dict.fromkeys(key[0] for key in at):
        line = [f"fullfield {precision}"]
        for limit in LIMITS:
            row = at.get((precision, limit))
            if row is None or "median_s" not in row:
                line.append("")
                continue
            watts = f", {row['watts']:.0f} W" if "watts" in row else ""
            line.append(f"{row['side']}² ({1e3 * row['median_s']:.1f} ms{watts})")
        body.append(line)
    for name, published in TABLE3.items():
        cells = [f"{side}², {watts} W" for side, watts in published.values()]
        body.append([f"{name}, published", *cells])
    head = ["largest square frame within", *(f"{1e3 * limit:g} ms" for limit in LIMITS)]
    apart = f"; commit {case['commit']}" if "commit" in case else ""
    return f"Real time, {_work(case['setting'])}, grey bytes on the device to flow{apart}", [head, *body]


def peers_table(results: dict[str, Any]) -> tuple[str, Table] | None:
    """OpenCV beside ours."""
    case = case_of(results, "peers")
    if case is None:
        return None
    body = []
    for row in case["rows"]:
        times = [f"{1e3 * row['median_s']:.3f}", f"{1e3 * row['min']:.3f} … {1e3 * row['max']:.3f}"]
        body.append([row["name"], *times, f"{row['ours_faster']:.3g}", f"{row['epe']:.3f}"])
    height, width = case["size"]
    title = (
        f"Others in the same run, {case['pair']} {width}×{height}, {_work(case['setting'])} (scikit-image: all scales "
        f"of ½), ours from bytes on the GPU to flow there, their CPU solvers on "
        f"{results.get('environment', {}).get('cores', '?')} cores from grey frames to flow in memory; OpenCV's CUDA "
        f"solver: {case['opencv_cuda']}"
    )
    return title, [["solver", "ms", "from … to", "over the first row's", "end-point error px"], *body]


def _compared(case: Case) -> list[tuple[str, str, str]]:
    """Return (set, schedule, in words) of the curves that compare arithmetic in both precisions.

    The solver's own schedule is left out: it computes whole warps in float32 in either precision.
    """
    result = []
    for name in dict.fromkeys(row["set"] for row in case["rows"]):
        batch = next(row["batch"] for row in case["rows"] if row["set"] == name)
        for schedule in dict.fromkeys(row["schedule"] for row in case["rows"]):
            if schedule != AUTO:
                result.append((name, schedule, f"{batch} at a time, schedule {schedule}"))
    return result


def quality_tables(results: dict[str, Any]) -> list[tuple[str, Table]]:
    """Table 2: errors at equal time, in full batches."""
    case = case_of(results, "quality")
    if case is None:
        return []
    title = "What arithmetic in half precision gains: errors in the time of float32, and after equally many iterations"
    result = [(title, finding(case))]
    for name, schedule, words in _compared(case):
        columns = at_equal_time(case, name, schedule)
        if columns:
            some = next(row for row in case["rows"] if row["set"] == name and "scenes" in row)
            result.append(_quality_table(name, some, words, columns))
    return result


def finding(case: Case) -> Table:
    """Return the errors of float16 and float32 at equal time, averaged over a set's scenes, as the paper has them.

    The last row of a set compares them after equally many iterations, the most that were measured.
    """

    def compared(single: dict[str, float], half: dict[str, float]) -> list[str]:
        cells = []
        for error, unit in (("epe", "px"), ("aae", "°")):
            change = 100 * (half[error] / single[error] - 1)
            cells += [f"{single[error]:.3f} / {half[error]:.3f} {unit}", f"{change:+.1f} %"]
        return cells

    body = []
    for name, schedule, words in _compared(case):
        for row in at_equal_time(case, name, schedule):
            line = [f"{name}, {words}", f"{1e3 * row['seconds']:.3f}", f"{row['iterations float32']:.0f}"]
            if row["epe float16"] is None:
                body.append([*line, "fewer than measured", *[""] * 4])
                continue
            both = ({error: row[f"{error} {kind}"] for error in ("epe", "aae")} for kind in PRECISIONS)
            body.append([*line, f"{row['iterations float16']:.1f}", *compared(*both)])
        last = [curve[-1] for kind in PRECISIONS if (curve := curve_of(case, name, kind, schedule))]
        if len(last) == len(PRECISIONS) and last[0]["iterations"] == last[1]["iterations"]:
            times = " / ".join(f"{1e3 * row['seconds']:.3f}" for row in last)
            body.append([f"{name}, {words}", times, *(str(row["iterations"]) for row in last), *compared(*last)])
    head = ["pairs", "ms a pair", "iterations float32", "float16", "EPE float32 / float16", "", "AAE", ""]
    return [head, *body]


def _published_errors(scenes: Sequence[str], count: int) -> list[list[str]]:
    """Return the published row of one scene, or of the mean over several; none where a scene was not published."""
    values = [TABLE2_SCENES[scene] for scene in scenes if scene in TABLE2_SCENES]
    if len(values) != len(scenes) or len(values[0]) != count:
        return []
    name = scenes[0] if len(scenes) == 1 else "average"
    return [[f"{name}, published", *(f"{sum(column) / len(values):.2f}" for column in zip(*values, strict=True))]]


def _quality_table(name: str, some: dict[str, Any], words: str, columns: Sequence[dict[str, Any]]) -> tuple[str, Table]:
    times = [f"{1e3 * column['seconds']:.3f} ms" for column in columns]
    head = [f"{error} {time} {kind}" for time in times for error in ("EPE", "AAE") for kind in ("F32", "F16")]
    body = []
    scenes = [scene["scene"] for scene in some["scenes"]]
    for scene in [*scenes, ""]:
        prefix = f"{scene} " if scene else ""
        keys = [f"{prefix}{error} {kind}" for error in ("epe", "aae") for kind in ("float32", "float16")]
        values = [column.get(key) for column in columns for key in keys]
        body.append([scene or "average", *("" if value is None else f"{value:.3f}" for value in values)])
        body += _published_errors([scene] if scene else scenes, len(values))
    iterations = [value for c in columns for value in (c["iterations float32"], c["iterations float16"], None, None)]
    body.append(["iterations", *("" if value is None else f"{value:.0f}" for value in iterations)])
    title = (
        f"Error at equal time per pair, {name}, {some['scales']} scales × 1 warp × as many iterations as fit, {words}"
    )
    if name in TABLE2:
        averages = (f"{ms:g} ms {a} / {b} px, {c}° / {d}°" for ms, (a, b, c, d) in TABLE2[name].items())
        title += f". Published averages of all its scenes, F32 / F16: {'; '.join(averages)}"
    if any(scene in TABLE2_SCENES for scene in scenes):
        title += ". Rows marked as published: after 2.5, 5 and 10 ms there, the average over the scenes of this table"
    return title, [["scene", *head], *body]
