"""Pictures of the points benchmark in the form of the supplement's figures A to K."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = {
    "lowering": "figureA_lowering.png",
    "order": "figureB_order.png",
    "knn": "figureC_knn.png",
    "sizes": "figureDE_sizes.png",
    "voxels": "figureDE_voxels.png",
    "network": "figureFG_network.png",
    "limit": "figureK_limit.png",
}
CARDS = ((24, "24 GB"), (48, "48 GB"), (80, "80 GB"), (140, "141 GB"))
"""Memory of common GPUs in GiB, for figure K, and what they are sold as."""
PUBLISHED = {
    "PointCNN++": {"forward": (60.4, 0.37), "training": (135.9, 0.59)},
    "fVDB 0.3.1": {"forward": (49.6, 0.82), "training": (155.1, 1.79)},
}
"""ResNet-18 on an RTX 4090 from PointCNN++'s supplement, without a number of points: ms, GB; training with forward."""
Case = dict[str, Any]


def draw(results: Case, folder: Path) -> list[Path]:
    """One picture for every part that was measured; of ``limit`` only where memory was counted."""
    written = []
    for part, file in FILES.items():
        cases = [case for case in results["cases"] if case["part"] == part]
        if part == "limit" and not any("training_allocated_bytes" in case["rows"][0] for case in cases):
            continue  # memory is not counted on the CPU
        if not cases:
            continue
        figure = _phases(cases[0]) if part == "network" else _limit(cases) if part == "limit" else _by_size(cases)
        environment = results.get("environment", {})
        kind = cases[0]
        channels = f", {kind['channels'][0]}→{kind['channels'][1]}" if "channels" in kind else ""
        where = environment.get("gpu") or environment.get("cpu", "")
        figure.suptitle(f"{where}: {kind['dtype']}{channels}", fontsize=9)
        written.append(save(figure, folder / file))
    return written


def _figure(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    return new_figure(rows, columns, (4.4 * columns, 0.5 + 3.7 * rows))


def _value(row: Case, way: str, unit: str) -> float | None:
    if unit == "ms":
        return 1e3 * row[way]["median_s"] if way in row else None
    result = row.get(f"{way}_peak_bytes")
    return None if result is None else result / 1e6


def _by_size(cases: list[Case]) -> Figure:
    """Time and memory of inference and training over the number of points, a row of panels for each series."""
    counted = any("training_peak_bytes" in row for case in cases for row in case["rows"])
    panels = [("forward", "ms"), ("training", "ms"), *([("forward", "MB"), ("training", "MB")] if counted else [])]
    series = list(dict.fromkeys(case["series"] for case in cases))
    names = list(dict.fromkeys(row["name"] for case in cases for row in case["rows"]))
    figure, axes = _figure(len(series), len(panels))
    for kind, row_of_axes in zip(series, axes, strict=True):
        for one, (way, unit) in zip(row_of_axes, panels, strict=True):
            for number, name in enumerate(names):
                points = [
                    (case["size"], value)
                    for case in cases
                    for row in case["rows"]
                    if case["series"] == kind and row["name"] == name
                    if (value := _value(row, way, unit)) is not None
                ]
                if points:
                    width = 2.2 if any(r["ours"] for c in cases for r in c["rows"] if r["name"] == name) else 1.2
                    one.plot(
                        *zip(*sorted(points), strict=True),
                        marker="o",
                        markersize=3,
                        label=name,
                        color=f"C{number}",
                        linewidth=width,
                    )
            _log(one, f"{way}, {'ms' if unit == 'ms' else 'MB beyond the inputs'}")
        row_of_axes[0].set_title(kind, fontsize=8)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names), fontsize=7)
    return figure


def _log(one: Axes, what: str) -> None:
    one.set_xscale("log")
    one.set_yscale("log")
    one.set_xlabel("points")
    one.set_ylabel(what)
    one.grid(True, which="major", alpha=0.3)


def _limit(cases: list[Case]) -> Figure:
    """All that is allocated over the number of points, beside the memory of common GPUs; a cross: it did not fit."""
    figure, (axes,) = _figure(1, 2)
    for one, way in zip(axes, ("forward", "training"), strict=True):
        key = f"{way}_allocated_bytes"
        points = [(case["size"], case["rows"][0][key] / 2**30) for case in cases if key in case["rows"][0]]
        one.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, linewidth=2.2, label="fullfield")
        short = [case["size"] for case in cases if case["rows"][0]["status"] == "out of memory"]
        missing = [size for size in short if size not in dict(points)]
        one.plot(missing, [CARDS[-1][0]] * len(missing), "x", color="C3", label="does not fit" if missing else None)
        for size, name in CARDS:
            one.axhline(size, color="0.6", linewidth=0.8, linestyle="--")
            one.annotate(name, (min(case["size"] for case in cases), size), fontsize=7, color="0.4", va="bottom")
        _log(one, f"ResNet-18, {way}, GiB allocated in all")
        one.set_xlim(0.7 * min(case["size"] for case in cases), 1.4 * max(case["size"] for case in cases))
        one.legend(fontsize=7, loc="lower right")
    return figure


def _phases(case: Case) -> Figure:
    """Bars of the network's phases, and what the supplement has for its two."""
    row = case["rows"][0]
    counted = "training_peak_bytes" in row
    figure, ((*axes,),) = _figure(1, 2 if counted else 1)
    phases = [way for way in ("geometry", "forward", "training", "whole") if way in row]
    values = [[1e3 * row[way]["median_s"] for way in phases]]
    if counted:
        values.append([row[f"{way}_peak_bytes"] / 1e9 for way in phases])
    for number, (one, own) in enumerate(zip(axes, values, strict=True)):
        one.bar([place - 0.28 for place in range(len(phases))], own, 0.26, label="fullfield, this run")
        for place, (name, published) in enumerate(PUBLISHED.items()):
            at = [phases.index(way) + 0.28 * place for way in published if way in phases]
            height = [published[way][number] for way in published if way in phases]
            one.bar(
                at,
                height,
                0.26,
                label=f"{name}, published, RTX 4090, unknown number of points",
                hatch="/."[place] * 2,
                fill=False,
            )
        one.set_xticks(range(len(phases)), phases)
        one.set_ylabel(("ms", "peak memory beyond the inputs, GB")[number])
    axes[0].legend(fontsize=7)
    axes[0].set_title(case["label"], fontsize=8)
    return figure
