"""The GPU kernels among streams, graphs, threads, compilers, devices and processes, and what they cost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from tests.oracles.correlation import assert_within, make_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LEVELS, RADIUS = 4, 4


def features(
    size: tuple[int, int] = (48, 100), channels: int = 64, dtype: torch.dtype = torch.bfloat16, device: str = "cuda"
) -> tuple[Tensor, Tensor, Tensor]:
    case = make_case(size, batch=1, channels=channels)
    return case.fmap1.to(device, dtype), case.fmap2.to(device, dtype), case.coords.to(device)


def pair_of(fmap1: Tensor, fmap2: Tensor) -> CorrelationPyramid:
    return CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS, backend="cuda")


# ---- streams, graphs, threads


def test_prepared_pair_works_on_several_streams() -> None:
    fmap1, fmap2, coords = features((96, 200), 256)
    pair = pair_of(fmap1, fmap2)
    positions = [coords + 0.4 * i for i in range(24)]
    expected = [pair(xy) for xy in positions]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(3):
        got = []
        for index, xy in enumerate(positions):
            with torch.cuda.stream(streams[index % 4]):
                got.append(pair(xy))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_prepared_pair_memory_outlives_reading_stream() -> None:
    fmap1, fmap2, coords = features((128, 256), 256)
    expected = pair_of(fmap1, fmap2)(coords)
    side = torch.cuda.Stream()
    for _ in range(5):
        pair = pair_of(fmap1, fmap2)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            got = pair(coords)
        del pair
        for _ in range(8):  # would land where the features were
            torch.full((1, 256, 128, 256), 7.0, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        assert torch.equal(got, expected)


def capture(work: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


@pytest.mark.parametrize("inside", [True, False])
def test_lookup_in_cuda_graph_equals_eager(inside: bool) -> None:
    fmap1, fmap2, coords = features()
    other1, other2, _ = (t.flip(-1).contiguous() for t in (fmap1, fmap2, coords))
    positions = [coords + 0.3 * i for i in range(6)]
    before = pair_of(fmap1, fmap2)
    before(coords)  # compiles
    graph, outs = capture(lambda: [(pair_of(fmap1, fmap2) if inside else before)(xy) for xy in positions])
    for shift in (0.0, 1.7, -3.1):
        for xy in positions:
            xy.add_(shift)
        for _ in range(2):
            for out in outs:
                out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            for xy, out in zip(positions, outs, strict=True):
                assert torch.equal(out, before(xy))
    if inside:
        fmap1.copy_(other1)
        fmap2.copy_(other2)
        graph.replay()
        assert torch.equal(outs[0], pair_of(other1, other2)(positions[0]))


def test_lookup_graph_replays_and_eager_calls_are_independent() -> None:
    fmap1, fmap2, coords = features((96, 200), 256)
    pair = pair_of(fmap1, fmap2)
    positions = [coords + 0.4 * i for i in range(8)]
    expected = [pair(xy) for xy in positions]
    graphs = [capture(lambda: [pair(xy) for xy in positions]) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(6):
        for (graph, _), stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        eager = [pair(xy) for xy in positions]
        torch.cuda.synchronize()
        for outs in (eager, *(outs for _, outs in graphs)):
            assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))


def test_lookup_capture_spans_two_streams() -> None:
    fmap1, fmap2, coords = features((96, 200), 256)
    pair = pair_of(fmap1, fmap2)
    expected = [pair(coords), pair(coords + 1)]
    side = torch.cuda.Stream()

    def work() -> list[Tensor]:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second = pair(coords + 1)
        first = pair(coords)
        torch.cuda.current_stream().wait_stream(side)
        return [first, second]

    graph, outs = capture(work)
    for _ in range(5):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))


def test_lookup_graphs_without_free_slots_equal_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.ops.correlation.cuda import structs

    fmap1, fmap2, coords = features()
    pair = pair_of(fmap1, fmap2)
    expected = pair(coords)
    monkeypatch.setattr(structs, "COUNT", 0)
    graph, outs = capture(lambda: [pair(coords), pair(coords)])
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, expected) for out in outs)


def test_lookup_training_step_in_cuda_graph_equals_eager() -> None:
    fmap1, fmap2, coords = features(dtype=torch.float32)
    maps = [fmap1.requires_grad_(), fmap2.requires_grad_()]

    def step() -> list[Tensor]:
        pair = pair_of(*maps)
        return list(torch.autograd.grad(sum(pair(coords + i).square().sum() for i in range(2)), maps))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = step()
    torch.cuda.current_stream().wait_stream(side)
    graph, grads = capture(step)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(grads, expected, strict=True):
            assert_within(a, b, 1e-5 * float(b.abs().max()), "gradient")


@pytest.mark.parametrize("first", [True, False])
def test_lookup_backward_on_other_stream_equals_same_stream(first: bool) -> None:
    """One of two lookups on a side stream; whichever adds first is late, so that the other has to wait for it."""
    fmap1, fmap2, coords = features(dtype=torch.float32)
    maps = [fmap1.requires_grad_(), fmap2.requires_grad_()]
    side = torch.cuda.Stream()

    def late(grad: Tensor) -> Tensor:
        torch.cuda._sleep(20_000_000)
        return grad

    def grads(other: bool) -> tuple[Tensor, ...]:
        pair = pair_of(*maps)
        outs = []
        for index, xy in enumerate((coords, coords + 1)):
            elsewhere = other and first == (index == 0)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side if elsewhere else torch.cuda.current_stream()):
                outs.append(pair(xy))
            torch.cuda.current_stream().wait_stream(side)
        outs[1].register_hook(late)  # the engine begins with the last lookup
        return torch.autograd.grad((outs[0] + outs[1]).square().sum(), maps)

    for a, b in zip(grads(True), grads(False), strict=True):
        assert_within(a, b, 1e-5 * float(b.abs().max()), "gradient")


def test_lookup_on_gpu_from_threads_equals_serial() -> None:
    fmap1, fmap2, coords = features()
    pair = pair_of(fmap1, fmap2)
    positions = [coords + 0.3 * i for i in range(64)]
    expected = [pair(xy) for xy in positions]
    torch.cuda.synchronize()
    streams = threading.local()

    def work(xy: Tensor) -> Tensor:
        if not hasattr(streams, "own"):
            streams.own = torch.cuda.Stream()
        with torch.cuda.stream(streams.own):
            out = pair(xy)
        streams.own.synchronize()
        return out

    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(a, b) for a, b in zip(pool.map(work, positions), expected, strict=True))
        same_stream = list(pool.map(pair, positions))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(same_stream, expected, strict=True))


# ---- two devices

DEVICES = ("cuda:0", "cuda:1")
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def step(device: str) -> list[Tensor]:
    """Two lookups and the gradients of features and positions."""
    leaves = [t.requires_grad_() for t in features(dtype=torch.float32, device=device)]
    pair = pair_of(leaves[0], leaves[1])
    outs = [pair(leaves[2]), pair(leaves[2] + 1)]
    return [*outs, *torch.autograd.grad(sum(out.square().sum() for out in outs), leaves)]


def same(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert_within(a, b, 1e-5 * float(b.detach().abs().max()), f"on {a.device}")


@two_devices
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lookup_on_either_device_ignores_current_device(current: int, dtype: torch.dtype) -> None:
    results = []
    with torch.cuda.device(current):
        for device in (*DEVICES, *reversed(DEVICES)):
            fmap1, fmap2, coords = features(dtype=dtype, device=device)
            out = pair_of(fmap1, fmap2)(coords)
            assert out.device == coords.device
            assert torch.cuda.current_device() == current
            results.append(out.cpu())
    assert all(torch.equal(out, results[0]) for out in results)


@two_devices
def test_lookup_training_on_two_gpus_from_threads_matches() -> None:
    expected = step(DEVICES[0])
    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(step, DEVICES * 4):
            same(results, expected)


@two_devices
def test_lookup_gradients_sum_over_losses_of_two_devices() -> None:
    expected = step(DEVICES[0])
    leaves = [[t.requires_grad_() for t in features(dtype=torch.float32, device=device)] for device in DEVICES]
    losses = [
        sum(out.square().sum() for out in (pair(leaf[2]), pair(leaf[2] + 1)))
        for leaf, pair in ((leaf, pair_of(leaf[0], leaf[1])) for leaf in leaves)
    ]
    grads = torch.autograd.grad(losses[0] + losses[1].to(DEVICES[0]), [t for leaf in leaves for t in leaf])
    same(grads[:3], expected[2:])
    same(grads[3:], expected[2:])


@two_devices
def test_lookup_on_second_gpu_works_in_streams_and_graphs() -> None:
    fmap1, fmap2, coords = features(device=DEVICES[1])
    pair = pair_of(fmap1, fmap2)
    expected = pair(coords)
    with torch.cuda.device(DEVICES[1]):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            got = pair(coords)
        side.synchronize()
        assert torch.equal(got, expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = pair(coords)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


@two_devices
def test_lookup_on_second_gpu_compiles() -> None:
    fmap1, fmap2, coords = features(dtype=torch.float32, device=DEVICES[1])

    def look(a: Tensor, b: Tensor, xy: Tensor) -> Tensor:
        return pair_of(a, b)(xy)

    got = torch.compile(look, fullgraph=True, backend="aot_eager")(fmap1, fmap2, coords)
    assert torch.equal(got, look(fmap1, fmap2, coords))


# ---- traced code


def model(fmap1: Tensor, fmap2: Tensor, coords: Tensor) -> Tensor:
    pair = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS)
    return pair(coords) + 2 * pair(coords + 0.4)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lookup_on_gpu_compiles_without_graph_breaks(backend: str, dtype: torch.dtype) -> None:
    if backend == "inductor":
        pytest.importorskip("triton")
    inputs = [t.requires_grad_() for t in features(dtype=dtype)]
    expected = model(*inputs)
    got = torch.compile(model, fullgraph=True, backend=backend)(*inputs)
    assert_within(got, expected, 1e-5 * float(expected.detach().abs().max()), "compiled")
    weight = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(got, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        assert_within(a, b, (4 * torch.finfo(a.dtype).eps + 1e-5) * float(b.abs().max()), "gradient")


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # PyTorch's own
def test_lookup_compiles_into_cuda_graphs() -> None:
    pytest.importorskip("triton")
    inputs = features()
    expected = model(*inputs)
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            assert_within(compiled(*inputs), expected, 1e-5 * float(expected.detach().abs().max()), "compiled")


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_correlation_operators_on_gpu_pass_opcheck(grad: bool, dtype: torch.dtype) -> None:
    case = make_case((6, 9), (7, 8), channels=17)
    fmap1, fmap2, coords = (t.cuda() for t in (case.fmap1.to(dtype), case.fmap2.to(dtype), case.coords))
    ops = torch.ops.fullfield
    given = (fmap1, [fmap2], 3, 2, "cuda", "highest", grad)
    state = ops.correlation_prepare(*given)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(ops.correlation_prepare, given, test_utils=checks)
    traced = torch.compile(lambda *maps: ops.correlation_prepare(maps[0], [maps[1]], *given[2:]), backend="aot_eager")
    for number, (one, other) in enumerate(zip(traced(fmap1, fmap2), ops.correlation_prepare(*given), strict=True)):
        # Without the last of the factors, which counts preparations: no two are the same.
        assert torch.equal(*((part[:3] if number == 2 else part) for part in (one, other)))
    shape = [2, 17, 6, 9, 7, 8, 3, 4, 1, 2]
    link = fmap1.float().flatten()[:0]
    carriers = (fmap1.float(), [fmap2.float()], link, coords)
    if grad:
        maps = carriers[0].requires_grad_(), [carriers[1][0].requires_grad_()]
        carriers = (*maps, link, coords.clone().requires_grad_())
    options = (shape, True, 2, "cuda", "highest", grad, dtype, torch.float16, True)
    torch.library.opcheck(ops.correlation_lookup, (*carriers, state, *options))
    if grad:
        out = torch.randn(2, 75, 6, 9, device="cuda")
        for wanted in ([True, True, True], [False, True, False], [False, False, True]):
            torch.library.opcheck(
                ops.correlation_lookup_backward,
                (out, coords, state, shape, True, 2, "cuda", "highest", dtype, wanted),
            )


def test_prepared_pair_without_gradients_returns_coordinate_gradient() -> None:
    fmap1, fmap2, coords = features(dtype=torch.float32)
    coords.requires_grad_()
    expected = torch.autograd.grad(model(fmap1, fmap2, coords).sum(), coords)[0]
    got = torch.autograd.grad(
        torch.compile(model, fullgraph=True, backend="aot_eager")(fmap1, fmap2, coords).sum(), coords
    )
    assert_within(got[0], expected, 1e-5 * float(expected.detach().abs().max()), "coords")


# ---- cost


def peak(work: Callable[[], object]) -> int:
    work()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - start


def test_lookup_peak_memory_is_linear_in_pixels() -> None:
    """Linear in pixels, and at 512×224 with 256 channels below 450 MB, bfloat16 features and one result included."""

    def lookups(scale: int) -> int:
        size = (14 * scale, 32 * scale)

        def work() -> None:
            maps = [torch.randn(1, 256, *size, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            coords = torch.rand(1, 2, *size, device="cuda") * 100
            pair = pair_of(*maps)
            for _ in range(3):
                pair(coords)

        return peak(work)

    at_quarter, at_full = lookups(4), lookups(16)
    assert at_full <= 450e6
    assert at_full <= 16 * at_quarter * 1.02


@pytest.mark.parametrize("size", [(28, 64), (46, 62), (112, 256)])
def test_lookup_training_takes_less_memory_than_volume(size: tuple[int, int]) -> None:
    def train(backend: str) -> int:
        maps = [torch.randn(1, 256, *size, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        coords = torch.rand(1, 2, *size, device="cuda") * size[0]

        def work() -> None:
            leaves = [m.clone().requires_grad_() for m in maps]
            pair = CorrelationPyramid(*leaves, LEVELS, RADIUS, backend=backend)
            torch.autograd.grad(sum(pair(coords).sum() for _ in range(2)), leaves)

        return peak(work)

    assert train("cuda") < train("dense")


def seconds_each(work: Callable[[], object], count: int = 300) -> float:
    """Of the host alone, the best of five."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        found.append((time.perf_counter() - start) / count)
    torch.cuda.synchronize()
    return min(found)


