"""Pictures of the points benchmark in the form of the supplement's figures A to K."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield.io import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = {
    "lowering": "figureA_lowering.png",
    "order": "figureB_order.png",
    "knn": "figureC_knn.png",
    "sizes": "figureDE_sizes.png",
    "network": "figureFG_network.png",
    "limit": "figureK_limit.png",
}
Case = dict[str, Any]


def draw(results: Case, folder: Path) -> list[Path]:
    """One picture for every part that was measured."""
    written = []
    for part, file in FILES.items():
        cases = [case for case in results["cases"] if case["part"] == part]
        if not cases:
            continue
        figure = _phases(cases[0]) if part == "network" else _by_size(cases)
        environment = results.get("environment", {})
        kind = cases[0]
        channels = f", {kind['channels'][0]}→{kind['channels'][1]}" if "channels" in kind else ""
        figure.suptitle(
            f"{environment.get('gpu') or environment.get('cpu', '')}: {kind['dtype']}{channels}", fontsize=9
        )
        path = folder / file
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=150, format="png")
        written.append(path)
    return written


def _figure(columns: int) -> tuple[Figure, list[Axes]]:
    # Not through pyplot, which would look for a display.
    figure: Figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(4.6 * columns, 4.2), layout="constrained"
    )
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _by_size(cases: list[Case]) -> Figure:
    """Time and memory of inference and training over the number of points."""
    counted = any("training_peak_bytes" in row for case in cases for row in case["rows"])
    panels = [("forward", "s"), ("training", "s"), *([("forward", "bytes"), ("training", "bytes")] if counted else [])]
    figure, axes = _figure(len(panels))
    names = dict.fromkeys(row["name"] for case in cases for row in case["rows"])
    for one, (way, unit) in zip(axes, panels, strict=True):
        for number, name in enumerate(names):
            points = [
                (case["size"], 1e3 * row[way]["median_s"] if unit == "s" else row[f"{way}_peak_bytes"] / 1e6)
                for case in cases
                for row in case["rows"]
                if row["name"] == name and (way if unit == "s" else f"{way}_peak_bytes") in row
            ]
            if points:
                one.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name, color=f"C{number}")
        one.set_xscale("log")
        one.set_yscale("log")
        one.set_xlabel("points")
        one.set_ylabel(f"{way}, {'ms' if unit == 's' else 'MB beyond the inputs'}")
        one.grid(True, which="major", alpha=0.3)
    axes[0].legend(fontsize=7)
    return figure


def _phases(case: Case) -> Figure:
    """Bars of the network's phases."""
    row = case["rows"][0]
    counted = "training_peak_bytes" in row
    figure, axes = _figure(2 if counted else 1)
    phases = [way for way in ("geometry", "forward", "training", "whole") if way in row]
    axes[0].bar(phases, [1e3 * row[way]["median_s"] for way in phases])
    axes[0].set_ylabel("ms")
    if counted:
        axes[1].bar(phases, [row[f"{way}_peak_bytes"] / 1e6 for way in phases])
        axes[1].set_ylabel("peak memory beyond the inputs, MB")
    axes[0].set_title(case["label"], fontsize=8)
    return figure
