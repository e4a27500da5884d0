"""The correlation's CUDA kernels, run on the CPU by ``emulator``, against float64: arithmetic, indexing, launchers.

Covers prepare, the mma.sync lookup (every GPU but Hopper), the gradients of the features and of the positions, and what
the launchers tell them. Not Hopper's lookup, races between warps, or the GPU's own arithmetic: see ``emulator``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace

import emulator
import pytest
import torch
from correlation_emulated import correlation_on
from emulator import AMPERE, Emulated, Emulator, Memory
from torch import Tensor

from fullfield._kernels.nvrtc import Source
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import correlation_lookup
from fullfield.ops.correlation.cuda import config, launch, launch_backward, structs
from fullfield.testing.correlation import Case, Results, assert_within, budget, make_case, rounded, run

pytestmark = pytest.mark.skipif(emulator.WHY_NOT is not None, reason=str(emulator.WHY_NOT))
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Rounding of the window gradients before they are multiplied with the features, relative to the largest value.
PRODUCT = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
RADIUS = 3  # one for most, so that few kernels are compiled


@pytest.fixture(scope="module")
def machine() -> Emulator:
    return Emulator(AMPERE.shared)


@pytest.fixture(autouse=True)
def _emulated(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with correlation_on(machine, monkeypatch):
        yield


def weights(case: Case, count: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    channels = case.levels * (2 * case.radius + 1) ** 2
    shape = (case.coords.shape[0], channels, *case.coords.shape[2:])
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def within(
    got: Sequence[Tensor], case: Case, dtype: torch.dtype, exact: Sequence[Tensor], eager: Sequence[Tensor]
) -> None:
    for name, value, true, plain in zip(Results._fields, got, exact, eager, strict=True):
        scale = float(true.abs().max()) if true.numel() else 0.0
        allowed = (
            budget(plain, true, value.dtype) + 8 * torch.finfo(torch.float32).eps * scale * case.fmap1.shape[1] ** 0.5
        )
        if name in ("fmap1", "fmap2"):
            allowed += PRODUCT[dtype] * scale
        assert_within(value, true, allowed, name)


def check(case: Case, dtype: torch.dtype) -> None:
    """Values and all gradients; in 16 bits of one level, for there the reference rounds the others."""
    case = rounded(case if dtype == torch.float32 else replace(case, levels=1), dtype)
    (weight,) = weights(case)

    def one(kind: torch.dtype, backend: str) -> Results:
        fmap1, fmap2 = (t.to(kind).requires_grad_() for t in (case.fmap1, case.fmap2))
        coords = case.coords.to(torch.float64 if kind == torch.float64 else torch.float32).requires_grad_()
        out = CorrelationPyramid(fmap1, fmap2, case.levels, case.radius, backend=backend)(coords)
        return Results(out.detach(), *torch.autograd.grad(out, (fmap1, fmap2, coords), weight.to(out)))

    within(one(dtype, "cuda"), case, dtype, one(torch.float64, "reference"), one(dtype, "reference"))


# ---- against float64

SHAPES = [
    # size1, size2, batch, channels, levels
    ((5, 7), (5, 7), 3, 8, 2),
    ((24, 40), (24, 40), 1, 40, 4),
    ((9, 17), (10, 27), 2, 64, 6),  # levels that pool to nothing
    ((5, 9), (9, 400), 1, 20, 2),  # at random: pixels that no strip holds
]


# Of the precisions one each, in turns: every shape in both, every motion in both, every shape with every motion.
BUDGETS = [
    (shape, motion, (torch.float32, torch.bfloat16)[(row + column) % 2])
    for row, shape in enumerate(SHAPES)
    for column, motion in enumerate(("smooth", "random", "outside"))
]


@pytest.mark.parametrize(("shape", "motion", "dtype"), BUDGETS, ids=str)
def test_within_float64_budget(shape: tuple, motion: str, dtype: torch.dtype) -> None:  # type: ignore[type-arg]
    size1, size2, batch, channels, levels = shape
    if dtype == torch.float32 and size1[0] > 20:
        size1, size2 = (10, 18), (16, 24)
    check(make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=RADIUS, motion=motion), dtype)


@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_blocks_of_two_rows(motion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles that Hopper's kernel prefers: a warp's pixels are 8×2."""
    original = config.lookup_config

    def square(*arguments: object) -> config.Config | None:
        found = original(*arguments)  # type: ignore[arg-type]
        return found and replace(found, block=8, widths=config._widths(RADIUS, 8))

    monkeypatch.setattr(config, "lookup_config", square)
    case = make_case((20, 24), (30, 35), batch=1, channels=16, levels=4, radius=RADIUS, motion=motion)
    check(case, torch.float32)


