"""The paper's tables in their own layout: what it reports, and under it what was measured here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.paper import published
from benchmarks.paper.matching import (
    CHARGE,
    KUBRIC,
    METHODS,
    PAIRS,
    SMALL_SETS,
    VARIANTS,
    Runs,
    StoredRun,
)
from fullfield._check import InputError
from fullfield.evaluation.run import OUT_OF_MEMORY

NOT_RUN, NO_DATA, NOT_APPLICABLE, OOM = "not run", "no data", "n/a", "OOM"
ABSENT = "not in ptlflow"
"""Of a method without an implementation at hand."""

SCALES = ("1/8", "1/4", "1/2", "1/1")

Value = float | str | None
"""A number, a word that stands for one, or nothing."""

_METRICS = ("px1", "epe", "lm_px1", "lm_epe")

_NOTED = ("prefer-dense", "mixed", "reference")


@dataclass(frozen=True)
class Column:
    """A column, and what is printed within it.

    Attributes:
        key: of the value.
        digits: after the point.
        spread: key of a deviation printed after a plus-minus sign.
        percent: key of a percentage printed in brackets.
        unit: printed after the number.
    """

    key: str
    title: str
    digits: int
    spread: str | None = None
    percent: str | None = None
    unit: str = ""

    @property
    def keys(self) -> list[str]:
        """All values of the column."""
        return [key for key in (self.key, self.spread, self.percent) if key is not None]

    def text(self, values: Mapping[str, Value]) -> str:
        """Return the column's text in one line."""
        value = values.get(self.key)
        if value is None or isinstance(value, str):
            return value or ""
        text = f"{value:.{self.digits}f}{self.unit}"
        spread = None if self.spread is None else values.get(self.spread)
        if isinstance(spread, (int, float)):
            text += f" ± {spread:.{self.digits}f}"
        percent = None if self.percent is None else values.get(self.percent)
        if isinstance(percent, (int, float)):
            text += f" ({percent:+.0f}%)" if round(percent) else " (=)"
        return text


@dataclass(frozen=True)
class Line:
    """One row of the paper: its labels, the values it reports, and those measured here."""

    labels: tuple[str, ...]
    paper: Mapping[str, Value]
    here: Mapping[str, Value]
    here_label: str = ""


@dataclass
class Table:
    """One table.

    Attributes:
        key: its number.
        labels: titles of the columns that name a row.
        notes: what a reader must know of the values measured here.
    """

    key: str
    title: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[list[str]]:
        """Header and rows as texts: every line of the paper, and under it ours; alone where the paper has none."""
        result = [[*self.labels, "", *(column.title for column in self.columns)]]
        for line in self.lines:
            if not line.paper:
                labels = [*line.labels[:-1], f"{line.labels[-1]}, {line.here_label}"]
                result.append([*labels, "here", *(column.text(line.here) for column in self.columns)])
                continue
            result.append([*line.labels, "paper", *(column.text(line.paper) for column in self.columns)])
            blank = [""] * (len(line.labels) - 1)
            result.append([*blank, line.here_label, "here", *(column.text(line.here) for column in self.columns)])
        return result

    def records(self) -> list[dict[str, Value]]:
        """Return the same with plain numbers, a record a row."""
        result: list[dict[str, Value]] = []
        for line in self.lines:
            names = {label: line.labels[i] for i, label in enumerate(self.labels)}
            for source, values in (("paper", line.paper), ("here", line.here))[not line.paper :]:
                measured = {key: values.get(key) for column in self.columns for key in column.keys}
                here = {"at": line.here_label or None} if source == "here" else {"at": None}
                result.append({**names, "source": source, **here, **measured})
        return result


