"""The GPU benchmark of TV-L1, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fullfield.bench import tvl1_schedules as schedules
from fullfield.bench import tvl1_solver as solver
from fullfield.bench.energy import open_meter
from fullfield.bench.tvl1 import Pair, synthetic_pair

PARTS = ("frames", "schedules", "quality", "realtime", "depths", "energy", "peers")
"""What may take part, the most wanted first."""

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
    repeats: int = 5
    frames: int = 100
    """Calls behind a median and a 99th percentile."""


def measure(plan: GpuPlan, note: Note, on_case: Callable[[list[Case]], None]) -> list[Case]:
    """All cases; ``on_case`` gets those that are done after every one."""
    device = plan.device
    cases: list[Case] = [schedules.ceilings(device)]
    meter, told = open_meter(device) if {"energy", "realtime"} & set(plan.parts) else (None, "not asked for")
    side = min(schedules.REFERENCE_SIDE, max(plan.sides))
    pairs = [pair for group in plan.groups.values() for pair in group]
    given = (pairs[-1].frame1, pairs[-1].frame2) if pairs else None
    few = max(5, plan.frames // 10)
    makers: dict[str, Callable[[], Case]] = {
        "frames": lambda: solver.whole_frames(solver.WHOLE, given, device, plan.frames, cases[0], note),
        "schedules": lambda: schedules.by_size(plan.sides, schedules.versions(), device, plan.repeats, note),
        "quality": lambda: solver.quality(plan.groups, device, few, note),
        "realtime": lambda: solver.real_time(solver.LIMITS, device, few, meter, note),
        "depths": lambda: schedules.by_depth(side, schedules.pipelines(), device, plan.repeats, note),
        "energy": lambda: schedules.energy(side, schedules.versions(), device, meter, told, note),
        "peers": lambda: solver.against_opencv(_largest(pairs), device, plan.repeats, note),
    }
    try:
        for part in plan.parts:
            if part == "quality" and not plan.groups:
                note("no pairs with true flow were given: no errors against time")
                continue
            cases.append(makers[part]())
            on_case(cases)
    finally:
        if meter is not None:
            meter.close()
    return cases


def _largest(pairs: Sequence[Pair]) -> Pair:
    """The largest pair given, or a made-up one."""
    return max(pairs, key=lambda pair: pair.size[0] * pair.size[1]) if pairs else synthetic_pair()
