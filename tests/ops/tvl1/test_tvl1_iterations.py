"""The iterations' CUDA kernels, run on the CPU by ``emulator``, against the reference: arithmetic, borders, launchers.

Not races between warps, the GPU's own approximations of roots and reciprocals, or its rounding: see ``emulator``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from emulator import AMPERE, FLAGS, TURING, Emulator

from benchmarks.cases.tvl1 import romera
from benchmarks.cases.tvl1 import schedules as tvl1_schedules
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import passes
from fullfield.ops.tvl1.cuda.pipeline import PipelineShape, RegisterPipeline
from fullfield.ops.tvl1.cuda.state import Level
from tests.oracles.tvl1_iterations import Term, allowed, iterated, load, make_term, result

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16)
# Pixels; float16 keeps about three digits of a few pixels' change, and sums them over iterations.
FLOW_BOUND = {torch.float32: 1e-4, torch.float16: 2e-2}
# Small blocks, so that small frames have many: strips of few rows, halos on every side. The solver's own schedule is
# tested here in every way; those that it is compared with by the benchmark's check.
SHAPES = {
    "global": PipelineShape(32),
    "shared_fusion": PipelineShape(64, rows=5),
    "global_pipeline": PipelineShape(32, depth=3, rows=7, blocks=2),
    "shared_pipeline": PipelineShape(32, depth=3, rows=7),
    "register_pipeline": PipelineShape(64, depth=5, rows=7, words=2, ahead=2),
}


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest, emulate: Callable[..., Emulator]) -> Emulator:
    # Registers that nobody wrote are NaN in half precision.
    gpu = getattr(request, "param", AMPERE)
    return emulate(passes, gpu=gpu, flags=(*FLAGS, "-ftrivial-auto-var-init=pattern"))


def iterated_on(
    term: Term,
    dtype: torch.dtype,
    config: TVL1Config,
    iterations: int,
    shape: PipelineShape | None = None,
    **options: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return flow and dual variable by the solver's kernels."""
    batch, _, height, width = term.start.shape
    level = Level(batch, height, width, dtype, CPU)
    load(level, term, config)
    if options:
        level.current_dual.fill_(float("nan"))
    how = RegisterPipeline(SHAPES["register_pipeline"] if shape is None else shape)
    how.prepare_iterations(level, iterations)
    how.launch_iterations_and_update_front(level, iterations, config, 0, **options)
    return result(level, config)


def check(
    term: Term,
    dtype: torch.dtype,
    config: TVL1Config,
    iterations: int = 10,
    shape: PipelineShape | None = None,
) -> None:
    flow, dual = iterated_on(term, dtype, config, iterations, shape)
    true_flow, true_dual = iterated(term, iterations, config)
    assert torch.isfinite(flow).all()
    error, (most, usual) = flow - true_flow, allowed(dtype, iterations)
    assert float(error.abs().max()) <= most
    assert float(error.square().mean().sqrt()) <= usual
    assert float((dual - true_dual).abs().max()) <= FLOW_BOUND[dtype]


