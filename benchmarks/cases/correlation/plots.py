"""Pictures of the correlation benchmark in the form of the paper's figures 5, 8, 9 and 10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cases.correlation.report import VARIABLES, by_value, memory, milliseconds, names, rows_of
from benchmarks.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = {"size": "figure5_size.png", "updates": "figure8_updates.png", "channels": "figure9_channels.png"}
HARDWARE = "figure10_hardware.png"
# The same colours in every picture.
_COLOURS = {
    name: f"C{i}"
    for i, name in enumerate(
        ("cuda", "dense", "alt_cuda_corr", "reference", "blocks", "cpu", "fused-local-corr", "ptlflow volume")
    )
}
Case = dict[str, Any]


def draw(results: dict[str, Any], folder: Path, others: Sequence[dict[str, Any]] = ()) -> list[Path]:
    """Runtime and memory over the swept variable; with results of other machines, runtime by machine too."""
    cases = results["cases"]
    variable = cases[0]["variable"]
    written = [save(_sweep(results, variable), folder / FILES[variable])]
    machines = [r for r in (results, *others) if r["cases"] and r["cases"][0]["variable"] == "size"]
    if others and machines:
        written.append(save(_hardware(machines), folder / HARDWARE))
    return written


def _lines(axes: Axes, cases: Sequence[Case], quantity: str) -> None:
    values = by_value(cases)
    for name in names(cases):
        points = []
        for value, group in values.items():
            rows = rows_of(group, name)
            if quantity == "time":
                result = milliseconds(rows)
                points += [(value, *result)] if result else []
            else:
                peak = memory(rows)
                points += [(value, peak, 0.0)] if peak else []
        if not points:
            continue
        x, middle, spread = zip(*sorted(points), strict=True)
        (line,) = axes.plot(x, middle, marker="o", markersize=3, label=name, color=_COLOURS.get(name, "black"))
        low = [max(m - s, m / 10) for m, s in zip(middle, spread, strict=True)]
        high = [m + s for m, s in zip(middle, spread, strict=True)]
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def _logarithmic(axes: Axes, cases: Sequence[Case], label: str) -> None:
    ticks = list(by_value(cases))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel(VARIABLES[cases[0]["variable"]])
    axes.set_ylabel(label)
    axes.grid(True, which="major", alpha=0.3)


def _conditions(case: Case) -> str:
    height, width = case["size"]
    held = {
        "size": f"{case['updates']} lookups, {case['channels']} channels",
        "updates": f"{width}×{height}, {case['channels']} channels",
        "channels": f"{width}×{height}, {case['updates']} lookups",
    }[case["variable"]]
    return f"{held}, {case['dtype']} to {case['out_dtype']}, {case['pass']}"


def _sweep(results: dict[str, Any], variable: str) -> Figure:
    cases = results["cases"]
    environment = results.get("environment", {})
    counted = any("peak_bytes" in row for case in cases for row in case["rows"])
    columns = 2 if counted else 1
    figure, ((time, *rest),) = new_figure(1, columns, (5.5 * columns, 4.4))
    _lines(time, cases, "time")
    _logarithmic(time, cases, "runtime, ms")
    time.legend(fontsize=8)
    figure.suptitle(f"{environment.get('gpu') or environment.get('cpu', '')}: {_conditions(cases[0])}", fontsize=9)
    if not counted:
        return figure
    space = rest[0]
    _lines(space, cases, "memory")
    _logarithmic(space, cases, "peak memory with inputs, MB")
    capacity = environment.get("gpu_memory_bytes")
    if capacity and variable == "size":
        for amount, text in ((24e9, "24 GB"), (80e9, "80 GB"), (capacity, environment.get("gpu", "this GPU"))):
            space.axhline(amount / 1e6, linestyle=":", color="grey", linewidth=1)
            space.annotate(text, (cases[0]["value"], amount / 1e6), fontsize=7, va="bottom")
    return figure


def _hardware(machines: Sequence[dict[str, Any]]) -> Figure:
    figure, (axes,) = new_figure(1, len(machines), (4.2 * len(machines), 4.4))
    for one, results in zip(axes, machines, strict=True):
        environment = results.get("environment", {})
        _lines(one, results["cases"], "time")
        _logarithmic(one, results["cases"], "runtime, ms")
        one.set_title(environment.get("gpu") or environment.get("cpu", "?"), fontsize=9)
    top = max(one.get_ylim()[1] for one in axes)
    bottom = min(one.get_ylim()[0] for one in axes)
    for one in axes:
        one.set_ylim(bottom, top)
    axes[0].legend(fontsize=8)
    return figure
