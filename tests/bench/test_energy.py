"""Joules come from meters that tick, and where there is none the reason is told."""

from __future__ import annotations

import pytest
import torch

from benchmarks import energy

pytestmark = pytest.mark.unit

CUDA = torch.device("cuda", 0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Ticking:
    """A counter of a device that takes 200 W; it is refreshed every 0.1 s."""

    source = "made up"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def joules(self) -> float:
        return 200.0 * (int(self._clock.now / 0.1 + 1e-6) * 0.1)

    def close(self) -> None:
        pass


def test_energy_of_measures_power_of_discrete_counter() -> None:
    clock = Clock()

    def call() -> None:
        clock.now += 0.003

    found = energy.energy_of(call, Ticking(clock), lambda: None, seconds=0.5, clock=clock)
    assert found["watts"] == pytest.approx(200, rel=0.02)
    assert found["joules"] == pytest.approx(200 * 0.003, rel=0.02)
    assert found["seconds"] >= 0.5


def test_energy_of_raises_for_stopped_meter() -> None:
    clock = Clock()

    class Still(Ticking):
        def joules(self) -> float:
            return 5.0

    def call() -> None:
        clock.now += 0.01

    with pytest.raises(energy.StillMeter, match=r"not available: made up did not move in 1\.\d s of work"):
        energy.energy_of(call, Still(clock), lambda: None, seconds=0.5, clock=clock)
