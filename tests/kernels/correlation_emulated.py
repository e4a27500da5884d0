"""The correlation's backend "cuda" on the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from emulator import AMPERE, Emulator

from fullfield.ops.correlation import cuda
from fullfield.ops.correlation.cuda import launch, launch_backward
from fullfield.ops.launching import Device


@contextmanager
def correlation_on(machine: Emulator, monkeypatch: pytest.MonkeyPatch, gpu: Device = AMPERE) -> Iterator[None]:
    """Inside, it serves tensors of the CPU, in memory that is poisoned and watched."""
    machine.installed(monkeypatch, gpu, launch, launch_backward)
    for module in (launch, launch_backward):
        monkeypatch.setattr(module, "raw_stream", lambda _: 0)
    monkeypatch.setattr(launch, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "supports", lambda _: None)
    with machine.used():
        yield
