"""``estimate``: its arguments, its device, what it keeps between calls, and methods of the user's own."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fullfield import InputError, estimate, estimate_batch
from fullfield.estimators import RefinedEstimator, _frames, estimation, release_memory
from fullfield.estimators._devices import choose_common_device_or_default
from fullfield.estimators._frames import read_or_convert_frame
from fullfield.estimators._solver_pool import SolverPool, SolverSize
from fullfield.estimators.estimation import build_estimator
from fullfield.ops.tvl1 import FlowRefiner, TVL1Config, TVL1Solver
from fullfield.ops.tvl1.frames import QueuedFlow
from fullfield.testing import sample_textured_scene
from refusals import refuses

SCENE = sample_textured_scene(48, 64, seed=3)
FRAMES = SCENE.frame1, SCENE.frame2
QUICK = TVL1Config.from_preset("fast").replace(warps=1, iterations=2)


@pytest.mark.unit
def test_estimate_and_estimate_batch_have_equal_keywords() -> None:
    single, batch = (inspect.signature(function).parameters for function in (estimate, estimate_batch))
    assert [*single][3:] == [*batch][3:]
    kinds = {parameter.kind for parameters in (single, batch) for parameter in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert single["device"].default == batch["device"].default == "auto"


def test_estimate_batch_accepts_initial_flow_per_pair() -> None:
    start = torch.randn(2, 2, 48, 64)
    frames = [torch.stack([frame, frame.flip(-1)]) for frame in FRAMES]
    flows = estimate_batch(*frames, "tvl1", config=QUICK, initial_flow=start)
    for index, flow in enumerate(flows):
        single = estimate(frames[0][index], frames[1][index], "tvl1", config=QUICK, initial_flow=start[index])
        torch.testing.assert_close(flow.flow, single.flow)
    listed = estimate_batch(*frames, "tvl1", config=QUICK, initial_flow=[start[0].permute(1, 2, 0).numpy(), start[1]])
    assert torch.equal(listed[0].flow, flows[0].flow)
    refuses(
        r"initial_flow: expected a tensor \[2, 2, 48, 64\] or a list of 2 flows",
        estimate_batch,
        *frames,
        "tvl1",
        initial_flow=[start[0]],
    )


@pytest.mark.unit
@pytest.mark.parametrize("method", ["tvl1", "fullfield-s", "auto"])
@pytest.mark.parametrize(
    ("value", "came"),
    [
        (float("nan"), "finite values, got NaN or infinity"),
        (float("-inf"), "finite values, got NaN or infinity"),
        (1e5, "vectors of at most 256 px for frames of 64×48, got one of 100000 px"),
        (-1e30, "vectors of at most 256 px for frames of 64×48, got one of 1e\\+30 px"),
    ],
)
def test_estimate_refuses_nonfinite_or_huge_initial_flow(method: str, value: float, came: str) -> None:
    start = torch.zeros(2, 48, 64)
    start[1, 20, 30] = value
    refuses(f"^initial_flow: expected {came}$", estimate, *FRAMES, method, initial_flow=start)


@pytest.mark.unit
def test_estimate_refuses_meta_device_context() -> None:
    with torch.device("meta"):
        refuses("device: expected a device that holds values", estimate, *FRAMES, "tvl1")


@pytest.mark.unit
def test_choose_device_returns_device_of_tensors_or_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.estimators._devices.resolve_device", lambda _: torch.device("cuda", 1))
    assert choose_common_device_or_default(["a.png", np.zeros((2, 2))]) == torch.device("cuda", 1)
    assert choose_common_device_or_default(["a.png", torch.zeros(1)]) == torch.device("cpu")
    assert choose_common_device_or_default([torch.zeros(1, device="meta"), "b.png"]) == torch.device("cuda", 1)


def test_estimate_sets_threads_for_the_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    queue = TVL1Solver.queue

    def record(self: TVL1Solver, *frames: Any, **options: Any) -> QueuedFlow:
        counts.append(torch.get_num_threads())
        return queue(self, *frames, **options)

    monkeypatch.setattr(TVL1Solver, "queue", record)
    before = torch.get_num_threads()
    flow = estimate(*FRAMES, "tvl1", config=QUICK, threads=before + 2)
    assert counts == [before + 2]
    assert torch.get_num_threads() == before
    assert torch.equal(flow.flow, estimate(*FRAMES, "tvl1", config=QUICK).flow)
    refuses("threads: expected an integer >= 1", estimate, *FRAMES, "tvl1", threads=0)


def test_read_or_convert_frame_bgr_equals_rgb() -> None:
    bgr = [(frame.flip(0).permute(1, 2, 0).numpy() * 255).astype(np.uint8) for frame in FRAMES]
    rgb = [np.ascontiguousarray(frame[..., ::-1]) for frame in bgr]
    assert torch.equal(read_or_convert_frame(bgr[0], color_order="bgr"), read_or_convert_frame(rgb[0]))
    alpha = np.dstack([bgr[0], np.full(bgr[0].shape[:2], 9, np.uint8)])
    assert torch.equal(read_or_convert_frame(alpha, color_order="bgr"), read_or_convert_frame(rgb[0]))
    assert torch.equal(read_or_convert_frame(FRAMES[0].flip(0), color_order="bgr"), read_or_convert_frame(FRAMES[0]))
    assert torch.equal(read_or_convert_frame(bgr[0][..., 0], color_order="bgr"), read_or_convert_frame(bgr[0][..., 0]))
    flows = [estimate(*pair, "tvl1", config=QUICK, color_order=order) for pair, order in ((bgr, "bgr"), (rgb, "rgb"))]
    assert torch.equal(flows[0].flow, flows[1].flow)
    refuses("color_order: expected 'rgb' for a file, got 'bgr'", read_or_convert_frame, "a.png", color_order="bgr")
    refuses("color_order: expected one of rgb, bgr, got 'grb'", read_or_convert_frame, bgr[0], color_order="grb")


def test_estimate_second_call_creates_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[type] = []
    for kind in (TVL1Solver, FlowRefiner):
        start = kind.__init__

        def record(self: Any, *args: Any, start: Any = start, **options: Any) -> None:
            created.append(type(self))
            start(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", record)
    release_memory()
    for repeat in range(3):
        for size in ((48, 64), (40, 56)):
            pair = [frame[:, : size[0], : size[1]] for frame in FRAMES]
            estimate(*pair, "tvl1", config=QUICK, refine=True, reliability=True)
        assert len(created) == 4, f"call {repeat}"
    assert set(created) == {TVL1Solver, FlowRefiner}
    release_memory()
    estimate(*FRAMES, "tvl1", config=QUICK, refine=True)
    assert len(created) == 6


@pytest.mark.unit
def test_solver_pool_is_bounded_and_shares_no_solver() -> None:
    created: list[SolverSize] = []
    device = torch.device("cpu")
    sizes = [SolverSize(16, 16 + index, device, torch.float32) for index in range(6)]
    large = [SolverSize(2000, 1000 + index, device, torch.float32) for index in range(2)]

    def create(size: SolverSize) -> object:
        created.append(size)
        return object()

    pool = SolverPool(create)
    with pool.borrow_solver(sizes[0]) as first, pool.borrow_solver(sizes[0]) as second:
        assert first is not second
    assert len(pool._idle) == 1
    for size in sizes:
        with pool.borrow_solver(size):
            pass
    assert [size for size, _ in pool._idle] == sizes[2:]
    for size in large:
        with pool.borrow_solver(size):
            assert not pool._idle, "old buffers are released before the new ones are allocated"
    assert [size for size, _ in pool._idle] == large[1:]
    pool.release_idle_solvers()
    assert not pool._idle


def test_estimate_runs_in_two_threads_at_once() -> None:
    barrier, flows = threading.Barrier(2), {}

    def progress(_: float, __: str) -> None:
        if not barrier.broken and not flows:
            barrier.wait(timeout=20)

    def run(number: int) -> None:
        flow = estimate(*FRAMES, "tvl1", config=QUICK, progress=progress if number < 2 else None)
        flows[number] = flow.flow

    workers = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    run(2)
    assert torch.equal(flows[0], flows[2])
    assert torch.equal(flows[1], flows[2])


def _describe_outcome(frames: tuple[torch.Tensor, torch.Tensor], **options: Any) -> tuple[object, ...]:
    """Return the error or the flow of a call, and its warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result: object = estimate(*frames, config=QUICK, method="tvl1", **options).flow.tolist()
        except InputError as error:
            result = str(error)
    return result, [(str(one.message), one.filename) for one in warned]


