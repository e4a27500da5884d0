"""Costs and tuning of the schedules of TV-L1's iterations.

What they compute: tests/ops/tvl1/test_tvl1_iterations.py; on a GPU the benchmark checks every schedule before its time
counts, and tests/ops/tvl1/test_tvl1_cuda.py the solver's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.cases.tvl1 import tuning
from benchmarks.cases.tvl1.romera import SCHEDULES, cost
from benchmarks.cases.tvl1.tuning import CANDIDATES, shape_for
from fullfield.ops import _launching

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_cost_equals_bytes_counted_by_hand() -> None:
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


@pytest.mark.gpu
@needs_gpu
def test_tune_selects_fastest_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path))
    times = tuning.tune(torch.cuda.current_device())
    assert set(times) == {tuning._key(*kind) for kind in CANDIDATES}
    device = _launching.get_device_gpu_properties(torch.device("cuda"))
    for kind in CANDIDATES:
        found = times[tuning._key(*kind)]
        assert found[repr(shape_for(*kind, device))] == min(found.values())
    tuning._tuned.cache_clear()
