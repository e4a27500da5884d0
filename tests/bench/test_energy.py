"""Joules come from meters that tick, and where there is none the reason is told."""

from __future__ import annotations

import itertools
import sys
import time
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


def test_the_device_works_while_the_meter_is_read() -> None:
    clock, working = Clock(), [False]

    class Slow(Ticking):
        def joules(self) -> float:
            readings.append(working[0])
            return super().joules()

    def call() -> None:
        clock.now += 0.003
        working[0] = True
        calls.append(clock.now)

    def finish() -> None:
        working[0] = False
        waits.append(len(calls))

    readings: list[bool] = []
    calls: list[float] = []
    waits: list[int] = []
    energy.energy_of(call, Slow(clock), finish, seconds=0.3, clock=clock)
    assert readings.count(False) <= 4, "before and after each wait for the meter"
    assert readings.count(True) > 5
    assert waits[2] - waits[1] == 7, "about 20 ms of work are queued at a time"


def test_idle_power_from_a_counter_that_ticks() -> None:
    clock = Clock()
    clock.now = 0.03

    def sleep(seconds: float) -> None:
        clock.now += seconds

    assert energy.idle_watts(Ticking(clock), 0.25, clock, sleep) == pytest.approx(200, rel=0.03)


def test_power_is_added_up_over_time() -> None:
    meter = energy.Sampled(lambda: 50.0, "made up", seconds=0.005)
    begin, before = time.perf_counter(), meter.joules()
    time.sleep(0.1)
    joules, passed = meter.joules() - before, time.perf_counter() - begin
    meter.close()
    assert joules == pytest.approx(50 * passed, rel=0.05)


class NVMLError(Exception):
    pass


def fake_nvml(
    monkeypatch: pytest.MonkeyPatch, *, counter: bool, power: bool, still: bool = False, watts: int = 250
) -> None:
    counts = itertools.count(12_345, 0 if still else 5)

    def refuse(_handle: object) -> int:
        raise NVMLError("Not Supported")

    nvml = types.ModuleType("pynvml")
    names = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetTotalEnergyConsumption": (lambda _: next(counts)) if counter else refuse,
        "nvmlDeviceGetPowerUsage": (lambda _: 1000 * watts) if power else refuse,
    }
    for name, value in names.items():
        setattr(nvml, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid="abc"))


def test_nvidia_s_counter_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, counter=True, power=True)
    meter, told = energy.open_meter(CUDA)
    assert meter is not None
    assert "total energy counter" in told
    assert meter.joules() == pytest.approx(12.345, abs=0.1)


def test_then_its_power(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, counter=False, power=True)
    meter, told = energy.open_meter(CUDA)
    assert meter is not None
    assert "power, sampled" in told
    assert energy.idle_watts(meter, 0.05) == pytest.approx(250, rel=0.1)
    meter.close()


def test_a_counter_that_does_not_move_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(energy, "_LOOK_SECONDS", 0.02)
    fake_nvml(monkeypatch, counter=True, still=True, power=True)
    meter, told = energy.open_meter(CUDA)
    assert meter is not None
    assert "power, sampled" in told
    meter.close()
    fake_nvml(monkeypatch, counter=True, still=True, power=True, watts=0)
    meter, told = energy.open_meter(CUDA, tmp_path)
    assert meter is None
    assert "energy counter does not move, and its power reads 0" in told


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


@pytest.mark.parametrize(
    ("rails", "watts"),
    [
        ({"VDD_GPU_SOC": (12_000, 1000), "VDD_CPU_CV": (12_000, 500)}, 18.0),
        ({"VDD_IN": (5000, 3000), "VDD_CPU_GPU_CV": (5000, 1000)}, 15.0),
    ],
    ids=["all rails", "the whole module's"],
)
def test_a_jetson_s_sensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rails: dict[str, tuple[int, int]], watts: float
) -> None:
    fake_nvml(monkeypatch, counter=False, power=False)
    meter, told = energy.open_meter(CUDA, board(tmp_path / "hwmon", rails))
    assert meter is not None
    assert "board's power sensors" in told
    assert energy.idle_watts(meter, 0.05) == pytest.approx(watts, rel=0.1)
    meter.close()


def test_where_there_is_none_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, counter=False, power=False)
    assert energy.open_meter(torch.device("cpu")) == (None, "no energy counter is read for cpu")
    meter, told = energy.open_meter(CUDA, board(tmp_path / "hwmon", {}, name="coretemp"))
    assert meter is None
    assert "neither energy nor power: Not Supported" in told
    assert "no power sensor (ina3221)" in told
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in energy.open_meter(CUDA, tmp_path)[1]