class Measured:
    """What was measured here, and the runs that were used for it."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self._used: dict[str, StoredRun] = {}
        self._left: dict[str, None] = {}

    def cost(self, method: str, dataset: str | Sequence[str], scale: str, variant: str) -> dict[str, Value]:
        """``runtime_s``, ``std_s``, ``memory_gib`` of a variant, or the words that stand for them."""
        if not METHODS[method].sampled and variant != "default":
            return dict.fromkeys(("runtime_s", "memory_gib"), NOT_APPLICABLE)
        if not METHODS[method].names:
            return dict.fromkeys(("runtime_s", "memory_gib"), ABSENT)
        names = [dataset] if isinstance(dataset, str) else dataset
        result = [run for name in names for run in self.runs.find(method, name, scale, variant)]
        if not result:
            return dict.fromkeys(("runtime_s", "memory_gib"), NOT_RUN)
        run, *others = result
        self._use(run)
        self._left.update(dict.fromkeys(str(other.folder) for other in others))
        if run.failure is not None:
            return dict.fromkeys(("runtime_s", "memory_gib"), OOM if run.failure == OUT_OF_MEMORY else run.failure)
        memory = run.memory_gib
        return {
            "runtime_s": run.runtime(),
            "std_s": run.runtime("std_s"),
            "memory_gib": NO_DATA if memory is None else memory,
        }

    def metrics(self, method: str, dataset: str, scale: str) -> dict[str, Value]:
        """Return the four metrics, or the words that stand for them."""
        if not METHODS[method].names:
            return dict.fromkeys(_METRICS, ABSENT)
        run = self.runs.scored(method, dataset, scale)
        if run is not None:
            self._use(run)
            return {key: NO_DATA if run.score(key) is None else run.score(key) for key in _METRICS}
        others = self.runs.find(method, dataset, scale)
        finished = [other for other in others if other.failure is None]
        return dict.fromkeys(_METRICS, NO_DATA if finished else OOM if others else NOT_RUN)

    def best_scale(self, method: str, dataset: str) -> str | None:
        """Where its 1px error is lowest."""
        result: dict[str, float] = {}
        for scale in SCALES:
            run = self.runs.scored(method, dataset, scale)
            error = None if run is None else run.score("px1")
            if error is not None:
                result[scale] = error
        return min(result, key=result.__getitem__) if result else None

    def best_runtime(self, method: str, dataset: str, scale: str) -> float | None:
        """Return the lowest runtime of all variants."""
        costs = [self.cost(method, dataset, scale, variant)["runtime_s"] for variant in VARIANTS]
        times = [value for value in costs if isinstance(value, float)]
        return min(times, default=None)

    def notes(self, datasets: Iterable[str]) -> list[str]:
        """Where the values come from."""
        notes = [
            f"Runs of {self.runs.stand_ins[name]} stand in for {name}."
            for name in datasets
            if name in self.runs.stand_ins
        ]
        if self._used:
            devices = sorted({str(run.config.get("device")) for run in self._used.values()})
            notes.append(f"Here: {', '.join(devices)}. The paper: NVIDIA A100 with 80 GB.")
            weights = sorted(
                {
                    f"{run.config['method']}: {run.config['parameters']['weights']}"
                    for run in self._used.values()
                    if run.config["parameters"].get("weights")
                }
            )
            if weights:
                notes.append(f"Weights: {'; '.join(weights)}.")
            averages = {str(run.result["averaging"]) for run in self._used.values() if run.result}
            if averages:
                notes.append(f"Averaging: {', '.join(sorted(averages))}. The paper does not name its own.")
            ours = {run.variant for run in self._used.values() if run.config.get("backend") in _NOTED}
            if "mixed" in ours:
                notes.append(
                    "Mixed here: the dense volume where it fits, our lookup above; the paper's goes on demand."
                )
            if "on_demand" in ours:
                notes.append(
                    "On-Demand here: our reference in plain PyTorch, for want of runs on RAFT's extension; the "
                    "paper's is RAFT's CUDA extension."
                )
            results = [run.result for run in self._used.values() if run.on_gpu and run.result is not None]
            if any(result["runtime"].get("sequential") is False for result in results):
                notes.append(
                    "Some times were taken with scoring beside the estimation; --sequential takes them without."
                )
        if self._left:
            notes.append(f"Not used, since another run has the same place: {', '.join(self._left)}.")
        return notes

    def _use(self, run: StoredRun) -> None:
        self._used[str(run.folder)] = run


def _metric_columns() -> tuple[Column, ...]:
    return (
        Column("px1", "1px error, %", 1),
        Column("epe", "EPE, px", 2),
        Column("lm_px1", "LM-1px error, %", 1),
        Column("lm_epe", "LM-EPE, px", 2),
    )


def _flat(row: Mapping[str, Any], variants: Iterable[str]) -> dict[str, Value]:
    """Return the values of the variants of a published row under keys of their own."""
    result: dict[str, Value] = {}
    for variant in variants:
        cell = row.get(variant, NOT_APPLICABLE)
        if isinstance(cell, str):
            result.update({f"{variant}.runtime_s": cell, f"{variant}.memory_gib": cell})
        else:
            result.update({f"{variant}.{key}": value for key, value in cell.items()})
    return result


def _best_table(number: str, dataset: str, title: str, runs: Runs) -> Table:
    """Tables 1 and 6: every method at its best scale."""
    columns = (
        *_metric_columns(),
        Column("best_s", "Best runtime, s", 2),
        Column("without_s", "Without ours, s", 2),
        Column("change_percent", "Our improvement", 0, unit="%"),
    )
    table = Table(number, title, ("Method", "Input width"), columns)
    measured = Measured(runs)
    rows = published.rows(number)
    for i, row in enumerate(rows):
        method = row["method"]
        fixed = any(other["method"] == method for other in rows[i + 1 :])  # of two rows the last is the best
        scale = row["scale"] if fixed else measured.best_scale(method, dataset) or row["scale"]
        paper: dict[str, Value] = {column.key: row[column.key] for column in columns}
        if row["without_s"] is None:
            paper["without_s"] = NOT_APPLICABLE
        here = measured.metrics(method, dataset, scale)
        here.update(_best_times(measured, method, dataset, scale))
        label = "" if fixed or scale == row["scale"] else f"best here: {scale}"
        table.lines.append(Line((METHODS[method].title, f"{row['width']} - {row['scale']}"), paper, here, label))
    table.notes += measured.notes([dataset])
    return table


def _best_times(measured: Measured, method: str, dataset: str, scale: str) -> dict[str, Value]:
    costs = {name: measured.cost(method, dataset, scale, name)["runtime_s"] for name in VARIANTS if name != "mixed"}
    times = {name: value for name, value in costs.items() if isinstance(value, float)}
    others = [value for name, value in times.items() if name != "ours"]
    if not METHODS[method].sampled:
        return {"best_s": costs["default"], "without_s": NOT_APPLICABLE, "change_percent": None}
    best: Value = min(times.values()) if times else costs["ours"]
    without: Value = min(others) if others else costs["on_demand"]
    change = 100 * (best / without - 1) if isinstance(best, float) and isinstance(without, float) else None
    return {"best_s": best, "without_s": without, "change_percent": change}


def _variant_columns(variants: Sequence[str], *, percent: bool, memory_digits: int) -> tuple[Column, ...]:
    columns: list[Column] = []
    for name in variants:
        beside = percent and name != "ours"
        for key, title, digits in (("runtime", "runtime, s", 2), ("memory", "memory, GiB", memory_digits)):
            unit = "s" if key == "runtime" else "gib"
            relative = f"{name}.{key}_percent" if beside else None
            columns.append(Column(f"{name}.{key}_{unit}", f"{VARIANTS[name]}: {title}", digits, percent=relative))
    return tuple(columns)


def _costs(
    measured: Measured, method: str, dataset: str | Sequence[str], scale: str, variants: Iterable[str]
) -> dict[str, Value]:
    """Return the cost of every variant, and how much more it is than ours."""
    costs = {name: measured.cost(method, dataset, scale, name) for name in variants}
    result: dict[str, Value] = {}
    for name, cost in costs.items():
        result.update({f"{name}.{key}": value for key, value in cost.items()})
        for key, unit in (("runtime", "s"), ("memory", "gib")):
            its, ours = cost[f"{key}_{unit}"], costs["ours"][f"{key}_{unit}"]
            if isinstance(its, float) and isinstance(ours, float) and name != "ours":
                result[f"{name}.{key}_percent"] = 100 * (its / ours - 1)
    return result


def _cost_table(number: str, dataset: str, title: str, runs: Runs) -> Table:
    """Tables 2 and 7: runtime and memory of the variants at every scale."""
    variants = ("default", "on_demand", "ours")
    columns = _variant_columns(variants, percent=True, memory_digits=2)
    table = Table(number, title, ("Method", "Input width"), columns)
    measured = Measured(runs)
    for row in published.rows(number):
        labels = (METHODS[row["method"]].title, f"{row['width']} - {row['scale']}")
        here = _costs(measured, row["method"], dataset, row["scale"], variants)
        table.lines.append(Line(labels, _flat(row, variants), here))
    table.notes += measured.notes([dataset])
    return table


def _small_sets(runs: Runs) -> Table:
    """Table 8: the same at the full size of three other data sets."""
    variants = ("default", "on_demand", "ours")
    columns = _variant_columns(variants, percent=True, memory_digits=2)
    table = Table("8", "Runtime and memory on KITTI 2015, Sintel and Spring", ("Method", "Dataset"), columns)
    measured = Measured(runs)
    for row in published.rows("8"):
        labels = (METHODS[row["method"]].title, row["dataset"])
        here = _costs(measured, row["method"], SMALL_SETS[row["dataset"]], "1/1", variants)
        table.lines.append(Line(labels, _flat(row, variants), here))
    table.notes += measured.notes(name for names in SMALL_SETS.values() for name in names)
    return table


def _strategies(runs: Runs) -> Table:
    """Table 9: shares of the updates in a cascade, and the mixed lookup."""
    variants = tuple(VARIANTS)
    columns = (*_metric_columns(), *_variant_columns(variants, percent=False, memory_digits=1))
    table = Table("9", "Alternative inference strategies on Charge-8K", ("Method", "Scale"), columns)
    return _with_metrics_and_costs(table, runs, variants)


def _full(runs: Runs) -> Table:
    """Table 11: every method at every scale of Charge-8K."""
    variants = ("default", "on_demand", "ours")
    columns = (
        *_metric_columns(),
        *(Column(f"{name}.runtime_s", f"{VARIANTS[name]}: runtime, s", 2, spread=f"{name}.std_s") for name in variants),
    )
    table = Table("11", "All methods on Charge-8K at every scale", ("Method", "Scale"), columns)
    return _with_metrics_and_costs(table, runs, variants)


def _with_metrics_and_costs(table: Table, runs: Runs, variants: Sequence[str]) -> Table:
    measured = Measured(runs)
    for row in published.rows(table.key):
        method, scale = row["method"], row["scale"]
        paper = {**{key: row[key] for key in _METRICS}, **_flat(row, variants)}
        here = {**measured.metrics(method, CHARGE, scale), **_costs(measured, method, CHARGE, scale, variants)}
        table.lines.append(Line((METHODS[method].title, scale), paper, here))
    table.notes += measured.notes([CHARGE])
    return table


def sampled_cells(lookups: Sequence[Mapping[str, Any]]) -> Table:
    """Table 3: the share of the correlation volume that lies in blocks which are read.

    Args:
        lookups: reports of ``python -m benchmarks analyze --json``; the mean and deviation are over all their files.
    """
    columns = (
        Column("row_major", "Row-major, %", 1, spread="row_major_std"),
        Column("patch_major", "Patch-major, %", 1, spread="patch_major_std"),
        Column("saved_percent", "Improvement", 0, unit="%"),
    )
    table = Table("3", "Share of the correlation volume that is sampled, by block size and layout", ("Block",), columns)
    shares: dict[tuple[int, str], list[float]] = {}
    files = 0
    for report in lookups:
        try:
            for file in report["files"]:
                files += 1
                for share in file["shares"]:
                    if share["level"] == 0:
                        key = (int(share["block"]), str(share["layout"]))
                        shares.setdefault(key, []).append(100 * float(share["share"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"lookups: expected what 'python -m benchmarks analyze --json' prints, got {error}"
            ) from None
    for row in published.rows("3"):
        paper: dict[str, Value] = {"saved_percent": row["saved_percent"]}
        here: dict[str, Value] = {}
        for layout in ("row_major", "patch_major"):
            if row[layout] is None:  # of single cells there is only one layout
                continue
            paper |= {layout: row[layout]["mean"], f"{layout}_std": row[layout]["std"]}
            result = shares.get((row["block"], layout.replace("_", "-")))
            here[layout] = statistics.fmean(result) if result else NOT_RUN
            if result and len(result) > 1:
                here[f"{layout}_std"] = statistics.pstdev(result)
        before, after = here.get("row_major"), here["patch_major"]
        if isinstance(before, float) and isinstance(after, float) and before:
            here["saved_percent"] = 100 * (1 - after / before)
        table.lines.append(Line((f"{row['block']}²",), paper, here))
    if files:
        table.notes.append(f"Here: {files} recorded pairs. The paper: Sintel's training set.")
    return table


def _whole_and_parts(make: Callable[[Runs], Table]) -> Callable[[Runs], Table]:
    """Return a maker that puts runs over fewer pairs than the paper's into rows of their own, below the others."""

    def table_of(runs: Runs) -> Table:
        table = make(runs)
        for part in runs.parts():
            result = make(part)
            label = f"{part.pairs} of {max(PAIRS.values())} pairs"
            lines = [line for line in result.lines if any(isinstance(value, float) for value in line.here.values())]
            table.lines += [Line(line.labels, {}, line.here, label) for line in lines]
            table.notes += [note for note in result.notes if lines and note not in table.notes]
        return table

    return table_of


_MAKERS: Mapping[str, Callable[[Runs], Table]] = {
    "1": lambda runs: _best_table("1", CHARGE, "Methods at their best scale on Charge-8K", runs),
    "2": lambda runs: _cost_table("2", CHARGE, "Runtime and memory by correlation variant on Charge-8K", runs),
    "6": lambda runs: _best_table("6", KUBRIC, "Methods at their best scale on Kubric-8K", runs),
    "7": lambda runs: _cost_table("7", KUBRIC, "Runtime and memory by correlation variant on Kubric-8K", runs),
    "8": _small_sets,
    "9": _strategies,
    "11": _full,
}
TABLES = {number: _whole_and_parts(make) for number, make in _MAKERS.items()}
"""The tables made of runs; table 3 is :func:`sampled_cells`."""
