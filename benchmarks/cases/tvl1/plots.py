"""Pictures of the GPU benchmark of TV-L1 in the form of the paper's figures 8 to 13."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases.tvl1.report import case_of
from benchmarks.cases.tvl1.romera import AUTO, SCHEDULES, shown
from benchmarks.cases.tvl1.solver import curve_of
from benchmarks.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = {
    "schedules": "figure8_sizes.png",
    "depths": "figure11_depth.png",
    "energy": "figure12_energy.png",
    "quality": "figure13_quality.png",
}
_COLOURS = {name: f"C{number}" for number, name in enumerate(SCHEDULES)}
_LINES = {"float32": "-", "float16": "--"}


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Every figure whose measurements are there."""
    makers: dict[str, Callable[[dict[str, Any], str], Figure]] = {
        "schedules": _sizes,
        "depths": _depths,
        "energy": _energy,
        "quality": _quality,
    }
    environment = results.get("environment", {})
    machine = environment.get("gpu") or environment.get("cpu", "")
    written = []
    for name, make in makers.items():
        case = case_of(results, name)
        if name == "quality" and case is not None and {row["schedule"] for row in case["rows"]} == {AUTO}:
            continue  # nothing in it compares two precisions
        if case is not None and any(row.get("status") == "ok" for row in case["rows"]):
            written.append(save(make(case, machine), folder / FILES[name]))
    return written


def _lines(axes: Axes, rows: Sequence[dict[str, Any]], x: Callable[[dict[str, Any]], float], y: str) -> None:
    for name in dict.fromkeys(row["name"] for row in rows):
        some = sorted((row for row in rows if row["name"] == name and y in row), key=x)
        if not some:
            continue
        first = some[0]
        axes.plot(
            [x(row) for row in some],
            [row[y] for row in some],
            marker="o",
            markersize=3,
            linestyle=_LINES.get(first["precision"], ":"),
            color=_COLOURS.get(first["schedule"], "black"),
            label=shown(name),
        )
    axes.grid(True, which="major", alpha=0.3)
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Beside the axes: there are too many lines for a place among them."""
    axes.legend(fontsize=7, handlelength=3, loc="center left", bbox_to_anchor=(1.01, 0.5))


def _sizes(case: dict[str, Any], machine: str) -> Figure:
    figure, ((axes,),) = new_figure(1, 1, (9, 4.4))
    _lines(axes, case["rows"], lambda row: float(row["size"][0]), "ns_per_pixel")
    sides = sorted({row["size"][0] for row in case["rows"]})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sides, [f"{side}²" for side in sides])
    axes.xaxis.minorticks_off()
    axes.grid(True, which="minor", axis="y", alpha=0.12)
    axes.set_xlabel("frame")
    axes.set_ylabel("ns per pixel")
    figure.suptitle(f"{machine}: 1 scale × 1 warp × 10 iterations, inner iterations, graph replay", fontsize=9)
    return figure


def _depths(case: dict[str, Any], machine: str) -> Figure:
    figure, ((axes,),) = new_figure(1, 1, (9, 4.4))
    _lines(axes, case["rows"], lambda row: float(row["depth"]), "ms_per_iteration")
    axes.set_xlabel("iterations in one pass")
    axes.set_ylabel("ms per iteration")
    axes.set_ylim(bottom=0)
    height, width = case["rows"][0]["size"]
    figure.suptitle(f"{machine}: {width}×{height}, 1 scale × 1 warp, two passes", fontsize=9)
    return figure


def _energy(case: dict[str, Any], machine: str) -> Figure:
    figure, ((axes,),) = new_figure(1, 1, (9, 4.4))
    for row in case["rows"]:
        if "nj_per_pixel" not in row:
            continue
        schedule = row["name"].split(" ")[0]
        marker = "o" if row["precision"] == "float32" else "^"
        point = (row["ns_per_pixel"], row["nj_per_pixel"])
        axes.plot(*point, marker=marker, color=_COLOURS.get(schedule, "black"), linestyle="", label=shown(row["name"]))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ns per pixel")
    axes.set_ylabel("nJ per pixel")
    axes.grid(True, alpha=0.3)
    _legend(axes)
    height, width = case["rows"][0]["size"]
    idle = f", idle {case['idle_watts']:.0f} W" if "idle_watts" in case else ""
    figure.suptitle(f"{machine}: {width}×{height}, 1 scale × 1 warp × 10 iterations; {case['meter']}{idle}", fontsize=9)
    return figure


def _plain_log(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers."""
    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _quality(case: dict[str, Any], machine: str) -> Figure:
    """Draw both errors of every set over time, for schedules that compute in both precisions."""
    names = dict.fromkeys(row["set"] for row in case["rows"])
    schedules = [name for name in dict.fromkeys(row["schedule"] for row in case["rows"]) if name != AUTO]
    lines = [(name, schedule) for name in names for schedule in schedules]
    errors = (("epe", "end-point error, px"), ("aae", "angular error, °"))
    figure, axes = new_figure(len(lines), len(errors), (4.5 * len(errors), 2.9 * len(lines)))
    for panels, (name, schedule) in zip(axes, lines, strict=True):
        some = next(row for row in case["rows"] if row["set"] == name)
        for one, (error, words) in zip(panels, errors, strict=True):
            for precision, line in _LINES.items():
                rows = curve_of(case, name, precision, schedule)
                times = [1e3 * row["seconds"] for row in rows]
                one.plot(times, [row[error] for row in rows], line, marker="o", markersize=3, label=precision)
            one.set_title(f"{name}, {some['scales']} scales, {some['batch']} pairs at a time, {schedule}", fontsize=8)
            _plain_log(one)
            one.set_xlabel("ms per pair")
            one.set_ylabel(words)
            one.grid(True, which="both", alpha=0.3)
            one.legend(fontsize=8)
    steps = sorted({row["iterations"] for row in case["rows"]})
    figure.suptitle(f"{machine}: 1 warp, {steps[0]} to {steps[-1]} iterations, bytes on the device to flow", fontsize=9)
    return figure
