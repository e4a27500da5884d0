"""The baseline after Briedis et al., run on the CPU by ``emulator`` and compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from emulator import Emulator

from benchmarks.cases.correlation import measure, voting
from benchmarks.cases.correlation.contenders import Problem
from benchmarks.cases.correlation.measure import Inputs, Truth
from benchmarks.cases.correlation.positions import Scene
from benchmarks.harness import Unsupported
from fullfield.ops import launching

PROBLEM = Problem((12, 20), updates=2, channels=40, batch=2, levels=2, radius=3, dtype=torch.bfloat16)


@pytest.fixture
def machine(emulate: Callable[..., Emulator]) -> Emulator:
    return emulate(voting, serve=True)


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
