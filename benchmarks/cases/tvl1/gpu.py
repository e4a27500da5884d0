"""The GPU benchmark of TV-L1, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.cases.tvl1 import schedules, solver
from benchmarks.cases.tvl1.cpu import Pair, synthetic_pair
from benchmarks.energy import open_meter
from benchmarks.harness import CheckFailed, first_line
from benchmarks.stored import check_same, environment, read_results

CASES = {
    "frames": "whole frames",
    "schedules": "schedules",
    "quality": "quality",
    "realtime": "real time",
    "depths": "depths",
    "energy": "energy",
    "peers": "peers",
}
"""What may take part, the most wanted first, and what its results are called."""
PARTS = tuple(CASES)
LIMITS = "ceilings"
ORDER = (LIMITS, *CASES.values())
"""Of the cases in results."""
_SAME = ("gpu", "commit")  # of two environments whose numbers may stand in one file


@dataclass(frozen=True)
class GpuPlan:
    """One run of the benchmark."""

    device: torch.device
    groups: dict[str, Sequence[Pair]] = field(default_factory=dict)
    """``middlebury`` and ``sintel``: pairs with true flow for the errors."""
    parts: Sequence[str] = PARTS
    sides: Sequence[int] = schedules.SIZES
    depths: Sequence[int] = schedules.DEPTHS
    steps: Sequence[int] = solver.STEPS
    """Iterations a warp, of the errors against time."""
    repeats: int = 5
    frames: int = 100
    """Calls behind a median and a 99th percentile."""
    seconds: float = 0.6
    """Work behind one measurement of energy."""


def earlier(path: Path) -> list[Result]:
    """Return the cases of a file of results that were measured to the end.

    Raises InputError for a file that is none, or whose numbers are of another GPU or commit than this run's.
    """
    stored, here = read_results(path, "tvl1", "--resume", ("case",)), environment()
    check_same("--resume", [(name, stored["environment"].get(name), here.get(name)) for name in _SAME])
    return [case for case in stored["cases"] if case["case"] in CASES.values() and case.get("status", "ok") == "ok"]


def cases(plan: GpuPlan, note: Note) -> Cases:
    """Yield the hardware's limits, then all parts of the plan.

    A part that fails says why in its case, and the others go on, unless the device is broken: that error is raised.
    """
    device = plan.device
    note("what the hardware can do")
    ceilings = Case(LIMITS, partial(schedules.ceilings, device), again=True, key="case")
    yield ceilings
    limits = ceilings.result or {}
    meter, told = open_meter(device) if {"energy", "realtime"} & set(plan.parts) else (None, "not asked for")
    side = min(schedules.REFERENCE_SIDE, max(plan.sides))
    pairs = [pair for group in plan.groups.values() for pair in group]
    few = max(5, plan.frames // 10)
    makers: dict[str, Callable[[], Result]] = {
        "frames": lambda: solver.whole_frames(solver.WHOLE, plan.groups, device, plan.frames, limits, note),
        "schedules": lambda: schedules.by_size(plan.sides, schedules.versions(), device, plan.repeats, note),
        "quality": lambda: solver.quality(plan.groups, device, few, note, plan.steps),
        "realtime": lambda: solver.real_time(solver.LIMITS, device, few, meter, note),
        "depths": lambda: schedules.by_depth(side, schedules.pipelines(plan.depths), device, plan.repeats, note),
        "energy": lambda: schedules.energy(side, schedules.versions(), device, meter, told, note, plan.seconds),
        "peers": lambda: solver.against_opencv(_largest(pairs), device, plan.repeats, note),
    }
    try:
        for part in plan.parts:
            if part == "quality" and not plan.groups:
                note("no pairs with true flow were given: no errors against time")
                continue
            yield Case(CASES[part], partial(_attempt, CASES[part], makers[part], device), again=True, key="case")
    finally:
        if meter is not None:
            meter.close()


def _attempt(name: str, make: Callable[[], Result], device: torch.device) -> Result:
    try:
        return make()
    except CheckFailed as failure:
        return {"case": name, "status": "check failed", "reason": str(failure), "rows": []}
    except (RuntimeError, MemoryError, OSError) as error:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises where a kernel has broken the device: then nothing can go on
        return {"case": name, "status": "not possible", "reason": first_line(error), "rows": []}


def _largest(pairs: Sequence[Pair]) -> Pair:
    """Return the largest pair given, or a made-up one."""
    return max(pairs, key=lambda pair: pair.size[0] * pair.size[1]) if pairs else synthetic_pair()
