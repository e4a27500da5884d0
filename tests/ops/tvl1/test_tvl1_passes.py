"""The CUDA passes of TV-L1 around its iterations, run on the CPU by ``emulator``: each against the reference, then
whole solves through the engine, with the iterations as the reference does them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from emulator import AMPERE, TURING, Emulator
from test_tvl1_iterations import SHAPES
from torch import Tensor

from benchmarks.cases.tvl1.solver import make_solver
from fullfield import InputError
from fullfield.ops._launching import GpuProperties
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver, persistent, reference
from fullfield.ops.tvl1.config import GRADIENT_FLOOR
from fullfield.ops.tvl1.cuda import engine as engines
from fullfield.ops.tvl1.cuda import fused, passes
from fullfield.ops.tvl1.cuda import solver as solver_module
from fullfield.ops.tvl1.cuda.engine import Engine
from fullfield.ops.tvl1.cuda.passes import KernelLaunches, build_plane_descriptor
from fullfield.ops.tvl1.cuda.pipeline import RegisterPipeline
from fullfield.ops.tvl1.cuda.state import Level, compute_row_pitch_in_elements
from fullfield.ops.tvl1.frames import compute_gaussian_tap_table, compute_linear_tap_table
from tests.oracles.tvl1 import VARIANTS

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16)
# (height, width): one row or column, odd, one thread block and a bit
SIZES = [(1, 40), (40, 1), (7, 5), (19, 67), (34, 70)]


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest, emulate: Callable[..., Emulator]) -> Emulator:
    torch.manual_seed(0)
    return emulate(passes, engines, gpu=getattr(request, "param", AMPERE))


def padded(values: Tensor) -> Tensor:
    """Planes [..., H, W] as a pass reads them: with a pitch, NaN behind every row."""
    width = values.shape[-1]
    out = torch.empty((*values.shape[:-1], compute_row_pitch_in_elements(width, torch.float32)))
    out[..., :width] = values
    return out


def smooth(*shape: int, scale: float = 255.0) -> Tensor:
    values = torch.rand(shape)
    flat = values.reshape(-1, 1, *shape[-2:])
    return torch.nn.functional.avg_pool2d(flat, 3, 1, 1).reshape(shape) * scale


# ---- each pass


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [(torch.uint8, 3), (torch.float32, 1), (torch.float16, 3), (torch.bfloat16, 1)],
    ids=str,
)
def test_grey_pass_reads_any_layout(dtype: torch.dtype, channels: int) -> None:
    scale = 255 if dtype == torch.uint8 else 1
    frames = [(torch.rand(2, channels, 5, 300) * scale).to(dtype) for _ in range(2)]
    frames[1] = frames[1].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # as videos are
    out, flow_at = torch.empty(2, 2, 5, 320), torch.zeros(1, dtype=torch.int64)
    flow = torch.empty(2, 2, 5, 300)
    KernelLaunches(CPU, torch.float32).build_grey_launch(tuple(frames), tuple(out), None, flow, flow_at)(0)
    luma = torch.tensor([0.299, 0.587, 0.114] if channels == 3 else [1.0]).view(1, -1, 1, 1)
    for frame, image in zip(frames, out, strict=True):
        want = (frame.float() * 255 / scale * luma).sum(1)
        torch.testing.assert_close(image[..., :300], want, atol=1e-3, rtol=1e-5)
        assert image[..., 300:].isnan().all()
    assert int(flow_at) == flow.data_ptr()


@pytest.mark.parametrize(("value", "bad"), [(0.5, 0), (1e6, 0), (2e6, 2), (float("nan"), 2), (float("-inf"), 2)])
def test_grey_pass_flags_values_out_of_range(value: float, bad: int) -> None:
    frames = torch.rand(2, 1, 3, 4, 6)
    frames[1, 0, 2, 3, 5] = value
    out, flags = torch.empty(2, 1, 4, 32), torch.zeros(1, dtype=torch.int32)
    KernelLaunches(CPU, torch.float32).build_grey_launch(tuple(frames), tuple(out), flags)(0)
    assert int(flags) == bad


RESAMPLED = [
    ((40, 70), (36, 63)),
    ((67, 200), (17, 50)),
    ((300, 18), (30, 2)),
    ((16, 700), (16, 1)),
    ((900, 41), (9, 3)),
    ((5, 2500), (5, 30)),
    ((1, 9), (1, 9)),
]


@pytest.mark.parametrize(("size", "to"), RESAMPLED)
@pytest.mark.parametrize("kind", ["gaussian", "linear"])
def test_resample_pass_equals_reference(size: tuple[int, int], to: tuple[int, int], kind: str) -> None:
    if kind == "linear":
        size, to = to, size
    values = torch.randn(2, 3, *size)
    source, target = padded(values), torch.empty(2, 3, to[0], compute_row_pitch_in_elements(to[1], torch.float32))
    kit = KernelLaunches(CPU, torch.float32)
    kit.build_resample_launch(
        build_plane_descriptor(source, size[1]), build_plane_descriptor(target, to[1]), kind, scale=(1.5, -2.0)
    )(0)
    table = compute_gaussian_tap_table if kind == "gaussian" else compute_linear_tap_table
    for item in range(2):
        for plane in range(3):
            want = reference.resample_plane(values[item, plane].double(), to, table) * (1.5, -2.0)[plane % 2]
            torch.testing.assert_close(target[item, plane, :, : to[1]].double(), want, atol=2e-5, rtol=1e-5)
    assert target[..., to[1] :].isnan().all()


@pytest.mark.parametrize("side", [0, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_median_pass_equals_reference(side: int, dtype: torch.dtype, size: tuple[int, int]) -> None:
    level = Level(2, *size, dtype, CPU)
    level.front = 1
    flow = torch.randn(2, 2, *size) * 3
    flow[0, 0, size[0] // 2] = flow[0, 0, size[0] // 2, 0]  # equal values
    level.current_flow.copy_(flow)
    if dtype == torch.float16:
        level.origin.copy_(torch.randn(2, 2, *size) * 40)
        flow = level.current_flow.float() + level.origin.float()
    target = torch.empty(2, 2, *size)
    KernelLaunches(CPU, dtype).build_median_launch(level, side, build_plane_descriptor(target))(0)
    want = torch.stack([reference.median_filter(item, side) for item in flow]) if side else flow
    assert torch.equal(target, want)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_median_pass_flags_nonfinite_flow(value: float) -> None:
    level, flags = Level(1, 5, 9, torch.float32, CPU), torch.zeros(1, dtype=torch.int32)
    target = torch.empty(1, 2, 5, 9)
    for bad in (0.0, value):
        level.current_flow.zero_()
        level.current_flow[0, 1, 4, 8] = bad
        KernelLaunches(CPU, torch.float32).build_median_launch(level, 0, build_plane_descriptor(target), flags=flags)(0)
        assert int(flags) == (0 if bad == 0 else passes.BAD_FLOW)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_linearise_pass_equals_reference(dtype: torch.dtype, size: tuple[int, int]) -> None:
    first, second, flow = smooth(2, *size), smooth(2, *size), torch.randn(2, 2, *size) * 4
    first[:, :, : size[1] // 3], second[:, :, : size[1] // 3] = 7.0, 7.0  # flat: no gradient to follow
    flow[1, :, 0, 0] = float("nan")
    level = Level(2, *size, dtype, CPU)
    KernelLaunches(CPU, dtype).build_linearise_launch(padded(first), padded(second), padded(flow), level, 0.25)(0)
    half = dtype == torch.float16
    origin = flow.half().double() if half else flow.double()
    rest = (flow.double() - origin).half().double() if half else origin
    torch.testing.assert_close(level.current_flow.double(), rest, equal_nan=True)
    if half:
        torch.testing.assert_close(level.origin.double(), origin, equal_nan=True)
    tolerance = {"atol": 2e-3, "rtol": 1e-3 if half else 1e-5}
    for item in range(2):
        one, two, at = first[item].double(), second[item].double(), origin[item]
        (value, gx, gy), inside = reference.warp_bicubic_and_mark_inside(
            torch.stack([two, *reference.compute_central_gradient(two)]), at
        )
        ax, ay = reference.compute_central_gradient(one)
        gx, gy = gx + 0.25 * (ax - gx), gy + 0.25 * (ay - gy)
        residual = value - one - (0 if half else gx * at[0] + gy * at[1])
        use = inside & (gx**2 + gy**2 > GRADIENT_FLOOR)
        for got, want in zip((*level.gradient[item], level.residual[item]), (gx, gy, residual), strict=True):
            torch.testing.assert_close(got.double(), torch.where(use, want, 0.0), **tolerance)


# ---- whole solves, with the reference's iterations


class ReferenceIterations:
    """A schedule by the reference; results alternate between both sets of planes."""

    def prepare_iterations(self, level: Level, iterations: int) -> None:
        pass

    def launch_iterations_and_update_front(
        self, level: Level, iterations: int, config: TVL1Config, _stream: int, *, zero_dual: bool = False
    ) -> None:
        for item in range(level.batch):
            # In float16 the scheme runs on origin + flow; the residual belongs to the flow alone.
            origin = level.origin[item].float() if level.dtype == torch.float16 else torch.zeros(())
            flow, dual = level.current_flow[item].float() + origin, level.current_dual[item].float() / config.theta
            if zero_dual:
                dual = torch.zeros_like(dual)
            gx, gy = level.gradient[item].float()
            squared, residual = gx * gx + gy * gy, level.residual[item].float()
            if level.dtype == torch.float16:
                residual = residual - gx * origin[0] - gy * origin[1]
            for _ in range(iterations):
                data = (gx, gy, residual, torch.where(squared > 0, 1 / squared, 0))
                flow, dual = reference.update_flow_and_dual(flow, dual, data, config)
            level.front, front = 1 - level.front, level.front
            level.current_flow[item], level.current_dual[item] = flow - origin, dual * config.theta
            level.front = front
        level.front = 1 - level.front


@pytest.fixture
def reference_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every level."""
    monkeypatch.setattr(engines, "RegisterPipeline", ReferenceIterations)
    monkeypatch.setattr(fused, "choose_tiling_if_faster", lambda *_: None)


