"""Joules come from meters that tick, and where there is none the reason is told."""

from __future__ import annotations

import itertools
import sys
import types
from pathlib import Path

import pytest
import torch

from benchmarks import energy

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


def test_a_call_s_joules_from_a_counter_that_ticks() -> None:
    clock = Clock()

    def call() -> None:
        clock.now += 0.003

    found = energy.energy_of(call, Ticking(clock), lambda: None, seconds=0.5, clock=clock)
    assert found["watts"] == pytest.approx(200, rel=0.02)
    assert found["joules"] == pytest.approx(200 * 0.003, rel=0.02)
    assert found["seconds"] >= 0.5


class NVMLError(Exception):
    pass


def test_no_joules_from_a_meter_that_stands_still() -> None:
    clock = Clock()

    class Still(Ticking):
        def joules(self) -> float:
            return 5.0

    def call() -> None:
        clock.now += 0.01

    with pytest.raises(energy.StillMeter, match=r"not available: made up did not move in 1\.\d s of work"):
        energy.energy_of(call, Still(clock), lambda: None, seconds=0.5, clock=clock)


def board(folder: Path, rails: dict[str, tuple[int, int]], name: str = "ina3221") -> Path:
    chip = folder / "hwmon3"
    chip.mkdir(parents=True)
    (chip / "name").write_text(f"{name}\n")
    for number, (label, (volts, amperes)) in enumerate(rails.items(), 1):
        (chip / f"in{number}_label").write_text(f"{label}\n")
        (chip / f"in{number}_input").write_text(f"{volts}\n")
        (chip / f"curr{number}_input").write_text(f"{amperes}\n")
    (chip / "in7_label").write_text("sum of shunt voltages\n")
    (chip / "in7_input").write_text("12\n")
    return folder


def refuse(*_: object) -> int:
    raise NVMLError("Not Supported")


RAILS = {"VDD_GPU_SOC": (12_000, 1000), "VDD_CPU_CV": (12_000, 500)}
WHOLE = {"VDD_IN": (5000, 3000), "VDD_CPU_GPU_CV": (5000, 1000)}


@pytest.mark.parametrize(
    ("step", "watts", "rails", "told", "expected"),
    [
        (5, 250, None, "total energy counter", None),
        (0, 250, None, "power, sampled", 250.0),
        (None, 250, None, "power, sampled", 250.0),
        (0, 0, None, "energy counter does not move, and its power reads 0", "absent"),
        (None, None, RAILS, "board's power sensors", 18.0),
        (None, None, WHOLE, "board's power sensors", 15.0),
        (None, None, {}, "neither energy nor power: Not Supported", "absent"),
    ],
    ids=["counter", "counter stands still", "power", "both stand still", "all rails", "the module's rail", "nothing"],
)
def test_meters_of_a_gpu(
    step: int | None,
    watts: int | None,
    rails: dict[str, tuple[int, int]] | None,
    told: str,
    expected: float | str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """NVML's counter (``step``: millijoules from reading to reading), its power, a Jetson's sensors, in that order."""
    counts = itertools.count(12_345, step or 0)
    nvml = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=refuse if step is None else lambda _: next(counts),
        nvmlDeviceGetPowerUsage=refuse if watts is None else lambda _: 1000 * watts,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid="abc"))
    monkeypatch.setattr(energy, "_LOOK_SECONDS", 0.02)
    folder = tmp_path if rails is None else board(tmp_path / "hwmon", rails, "ina3221" if rails else "coretemp")
    meter, said = energy.open_meter(CUDA, folder)
    assert told in said
    if expected == "absent":
        assert meter is None
        assert "no power sensor (ina3221)" in said
        return
    assert meter is not None
    if expected is None:
        assert meter.joules() == pytest.approx(12.345, abs=0.1)
    else:
        assert energy.idle_watts(meter, 0.05) == pytest.approx(expected, rel=0.1)
    meter.close()


def test_where_nothing_is_read_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert energy.open_meter(torch.device("cpu")) == (None, "no energy counter is read for cpu")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in energy.open_meter(CUDA, tmp_path)[1]
