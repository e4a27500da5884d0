"""The CUDA backend on a GPU: against the reference in float64, batches, streams, graphs, memory, sequences."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_modes import no_waiting
from torch import Tensor

from fullfield import InputError, estimate
from fullfield.estimators import TVL1Estimator
from fullfield.ops.tvl1 import PersistentSolver, TVL1Config, TVL1Solver, explain_backends, tvl1
from tests.oracles.tvl1 import VARIANTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
QUICK = TVL1Config(warps=2, iterations=10, scale_factor=0.5)
PRECISIONS = ("float32", "float16")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def scene(height: int, width: int, batch: int = 1, channels: int = 1, shift: int = 2, frames: int = 2) -> list[Tensor]:
    """Frames that move by ``shift`` pixels each, on the GPU."""
    margin = 4 + shift * frames
    texture = torch.rand(batch, channels, height + 2 * margin, width + 2 * margin, device="cuda")
    for _ in range(2):
        texture = torch.nn.functional.avg_pool2d(texture, 3, 1, 1)
    ends = [margin - shift * number for number in range(frames)]
    return [texture[..., margin : margin + height, left : left + width].contiguous() for left in ends]


def as_bytes(frames: list[Tensor]) -> list[Tensor]:
    return [(frame * 255).round().byte() for frame in frames]


def truth(frames: list[Tensor], config: TVL1Config, dtype: torch.dtype = torch.float64, **more: Any) -> Tensor:
    config = config.replace(precision="float32")
    solver = TVL1Solver(*frames[0].shape[-2:], config, dtype=dtype, device="cuda", backend="reference")
    return solver(*(frame.to(dtype) for frame in frames), **more).double()


def solved(frames: list[Tensor], config: TVL1Config, **more: Any) -> Tensor:
    return TVL1Solver(*frames[0].shape[-2:], config, device="cuda", backend="cuda")(*frames, **more).double()


def test_tvl1_solver_on_gpu_chooses_cuda() -> None:
    assert explain_backends("cuda")[0] == ("cuda", None)
    assert TVL1Solver(20, 30, device="cuda").backend == "cuda"
    assert TVL1Solver(20, 30, device="cuda", dtype=torch.float64).backend == "reference"
    with pytest.raises(InputError, match="cuda: takes and returns float32, got float64"):
        TVL1Solver(20, 30, device="cuda", dtype=torch.float64, backend="cuda")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(44, 52), (33, 131), (1, 40), (40, 1), (2, 1), (17, 16), (16, 1100)])
def test_tvl1_cuda_equals_reference(variant: str, size: tuple[int, int]) -> None:
    config = TVL1Config(warps=3, iterations=25, scale_factor=0.7, **VARIANTS[variant])
    frames = scene(*size)
    exact = truth(frames, config)
    error, eager = (solved(frames, config) - exact).abs(), (truth(frames, config, torch.float32) - exact).abs()
    assert error.mean() <= 2 * eager.mean() + 1e-5
    assert error.max() < 5e-3
    half = (solved(frames, config.replace(precision="float16")) - exact).abs()
    assert half.mean() < 0.02
    assert half.max() < 0.5


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tvl1_cuda_batch_equals_singles(precision: str) -> None:
    frames = scene(51, 70, batch=3, channels=3)
    config = QUICK.replace(precision=precision)
    together = solved(frames, config)
    for item in range(3):
        assert torch.equal(solved([f[item : item + 1] for f in frames], config)[0], together[item])
    assert tvl1(frames[0][:0], frames[1][:0], QUICK).shape == (0, 2, 51, 70)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tvl1_cuda_accepts_dtypes_and_layouts(dtype: torch.dtype) -> None:
    frames = [frame.to(dtype) for frame in scene(40, 57, batch=2, channels=3)]
    wanted = truth(frames, QUICK)
    channels_last = [f.contiguous(memory_format=torch.channels_last) for f in frames]
    flow = solved(channels_last, QUICK)
    assert (flow - wanted).abs().max() < 5e-3
    assert torch.equal(flow, solved(frames, QUICK))


def test_tvl1_cuda_graphs_equal_launches() -> None:
    frames, others = scene(90, 131), scene(90, 131, shift=3)
    start = torch.randn(1, 2, 90, 131, device="cuda")
    for change in ({}, {"precision": "float16"}):
        solver = TVL1Solver(90, 131, QUICK.replace(**change), device="cuda")
        first = solver(*frames)
        kept = first.clone()
        second = solver(*others, initial_flow=start)
        assert solver._solver._graph is not None
        assert torch.equal(solver(*frames), kept)
        assert torch.equal(first, kept)
        assert torch.equal(solver(*others, initial_flow=start), second)
        seen: list[float] = []
        assert torch.equal(solver(*frames, progress=lambda fraction, _: seen.append(fraction)), kept)  # noqa: B023
        assert seen == sorted(seen)
        assert seen[-1] == pytest.approx(1.0)


def test_tvl1_queue_waits_only_in_check() -> None:
    frames, config = scene(90, 131), QUICK
    solver, estimator = TVL1Solver(90, 131, config, device="cuda"), TVL1Estimator(config)
    for _ in range(2):  # the second call records a graph
        expected = solver(*frames)
        estimator(*frames)
    bad = frames[0], frames[1].clone()
    bad[1][0, 0, 5, 7] = float("nan")
    with no_waiting():
        queued = [solver.queue(*frames), estimator.queue(*frames), solver.queue(*bad)]
    for one in queued[:2]:
        one.wait_and_check()
        assert torch.equal(one.flow, expected)
    with pytest.raises(InputError, match="frame2: expected finite values, got NaN or infinity"):
        queued[2].wait_and_check()


@pytest.mark.parametrize("method", ["tvl1", "auto"])
def test_estimate_refuses_bad_frames_on_gpu_as_on_cpu(method: str) -> None:
    first, second = (frame[0] for frame in scene(90, 131, channels=3))
    expected = estimate(first, second, method)
    assert torch.equal(estimate(first, second, method).flow, expected.flow)
    bad = first.clone()
    bad[1, 5, 7] = float("inf")
    for pair, message in (
        ((bad, second), "^frame1: expected finite values, got NaN or infinity$"),
        ((first, bad), "^frame2: expected finite values, got NaN or infinity$"),
        ((first, 255 * second), r"^frame2: expected values of 0 \.\.\. 1, got .*; divide by 255"),
        ((first, 1e30 * second), r"^frame2: expected values of 0 \.\.\. 1, got .*; divide by 255"),
    ):
        with pytest.raises(InputError, match=message):
            estimate(*pair, method)
    with pytest.warns(UserWarning, match=r"^frame1: frames are expected in 0 \.\.\. 1") as warned:
        estimate(first - 0.5, second, method)
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    assert torch.equal(estimate(first, second, method).flow, expected.flow)


def test_tvl1_cuda_works_in_streams_and_graphs() -> None:
    frames, others = scene(90, 131), scene(90, 131, shift=3)
    solver = TVL1Solver(90, 131, QUICK, device="cuda")
    want, other = solver(*frames), solver(*others)
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(5):
        got = []
        for stream, pair in zip(streams, (frames, others), strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                got.append(solver(*pair))
        torch.cuda.synchronize()
        assert torch.equal(got[0], want)
        assert torch.equal(got[1], other)
    held, graph = [frame.clone() for frame in frames], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flow = solver(*held)
    for pair, wanted in ((frames, want), (others, other)):
        for place, frame in zip(held, pair, strict=True):
            place.copy_(frame)
        graph.replay()
        assert torch.equal(flow, wanted)


def test_tvl1_cuda_operator_passes_opcheck_and_compiles() -> None:
    frames = scene(40, 56)
    config = QUICK.replace(precision="float16", borders="clamp")
    from fullfield.ops.tvl1 import api  # noqa: F401 - registers the operator

    torch.library.opcheck(torch.ops.fullfield.tvl1.default, (*frames, None, "cuda"), config.as_dict())
    compiled = torch.compile(lambda a, b: tvl1(a, b, config) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*frames), tvl1(*frames, config) * 2)


def test_tvl1_cuda_refuses_nonfinite_values() -> None:
    frames = scene(40, 56)
    solver = TVL1Solver(40, 56, QUICK, device="cuda")
    good = solver(*frames)
    for number, value, words in (
        (0, float("nan"), "frame1: expected finite values"),
        (1, float("inf"), "frame2: expected finite values"),
        (1, 1e30, r"frame2: expected values up to 1e\+06 \(0 ... 1 is usual\), got 1e\+30"),
    ):
        bad = [frame.clone() for frame in frames]
        bad[number][0, 0, 7, 9] = value
        with pytest.raises(InputError, match=words):
            solver(*bad)
    start = torch.full((1, 2, 40, 56), float("nan"), device="cuda")
    with pytest.raises(InputError, match="initial_flow: expected finite values"):
        solver(*frames, initial_flow=start)
    with pytest.raises(InputError, match="frame2: expected device cuda:0"):
        solver(frames[0], frames[1].cpu())
    assert torch.equal(solver(*frames), good)


def test_tvl1_cuda_estimate_equals_reference() -> None:
    frames = [frame[0] for frame in scene(60, 80, channels=3)]
    flow = estimate(*frames, "tvl1", device="cuda", preset="fast", precision="float16")
    assert (flow.backend, flow.parameters["precision"]) == ("cuda", "float16")
    assert (flow.flow[0, 8:-8, 8:-8] - 2).abs().mean() < 0.1


def planes(make: Any, height: int, width: int) -> float:
    """Peak of the memory that ``make()`` and what it returns take, in float32 planes of the frame."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = make()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / (4 * height * width)


