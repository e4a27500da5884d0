"""What the GPU benchmark of TV-L1 times is what it checks: its versions, run on the CPU by ``emulator``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import emulator
import pytest
import torch
from emulator import Emulator, Kernel
from test_tvl1_iterations_on_cpu import CPU, GPU, SHAPES

from benchmarks.cases.tvl1 import romera
from benchmarks.cases.tvl1 import schedules as tvl1_schedules
from fullfield._kernels.nvrtc import Source
from fullfield.ops.tvl1.cuda import passes

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(GPU.shared)


@pytest.fixture(autouse=True)
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine.installed(monkeypatch, GPU, passes)
    monkeypatch.setattr(tvl1_schedules, "shape_for", lambda schedule, *_: SHAPES[schedule])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    with machine.used():
        yield


def quiet(text: str) -> None:
    del text


def test_every_version_passes_its_check_and_counts_its_work() -> None:
    rows = tvl1_schedules.timed((19, 33), tvl1_schedules.versions(), CPU, 1, quiet)
    assert len(rows) == 2 * len(romera.SCHEDULES)
    for row in rows:
        assert row["status"] == "ok", row
        assert row["operations"] > 300, "ten iterations of some thirty operations at least"
        assert row["bytes_read"] > row["bytes_written"] > 0
    moved = {row["name"]: row["bytes_read"] + row["bytes_written"] for row in rows}
    assert moved["register_pipeline float16"] < moved["register_pipeline float32"] < moved["global float32"]


def test_depths() -> None:
    contenders = tvl1_schedules.pipelines((1, 2), ("float32",))
    case = tvl1_schedules.by_depth(18, contenders, CPU, 1, quiet)
    assert {row["status"] for row in case["rows"]} == {"ok"}
    assert [row["iterations"] for row in case["rows"]] == [2, 4] * 3


def test_what_is_compiled_ahead_is_what_is_launched(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = [*tvl1_schedules.versions(), *tvl1_schedules.pipelines((1, 3))]
    ahead = set(tvl1_schedules.sources_of(contenders, lambda _: 6, GPU))
    needed: set[object] = set()

    def load(sources: Sequence[Source], arch: str, device: int) -> list[dict[str, Kernel]]:
        needed.update(sources)
        return Emulator.load(machine, sources, arch, device)

    monkeypatch.setattr(machine, "load", load)
    rows = tvl1_schedules.timed((9, 17), contenders, CPU, 1, quiet, lambda _: 6)
    assert {row["status"] for row in rows} == {"ok"}
    assert needed == ahead
    deep = [one for one in tvl1_schedules.pipelines((300,)) if one.schedule == "shared_pipeline"]
    assert not tvl1_schedules.sources_of(deep, lambda _: 300, GPU), "deeper than a block is wide"