def scene(height: int, width: int, batch: int = 1, shift: int = 2) -> tuple[Tensor, Tensor]:
    texture = torch.rand(batch, 1, height + 8, width + 8)
    for _ in range(2):
        texture = torch.nn.functional.avg_pool2d(texture, 3, 1, 1)
    first = texture[..., 4 : 4 + height, 4 : 4 + width].contiguous()
    return first, texture[..., 4 : 4 + height, 4 - shift : 4 - shift + width].contiguous()


def solved(engine: Engine, frames: tuple[Tensor, Tensor], start: Tensor | None = None) -> Tensor:
    batch, _, height, width = frames[0].shape
    flow = torch.empty(batch, 2, height, width)
    engine.convert_frames_to_grey_and_bind_output(frames, 0, flow, sets_flags=True)
    engine.start.zero_()
    if start is not None:
        engine.resample_to_initial_flow(start)
    engine.build_pyramid(0, 2)
    engine.compute_bound_flow(0, sets_flags=True)
    return flow


def expected(frames: tuple[Tensor, Tensor], config: TVL1Config, start: Tensor | None = None) -> Tensor:
    config = config.replace(precision="float32")
    solver = TVL1Solver(*frames[0].shape[-2:], config, dtype=torch.float64, backend="reference")
    double = None if start is None else start.double()
    return solver(frames[0].double(), frames[1].double(), initial_flow=double)