@pytest.mark.parametrize(("precision", "state"), [("float32", 15.0), ("float16", 8.5)])
def test_tvl1_cuda_memory_is_linear(precision: str, state: float) -> None:
    config = TVL1Config(warps=1, iterations=10, precision=precision)
    for height, width in ((1024, 2048), (2048, 4096)):
        frames = scene(height, width)
        # State, flows of two levels, both pyramids; then the result.
        bound = state + 2 * (1 + 0.81) + 2 / (1 - 0.81) + 2
        taken = planes(lambda: solved(frames, config), height, width)  # noqa: B023
        assert bound < taken < bound + 1.5


@pytest.mark.alone
def test_tvl1_cuda_accepts_offsets_beyond_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GB")
    config = TVL1Config(scales=1, warps=1, iterations=2)
    frames = scene(3432, 8192)
    flow = TVL1Solver(3432, 8192, config, device="cuda")(*(f.expand(6, -1, -1, -1) for f in frames))
    assert torch.equal(flow[5], flow[0])
    assert torch.equal(flow[0], TVL1Solver(3432, 8192, config, device="cuda")(*frames)[0])


# ---- the persistent solver


class Foreign:
    """Memory of another library."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


@pytest.fixture(scope="module")
def video() -> list[Tensor]:
    torch.manual_seed(1)
    return as_bytes(scene(90, 131, channels=3, frames=5))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_persistent_solver_equals_tvl1_solver(video: list[Tensor], precision: str) -> None:
    config = QUICK.replace(precision=precision)
    pairs = TVL1Solver(90, 131, config, device="cuda")
    cold = [pairs(a / 255.0, b / 255.0) for a, b in pairwise(video)]
    solver = PersistentSolver((1, 3, 90, 131), config)
    tolerance = {"atol": 2e-3 if precision == "float32" else 0.1, "rtol": 0.0}
    torch.testing.assert_close(solver(video[0], video[1]), cold[0], **tolerance)
    solver.restart()
    assert solver.step(video[0]) is None
    before = None
    for number, frame in enumerate(video[1:]):
        flow = solver.step(frame)
        assert flow is not None
        want = pairs(video[number] / 255.0, frame / 255.0, initial_flow=before)
        torch.testing.assert_close(flow, want, **tolerance)
        before = flow
    unkept = PersistentSolver((1, 3, 90, 131), config, warm_start=False)
    unkept(video[0], video[1])
    for number, frame in enumerate(video[2:], 1):
        flow = unkept.step(frame)
        assert flow is not None
        torch.testing.assert_close(flow, cold[number], **tolerance)


def test_persistent_solver_writes_inplace_without_synchronizing(video: list[Tensor]) -> None:
    solver = PersistentSolver((1, 3, 90, 131), QUICK)
    want = [solver.step(frame) for frame in video]
    channels_last = [Foreign(f.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)) for f in video]
    out = [torch.full((1, 2, 90, 131), float("nan"), device="cuda") for _ in video]
    torch.cuda.synchronize()
    solver.restart()
    held = torch.cuda.memory_allocated()
    with no_waiting():
        got = [solver.step(frame, out=Foreign(place)) for frame, place in zip(channels_last, out, strict=True)]
        pair = solver(channels_last[0], channels_last[1], out=out[0])
    assert torch.cuda.memory_allocated() == held
    assert pair.data_ptr() == out[0].data_ptr()
    assert got[0] is None
    for flow, place, wanted in zip(got[1:], out[1:], want[1:], strict=True):
        assert flow is not None
        assert wanted is not None
        assert flow.data_ptr() == place.data_ptr()
        assert torch.equal(flow, wanted)


def test_persistent_solver_runs_batches_on_streams(video: list[Tensor]) -> None:
    solver = PersistentSolver((2, 3, 90, 131), QUICK)
    alone = PersistentSolver((1, 3, 90, 131), QUICK)
    backwards = video[::-1]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for number in range(5):
        frames = torch.cat((video[number], backwards[number]))
        with torch.cuda.stream(streams[number % 3]):
            streams[number % 3].wait_stream(torch.cuda.default_stream())
            flow = solver.step(frames)
        torch.cuda.synchronize()
        if flow is not None:
            if number == 1:
                assert torch.equal(flow[:1], alone(video[0], video[1]))
            assert flow.isfinite().all()
    latency = solver.latency()
    assert latency.frames == 4
    assert 0 < latency.median <= latency.p99 < 1
    solver.reset_latency()
    with pytest.raises(InputError, match="latency: expected at least one flow, got none"):
        solver.latency()
    assert solver.memory_bytes > 2 * 15 * 4 * 90 * 131


def test_persistent_solver_refuses_bad_arguments(video: list[Tensor]) -> None:
    for arguments, words in (
        (((1, 2, 90, 131), QUICK), "shape: expected 1 or 3 channels, got 2"),
        (((90, 131), QUICK), r"shape: expected \(B, C, H, W\), got \(90, 131\)"),
        (((1, 3, 1, 1), QUICK), "frames: expected at least 2 pixels"),
        (((1, 3, 90, 131), "fast"), "config: expected a TVL1Config"),
    ):
        with pytest.raises(InputError, match=words):
            PersistentSolver(*arguments)
    with pytest.raises(InputError, match="device: expected one for the cuda backend, got cpu: runs on NVIDIA GPUs"):
        PersistentSolver((1, 3, 90, 131), device="cpu")
    solver = PersistentSolver((1, 3, 90, 131), QUICK)
    with pytest.raises(InputError, match=r"frame: expected shape \[1, 3, 90, 131\]"):
        solver.step(video[0][0])
    with pytest.raises(InputError, match="frame2: expected dtype uint8"):
        solver(video[0], video[1].float())
    with pytest.raises(InputError, match="frame: expected a tensor or an array with __dlpack__"):
        solver.step("frame.png")
    with pytest.raises(InputError, match="out: expected contiguous memory"):
        solver(video[0], video[1], out=torch.empty(1, 2, 131, 90, device="cuda").transpose(2, 3))