def test_tiles_of_little_shared_memory(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose blocks may take 36 KiB works on tiles of 16×4 pixels."""
    machine.installed(monkeypatch, replace(AMPERE, shared=36 << 10), launch, launch_backward)
    found = []
    original = config.lookup_config

    def noted(*arguments: object) -> config.Config | None:
        found.append(original(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(config, "lookup_config", noted)
    case = rounded(make_case((9, 40), (11, 30), batch=2, channels=20, levels=2, radius=2), torch.float16)
    pair = CorrelationPyramid(case.fmap1.half(), case.fmap2.half(), case.levels, case.radius, backend="cuda")
    for shift in (0.0, 1.7, 14.0):
        moved = replace(case, coords=case.coords + shift)
        exact = run(moved, weights(case)[0], backend="reference").out
        assert_within(pair(moved.coords), exact, 2.0**-10 * float(exact.abs().max()), "out")
    assert found
    assert all(each is not None and (each.block, each.tile_height) == (16, 4) for each in found)


def test_several_blocks_of_channels_in_float16() -> None:
    case = rounded(make_case((5, 9), (9, 11), batch=1, channels=300, levels=1, radius=2), torch.float16)
    (weight,) = weights(case)
    exact = run(case, weight, backend="reference")
    coords = case.coords.requires_grad_()
    out = correlation_lookup(case.fmap1.half(), [case.fmap2.half()], coords, 2, backend="cuda")
    assert_within(out, exact.out, 2.0**-20 * float(exact.out.abs().max()), "out")
    (moved,) = torch.autograd.grad(out, coords, weight)
    assert_within(moved, exact.coords, 2.0**-20 * float(exact.coords.abs().max()), "coords")


def test_pools_without_rounding() -> None:
    case = rounded(make_case((9, 13), (27, 18), channels=20, levels=5, radius=RADIUS), torch.bfloat16)
    (weight,) = weights(case)
    exact = run(case, weight, backend="reference")
    maps = [m.bfloat16().requires_grad_() for m in (case.fmap1, case.fmap2)]
    out = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda")(case.coords)
    got = Results(out.detach(), *torch.autograd.grad(out, maps, weight), exact.coords)
    for name, a, b in zip(exact._fields, got, exact, strict=True):
        assert_within(a, b, 3 * torch.finfo(torch.bfloat16).eps * float(b.abs().max()), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("shifts", "schedule", "resident"),
    [([0.0, 0.7, 1.6, 3.1], 0, 1), ([0.0, 25.0, -11.3, 300.0, 0.1], 3, 4)],
    ids=["drifting", "jumping"],
)
def test_sums_of_lookups_that_move(
    machine: Emulator, dtype: torch.dtype, shifts: list[float], schedule: int, resident: int
) -> None:
    case = rounded(make_case((9, 18), (12, 20), channels=30, levels=3, radius=RADIUS), dtype)
    grads = weights(case, len(shifts))

    def gradients(kind: torch.dtype, backend: str) -> tuple[Tensor, ...]:
        maps = [m.to(kind).requires_grad_() for m in (case.fmap1, case.fmap2)]
        coords = case.coords.double() if kind == torch.float64 else case.coords
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend=backend)
        outs = [pair(coords + shift) for shift in shifts]
        return torch.autograd.grad(outs, maps, [g.to(out) for g, out in zip(grads, outs, strict=True)])

    exact = gradients(torch.float64, "reference")
    eager = gradients(torch.float32, "reference")
    rounding = PRODUCT[dtype] or 2.0**-22
    machine.schedule, machine.resident = schedule, resident
    got = gradients(dtype, "cuda")
    for name, value, true, plain in zip(("fmap1", "fmap2"), got, exact, eager, strict=True):
        pooled = 4 if dtype != torch.float32 else 0
        allowed = budget(plain, true, dtype) + (2 + pooled) * rounding * float(true.abs().max())
        assert_within(value, true, allowed, name)


@pytest.mark.parametrize("grad", [torch.float16, torch.bfloat16], ids=str)
def test_patches_begun_anew_in_parts(machine: Emulator, grad: torch.dtype) -> None:
    """Of a large radius, which do not fit in the memory of a block at once; gradients of 16 bits."""
    case = rounded(make_case((6, 9), (20, 24), channels=16, levels=1, radius=7), torch.bfloat16)
    grads = [weight.to(grad) for weight in weights(case, 3)]

    def gradients(kind: torch.dtype, backend: str) -> tuple[Tensor, ...]:
        maps = [m.to(kind).requires_grad_() for m in (case.fmap1, case.fmap2)]
        coords = case.coords.double() if kind == torch.float64 else case.coords
        out_dtype = grad if backend == "cuda" else kind
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend=backend, out_dtype=out_dtype)
        return torch.autograd.grad([pair(coords + s) for s in (0.0, 9.3, -8.4)], maps, [g.to(out_dtype) for g in grads])

    machine.schedule = 3
    exact = gradients(torch.float64, "reference")
    for name, got, true in zip(("fmap1", "fmap2"), gradients(torch.bfloat16, "cuda"), exact, strict=True):
        assert_within(got, true, 2.0**-6 * float(true.abs().max()), name)


def test_results_of_the_features_type_are_those_that_a_cast_gives() -> None:
    """RAFT's training asks for them: the same bits, and those of the gradients."""
    case = rounded(make_case((5, 9), levels=2, radius=RADIUS), torch.bfloat16)
    maps = [m.to(torch.bfloat16).requires_grad_() for m in (case.fmap1, case.fmap2)]
    grads = [weight.to(torch.bfloat16) for weight in weights(case, 2)]

    def found(out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda", out_dtype=out_dtype)
        results = [pair(case.coords + s).to(torch.bfloat16) for s in (0.0, 2.3)]
        return *results, *torch.autograd.grad(results, maps, grads)

    for one, other in zip(found(torch.bfloat16), found(None), strict=True):
        assert torch.equal(one, other)


# ---- corners of the semantics


@pytest.mark.parametrize("bad", [float("nan"), 3e9])
def test_unusable_coordinates_touch_their_pixel_only(bad: float) -> None:
    case = make_case((5, 9), levels=2, radius=RADIUS)
    (weight,) = weights(case)
    coords = case.coords.clone()
    coords[1, 0, 2, 3] = bad
    without = weight.clone()
    without[1, :, 2, 3] = 0.0
    clean = run(case, without, backend="cuda", dtype=torch.float32)
    weight[1, :, 2, 3] = float("nan")
    got = run(replace(case, coords=coords), weight, backend="cuda", dtype=torch.float32)
    expected = clean.out.clone()
    expected[1, :, 2, 3] = 0.0
    assert torch.equal(got.out, expected)
    assert not got.fmap1[1, :, 2, 3].any()
    assert not got.coords[1, :, 2, 3].any()
    for a, b in zip(got[1:], clean[1:], strict=True):
        assert_within(a, b, 1e-5, "gradient")


def test_strides_do_not_matter() -> None:
    case = make_case((9, 13), (8, 12), channels=16, radius=RADIUS)
    maps = [m.bfloat16().requires_grad_() for m in (case.fmap1, case.fmap2)]
    wide = torch.zeros(2, 32, 9, 26, dtype=torch.bfloat16)
    wide[:, ::2, :, ::2] = maps[0].detach()
    strided = [wide[:, ::2, :, ::2].requires_grad_()]
    strided += [maps[1].detach().to(memory_format=torch.channels_last).requires_grad_()]
    xy = case.coords.requires_grad_()
    turned = xy.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    plain = correlation_lookup(maps[0], [maps[1]], xy, RADIUS, backend="cuda")
    other = correlation_lookup(strided[0], [strided[1]], turned, RADIUS, backend="cuda")
    assert torch.equal(plain, other)
    (weight,) = weights(replace(case, levels=1))
    expected = torch.autograd.grad(plain, [*maps, xy], weight)
    turned_weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    for a, b in zip(torch.autograd.grad(other, [*strided, turned], turned_weight), expected, strict=True):
        assert_within(a, b, 2.0**-6 * float(b.abs().max()), "gradient")


@pytest.mark.parametrize("motion", ["smooth", "random", "outside"])
@pytest.mark.parametrize(("radius", "dtype"), [(RADIUS, torch.float16), (2, torch.float32)])
def test_results_channels_last(motion: str, radius: int, dtype: torch.dtype) -> None:
    case = rounded(make_case((9, 21), (20, 30), channels=50, radius=radius, motion=motion), torch.bfloat16)
    given = (case.fmap1.bfloat16(), case.fmap2.bfloat16(), case.levels, radius)
    expected = CorrelationPyramid(*given, backend="cuda")(case.coords)
    kind = {"out_dtype": dtype, "memory_format": torch.channels_last}
    got = CorrelationPyramid(*given, backend="cuda", **kind)(case.coords)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert_within(got, expected.to(dtype), 8 * torch.finfo(dtype).eps, "result")


def test_empty_batches_and_maps() -> None:
    assert run(make_case(batch=0), torch.empty(0, 147, 9, 13), backend="cuda", dtype=torch.float32).out.numel() == 0
    case = make_case((4, 5), (0, 7), levels=2)
    got = run(case, weights(case)[0], backend="cuda", dtype=torch.float32)
    assert not got.out.any()
    assert not got.fmap1.any()


def test_structures_are_as_long_as_the_kernels_think(machine: Emulator) -> None:
    case = make_case((4, 5))
    run(case, torch.ones(2, 147, 4, 5), backend="cuda", dtype=torch.float32)
    found = {name: kernel.parameters for kernels in machine.loaded for name, kernel in kernels.items()}
    assert found == {
        "prepare": ctypes.sizeof(structs.PrepareParams),
        "prepare_deep": ctypes.sizeof(structs.PrepareParams),
        "magnitude": ctypes.sizeof(structs.PrepareParams),
        "lookup": ctypes.sizeof(structs.Params),
        "collect": ctypes.sizeof(structs.GradientParams),
        "multiply_out": ctypes.sizeof(structs.GradientParams),
        "coords_gradient": ctypes.sizeof(structs.CoordsParams),
    }


# ---- the checks and the emulator can fail


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    original = launch.Cuda.lookup
    monkeypatch.setattr(launch.Cuda, "lookup", lambda *arguments: original(*arguments) * 1.001)
    with pytest.raises(AssertionError, match="out: off by"):
        check(make_case(channels=8), torch.float32)


KERNELS = r"""
struct P { float *to; const float *from; int n; };
extern "C" __global__ void __launch_bounds__(64) turned(const __grid_constant__ P p) {
    extern __shared__ float all[];
    all[threadIdx.x] = p.from[threadIdx.x];
    if (p.n) __syncthreads();
    p.to[threadIdx.x] = all[63 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(64) copied(const __grid_constant__ P p) {
    extern __shared__ __align__(16) float all[];
    unsigned at = (unsigned)__cvta_generic_to_shared(all + 4 * threadIdx.x);
    const float *from = p.from + 4 * threadIdx.x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(16) : "memory");
    if (p.n) asm volatile("cp.async.wait_all;" ::: "memory");
    p.to[threadIdx.x] = all[4 * threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(64) outside(const __grid_constant__ P p) {
    extern __shared__ float all[];
    all[threadIdx.x + p.n] = 1.f;
}
extern "C" __global__ void __launch_bounds__(64) parted(const __grid_constant__ P p) {
    if ((int)threadIdx.x % 32 < p.n) p.to[threadIdx.x] = __shfl_sync(0xffffffffu, p.from[threadIdx.x], 0);
    else p.to[threadIdx.x] = __reduce_max_sync(0xffffffffu, (int)threadIdx.x);
}
extern "C" __global__ void __launch_bounds__(64) stuck(const __grid_constant__ P p) {
    if ((int)threadIdx.x < p.n) __syncwarp();
}
"""


def launch_one(machine: Emulator, name: str, n: int, threads: int = 64) -> Tensor:
    class P(ctypes.Structure):
        _fields_ = [("to", ctypes.c_void_p), ("from_", ctypes.c_void_p), ("n", ctypes.c_int)]

    to, given = torch.zeros(64), torch.arange(256.0)
    params = P(to.data_ptr(), given.data_ptr(), n)
    kernel = machine.load([Source(KERNELS)], "", 0)[0][name]
    kernel.launch((1, 1), threads, 1024, 0, 0, (ctypes.c_void_p * 1)(ctypes.addressof(params)))
    return to


def test_mistakes_show() -> None:
    """A barrier or a wait that is missing, in one of the schedules; what lies outside; lanes that part."""
    own = Emulator(4096)
    assert torch.equal(launch_one(own, "turned", 1), torch.arange(63.0, -1, -1))
    assert launch_one(own, "turned", 0).isnan().any()
    for own.schedule in (0, 2):
        assert torch.equal(launch_one(own, "copied", 1), 4 * torch.arange(64.0))
    assert launch_one(own, "copied", 0).isnan().all()
    launch_one(own, "outside", 192)
    with pytest.raises(Emulated, match="outside: written beside the dynamic shared memory"):
        launch_one(own, "outside", 200)
    with pytest.raises(Emulated, match="parted: the lanes of a warp do different things"):
        launch_one(own, "parted", 16)
    with pytest.raises(Emulated, match="stuck: "):
        launch_one(own, "stuck", 40)
    with pytest.raises(Emulated, match="turned: more threads than __launch_bounds__"):
        launch_one(own, "turned", 1, threads=96)


def test_unknown_instructions_are_refused() -> None:
    source = Source(
        'extern "C" __global__ void k(const __grid_constant__ int p) { asm volatile("bar.arrive 1, 64;"); }'
    )
    with pytest.raises(Emulated, match=r"does not know the PTX 'bar.arrive 1, 64;'"):
        Emulator(4096).load([source], "", 0)
    with pytest.raises(Emulated, match="does not know what a kernel waits for"):
        emulator.translated('extern "C" __global__ void k(const __grid_constant__ P p) { while (*p.flag != 1) { } }')


def test_writing_beside_memory_is_found() -> None:
    memory = Memory()
    with pytest.raises(Emulated, match="written beside an array of 6 elements"), memory.watched():
        torch.empty(2, 3).as_strided((1,), (1,), emulator.BESIDE + 6).zero_()
