"""Joules of work that is repeated, from the hardware's own meters: NVIDIA's counter, or a Jetson board's sensors."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

HWMON = Path("/sys/class/hwmon")
_MONITOR = "ina3221"  # of every Jetson board
# The rail of the whole module, where there is one; else all rails are added.
_WHOLE = ("VDD_IN", "POM_5V_IN")
_SAMPLE_SECONDS = 0.02
_TICK_SECONDS = 0.5
_LOOK_SECONDS = 0.3  # a counter that has not moved by then does not move
_IDLE_SECONDS = 0.005
_STRETCH_SECONDS = 0.02  # of work queued at a time: reading a meter takes milliseconds


class StillMeter(RuntimeError):
    """The meter did not move during work that took longer than it is refreshed."""


class Meter(Protocol):
    """Meter of energy: joules since some moment, rising."""

    @property
    def source(self) -> str:
        """Return what is read, in words."""

    def joules(self) -> float:
        """Return the joules."""

    def close(self) -> None:
        """Release the meter."""


class Sampled:
    """A meter from a power reading, in watts, that is taken every 20 ms and added up."""

    def __init__(self, watts: Callable[[], float], source: str, seconds: float = _SAMPLE_SECONDS) -> None:
        self.source = source
        self._watts, self._seconds = watts, seconds
        self._sum, self._last, self._at = 0.0, watts(), time.perf_counter()
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self._seconds):
            self._add()

    def _add(self) -> float:
        with self._lock:
            power, now = self._watts(), time.perf_counter()
            self._sum += (power + self._last) / 2 * (now - self._at)
            self._last, self._at = power, now
            return self._sum

    def joules(self) -> float:
        """Up to now."""
        return self._add()

    def close(self) -> None:
        """End the sampling."""
        self._end.set()
        self._thread.join()


@dataclass
class _Counter:
    """A meter that the driver keeps."""

    read: Callable[[], float]
    source: str

    def joules(self) -> float:
        return self.read()

    def close(self) -> None:
        """Nothing runs."""


def open_meter(device: torch.device, hwmon: Path = HWMON) -> tuple[Meter | None, str]:
    """Return the best meter for the device, and what it reads; without one None and why."""
    if device.type != "cuda":
        return None, f"no energy counter is read for {device.type}"
    reasons = []
    attempts: tuple[Callable[[], tuple[Meter | None, str]], ...] = (lambda: _nvml(device), lambda: _board(hwmon))
    for attempt in attempts:
        meter, reason = attempt()
        if meter is not None:
            return meter, meter.source
        reasons.append(reason)
    return None, "; ".join(reasons)


def _nvml(device: torch.device) -> tuple[Meter | None, str]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    try:
        nvml.nvmlInit()
        handle = _handle(nvml, device)
    except nvml.NVMLError as error:
        return None, f"NVML: {error}"
    try:
        counter = _Counter(
            lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, "NVML total energy counter, whole GPU"
        )
        if _moves(counter):
            return counter, ""
    except nvml.NVMLError:
        pass
    try:
        if nvml.nvmlDeviceGetPowerUsage(handle) <= 0:
            return None, "NVML's energy counter does not move, and its power reads 0"
    except nvml.NVMLError as error:
        return None, f"NVML tells neither energy nor power: {error}"
    return Sampled(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, "NVML power, sampled, whole GPU"), ""


def _moves(meter: Meter) -> bool:
    """Whether the counter rises: even an idle device takes power."""
    start, value = time.perf_counter(), meter.joules()
    while time.perf_counter() - start < _LOOK_SECONDS:
        if meter.joules() != value:
            return True
        time.sleep(_IDLE_SECONDS)
    return False


def _handle(nvml: Any, device: torch.device) -> Any:
    """Return the device as NVML knows it: ``CUDA_VISIBLE_DEVICES`` may have renumbered PyTorch's."""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


class _Rail(NamedTuple):
    label: str
    millivolts: Path
    milliamperes: Path

    def watts(self) -> float:
        return int(self.millivolts.read_text()) * int(self.milliamperes.read_text()) / 1e6


def _board(hwmon: Path) -> tuple[Meter | None, str]:
    rails = list(_rails(hwmon))
    if not rails:
        return None, f"no power sensor ({_MONITOR}) below {hwmon}"
    full = [rail for rail in rails if rail.label in _WHOLE]
    used = full[:1] or rails
    names = ", ".join(rail.label for rail in used)
    try:
        return Sampled(lambda: sum(rail.watts() for rail in used), f"board's power sensors, sampled: {names}"), ""
    except (OSError, ValueError) as error:
        return None, f"the board's power sensors cannot be read ({error})"


def _rails(hwmon: Path) -> Iterable[_Rail]:
    for folder in sorted(hwmon.glob("hwmon*")):
        try:
            if (folder / "name").read_text().strip() != _MONITOR:
                continue
        except OSError:
            continue
        for label in sorted(folder.glob("in*_label")):
            number = label.name[2 : -len("_label")]
            rail = _Rail(label.read_text().strip(), folder / f"in{number}_input", folder / f"curr{number}_input")
            # The chip's fourth "rail" is a sum of voltages without a current.
            if rail.millivolts.exists() and rail.milliamperes.exists():
                yield rail


def energy_of(
    call: Callable[[], Any],
    meter: Meter,
    finish: Callable[[], None],
    seconds: float = 0.6,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Watts and joules of one call, from calls one after the other for at least ``seconds``.

    Begins and ends where the meter's value changes, since counters are refreshed only now and then; the work goes on
    meanwhile. ``finish`` waits for what the calls queued. Raises StillMeter where the meter did not move.
    """
    start = clock()
    call()
    finish()
    often = max(1, round(_STRETCH_SECONDS / max(clock() - start, 1e-6)))

    def stretch() -> None:
        for _ in range(often):
            call()

    _until_tick(stretch, meter, finish, clock)
    start, before, stretches = clock(), meter.joules(), 0
    while clock() - start < seconds:
        stretch()
        finish()
        stretches += 1
    stretches += _until_tick(stretch, meter, finish, clock)
    calls = often * stretches
    spent, passed = meter.joules() - before, clock() - start
    if spent <= 0:
        raise StillMeter(f"not available: {meter.source} did not move in {passed:.1f} s of work")
    return {"watts": spent / passed, "joules": spent / calls, "calls": calls, "seconds": passed}


def _until_tick(call: Callable[[], Any], meter: Meter, finish: Callable[[], None], clock: Callable[[], float]) -> int:
    """Work until the meter's value changes, but for no longer than half a second; how many calls that took.

    The meter is read while a call is under way, since the device must not be idle meanwhile.
    """
    start, value, calls, moved = clock(), meter.joules(), 0, False
    while not moved and clock() - start < _TICK_SECONDS:
        call()
        moved = meter.joules() != value
        finish()
        calls += 1
    return calls


def idle_watts(
    meter: Meter,
    seconds: float = 0.3,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Watts while this process does nothing, from one change of the meter's value to another."""
    return energy_of(lambda: sleep(_IDLE_SECONDS), meter, lambda: None, seconds, clock)["watts"]
