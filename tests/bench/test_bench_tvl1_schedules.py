"""Costs and tuning of the schedules of TV-L1's iterations.

What they compute: tests/ops/tvl1/test_tvl1_iterations.py; on a GPU the benchmark checks every schedule before its time
counts, and tests/ops/tvl1/test_tvl1_cuda.py the solver's own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.cases.tvl1 import tuning
from benchmarks.cases.tvl1.romera import SCHEDULES, cost
from benchmarks.cases.tvl1.tuning import CANDIDATES, shape_for
from fullfield.ops import launching
from fullfield.ops.launching import Device

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_costs() -> None:
    """Deeper passes move fewer bytes; the one that keeps everything in registers the fewest: 9 planes in, 6 out."""
    found = {name: cost(name, torch.float32, 10, CANDIDATES[name, torch.float32][0]) for name in SCHEDULES}
    assert found["register_pipeline"].read * 10 == pytest.approx(9 * 4)
    assert found["register_pipeline"].written * 10 == pytest.approx(6 * 4)
    assert found["global"].read == 23 * 4
    moved = {name: c.read + c.written for name, c in found.items()}
    assert moved["register_pipeline"] < moved["shared_pipeline"] < moved["shared_fusion"] < moved["global"]
    assert all(50 < c.operations < 70 for c in found.values())
    half = cost("register_pipeline", torch.float16, 10, CANDIDATES["register_pipeline", torch.float16][0])
    assert half.read * 10 == pytest.approx(11 * 2)


def test_tuned_shapes_are_kept_for_these_kernels_and_this_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path))
    device, kind = Device(0, "Some GPU 3000", "sm_90a", 100, 227 << 10), ("register_pipeline", torch.float32)
    default, other, *_ = CANDIDATES[kind]
    assert shape_for(*kind, device) == default
    tuning._keep(device, {"register_pipeline float32": other})
    (kept,) = (tmp_path / "tvl1").iterdir()
    assert kept.name == "Some_GPU_3000.json"
    assert shape_for(*kind, device) == other
    assert shape_for(*kind, replace(device, name="Another")) == default
    text = kept.read_text()
    for damaged in ("", "[]", text[:-9], text.replace(tuning._kernels(), "other"), text.replace("128", "96"), "\0"):
        kept.write_text(damaged)
        tuning._tuned.cache_clear()
        assert shape_for(*kind, device) == default
    tuning._tuned.cache_clear()
    with pytest.raises(ValueError, match=r"expected a schedule of global, .*, got 'none'"):
        shape_for("none", torch.float32, device)


@pytest.mark.gpu
@needs_gpu
def test_tuning_takes_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path))
    times = tuning.tune(torch.cuda.current_device())
    assert set(times) == {tuning._key(*kind) for kind in CANDIDATES}
    device = launching.device_of(torch.device("cuda"))
    for kind in CANDIDATES:
        found = times[tuning._key(*kind)]
        assert found[repr(shape_for(*kind, device))] == min(found.values())
    tuning._tuned.cache_clear()