def check_solve(
    config: TVL1Config, frames: tuple[Tensor, Tensor], schedule: Any = None, start: Tensor | None = None
) -> None:
    """Compare a solve by the engine with the reference in float64."""
    batch, _, height, width = frames[0].shape
    engine = Engine(batch, height, width, config, CPU, *([] if schedule is None else [schedule]))
    error = (solved(engine, frames, start).double() - expected(frames, config, start)).abs()
    half = config.precision == "float16"
    assert error.mean() < (1e-2 if half else 1e-4)
    assert error.max() < (0.2 if half else 5e-3)


MORE_VARIANTS = {
    **VARIANTS,
    "one scale": {"scales": 1},
}


@pytest.mark.usefixtures("reference_iterations")
@pytest.mark.parametrize(
    ("variant", "precision"), [(one, ("float32", "float16")[n % 2]) for n, one in enumerate(MORE_VARIANTS)]
)
def test_tvl1_emulated_solve_equals_reference(variant: str, precision: str) -> None:
    config = TVL1Config(warps=2, iterations=6, scale_factor=0.6, precision=precision).replace(**MORE_VARIANTS[variant])
    frames = scene(33, 52)
    assert expected(frames, config).abs().max() > 0.5, "the scene must move"
    check_solve(config, frames)


# ---- whole warps in one kernel


