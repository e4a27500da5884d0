"""Tables of shots from files to files, for the pages that tables.py writes."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import table
from benchmarks.stored import describe_commit, describe_run, get_row, stored_result

MARK_SHOTS = "<!-- table of shots: begin -->\n"
MARK_COMPRESSIONS = "<!-- table of shots by compression: begin -->\n"


def describe_plates(case: dict[str, Any]) -> str:
    """Return the compression of a shot's plates and the size of a file."""
    return f"{case['plates']['compression'].upper()}, {case['plate_bytes'] / 1e6:.0f} MB"


def describe_rate(case: dict[str, Any]) -> str:
    """Return the frames a second of a shot from files to files, with those of the slowest and the fastest run."""
    shot = get_row(case, "files to files")
    slowest, fastest = (case["frames"] / shot[bound] for bound in ("max", "min"))
    spread = f" ({slowest:.1f}–{fastest:.1f})" if shot["repeats"] > 1 else ""
    return f"{shot['frames_per_s']:.1f}{spread}"


def describe_runs(case: dict[str, Any]) -> str:
    """Return of how many runs the times of a shot are."""
    repeats = get_row(case, "files to files")["repeats"]
    return "One run" if repeats == 1 else f"Median of {repeats} runs"


def shots_table() -> str:
    """Return the rates of shots from files to files by the plates' compression, with the time of each stage."""
    results = stored_result("shots_h200.json")
    stages = list(get_row(results["cases"][0], "files to files")["stages_ms"])
    rows = [["plates", "frames a second", "of the estimation alone", *(f"{name}, ms a frame" for name in stages)]]
    has_sizes = len({tuple(case["size"]) for case in results["cases"]}) > 1
    for case in results["cases"]:
        alone, shot = (get_row(case, name) for name in ("estimation alone", "files to files"))
        height, width = case["size"]
        rows.append(
            [
                (f"{width}×{height}, " if has_sizes else "") + describe_plates(case),
                describe_rate(case),
                f"{100 * shot['frames_per_s'] / alone['frames_per_s']:.0f} %",
                *(f"{shot['stages_ms'][name]['wall']:.0f}" for name in stages),
            ]
        )
    runs = f"{describe_runs(results['cases'][0])}; a stage's time is the sum over all threads, which overlap."
    return "\n".join([*table(rows), "", runs, describe_run(results, "sequence")])


def compressions_table() -> str:
    """Return the rates of shots of 4K plates by the plates' compression, with the longest stages."""
    results = stored_result("shots_h200.json")
    cases = [case for case in results["cases"] if case["size"] == [2160, 3840]]
    stages = ("read", "estimate", "write")
    rows = [["plates", "frames/s", *stages]]
    for case in cases:
        spent = get_row(case, "files to files")["stages_ms"]
        rows.append([describe_plates(case), describe_rate(case), *(f"{spent[name]['wall']:.0f}" for name in stages)])
    about = f"{describe_runs(cases[0])}, {results['environment']['gpu']}, {describe_commit(results)}."
    return "\n".join([*table(rows), "", about]) + "\n"


PAGES = {
    "benchmarks/notes/more_tables.md": ((MARK_SHOTS, shots_table),),
    "docs/compositors.md": ((MARK_COMPRESSIONS, compressions_table),),
}
"""As in ``tables.py``: page, then the mark and the table of each part."""