@pytest.mark.alone
def test_lookup_host_overhead_is_below_limits() -> None:
    fmap1, fmap2, coords = features((4, 8))
    pair = pair_of(fmap1, fmap2)
    pair(coords)
    plain = seconds_each(lambda: pair(coords))
    leaf = fmap1.clone().requires_grad_()
    trained = pair_of(leaf, fmap2)
    out = trained(coords)
    weight = torch.ones_like(out)
    torch.autograd.grad(out, leaf, weight, retain_graph=True)
    few, many = ([trained(coords) for _ in range(n)] for n in (8, 108))

    def back(outs: list[Tensor]) -> float:
        return seconds_each(lambda: torch.autograd.grad(outs, leaf, [weight] * len(outs), retain_graph=True), 5)

    with_graph = seconds_each(lambda: trained(coords)) + (back(many) - back(few)) / 100
    build = seconds_each(lambda: pair_of(fmap1, fmap2), 50)
    sys.stdout.write(
        f"host: lookup {plain * 1e6:.1f} us, with gradients {with_graph * 1e6:.1f} us, pair {build * 1e6:.0f} us\n"
    )
    assert plain <= 25e-6
    assert with_graph <= 60e-6


FIRST = """
import sys, time, torch
torch.zeros(1, device="cuda")
grad = sys.argv[1] == "grad"
from fullfield.nn import CorrelationPyramid
start = time.perf_counter()
maps = [torch.ones(1, 256, 20, 30, device="cuda", dtype=torch.bfloat16, requires_grad=grad) for _ in range(2)]
out = CorrelationPyramid(*maps, backend="cuda")(torch.zeros(1, 2, 20, 30, device="cuda"))
if grad:
    out.sum().backward()
print(float(out.detach().double().sum()), time.perf_counter() - start)
"""


