"""The schedules of TV-L1's inner iterations on the GPU, the solver's own among them: checked and tuned."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.cases.tvl1 import tuning
from benchmarks.cases.tvl1.romera import SCHEDULES, cost, schedule_of
from benchmarks.cases.tvl1.tuning import CANDIDATES, shape_for
from fullfield.ops import launching
from fullfield.ops.launching import Device
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda.state import Level
from tests.oracles.tvl1_iterations import Term, allowed, iterated, load, make_term, result

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DTYPES = (torch.float32, torch.float16)
BOUND = {torch.float32: 1e-4, torch.float16: 2e-2}


# ---- what needs no GPU


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


# ---- on the GPU


@functools.cache
def term_and_truth(
    batch: int, height: int, width: int, borders: str, iterations: int, motion: float = 3.0
) -> tuple[Term, tuple[torch.Tensor, torch.Tensor]]:
    term = make_term(batch, height, width, borders, motion)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many take longer over planes as small as these
    try:
        return term, iterated(term, iterations, TVL1Config(borders=borders))
    finally:
        torch.set_num_threads(threads)


def solved(schedule: str, level: Level, config: TVL1Config, iterations: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    how = schedule_of(schedule, shape_for(schedule, level.dtype, launching.device_of(level.device)))
    how.prepare(level, iterations)
    how.iterate(level, iterations, config, torch.cuda.current_stream().cuda_stream)
    return result(level, config)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("size", [(2, 67, 701), (1, 300, 517), (1, 1, 77), (1, 150, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("borders", ["adjoint", "clamp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_like_the_reference(schedule: str, dtype: torch.dtype, borders: str, size: tuple[int, int, int]) -> None:
    config = TVL1Config(borders=borders)
    term, truth = term_and_truth(*size, borders, 10)
    level = Level(*size, dtype, torch.device("cuda"))
    level.memory.fill_(float("nan"))
    load(level, term, config)
    for value, true in zip(solved(schedule, level, config), truth, strict=True):
        assert float((value - true).abs().max()) <= BOUND[dtype]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("iterations", [1, 2, 5, 13, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_number_of_iterations(dtype: torch.dtype, iterations: int) -> None:
    config = TVL1Config()
    term, truth = term_and_truth(1, 90, 400, "adjoint", iterations)
    for schedule in SCHEDULES:
        level = Level(1, 90, 400, dtype, torch.device("cuda"))
        load(level, term, config)
        error = solved(schedule, level, config, iterations)[0] - truth[0]
        most, usual = allowed(dtype, iterations)
        assert float(error.abs().max()) <= most
        assert float(error.square().mean().sqrt()) <= usual


@pytest.mark.gpu
@needs_gpu
def test_float16_of_large_motion() -> None:
    """Absolute flows of 200 px in half precision would be off by up to 0.06 px before anything was computed."""
    config = TVL1Config()
    term, truth = term_and_truth(1, 120, 500, "adjoint", 10, 200.0)
    for schedule in SCHEDULES:
        level = Level(1, 120, 500, torch.float16, torch.device("cuda"))
        load(level, term, config)
        flow, _ = solved(schedule, level, config)
        assert float((flow - truth[0]).abs().mean()) <= 2e-3


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_same_bits_on_a_side_stream_and_from_a_graph(schedule: str, dtype: torch.dtype) -> None:
    config = TVL1Config()
    term = make_term(1, 200, 900, "adjoint")
    level = Level(1, 200, 900, dtype, torch.device("cuda"))
    load(level, term, config)
    how = schedule_of(schedule, shape_for(schedule, dtype, launching.device_of(level.device)))
    how.prepare(level, 10)
    how.iterate(level, 10, config, torch.cuda.current_stream().cuda_stream)
    flow, dual = result(level, config)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        level.front = 0
        load(level, term, config)
        graph = torch.cuda.CUDAGraph()
        side.synchronize()
        with torch.cuda.graph(graph, stream=side):
            how.iterate(level, 10, config, side.cuda_stream)
        for _ in range(2):
            front, level.front = level.front, 0
            load(level, term, config)
            level.front = front
            graph.replay()
            side.synchronize()
            again = result(level, config)
            assert torch.equal(again[0], flow)
            assert torch.equal(again[1], dual)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dual_variable_of_zero_is_not_read(dtype: torch.dtype) -> None:
    config = TVL1Config()
    term = make_term(1, 60, 300, "adjoint")
    term = term._replace(dual=torch.zeros_like(term.dual))
    truth = iterated(term, 7, config)[0]
    for schedule in SCHEDULES:
        level = Level(1, 60, 300, dtype, torch.device("cuda"))
        load(level, term, config)
        level.dual.fill_(float("nan"))
        how = schedule_of(schedule, shape_for(schedule, dtype, launching.device_of(level.device)))
        how.prepare(level, 7)
        how.iterate(level, 7, config, torch.cuda.current_stream().cuda_stream, zero_dual=True)
        assert float((result(level, config)[0] - truth).abs().max()) <= BOUND[dtype]


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