@pytest.mark.parametrize("options", [{}, {"refine": True}, {"refine": "yes"}, {"reliability": True}])
def test_estimate_reports_bad_frames_alike_before_and_after_the_flow(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    first, second = FRAMES
    bad = first.clone()
    bad[0, 3, 4] = float("nan")
    pairs = [FRAMES, (bad, second), (first, bad), (first, 255 * second), (-first, second), (-first, bad)]
    expected = [_describe_outcome(pair, **options) for pair in pairs]
    monkeypatch.setattr(estimation, "_may_defer_value_check", lambda *_: True)
    for pair, outcome in zip(pairs, expected, strict=True):
        assert _describe_outcome(pair, **options) == outcome
    assert "finite values, got NaN" in str(expected[1][0])
    assert expected[4][1] == expected[5][1] == [(expected[4][1][0][0], __file__)]  # type: ignore[index]


class Ones:
    """Estimator of a user."""

    method, backend = "ones", "none"
    parameters: Mapping[str, Any] = {}

    def __call__(self, frame1: torch.Tensor, *_: torch.Tensor, **__: Any) -> torch.Tensor:
        return torch.ones_like(frame1[:, :2])


@pytest.mark.unit
def test_value_check_is_deferred_on_gpu_where_nobody_notices() -> None:
    gpu, flow = torch.device("cuda"), torch.zeros(2, 48, 64)
    tvl1, network = build_estimator("tvl1"), build_estimator("auto")
    release_memory()  # the network may be another test's, and loaded
    unloaded, own = build_estimator("auto"), RefinedEstimator(Ones())
    may_defer = estimation._may_defer_value_check
    assert may_defer(tvl1, gpu, None, None)
    assert not may_defer(tvl1, torch.device("cpu"), None, None)
    assert not may_defer(tvl1, gpu, flow, None)
    assert not may_defer(tvl1, gpu, None, lambda *_: None)
    assert not may_defer(own, gpu, None, None), "an estimator of the user's may keep a state"
    assert not may_defer(unloaded, gpu, None, None), "a bad frame causes no download"
    assert network is not unloaded
    network.estimator._origin = {"weights": "loaded"}  # type: ignore[attr-defined]
    assert may_defer(network, gpu, None, None)


@pytest.mark.unit
def test_estimate_queues_all_work_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Queueing(Ones):
        accepts_unchecked_frames = True

        def queue(self, frame1: torch.Tensor, _: torch.Tensor, **__: Any) -> QueuedFlow:
            events.append("queue")
            return QueuedFlow(torch.ones_like(frame1[:, :2]), lambda: events.append("wait"))

        def __call__(self, *_: torch.Tensor, **__: Any) -> torch.Tensor:
            raise AssertionError

    class Derived(Queueing):
        def __call__(self, frame1: torch.Tensor, *_: torch.Tensor, **__: Any) -> torch.Tensor:
            return 2 * torch.ones_like(frame1[:, :2])

    for name in ("measure_if_needed", "raise_or_warn_if_out_of_range"):
        method = getattr(_frames.ValueCheck, name)

        def record(self: object, name: str = name, method: Any = method) -> None:
            events.append(name)
            method(self)

        monkeypatch.setattr(_frames.ValueCheck, name, record)
    monkeypatch.setattr(estimation, "_may_defer_value_check", lambda *_: True)
    assert float(estimate(*FRAMES, Queueing()).flow.mean()) == 1.0
    assert events == ["queue", "measure_if_needed", "wait", "raise_or_warn_if_out_of_range", "measure_if_needed"]
    assert float(estimate(*FRAMES, Derived()).flow.mean()) == 2.0, "an overriding call is called"


OWN = '''
import torch

class Shift:
    """Estimator of a shift."""

    method, backend, parameters = "shift", "none", {}

    def __call__(self, frame1, frame2, *, initial_flow=None, progress=None):
        return torch.full_like(frame1[:, :2], 3.0)

class Needy(Shift):
    def __init__(self, value):
        self.value = value

class Other:
    pass

number = 3
'''


@pytest.mark.unit
def test_estimate_accepts_user_class_as_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_methods", raising=False)
    flow = estimate(*FRAMES, "own_methods:Shift")
    assert (flow.method, float(flow.flow.mean())) == ("shift", 3.0)
    assert build_estimator("own_methods:Shift") is not build_estimator("own_methods:Shift"), "it may keep a state"
    release_memory()
    for name, message in (
        ("no_such_module:Shift", "no_such_module:Shift: expected a class that can be imported, got: No module named"),
        ("own_methods:Shfit", "expected a class that can be imported, got: module 'own_methods' has no attribute"),
        ("own_methods:number", "method: expected a class called own_methods:number, got int"),
        ("own_methods:Needy", "expected a class without arguments, got: .*missing 1 required positional argument"),
        ("own_methods:Other", "own_methods:Other: expected a class that follows fullfield.estimators.Estimator"),
    ):
        refuses(message, estimate, *FRAMES, name)
    refuses(
        "backend: expected None with method own_methods:Shift", estimate, *FRAMES, "own_methods:Shift", backend="cpu"
    )


@pytest.mark.unit
def test_log_or_print_uses_configured_logging(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fullfield._kernels.cache_folder import log_warning_or_print_unless_quiet

    monkeypatch.delenv("FULLFIELD_QUIET", raising=False)
    with caplog.at_level(logging.WARNING, "fullfield"):
        log_warning_or_print_unless_quiet("compiling")
    assert [record.getMessage() for record in caplog.records] == ["compiling"]
    assert capsys.readouterr().err == ""
    logger = logging.getLogger("fullfield")
    monkeypatch.setattr(logger, "hasHandlers", lambda: False)
    log_warning_or_print_unless_quiet("compiling")
    assert capsys.readouterr().err == "fullfield: compiling\n"
    with caplog.at_level(logging.ERROR, "fullfield"):  # monkeypatch would leave what the logger caches of its level
        log_warning_or_print_unless_quiet("compiling")
    assert capsys.readouterr().err == ""