@pytest.mark.parametrize("machine", [AMPERE, TURING], indirect=True, ids=["ampere", "turing"])
@pytest.mark.parametrize("borders", ["adjoint", "clamp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tvl1_iterations_equal_reference(dtype: torch.dtype, borders: str) -> None:
    check(make_term(2, 19, 75, borders), dtype, TVL1Config(borders=borders))


@pytest.mark.parametrize("size", [(1, 1), (1, 37), (40, 1), (2, 65), (31, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tvl1_iterations_of_thin_frames_equal_reference(dtype: torch.dtype, size: tuple[int, int]) -> None:
    for borders in ("adjoint", "clamp"):
        check(make_term(1, *size, borders), dtype, TVL1Config(borders=borders))


@pytest.mark.parametrize(
    ("dtype", "iterations"),
    [(DTYPES[number % 2], count) for number, count in enumerate((1, 2, 7, 11, 40, 23))],
    ids=str,
)
def test_tvl1_iterations_accept_any_count(dtype: torch.dtype, iterations: int) -> None:
    check(make_term(1, 13, 41, "adjoint"), dtype, TVL1Config(), iterations)


# Strips that touch no border, in every way of dealing iterations to warps; the last threads first; copies late.
@pytest.mark.parametrize(
    ("number", "threads", "words", "depth", "ahead"),
    [(0, 32, 2, 4, 1), (1, 32, 2, 10, 2), (0, 64, 4, 10, 3), (1, 96, 2, 7, 2), (0, 128, 2, 10, 2), (1, 160, 4, 10, 4)],
)
def test_tvl1_register_pipelines_equal_reference(
    machine: Emulator, number: int, threads: int, words: int, depth: int, ahead: int
) -> None:
    machine.schedule, dtype = 3, DTYPES[number]
    width = 2 * 32 * words * (2 if dtype == torch.float16 else 1) + 50
    shape = PipelineShape(threads, depth, 20, words, ahead)
    check(make_term(1, 50, width, "adjoint"), dtype, TVL1Config(), depth, shape)


# One strip that is the frame, strips that end with it, and widths at which copies do not let them.
@pytest.mark.parametrize(
    ("dtype", "words", "borders"),
    [(torch.float32, 4, "adjoint"), (torch.float16, 2, "adjoint"), (torch.float16, 4, "clamp")],
    ids=str,
)
def test_tvl1_iteration_strips_at_borders_equal_reference(dtype: torch.dtype, words: int, borders: str) -> None:
    strip = 32 * words * (2 if dtype == torch.float16 else 1)
    for width in (strip, strip + 4, strip + 6, strip + 121, 2 * strip + 60):
        shape = PipelineShape(128, 10, 9, words, 2)
        check(make_term(1, 12, width, borders), dtype, TVL1Config(borders=borders), 10, shape)


def test_tvl1_iterations_float16_survive_overflow() -> None:
    """A step of 500 px in one component, and of 200 in both: no worse than usual as far away as iterations reach."""
    config, term = TVL1Config(), make_term(1, 13, 75, "adjoint")
    step = torch.zeros_like(term.start)
    step[:, 0, :, 38:] += 500
    step[:, :, 9:, :20] += 200
    term = term._replace(start=(term.start + step).half().double())  # the origin is
    flow, dual = iterated_on(term, torch.float16, config, 3)
    true_flow, _ = iterated(term, 3, config)
    assert torch.isfinite(flow).all()
    assert torch.isfinite(dual).all()
    far = torch.ones(13, 75, dtype=torch.bool)
    far[:, 38 - 5 : 38 + 5] = far[9 - 5 :, : 20 + 5] = False
    assert float((flow - true_flow)[..., far].abs().max()) <= FLOW_BOUND[torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tvl1_iterations_do_not_read_zero_dual(dtype: torch.dtype) -> None:
    term = make_term(1, 13, 41, "adjoint")
    term = term._replace(dual=torch.zeros_like(term.dual))
    config = TVL1Config()
    found = iterated_on(term, dtype, config, 5, zero_dual=True)
    for value, true in zip(found, iterated(term, 5, config), strict=True):
        assert float((value - true).abs().max()) <= FLOW_BOUND[dtype]


# ---- the benchmark times what it checks


@pytest.fixture
def _benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvl1_schedules, "shape_for", lambda schedule, *_: SHAPES[schedule])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))


def quiet(text: str) -> None:
    del text


@pytest.mark.usefixtures("_benchmark")
def test_tvl1_schedules_timed_counts_bytes_of_versions() -> None:
    rows = tvl1_schedules.timed((19, 33), tvl1_schedules.versions(), CPU, 1, quiet)
    assert len(rows) == 2 * len(romera.SCHEDULES)
    for row in rows:
        assert row["status"] == "ok", row
        assert row["operations"] > 300, "ten iterations of some thirty operations at least"
        assert row["bytes_read"] > row["bytes_written"] > 0
    moved = {row["name"]: row["bytes_read"] + row["bytes_written"] for row in rows}
    assert moved["register_pipeline float16"] < moved["register_pipeline float32"] < moved["global float32"]