def start(cache: Path, grad: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "FULLFIELD_CACHE_DIR": str(cache)}
    environment.pop("FULLFIELD_QUIET", None)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", FIRST, grad], env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[float, float, str]:
    out, messages = process.communicate(timeout=120)
    assert process.returncode == 0, messages
    value, seconds = map(float, out.split())
    return value, seconds, messages


@pytest.mark.alone
def test_lookup_first_call_reports_compilation(tmp_path: Path) -> None:
    value, seconds, messages = finish(start(tmp_path, "grad"))
    sys.stdout.write(f"first call with gradients, nothing kept: {seconds:.2f} s; {messages}\n")
    assert messages.startswith("fullfield: compiling correlation kernels for sm_")
    assert messages.count("compiled in") == 1
    assert seconds <= 5
    again, warm, messages = finish(start(tmp_path, "grad"))
    sys.stdout.write(f"kept: {warm:.2f} s\n")
    assert messages == ""
    assert again == value


@pytest.mark.alone
def test_lookup_kernel_cache_is_shared_by_processes(tmp_path: Path) -> None:
    found = [finish(process) for process in [start(tmp_path, "none") for _ in range(8)]]
    assert len({value for value, _, _ in found}) == 1
    assert finish(start(tmp_path, "none"))[2] == ""
    assert not list(tmp_path.glob("**/*.tmp"))
