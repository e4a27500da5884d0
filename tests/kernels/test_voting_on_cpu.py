"""The baseline after Briedis et al., run on the CPU by ``emulator`` and compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import emulator
import pytest
import torch
from assembled import said_of
from emulator import AMPERE, Emulator

from benchmarks.cases.correlation import measure, voting
from benchmarks.cases.correlation.contenders import Problem
from benchmarks.cases.correlation.measure import Inputs, Truth
from benchmarks.cases.correlation.positions import Scene
from benchmarks.harness import Unsupported
from fullfield._kernels import nvrtc
from fullfield.ops import launching

PROBLEM = Problem((12, 20), updates=2, channels=40, batch=2, levels=2, radius=3, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(AMPERE.shared)


@pytest.fixture
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine.installed(monkeypatch, AMPERE, voting)
    monkeypatch.setattr(launching, "why_not", lambda _: None)
    with machine.used():
        yield


@pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize(
    ("scene", "changes"),
    [("smooth", {}), ("random", {"radius": 4, "channels": 64, "dtype": torch.float16}), ("smooth", {"size": (5, 9)})],
)
def test_the_lookup(machine: Emulator, scene: str, changes: dict[str, object], schedule: int) -> None:
    """Within the budget that our own kernels have, not that of peers; where positions leave the map, too."""
    machine.schedule = schedule
    problem = replace(PROBLEM, **changes)  # type: ignore[arg-type]
    inputs = Inputs.make(problem, Scene(scene))
    for coords in inputs.coords:
        coords[:, :, 0, :4] = torch.tensor([-3.25, -1e9, float("nan"), 1e30])
    contender = voting.contender()
    contender.admit(problem)
    truth = Truth.of(inputs, "highest")
    assert truth.of_lookup(inputs.forward(contender), problem, 1.0)[0] is None


@pytest.mark.parametrize("changes", [{"dtype": torch.float32}, {"backward": True}, {"size": (1, 9)}, {}])
def test_what_it_cannot(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    if changes:
        monkeypatch.setattr(launching, "why_not", lambda _: None)
    with pytest.raises(Unsupported):
        voting.contender().admit(replace(PROBLEM, **changes))  # type: ignore[arg-type]
    assert measure.CHECKED >= 12 * 20  # so that the test above compares every pixel


@pytest.mark.skipif(nvrtc.why_not() is not None, reason=str(nvrtc.why_not()))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_it_compiles_without_spills(dtype: torch.dtype, arch: str) -> None:
    registers, spilled = said_of(voting.source(dtype), arch).kernels["vote"]
    assert registers <= 168
    assert spilled == 0
