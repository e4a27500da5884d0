"""Plots in the form of the paper's figures 1, 11 and 12, and the qualitative sheets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.figures import new_figure
from benchmarks.paper import published
from benchmarks.paper.matching import CHARGE, KUBRIC, METHODS, VARIANTS, Runs, StoredRun
from benchmarks.paper.tables import NOT_RUN, SCALES, Line, Measured, Table
from fullfield._check import InputError
from fullfield.datasets import FlowDataset
from fullfield.datasets.own import CHARGE_SHOTS
from fullfield.evaluation.run import PredictionRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SELECTED = ("flow1d", "hcvflow", "recover-cx", "waft", "ms-raft+", "raft", "dpflow", "sea-raft", "sea-raft-cascaded")
"""Methods of figures 11 and 12; figure 1 has CCMR too."""

OVER_SCALES = {"11": CHARGE, "12": KUBRIC}
"""Figures over the scales and their data sets."""

SHEETS: Mapping[str, str | None] = {"6": None, **dict(zip(("13", "14", "15"), CHARGE_SHOTS, strict=True))}
"""Qualitative figures and the shots they are from."""

_SHEET_METHODS = ("ms-raft+", "dpflow", "raft", "sea-raft", "sea-raft-cascaded")
_PANEL = 960  # pixels, width

Point = tuple[Fraction, float | None, float | None]
"""Scale, 1px error, seconds."""


def accuracy_over_runtime(table: Table) -> Figure:
    """Figure 1: 1px error over runtime of every method at its best scale, from table 1.

    Hollow: the paper's. Filled: measured here. An arrow leads from the time without our lookup to that with it.
    """
    figure, ((axes,),) = new_figure(1, 1, (7.5, 4.8))
    titles = {METHODS[name].title for name in (*SELECTED, "ccmr")}
    for i, line in enumerate(line for line in table.lines if line.paper and line.labels[0] in titles):
        colour = f"C{i % 10}"
        for values, filled in ((line.paper, False), (line.here, True)):
            seconds, error, without = (values.get(key) for key in ("best_s", "px1", "without_s"))
            if not (isinstance(seconds, float) and isinstance(error, float)):
                continue
            if isinstance(without, float):
                style = {"arrowstyle": "->", "color": "green", "alpha": 0.9 if filled else 0.4}
                axes.annotate("", (seconds, error), (without, error), arrowprops=style)
                if filled:
                    axes.annotate(f"{100 * (seconds / without - 1):.0f}%", (without, error), fontsize=7, color="green")
            axes.scatter([seconds], [error], s=45, facecolors=colour if filled else "none", edgecolors=colour)
            if not filled:
                axes.annotate(_label(line), (seconds, error), xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", xlabel="Runtime, s", ylabel="1px error, %", title=f"{table.title} (hollow: paper)")
    axes.grid(alpha=0.3)
    return figure


def _label(line: Line) -> str:
    return f"{line.labels[0]} {line.labels[1].rpartition(' ')[2]}"


def over_scales(runs: Runs, dataset: str) -> Figure:
    """Figures 11 and 12: 1px error, and runtime for each full-size pixel, over the processing scale.

    Dashed: the paper's. Solid: measured here.
    """
    figure, ((errors, times),) = new_figure(1, 2, (13.0, 4.8))
    measured = Measured(runs)
    for i, method in enumerate(SELECTED):
        here = [
            (Fraction(scale), _error(measured, method, dataset, scale), measured.best_runtime(method, dataset, scale))
            for scale in SCALES
        ]
        for points, style in ((_published_points(method, dataset), "--"), (here, "-")):
            label = METHODS[method].title if style == "--" else None
            look: dict[str, Any] = {"linestyle": style, "color": f"C{i}", "marker": "o", "markersize": 4}
            errors.plot(*_xy((scale, error) for scale, error, _ in points), label=label, **look)
            normalised = ((scale, None if s is None else s / float(scale) ** 2) for scale, _, s in points)
            times.plot(*_xy(normalised), **look)
    ticks = [float(Fraction(scale)) for scale in SCALES]
    for axes in (errors, times):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel("Input scaling factor")
        axes.grid(alpha=0.3)
    errors.set(ylabel="1px error, %", title=f"{runs.stand_ins.get(dataset, dataset)} (dashed: paper)")
    errors.legend(fontsize=7)
    times.set(yscale="log", ylabel="Normalized runtime, s/scale²")
    return figure


def _error(measured: Measured, method: str, dataset: str, scale: str) -> float | None:
    value = measured.metrics(method, dataset, scale)["px1"]
    return value if isinstance(value, float) else None


def _xy(points: Iterable[tuple[Fraction, float | None]]) -> tuple[list[float], list[float]]:
    known = [(float(scale), value) for scale, value in points if value is not None]
    return [x for x, _ in known], [y for _, y in known]


def _published_points(method: str, dataset: str) -> list[Point]:
    """Of Charge-8K from table 11; of Kubric-8K what tables 6 and 7 tell."""
    if dataset == CHARGE:
        rows = [row for row in published.rows("11") if row["method"] == method]
        return [(Fraction(row["scale"]), row["px1"], _fastest(row)) for row in rows]
    best = {row["scale"]: row for row in published.rows("6") if row["method"] == method}
    costs = {row["scale"]: _fastest(row) for row in published.rows("7") if row["method"] == method}
    return [
        (
            Fraction(scale),
            best[scale]["px1"] if scale in best else None,
            costs.get(scale, best[scale]["best_s"] if scale in best else None),
        )
        for scale in SCALES
    ]


def _fastest(row: Mapping[str, object]) -> float | None:
    cells = [row.get(variant) for variant in VARIANTS]
    return min((float(cell["runtime_s"]) for cell in cells if isinstance(cell, dict)), default=None)


@dataclass(frozen=True)
class _Panel:
    method: str
    scale: str
    run: StoredRun | None

    @property
    def title(self) -> str:
        return f"{METHODS[self.method].title}, {self.scale}" + ("" if self.run is not None else f": {NOT_RUN}")


def qualitative_sheet(runs: Runs, number: str, dataset: FlowDataset | None = None) -> tuple[str, Tensor] | None:
    """Draw figures 6 and 13 to 15: the flow of a pair, a method a row and a scale a column.

    Args:
        runs: the stored runs.
        number: of the figure; see :data:`SHEETS`. Figure 6 takes its pair from the first shot, the others the middle
            pair of theirs; of a stand-in the shots are taken in their order.
        dataset: for a row with the frames and the true flow.

    Returns the pair's name and the picture, uint8 [3, H, W]; None where nothing has been run.
    """
    from fullfield.viz import draw_sheet, draw_wheel_legend, flow_to_image, frame_to_image, measure_max_motion

    panels = [_Panel(method, scale, _drawable(runs, method, scale)) for method in _SHEET_METHODS for scale in SCALES]
    done = {panel.method for panel in panels if panel.run is not None}
    panels = [panel for panel in panels if panel.method in done]
    used = [panel.run for panel in panels if panel.run is not None]
    if not used:
        return None
    name = _pair(used, number)
    first: list[tuple[str, Tensor]] = []
    longest = 0.0
    if dataset is not None:
        index = next((i for i, record in enumerate(dataset.records) if record.name == name), None)
        if index is None:
            raise InputError(f"{dataset.root}: has no pair {name}, of which the sheets are")
        for title, frame in zip(("First frame", "Second frame"), dataset.read_frames(index), strict=True):
            first.append((title, frame_to_image(_reduced(frame))))
        truth = dataset.read_truth(index)
        if truth is not None:
            mean = truth.flow if truth.flow.ndim == 3 else truth.flow.mean(0)
            small = _reduced(torch.where(truth.valid, mean, 0.0))
            known = _reduced(truth.valid[None].float())[0] > 0.5
            longest = measure_max_motion(small, known)
            first.append(("True flow", flow_to_image(small, known, max_motion=longest)))
    stored = [None if panel.run is None else PredictionRun.load(panel.run.folder) for panel in panels]
    flows = [None if run is None else _reduced(run.read_prediction(name)[0]) for run in stored]
    if longest <= 0:
        longest = max(measure_max_motion(flow) for flow in flows if flow is not None)
    shape = next(flow.shape for flow in flows if flow is not None)
    blank = torch.full((3, *shape[1:]), 128, dtype=torch.uint8)
    drawn = [
        (panel.title, blank if flow is None else flow_to_image(flow, max_motion=longest))
        for panel, flow in zip(panels, flows, strict=True)
    ]
    key = draw_wheel_legend(max(16, min(160, shape[1])), longest)
    if first:
        drawn = [*first, *[("", blank)] * (len(SCALES) - 1 - len(first)), ("Colours", key), *drawn]
        return name, draw_sheet(drawn, columns=len(SCALES), max_width=4 * _PANEL + 200)
    (title, picture), *rest = drawn
    return name, draw_sheet([(title, picture, key), *rest], columns=len(SCALES), max_width=4 * _PANEL + 200)


def _drawable(runs: Runs, method: str, scale: str) -> StoredRun | None:
    result = runs.scored(method, CHARGE, scale)
    fitting = ([] if result is None else [result]) + runs.find(method, CHARGE, scale)
    return next((run for run in fitting if run.failure is None and _predicted(run)), None)


def _predicted(run: StoredRun) -> set[str]:
    """Return the names of the pairs whose prediction is still there."""
    base = run.folder / "predictions"
    paths = (path for path in base.rglob("*.flo") if not path.name.startswith("."))
    return {path.relative_to(base).with_suffix("").as_posix() for path in paths}


def _pair(used: Sequence[StoredRun], number: str) -> str:
    """Return the pair of a figure, among those that every run has."""
    names = sorted(set.intersection(*(_predicted(run) for run in used)))
    if not names:
        raise InputError(f"{used[0].folder}: shares no pair with the other runs of its data set")
    shots: dict[str, list[str]] = {}
    for name in names:
        shots.setdefault(str(PurePosixPath(name).parent), []).append(name)
    shot = SHEETS[number]
    order = list(shots)
    if shot is None:
        selected = shots[order[0]]
        return selected[len(selected) // 3]
    selected = shots[shot] if shot in shots else shots[order[list(CHARGE_SHOTS).index(shot) % len(order)]]
    return selected[len(selected) // 2]


def _reduced(image: Tensor) -> Tensor:  # [C, H, W]
    """At most a panel wide; the mean of what falls together."""
    height, width = image.shape[-2:]
    if width <= _PANEL:
        return image
    size = (max(1, round(height * _PANEL / width)), _PANEL)
    return functional.interpolate(image[None], size=size, mode="area")[0]
