"""The GPU benchmark of TV-L1, part by part."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases.tvl1 import schedules, solver
from benchmarks.cases.tvl1.cpu import Pair, synthetic_pair
from benchmarks.energy import open_meter
from benchmarks.harness import CheckFailed, environment
from fullfield import _check
from fullfield._check import InputError

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
_SAME = ("gpu", "commit")  # of two environments whose numbers may stand in one file

Case = dict[str, Any]
Note = Callable[[str], None]


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


def earlier(path: Path) -> list[Case]:
    """The cases of a file of results that were measured to the end.

    Raises InputError for a file that is none, or whose numbers are of another GPU or commit than this run's.
    """
    try:
        stored = json.loads(path.read_text("utf-8"))
        cases, there = list(stored["cases"]), dict(stored["environment"])
        done = [case for case in cases if case["case"] != "ceilings" and case.get("status", "ok") == "ok"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--resume: expected results of this benchmark in {path}, got something else") from error
    here = environment()
    for name in _SAME:
        _check.require(
            there.get(name) == here.get(name), "--resume", f"results of {name} {here.get(name)}", there.get(name)
        )
    return done


def measure(plan: GpuPlan, note: Note, on_case: Callable[[list[Case]], None], known: Sequence[Case] = ()) -> list[Case]:
    """All cases; ``on_case`` gets those that are done after every one.

    ``known``: cases of earlier runs, which stay unless they are measured again. A part that fails says why in its case,
    and the others go on, unless the device is broken: that error is raised.
    """
    device = plan.device
    note("what the hardware can do")
    limits = schedules.ceilings(device)
    kept = {case["case"]: case for case in known}
    meter, told = open_meter(device) if {"energy", "realtime"} & set(plan.parts) else (None, "not asked for")
    side = min(schedules.REFERENCE_SIDE, max(plan.sides))
    pairs = [pair for group in plan.groups.values() for pair in group]
    few = max(5, plan.frames // 10)
    makers: dict[str, Callable[[], Case]] = {
        "frames": lambda: solver.whole_frames(solver.WHOLE, plan.groups, device, plan.frames, limits, note),
        "schedules": lambda: schedules.by_size(plan.sides, schedules.versions(), device, plan.repeats, note),
        "quality": lambda: solver.quality(plan.groups, device, few, note, plan.steps),
        "realtime": lambda: solver.real_time(solver.LIMITS, device, few, meter, note),
        "depths": lambda: schedules.by_depth(side, schedules.pipelines(plan.depths), device, plan.repeats, note),
        "energy": lambda: schedules.energy(side, schedules.versions(), device, meter, told, note, plan.seconds),
        "peers": lambda: solver.against_opencv(_largest(pairs), device, plan.repeats, note),
    }

    def cases() -> list[Case]:
        return [limits, *(kept[name] for name in CASES.values() if name in kept)]

    try:
        for part in plan.parts:
            if part == "quality" and not plan.groups:
                note("no pairs with true flow were given: no errors against time")
                continue
            begin = time.perf_counter()
            kept[CASES[part]] = {**_attempt(CASES[part], makers[part], device), "took_s": time.perf_counter() - begin}
            on_case(cases())
    finally:
        if meter is not None:
            meter.close()
    return cases()


def _attempt(name: str, make: Callable[[], Case], device: torch.device) -> Case:
    try:
        return make()
    except CheckFailed as failure:
        return {"case": name, "status": "check failed", "reason": str(failure), "rows": []}
    except (RuntimeError, MemoryError, OSError) as error:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises where a kernel has broken the device: then nothing can go on
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return {"case": name, "status": "not possible", "reason": reason, "rows": []}


def _largest(pairs: Sequence[Pair]) -> Pair:
    """The largest pair given, or a made-up one."""
    return max(pairs, key=lambda pair: pair.size[0] * pair.size[1]) if pairs else synthetic_pair()