def with_shape(monkeypatch: pytest.MonkeyPatch, *shape: int | bool) -> None:
    """All levels in tiles of this shape."""
    shapes = (fused.FusedBlockShape(*shape),)
    monkeypatch.setattr(
        fused,
        "choose_tiling_if_faster",
        lambda _, height, width, config, __: fused.choose_tiling_if_possible(height, width, config, shapes[0]),
    )


TILES = [(5, 8, False), (20, 2, True), (8, 3, False, 4), (5, 3, False, 4, 4), (4, 2, True, 2, 8), (9, 1, True, 1, 8)]


# Every shape on one of the sizes that have several tiles or odd ones, and on one that is small or thin.
TILED_SIZES, SMALL_SIZES = [(90, 101), (150, 30), (45, 70)], [(1, 40), (33, 52), (40, 1), (33, 52), (2, 1), (33, 52)]
TILED = [(shape, size) for number, shape in enumerate(TILES) for size in (TILED_SIZES[number % 3], SMALL_SIZES[number])]


@pytest.mark.parametrize(("shape", "size"), TILED, ids=str)
def test_fused_warp_tiles_equal_reference(
    shape: tuple[int | bool, ...], size: tuple[int, int], machine: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_shape(monkeypatch, *shape)
    config = TVL1Config(warps=3, iterations=7, scale_factor=0.4)
    machine.schedule = sum(size) % 4  # bit 0: the last threads first, bit 1: copies as late as may be
    check_solve(config, scene(*size, batch=2))
    assert machine.launched["fused_warp"] >= 3
    assert "linearise" not in machine.launched


@pytest.mark.parametrize("machine", [TURING], indirect=True, ids=["turing"])
@pytest.mark.parametrize(
    ("shape", "precision", "schedule"), [((5, 3, True, 1), "float32", 0), ((4, 5, False), "float16", 1)], ids=str
)
def test_fused_warp_on_turing_equals_reference(
    shape: tuple[int | bool, ...], precision: str, schedule: int, machine: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_shape(monkeypatch, *shape)
    machine.schedule = schedule
    check_solve(TVL1Config(warps=2, iterations=4, scale_factor=0.5, precision=precision), scene(33, 52))
    assert machine.launched["fused_warp"] >= 2


# In turns: every variant in both precisions, in two shapes.
FUSED_SHAPES = [(4, 8, True), (7, 5, True, 1), (5, 2, True, 4, 4)]
FUSED_CASES = [
    (FUSED_SHAPES[(number + half) % 3], ("float32", "float16")[half], variant)
    for number, variant in enumerate(VARIANTS)
    for half in (0, 1)
]


@pytest.mark.parametrize(("shape", "precision", "variant"), FUSED_CASES, ids=str)
def test_fused_warp_variants_equal_reference(
    variant: str, precision: str, shape: tuple[int | bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_shape(monkeypatch, *shape)
    config = TVL1Config(warps=2, iterations=6, scale_factor=0.6, precision=precision).replace(**VARIANTS[variant])
    check_solve(config, scene(50, 72))


@pytest.mark.parametrize("shape", [(5, 8, False), (4, 3, False, 4, 4)], ids=str)
def test_fused_warp_accepts_large_motion_in_tile(
    shape: tuple[int | bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flows of one tile that differ by more than its patch of the second frame holds."""
    with_shape(monkeypatch, *shape)
    config, frames = TVL1Config(warps=2, iterations=6, scales=1), scene(50, 90)
    start = torch.zeros(1, 2, 50, 90)
    start[:, 0] = torch.linspace(-25, 25, 90)
    start[:, 1, 25:] = 19.3
    check_solve(config, frames, start=start)


def test_tvl1_fused_warp_is_used_for_fitting_shapes() -> None:
    gpu = GpuProperties(0, "H200", "sm_90a", 132, 227 << 10)
    default = TVL1Config()
    small, middle = (
        fused.choose_tiling_if_faster(1, 27, 48, default, gpu),
        fused.choose_tiling_if_faster(1, 275, 488, default, gpu),
    )
    assert small is not None and middle is not None  # noqa: PT018
    assert (
        small.shape.rows_per_block * small.shape.columns_per_lane
        < middle.shape.rows_per_block * middle.shape.columns_per_lane
    )
    blocks = middle.shape.cluster * middle.across * middle.down
    assert blocks <= 132 < 2 * blocks
    assert fused.choose_tiling_if_faster(1, 275, 488, TVL1Config.from_preset("paper"), gpu) is None, (
        "100 iterations reach too far"
    )
    assert fused.choose_tiling_if_faster(1, 275, 488, default.replace(iterations=55), gpu) is None, (
        "too much would be computed again"
    )
    ampere = fused.choose_tiling_if_faster(1, 80, 120, default, GpuProperties(0, "A10", "sm_86", 72, 99 << 10))
    assert ampere is not None
    assert ampere.shape.shared_bytes <= 99 << 10
    assert ampere.shape.cluster == 1 < middle.shape.cluster, "clusters from Hopper on"


@pytest.mark.parametrize(("arch", "early"), [("sm_80", False), ("sm_89", False), ("sm_90a", True), ("sm_120", True)])
def test_only_waiting_kernels_allow_early_launch(arch: str, early: bool) -> None:
    """fused_warp.cu waits from sm_90 on, before it reads or writes anything."""
    config, level = TVL1Config(), Level(1, 40, 60, torch.float32, CPU)
    planes, gpu = torch.zeros(3, 1, 2, 40, 64), GpuProperties(0, "", arch, 8, 227 << 10)
    cut = fused.choose_tiling_if_possible(40, 60, config, fused.SHAPES[0])
    assert cut is not None
    image, flow, to = planes[0, :, 0], planes[1], build_plane_descriptor(planes[2], 60)
    launch = fused.build_fused_warp_launch(
        cut, level, config, gpu, fused.WarpBuffers(image, image, flow, to, None, None, True, False)
    )
    assert launch.early is early
    text = fused.generate_fused_warp_source(config, cut, torch.float32).text
    body = text[text.index("fused_warp(const") :]
    wait = body.index("griddepcontrol.wait")
    assert "#if __CUDA_ARCH__ >= 900" in body[:wait]
    assert not any(f"p.{name}" in body[:wait] for name in ("first", "second", "from", "target", "dual", "flags"))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_tvl1_solve_with_iteration_kernels_equals_reference(precision: str) -> None:
    config = TVL1Config(warps=2, iterations=6, scale_factor=0.6, precision=precision)
    check_solve(config, scene(33, 52), RegisterPipeline(SHAPES["register_pipeline"]))


@pytest.mark.usefixtures("reference_iterations")
@pytest.mark.parametrize("size", [(1, 40), (40, 1), (17, 16), (2, 1)])
def test_tvl1_emulated_odd_sizes_equal_reference(size: tuple[int, int]) -> None:
    config = TVL1Config(warps=2, iterations=5, scale_factor=0.7)
    frames = scene(*size)
    error = (solved(Engine(1, *size, config, CPU), frames).double() - expected(frames, config)).abs()
    assert error.max() < 1e-3


@pytest.mark.usefixtures("reference_iterations")
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_tvl1_emulated_batch_equals_singles(precision: str) -> None:
    config = TVL1Config(warps=1, iterations=4, scale_factor=0.5, precision=precision)
    frames = scene(35, 40, batch=3)
    engine = Engine(3, 35, 40, config, CPU)
    flow = solved(engine, frames)
    assert torch.equal(solved(engine, frames), flow)
    alone = Engine(1, 35, 40, config, CPU)
    for item in range(3):
        pair = frames[0][item : item + 1], frames[1][item : item + 1]
        assert torch.equal(solved(alone, pair)[0], flow[item])


@pytest.mark.usefixtures("reference_iterations")
def test_tvl1_emulated_initial_flow_equals_reference() -> None:
    config = TVL1Config(warps=1, iterations=4, scale_factor=0.5)
    first, second = scene(35, 40)
    _, third = scene(35, 40)
    engine = Engine(1, 35, 40, config, CPU)
    before = solved(engine, (first, second))
    engine.resample_last_result_to_initial_flow()
    kept = engine.start[..., :20].clone()
    flow = torch.empty_like(before)
    engine.convert_frames_to_grey_and_bind_output((third,), 0, flow)  # the second frame's pyramid lies at place 1
    engine.build_pyramid(0)
    engine.compute_bound_flow(1)
    again = solved(engine, (second, third), start=before)
    assert torch.equal(flow, again)
    engine.resample_to_initial_flow(before)
    assert torch.equal(engine.start[..., :20], kept)
    assert (again.double() - expected((second, third), config, before)).abs().max() < 1e-3
    assert (again - solved(engine, (second, third))).abs().max() > 1e-3


# ---- the solvers, with graphs that run what was recorded


class Clock:
    """A CUDA event; every one is a millisecond after the one before."""

    now = 0.0

    def record(self) -> None:
        Clock.now += 1.0
        self.at = Clock.now

    def synchronize(self) -> None:
        assert self.at > 0

    def elapsed_time(self, end: Clock) -> float:
        return end.at - self.at


class Graph:
    def __init__(self, work: Callable[[], None], _device: torch.device) -> None:
        self.replay = work


class AnyOrder:
    """There is one stream."""

    def __init__(self, device: torch.device) -> None:
        assert device == CPU
        self.forgotten = 0

    def __call__(self, _: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def clear_recorded_streams(self) -> None:
        self.forgotten += 1


@pytest.fixture
def without_gpu(reference_iterations: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    for module in (persistent, solver_module):
        monkeypatch.setattr(module, "record_cuda_graph", Graph)
        monkeypatch.setattr(module, "StreamOrderedCalls", AnyOrder)
    monkeypatch.setattr(persistent, "_check_and_resolve_cuda_device", lambda *_: CPU)
    monkeypatch.setattr(persistent, "_create_timing_event", Clock)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("warm_start", [True, False])
def test_persistent_solver_runs_sequence(warm_start: bool) -> None:
    config = TVL1Config(warps=1, iterations=4, scale_factor=0.5)
    video = [(frame * 255).byte() for seed in range(2) for frame in scene(35, 40, shift=seed + 1)]
    solver = persistent.PersistentSolver((1, 1, 35, 40), config, warm_start=warm_start)
    engine = Engine(1, 35, 40, config, CPU)
    assert solver.step(video[0]) is None
    before = None
    for first, second in pairwise(video):
        flow = solver.step(second, out=torch.empty(1, 2, 35, 40))
        assert flow is not None
        assert torch.equal(flow, solved(engine, (first, second), start=before))
        before = flow if warm_start else None
    cold = solved(engine, (video[0], video[2]))
    assert torch.equal(solver(video[0], video[2]), cold)  # no motion is assumed of a pair
    assert torch.equal(solver.step(video[3]), solved(engine, (video[2], video[3]), cold if warm_start else None))
    solver.restart()
    assert solver.step(video[1]) is None
    assert solver.latency() == (5, 1e-3, 1e-3)
    planes = 35 * 64 * 4  # float32, with the pitch of 40 columns
    assert 20 * planes < solver.memory_bytes < 23 * planes


@pytest.mark.usefixtures("without_gpu")
def test_benchmark_solver_runs_schedule_on_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "choose_tiling_if_faster", lambda *_: pytest.fail("a schedule leaves no whole warps"))
    config = TVL1Config(warps=1, iterations=4, scale_factor=0.5)
    first, second = ((frame * 255).byte() for frame in scene(35, 40))
    flow = make_solver((1, 1, 35, 40), config, CPU, "shared_pipeline")(first, second)
    assert (flow - expected((first / 255, second / 255), config)).abs().max() < 5e-3


@pytest.mark.usefixtures("without_gpu")
def test_persistent_solver_keeps_flow_until_written(monkeypatch: pytest.MonkeyPatch) -> None:
    living: list[weakref.ref[Tensor]] = []
    read, solve = Engine.convert_frames_to_grey_and_bind_output, Engine.compute_bound_flow

    def noting(engine: Engine, frames: tuple[Tensor, ...], place: int, flow: Tensor | None, **options: bool) -> None:
        if flow is not None:
            living.append(weakref.ref(flow))
        read(engine, frames, place, flow, **options)

    def looking(engine: Engine, first: int, **options: Any) -> None:
        solve(engine, first, **options)
        assert living[-1]() is not None

    monkeypatch.setattr(Engine, "convert_frames_to_grey_and_bind_output", noting)
    monkeypatch.setattr(Engine, "compute_bound_flow", looking)
    config = TVL1Config(warps=1, iterations=4, scale_factor=0.5)
    frames = [frame * 255 for frame in scene(35, 40)]
    solver = persistent.PersistentSolver((1, 1, 35, 40), config, dtype=torch.float32)
    solver(*frames)
    solver.step(frames[0])
    solver_module.CudaSolver(35, 40, config, CPU).launch_pair_for_flow_and_flags(*frames, None, None)
    assert len(living) == 4


@pytest.mark.usefixtures("without_gpu")
def test_tvl1_cuda_records_each_batch_size_once() -> None:
    config = TVL1Config(warps=1, iterations=4, scale_factor=0.5)
    frames, start = scene(35, 40, batch=2), torch.randn(2, 2, 35, 40)
    solver = solver_module.CudaSolver(35, 40, config, CPU)
    flow, flags = solver.launch_pair_for_flow_and_flags(*frames, None, None)
    assert solver._graph is None
    warm, _ = solver.launch_pair_for_flow_and_flags(*frames, start, None)
    graph = solver._graph
    assert graph is not None
    again, _ = solver.launch_pair_for_flow_and_flags(*frames, None, None)
    assert solver._graph is graph
    assert torch.equal(again, flow)
    assert int(flags) == 0
    engine = Engine(2, 35, 40, config, CPU)
    assert torch.equal(warm, solved(engine, frames, start))
    frames[1][1, 0, 20, 20] = float("nan")
    assert int(solver.launch_pair_for_flow_and_flags(*frames, None, None)[1]) & 2
    forgotten = solver._in_order.forgotten  # type: ignore[attr-defined]
    assert forgotten == 2, "the buffers, and the tables of the first start from a flow"
    assert solver._engine is not None
    everything = {tensor.data_ptr() for tensor in solver._engine.iterate_tensors()}
    assert {tensor.data_ptr() for tensor in solver._engine._passes.iterate_table_tensors()} < everything
    alone, flags = solver.launch_pair_for_flow_and_flags(frames[0][:1], frames[1][:1], None, None)
    assert solver._graph is None
    assert solver._in_order.forgotten == forgotten + 1, "new buffers, which no stream has used"  # type: ignore[attr-defined]
    assert int(flags) == 0
    assert torch.equal(alone, flow[:1])


@pytest.mark.usefixtures("without_gpu")
def test_tvl1_solver_refuses_nonfinite_and_solves_batches() -> None:
    config = TVL1Config(warps=1, iterations=40, scale_factor=0.5)
    still, moving = scene(35, 40, shift=0), scene(35, 40, shift=3)
    frames = tuple(torch.cat(pair) for pair in zip(still, moving, strict=True))
    solver, messages = solver_module.CudaSolver(35, 40, config, CPU), list[str]()

    def solve(*arguments: Any) -> Tensor:
        queued = solver.queue(*arguments)
        queued.wait_and_check()
        return queued.flow

    flow = solve(frames[0], frames[1], None, lambda _, where: messages.append(where))
    for item, pair in enumerate((still, moving)):
        assert torch.equal(solve(*pair, None, None)[0], flow[item])
    assert messages[0].startswith("level 1 of")
    double = [frame.double() for frame in moving]
    assert torch.equal(solve(double[0], double[1], None, None), solve(*moving, None, None))
    assert solve(frames[0][:0], frames[1][:0], None, None).shape == (0, 2, 35, 40)
    moving[1][0, 0, 20, 20] = float("nan")
    with pytest.raises(InputError, match="frame2: expected finite values"):
        solve(*moving, None, None)
    with pytest.raises(InputError, match="initial_flow: expected finite values"):
        solve(*still, torch.full((1, 2, 35, 40), float("nan")), None)
