"""The lookup on every backend: Python loops, peers, float64, and its own semantics."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulator import AMPERE, Emulator
from lookup_cases import (
    BACKENDS,
    DTYPES,
    ON_CPU,
    SHIFTS,
    Backend,
    check,
    check_moving,
    emulate_lookups,
    gradients,
    single_level,
    weights,
    weights_of,
    without_gpu,
)
from torch import Tensor

from fullfield import InputError
from fullfield.nn import CorrelationPyramid
from fullfield.ops import _launching
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid
from fullfield.ops.correlation.cuda import config, launch
from tests.oracles.correlation import Case, assert_within, budget, lookup_by_loops, make_case, rounded, run

needs_gpu = [pytest.mark.gpu, without_gpu]
CUDA = pytest.param("cuda", marks=needs_gpu)
every = pytest.mark.parametrize("backend", [*ON_CPU, "emulated", CUDA], indirect=True)
on_cpu = pytest.mark.parametrize("backend", ON_CPU, indirect=True)
on_gpu = pytest.mark.parametrize("backend", [CUDA], indirect=True)
RADIUS = 3  # one for most, so that few kernels are compiled for the emulator
HALVES = DTYPES[1:]


def look(case: Case, backend: str | None, **options: Any) -> Tensor:
    return correlation_lookup(case.fmap1, case.pyramid(), case.coords, case.radius, backend=backend, **options)


def results(backend: Backend, case: Case, weight: Tensor) -> Any:
    return run(case, weight, backend=backend.name, dtype=torch.float32)


# ---- values and gradients


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("motion", ["smooth", "random", "outside", "integer"])
def test_correlation_lookup_equals_python_loops(backend: str, motion: str) -> None:
    case = make_case((5, 11), (7, 9), batch=1, channels=19, levels=3, radius=2, motion=motion)
    case = case if backend == "cpu" else case.double()
    expected = lookup_by_loops(case.fmap1, case.pyramid(), case.coords, case.radius)
    assert expected.abs().max() > 0.5
    assert_within(look(case, backend), expected, 1e-5 if backend == "cpu" else 1e-12, "lookup")


@pytest.mark.parametrize("backend", ["reference", "dense"])
def test_correlation_lookup_passes_gradcheck(backend: str) -> None:
    case = make_case((2, 3), (4, 5), batch=1, channels=2, levels=2, radius=1).double()
    fraction = 0.3 + 0.2 * torch.rand(1, 2, 2, 3, dtype=torch.float64)
    coords = (case.coords.floor() // 2 * 2 + fraction).requires_grad_()
    levels = [level.detach().requires_grad_() for level in case.pyramid()]

    def function(fmap1: Tensor, xy: Tensor, *maps: Tensor) -> Tensor:
        return correlation_lookup(fmap1, maps, xy, 1, backend=backend)

    assert torch.autograd.gradcheck(function, (case.fmap1.requires_grad_(), coords, *levels), atol=1e-6)


SHAPES = [
    # size1, size2, batch, channels, levels, radius
    ((9, 13), (9, 13), 2, 20, 3, 3),
    ((9, 18), (10, 25), 1, 67, 4, 4),
    ((1, 1), (8, 8), 3, 1, 1, 1),
    ((3, 50), (3, 50), 1, 16, 2, 8),
    ((8, 8), (5, 3), 2, 130, 8, 1),  # levels that pool to nothing
    ((6, 20), (1, 1), 1, 7, 2, 5),
]
GPU_SHAPES = [
    *SHAPES,
    ((17, 33), (10, 40), 1, 67, 4, 4),
    ((20, 37), (45, 70), 1, 256, 6, 4),
    ((5, 18), (19, 21), 1, 600, 2, 2),  # several blocks of channels
    ((13, 17), (40, 60), 2, 64, 3, 6),
]


def case_of(shape: tuple[Any, ...], motion: str = "smooth") -> Case:
    size1, size2, batch, channels, levels, radius = shape
    return make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius, motion=motion)


# In turns: every shape in float32 and in one of 16 bits, with another motion.
ON_CPU_CASES = [
    (shape, dtype, ("smooth", "random")[(number + column) % 2])
    for number, shape in enumerate(SHAPES)
    for column, dtype in enumerate((torch.float32, HALVES[number // 2 % 2]))
]


@pytest.mark.parametrize(("shape", "dtype", "motion"), ON_CPU_CASES, ids=str)
@on_cpu
def test_correlation_lookup_matches_float64(
    backend: Backend, dtype: torch.dtype, motion: str, shape: tuple[Any, ...]
) -> None:
    check(backend, case_of(shape, motion), dtype, pooled=dtype == torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("motion", ["smooth", "random", "outside", "integer"])
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
@on_gpu
def test_correlation_lookup_on_gpu_matches_float64(
    backend: Backend, dtype: torch.dtype, motion: str, shape: tuple[Any, ...]
) -> None:
    case = case_of(shape, motion)
    if case.levels > 1 and dtype == torch.float32:
        check(backend, case, dtype)
    check(backend, single_level(case), dtype, pooled=False)


# In 16 bits of one level, for there the reference rounds the others.
EMULATED_CASES = [
    ("emulated", ((5, 7), (5, 7), 3, 8, 2, RADIUS), "outside", torch.float32),
    ("emulated", ((10, 18), (16, 24), 1, 40, 4, RADIUS), "random", torch.float32),
    ("emulated", ((24, 40), (24, 40), 1, 40, 1, RADIUS), "smooth", torch.bfloat16),
    ("emulated", ((5, 9), (10, 27), 2, 24, 6, RADIUS), "smooth", torch.float32),  # levels that pool to nothing
    ("emulated", ((5, 9), (9, 400), 1, 20, 1, RADIUS), "random", torch.bfloat16),  # pixels that no strip holds
    ("turing", ((5, 9), (9, 400), 1, 20, 2, RADIUS), "random", torch.float32),
    ("turing", ((9, 17), (10, 27), 2, 64, 1, RADIUS), "smooth", torch.float16),
    ("turing", ((6, 10), (7, 11), 1, 256, 1, RADIUS), "outside", torch.bfloat16),  # several blocks of channels
]


@pytest.mark.parametrize(("backend", "shape", "motion", "dtype"), EMULATED_CASES, indirect=["backend"], ids=str)
def test_correlation_lookup_emulated_matches_float64(
    backend: Backend, dtype: torch.dtype, motion: str, shape: tuple[Any, ...]
) -> None:
    check(backend, case_of(shape, motion), dtype)


@pytest.mark.parametrize("backend", ["emulated"], indirect=True)
@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_lookup_two_row_blocks_match_float64(backend: Backend, motion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles that Hopper's kernel prefers: a warp's pixels are 8×2."""
    original = config.choose_fitting_lookup_config_or_none

    def square(*arguments: Any) -> config.KernelConfig | None:
        found = original(*arguments)
        return found and replace(found, block=8, widths=config._list_allowed_chunk_widths(RADIUS, 8))

    monkeypatch.setattr(config, "choose_fitting_lookup_config_or_none", square)
    check(backend, case_of(((10, 12), (14, 18), 1, 16, 2, RADIUS), motion), torch.float32)


def test_lookup_small_tiles_match_float64(emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose blocks may take 36 KiB works on tiles of 16×4 pixels."""
    emulate_lookups(emulate, monkeypatch, replace(AMPERE, shared=36 << 10))
    found, original = [], config.choose_fitting_lookup_config_or_none

    def noted(*arguments: Any) -> config.KernelConfig | None:
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(config, "choose_fitting_lookup_config_or_none", noted)
    case = rounded(make_case((9, 40), (11, 30), batch=2, channels=20, levels=2, radius=2), torch.float16)
    pair = CorrelationPyramid(case.fmap1.half(), case.fmap2.half(), case.levels, case.radius, backend="cuda")
    for shift in (0.0, 1.7, 14.0):
        moved = replace(case, coords=case.coords + shift)
        exact = run(moved, weights(case), backend="reference").out
        assert_within(pair(moved.coords), exact, 2.0**-10 * float(exact.abs().max()), "out")
    assert {(each.block, each.tile_height) for each in found} == {(16, 4)}


@pytest.mark.parametrize("backend", ["emulated"], indirect=True)
def test_lookup_float16_channel_blocks_match_float64(backend: Backend) -> None:
    case = rounded(make_case((5, 9), (9, 11), batch=1, channels=300, levels=1, radius=2), torch.float16)
    weight = weights(case)
    exact = run(case, weight, backend="reference")
    coords = case.coords.requires_grad_()
    out = correlation_lookup(case.fmap1.half(), [case.fmap2.half()], coords, 2, backend=backend.name)
    assert_within(out, exact.out, 2.0**-20 * float(exact.out.abs().max()), "out")
    (moved,) = torch.autograd.grad(out, coords, weight)
    assert_within(moved, exact.coords, 2.0**-20 * float(exact.coords.abs().max()), "coords")


POOLED = [
    pytest.param("emulated", torch.bfloat16, ((5, 9), (27, 18), 1, 20, 5, RADIUS)),
    pytest.param("emulated", torch.float16, ((5, 9), (27, 18), 1, 20, 6, RADIUS)),
    *(pytest.param("cuda", dtype, shape, marks=needs_gpu) for dtype in HALVES for shape in GPU_SHAPES),
]


@pytest.mark.parametrize(("backend", "dtype", "shape"), POOLED, indirect=["backend"], ids=str)
def test_lookup_pools_without_intermediate_rounding(
    backend: Backend, dtype: torch.dtype, shape: tuple[Any, ...]
) -> None:
    case = rounded(case_of(shape), dtype)
    exact = run(case, weights(case), backend="reference")
    there = backend.there(case)
    maps = [m.to(dtype).requires_grad_() for m in (there.fmap1, there.fmap2)]
    coords = there.coords.requires_grad_()
    out = CorrelationPyramid(*maps, case.levels, case.radius, backend=backend.name)(coords)
    got = (out.detach(), *torch.autograd.grad(out, (*maps, coords), weights(there)))
    by_pytorch = run(there, weights(there), backend=backend.name, dtype=dtype) if backend.on_gpu else got
    for found in (got, by_pytorch):
        for name, a, b in zip(exact._fields, found, exact, strict=True):
            assert_within(a, b, 3 * torch.finfo(dtype).eps * float(b.abs().max()), name)


@pytest.mark.parametrize(("precision", "eps"), [("high", 2.0**-11), ("medium", 2.0**-8)])
@on_gpu
def test_lookup_float32_follows_matmul_precision(backend: Backend, precision: str, eps: float) -> None:
    case = make_case((17, 33), channels=128, levels=4, radius=4)
    case = replace(case, fmap1=1e-6 * case.fmap1, fmap2=1e5 * case.fmap2)  # float16's range is not the limit
    exact = run(case, weights(case), backend="reference")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        got = results(backend, backend.there(case), weights(case).cuda())
    finally:
        torch.set_float32_matmul_precision(before)
    for name, a, b in zip(exact._fields, got, exact, strict=True):
        assert_within(a, b, 3 * eps * float(b.abs().max()), name)
    with pytest.raises(AssertionError, match="off by"):  # the precision is really lower
        assert_within(got.out, exact.out, 0.02 * eps * float(exact.out.abs().max()), "out")


def test_lookup_gradient_rounding_is_below_reference() -> None:
    """Thousands of products are summed into every element of the gradient, of several lookups and levels."""
    case = make_case((16, 24), batch=1, channels=16, levels=4, radius=4)

    def gradient(backend: str, dtype: torch.dtype) -> Tensor:
        fmap1 = case.fmap1.to(dtype).requires_grad_()
        lookup = CorrelationPyramid(fmap1, case.fmap2.to(dtype), case.levels, case.radius, backend=backend)
        coords = case.coords.to(dtype)
        outs = [lookup(coords + step) for step in range(4)]
        return torch.autograd.grad(outs, fmap1, [weights(case).to(dtype)] * 4)[0]

    exact = gradient("reference", torch.float64)

    def off(backend: str) -> float:
        return float((gradient(backend, torch.float32) - exact).square().mean().sqrt())

    assert off("cpu") <= 1.25 * off("reference")


@pytest.mark.parametrize("name", ["reference", "dense", None])
@on_gpu
def test_lookup_backends_on_gpu_match_float64(backend: Backend, name: str | None) -> None:
    case = make_case((17, 33), (10, 40), channels=64, levels=4, radius=4)
    exact = run(case, weights(case), backend="reference")
    got = run(backend.there(case), weights(case).cuda(), backend=name, dtype=torch.float32)
    for a, b in zip(got, exact, strict=True):
        assert_within(a, b, 1e-4 * float(b.abs().max()), "result")


@pytest.mark.parametrize("block", ["CorrBlock", "IterativeCorrBlock"])
def test_correlation_lookup_equals_ptlflow(block: str, ptlflow: Any) -> None:
    module = importlib.import_module(f"{ptlflow.__name__}.models.raft.corr")
    case = make_case((16, 24), channels=32, levels=4, radius=4, batch=1)
    peer = getattr(module, block)(case.fmap1, case.fmap2, num_levels=4, radius=4)
    # ptlflow samples through normalised coordinates in float32.
    assert_within(look(case, "reference"), peer(case.coords), 1e-4, "lookup")


# ---- corners of the semantics


@every
def test_lookup_nonfinite_coordinates_affect_own_pixels_only(backend: Backend) -> None:
    case = backend.make((5, 9), levels=2, radius=RADIUS)
    coords = case.coords.clone()
    for number, bad in enumerate((float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 3e9)):
        for axis in (0, 1):
            coords[1, axis, 2 * axis, number] = bad
    changed = (coords != case.coords).any(1, keepdim=True)
    weight = weights(case)
    clean = results(backend, case, weight.masked_fill(changed, 0.0))
    emulated = backend.is_cuda and not backend.on_gpu
    spoiled = changed if emulated else coords.isnan().any(1, keepdim=True)
    got = results(backend, replace(case, coords=coords), weight.masked_fill(spoiled, float("nan")))
    assert torch.equal(got.out, clean.out.masked_fill(changed, 0.0))
    assert not got.fmap1.masked_select(changed).any()
    assert not got.coords.masked_select(changed).any()
    for a, b in zip(got[1:], clean[1:], strict=True):
        assert_within(a, b, 1e-5, "gradient")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@on_gpu
def test_lookup_nonfinite_coordinates_receive_zero_gradient(backend: Backend, bad: float) -> None:
    case = backend.make((16, 24), channels=32)
    maps = [m.requires_grad_() for m in (case.fmap1, case.fmap2)]
    weight, coords = weights(case), case.coords.clone()
    weight[..., 5, 7] = float("nan")
    coords[..., 5, 7] = bad
    pair = backend.pair(case)
    got = torch.autograd.grad([pair(coords), pair(coords + 30)], maps, [weight, weight])
    assert all(g.isfinite().all() for g in got)
    assert not got[0][..., 5, 7].any()


@on_gpu
def test_lookup_nonfinite_gradient_stays_local(backend: Backend) -> None:
    """It reaches its pixel, the positions of its window, and nothing else."""
    case = backend.make((24, 48), channels=32, levels=1, radius=3, batch=1)
    maps = [m.requires_grad_() for m in (case.fmap1, case.fmap2)]
    weight = weights(case)
    weight[0, 10, 12, 20] = float("nan")
    first, second = torch.autograd.grad(backend.pair(case)(case.coords), maps, weight)
    assert first.isnan().any(1)[0].nonzero().tolist() == [[12, 20]]
    assert 0 < int(second.isnan().any(1).sum()) <= 4


@every
def test_lookup_accepts_empty_batches_and_maps(backend: Backend) -> None:
    for sizes, batch, shape in (
        (((9, 13),), 0, (0, 147, 9, 13)),
        (((0, 5), (0, 7)), 2, (2, 147, 0, 5)),
        (((4, 5), (0, 7)), 2, (2, 147, 4, 5)),
    ):
        case = backend.make(*sizes, batch=batch)
        got = results(backend, case, weights(case))
        assert got.out.shape == shape
        assert not got.out.any()
        assert (got.fmap1.shape, got.fmap2.shape) == (case.fmap1.shape, case.fmap2.shape)
        assert not got.fmap1.any()


def strided(case: Case) -> Case:
    """The same values with other strides."""
    wide = torch.zeros(2, 32, 9, 26, device=case.fmap1.device, dtype=case.fmap1.dtype)
    wide[:, ::2, :, ::2] = case.fmap1.detach()
    fmap2 = case.fmap2.detach().contiguous(memory_format=torch.channels_last)
    coords = case.coords.detach().transpose(2, 3).contiguous().transpose(2, 3)
    return Case(wide[:, ::2, :, ::2], fmap2, coords, case.levels, case.radius)


@on_cpu
def test_lookup_is_independent_of_input_strides(backend: Backend) -> None:
    """But for the order in which PyTorch's products are summed."""
    case = make_case((9, 13), (8, 12), channels=16)
    allowed = 0.0 if backend.name == "cpu" else 1e-5
    assert_within(look(strided(case), backend.name), look(case, backend.name), allowed, "lookup")


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("emulated", torch.bfloat16), *(pytest.param("cuda", dtype, marks=needs_gpu) for dtype in DTYPES)],
    indirect=["backend"],
    ids=str,
)
def test_lookup_gradients_are_independent_of_strides(backend: Backend, dtype: torch.dtype) -> None:
    """Neither those of the input nor those of the incoming gradient."""
    case = backend.make((9, 13), (8, 12), channels=16, levels=1, radius=RADIUS)
    case = replace(case, fmap1=case.fmap1.to(dtype), fmap2=case.fmap2.to(dtype))
    leaves, outs = [], []
    for one in (case, strided(case)):
        inputs = [t.requires_grad_() for t in (one.fmap1, one.fmap2, one.coords)]
        leaves.append(inputs)
        outs.append(correlation_lookup(inputs[0], [inputs[1]], inputs[2], RADIUS, backend=backend.name))
    assert torch.equal(*outs)
    slack = (4 if backend.on_gpu else 2) * torch.finfo(dtype).eps
    weight = weights(case)
    expanded = torch.ones(1, 1, 1, 1, device=weight.device).expand(weight.shape)  # every stride 0
    for plain, other in (
        (weight, weight.to(memory_format=torch.channels_last)),
        (weight, weight.transpose(1, 2).contiguous().transpose(1, 2)),
        (expanded.contiguous(), expanded),
    ):
        expected = torch.autograd.grad(outs[0], leaves[0], plain, retain_graph=True)
        got = torch.autograd.grad(outs[1], leaves[1], other, retain_graph=True)
        for a, b, least in zip(got, expected, (0.0, 0.0, 1e-5), strict=True):
            assert_within(a, b, max(slack, least) * float(b.abs().max()), "gradient")


@on_gpu
def test_lookup_accepts_expanded_coordinates(backend: Backend) -> None:
    case = backend.make()
    same = torch.tensor([3.25, 4.5], device="cuda").view(1, 2, 1, 1).expand(case.coords.shape)
    assert torch.equal(*(look(replace(case, coords=xy), backend.name) for xy in (same, same.contiguous())))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@on_cpu
def test_lookup_returns_requested_dtype_and_layout(backend: Backend, dtype: torch.dtype) -> None:
    case = make_case()
    expected = look(case, backend.name)
    got = look(case, backend.name, out_dtype=dtype, memory_format=torch.channels_last)
    assert got.dtype == dtype
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert expected.is_contiguous()
    assert torch.equal(got, expected.to(dtype))


LAID_OUT = [
    pytest.param("emulated", "smooth", RADIUS, torch.bfloat16, torch.float16, 50),
    pytest.param("emulated", "random", 2, torch.bfloat16, torch.float32, 50),
    *(
        pytest.param("cuda", "smooth", radius, features, dtype, 200, marks=needs_gpu)
        for dtype in (*DTYPES, torch.float64)
        for radius in (2, 4, 8)
        for features in DTYPES
    ),
]


@pytest.mark.parametrize(
    ("backend", "motion", "radius", "features", "dtype", "channels"), LAID_OUT, indirect=["backend"], ids=str
)
def test_lookup_channels_last_equals_contiguous(
    backend: Backend, motion: str, radius: int, features: torch.dtype, dtype: torch.dtype, channels: int
) -> None:
    case = rounded(make_case((9, 21), (30, 40), channels=channels, radius=radius, motion=motion), features)
    case = backend.there(replace(case, fmap1=case.fmap1.to(features), fmap2=case.fmap2.to(features)))
    expected = backend.pair(case)(case.coords)
    assert expected.is_contiguous()
    for layout in (torch.contiguous_format, torch.channels_last) if backend.on_gpu else (torch.channels_last,):
        got = backend.pair(case, out_dtype=dtype, memory_format=layout)(case.coords)
        assert got.dtype == dtype
        assert got.is_contiguous(memory_format=layout)
        # Kernels of another tile height may sum in another order.
        assert_within(got, expected.to(dtype), torch.finfo(dtype).eps * 8 + 1e-6 * backend.on_gpu, "result")


@pytest.mark.parametrize("backend", ["emulated"], indirect=True)
def test_lookup_in_features_dtype_equals_cast(backend: Backend) -> None:
    """RAFT's training asks for them: the same bits, and those of the gradients."""
    case = rounded(make_case((5, 9), levels=2, radius=RADIUS), torch.bfloat16)
    maps = [m.to(torch.bfloat16).requires_grad_() for m in (case.fmap1, case.fmap2)]
    grads = [weight.to(torch.bfloat16) for weight in weights_of(case, 2)]

    def found(out_dtype: torch.dtype | None) -> tuple[Tensor, ...]:
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend=backend.name, out_dtype=out_dtype)
        outs = [pair(case.coords + s).to(torch.bfloat16) for s in (0.0, 2.3)]
        return *outs, *torch.autograd.grad(outs, maps, grads)

    for one, other in zip(found(torch.bfloat16), found(None), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", [*ON_CPU, CUDA], indirect=True)
def test_lookup_ignores_autocast(backend: Backend) -> None:
    case = backend.make()
    plain = results(backend, case, weights(case))
    with torch.autocast(backend.device, dtype=torch.bfloat16):
        cast = results(backend, case, weights(case))
    for a, b in zip(cast, plain, strict=True):
        assert_within(a, b, 1e-5 if backend.on_gpu else 0.0, "autocast")


@pytest.mark.parametrize("motion", ["smooth", "random"])
@on_gpu
def test_lookup_is_deterministic(backend: Backend, motion: str) -> None:
    case = backend.make((48, 70), motion=motion, channels=64, radius=4)
    first, second = (results(backend, case, weights(case)) for _ in range(2))
    for name, one, two in zip(first._fields, first, second, strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_lookup_cpu_is_independent_of_threads(motion: str) -> None:
    case = make_case((20, 40), motion=motion, channels=48, levels=2, radius=4)
    single = results(BACKENDS["cpu"], case, weights(case))
    torch.set_num_threads(3)  # the fixture puts it back
    several = results(BACKENDS["cpu"], case, weights(case))
    for a, b in zip(several, single, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("motion", "layout"), [("random", torch.contiguous_format), ("outside", torch.channels_last)], ids=str
)
@pytest.mark.parametrize("backend", ["cpu", CUDA], indirect=True)
def test_lookup_writes_every_output_element(
    backend: Backend, motion: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ((37, 53), (45, 64)) if backend.on_gpu else ((7, 9), (5, 4))
    case = backend.make(*sizes, levels=4, motion=motion)
    expected = backend.pair(case, memory_format=layout)(case.coords)
    empty = torch.empty

    def poisoned(*args: Any, **options: Any) -> Tensor:
        tensor = empty(*args, **options)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    assert torch.equal(backend.pair(case, memory_format=layout)(case.coords), expected)


@pytest.mark.parametrize("backend", [*ON_CPU, CUDA], indirect=True)
def test_prepared_pair_ignores_later_feature_changes(backend: Backend) -> None:
    case = backend.make((6, 9), (7, 8), channels=17)
    case = replace(case, fmap1=case.fmap1.contiguous(memory_format=torch.channels_last))
    pair = backend.pair(case)
    before = pair(case.coords)
    case.fmap1.zero_()
    case.fmap2.zero_()
    assert torch.equal(pair(case.coords), before)


@pytest.mark.parametrize("motion", ["smooth", "random"])
@on_gpu
def test_correlation_lookup_of_large_maps(backend: Backend, motion: str) -> None:
    """Enough tiles for the persistent grid to go around, against a sample of pixels."""
    case = backend.make((224, 320), batch=2, channels=64, levels=4, radius=4, motion=motion)
    rows = slice(100, 104)
    few = Case(case.fmap1[:, :, rows].double(), case.fmap2.double(), case.coords[:, :, rows].double(), 4, 4)
    exact = look(few, "reference")
    assert_within(backend.pair(case)(case.coords)[:, :, rows], exact, 1e-5 * float(exact.abs().max()), "rows")


# ---- gradients of lookups that move

MOVING = [
    pytest.param("emulated", ((9, 18), (12, 20), 2, 30, 3, RADIUS), "smooth", dtype, shifts)
    for dtype, shifts in ((torch.float32, "drifting"), (torch.bfloat16, "jumping"))
] + [
    pytest.param("cuda", shape, motion, dtype, shifts, marks=needs_gpu)
    for shape in (
        ((17, 33), (10, 40), 2, 67, 4, 4),
        ((48, 72), (48, 72), 1, 256, 4, 4),
        ((5, 18), (19, 21), 1, 600, 2, 2),
        ((3, 50), (3, 50), 1, 16, 2, 8),
        ((8, 8), (5, 3), 3, 130, 8, 1),
    )
    for motion in ("smooth", "random")
    for dtype in DTYPES
    for shifts in SHIFTS
]


@pytest.mark.parametrize(("backend", "shape", "motion", "dtype", "shifts"), MOVING, indirect=["backend"], ids=str)
def test_lookup_gradients_of_moving_lookups_match_float64(
    backend: Backend, shape: tuple[Any, ...], motion: str, dtype: torch.dtype, shifts: str
) -> None:
    if not backend.on_gpu and shifts == "jumping":  # the last threads first, copies late
        launch.LIBRARIES.schedule = 3
    if not backend.on_gpu and shifts == "drifting":
        launch.LIBRARIES.resident = 1
    check_moving(backend, case_of(shape, motion), SHIFTS[shifts], dtype)


@pytest.mark.parametrize("backend", ["emulated"], indirect=True)
def test_lookup_gradients_of_restarted_patches(backend: Backend) -> None:
    """Of a large radius, which do not fit in the memory of a block at once; gradients of 16 bits."""
    grad = torch.float16
    case = rounded(make_case((6, 9), (20, 24), channels=16, levels=1, radius=7), torch.bfloat16)
    grads = [weight.to(grad) for weight in weights_of(case, 3)]

    def found(kind: torch.dtype, name: str) -> tuple[Tensor, ...]:
        maps = [m.to(kind).requires_grad_() for m in (case.fmap1, case.fmap2)]
        coords = case.coords.double() if kind == torch.float64 else case.coords
        out_dtype = grad if name == "cuda" else kind
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend=name, out_dtype=out_dtype)
        return torch.autograd.grad([pair(coords + s) for s in (0.0, 9.3, -8.4)], maps, [g.to(out_dtype) for g in grads])

    launch.LIBRARIES.schedule = 3
    exact = found(torch.float64, "reference")
    for name, got, true in zip(("fmap1", "fmap2"), found(torch.bfloat16, backend.name), exact, strict=True):
        assert_within(got, true, 2.0**-6 * float(true.abs().max()), name)


@on_gpu
def test_lookup_highest_precision_equals_float32(backend: Backend) -> None:
    """At "highest" no worse than plain PyTorch in float32, over gradients of very different sizes."""
    case = make_case((40, 56), channels=192, levels=4, radius=4)
    small = replace(case, coords=case.coords.cuda())
    grads, shifts = weights_of(small, 3), (0.0, 0.6, 4.0)
    for grad in grads:
        grad[..., :28] *= 1e-6

    def found(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        maps = [m.to("cuda", dtype).requires_grad_() for m in (case.fmap1, case.fmap2)]
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend=name)
        outs = [pair(small.coords.to(dtype) + shift) for shift in shifts]
        return torch.autograd.grad(outs, maps, [g.to(dtype) for g in grads])

    exact, eager = found("reference", torch.float64), found("reference", torch.float32)
    got = found(backend.name, torch.float32)
    for value, true, plain in zip(got, exact, eager, strict=True):
        assert_within(value, true, budget(plain, true, torch.float32), "gradient")
    # Where everything is small the errors are small too.
    corner = (..., slice(None), slice(0, 8))
    assert_within(got[0][corner], exact[0][corner], 1e-5 * float(exact[0][corner].abs().max()), "small gradients")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("motion", ["smooth", "random"])
@on_gpu
def test_lookup_gradients_are_deterministic(backend: Backend, dtype: torch.dtype, motion: str) -> None:
    case, shifts = make_case((120, 160), motion=motion, channels=64, levels=4, radius=4), [0.0, 0.5, 30.0, 31.0]
    torch.use_deterministic_algorithms(True)
    try:
        first = gradients(backend, case, shifts, dtype)
        for _ in range(3):
            assert all(torch.equal(*pair) for pair in zip(first, gradients(backend, case, shifts, dtype), strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@on_gpu
def test_lookup_coordinate_gradient_matches_float64(backend: Backend, dtype: torch.dtype) -> None:
    case = rounded(make_case((9, 21), channels=70, levels=4, radius=4), dtype)
    exact = run(case, weights(case), backend="reference")
    case = backend.there(case)
    coords = case.coords.clone().requires_grad_()
    pair = backend.pair(replace(case, fmap1=case.fmap1.to(dtype), fmap2=case.fmap2.to(dtype)))
    for layout in (torch.contiguous_format, torch.channels_last):
        (got,) = torch.autograd.grad(pair(coords), coords, weights(case).to(memory_format=layout))
        eps = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert_within(got, exact.coords, eps * float(exact.coords.abs().max()), "coords")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@on_gpu
def test_lookup_accepts_gradients_of_any_layout(backend: Backend, dtype: torch.dtype) -> None:
    case = backend.make((20, 30), channels=40, levels=3)
    maps = [m.requires_grad_() for m in (case.fmap1, case.fmap2)]
    weight = weights(case).to(dtype)
    plain = backend._replace(name="reference").pair(case)
    expected = torch.autograd.grad(plain(case.coords), maps, weight.float())
    for layout in (torch.contiguous_format, torch.channels_last):
        pair = backend.pair(case, out_dtype=dtype)
        got = torch.autograd.grad(pair(case.coords), maps, weight.contiguous(memory_format=layout))
        for a, b in zip(got, expected, strict=True):
            assert_within(a, b, 1e-5 * float(b.abs().max()), "gradient")
    # One number for all taps: no strides at all.
    got = torch.autograd.grad(backend.pair(case)(case.coords).sum(), maps)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in got)


# ---- processes, threads, tracing of memory


def test_lookup_compiles_once() -> None:
    from fullfield.ops.correlation.cpu import _backward_kernels, _kernels

    for case in (make_case(), make_case((4, 4), (9, 8), channels=3, radius=1)):
        for layout in (torch.contiguous_format, torch.channels_last):
            look(case, "cpu", memory_format=layout)
        results(BACKENDS["cpu"], case, weights(case))
    entry_points = [*_kernels().ENTRY_POINTS.values(), *_backward_kernels().ENTRY_POINTS.values()]
    assert all(len(kernel.signatures) == 1 for kernel, _ in entry_points)


def test_lookup_cpu_from_threads_equals_serial() -> None:
    case = make_case((16, 24), channels=32)
    look_ = CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend="cpu")
    positions = [case.coords + 0.3 * index for index in range(8)]
    expected = [look_(coords) for coords in positions]
    torch.set_num_threads(2)
    with ThreadPoolExecutor(8) as pool:
        for got, want in zip(pool.map(look_, positions), expected, strict=True):
            assert torch.equal(got, want)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_lookup_cpu_works_after_fork() -> None:
    case = make_case((16, 24), channels=32)
    expected = float(look(case, "cpu").double().sum())
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(float(look(case, "cpu").double().sum())))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get() == expected


def test_lookup_nan_features_stay_in_own_windows() -> None:
    case = make_case((8, 16), levels=1, radius=1, motion="integer")
    clean = look(case, "cpu")
    fmap2 = case.fmap2.clone()
    fmap2[0, 3, 4, 7] = float("nan")
    spoiled = look(Case(case.fmap1, fmap2, case.coords, 1, 1), "cpu")
    reference = look(Case(case.fmap1, fmap2, case.coords, 1, 1), "reference")
    assert torch.equal(spoiled.isnan(), reference.isnan())
    assert 0 < int(spoiled.isnan().sum()) < spoiled.numel() // 8
    assert torch.equal(spoiled[~spoiled.isnan()], clean[~spoiled.isnan()])


def test_correlation_pyramid_equals_average_pooling() -> None:
    fmap2 = torch.randn(2, 3, 13, 7, dtype=torch.float64, requires_grad=True)
    levels = correlation_pyramid(fmap2, 5)
    assert [tuple(level.shape[2:]) for level in levels] == [(13, 7), (6, 3), (3, 1), (1, 0), (0, 0)]
    by_hand = sum(fmap2[:, :, i:12:2, j:6:2] for i in (0, 1) for j in (0, 1)) / 4
    assert torch.allclose(levels[1], by_hand)
    pooled_twice = torch.nn.functional.interpolate(levels[0], scale_factor=0.5, mode="bilinear")
    assert torch.allclose(levels[1], pooled_twice[..., :6, :3])


def test_correlation_pyramid_with_pooled_levels_equals_lookup() -> None:
    case = make_case((9, 13), (11, 10), levels=4)
    for backend in ON_CPU:
        prepared = CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend=backend)
        assert torch.equal(prepared(case.coords), look(case, backend))


def test_lookup_reference_in_chunks_equals_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.ops.correlation import reference

    case = make_case()
    whole = run(case, weights(case), backend="reference", dtype=torch.float32)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 64 * 20 * 4 * 7)
    parts = run(case, weights(case), backend="reference", dtype=torch.float32)
    for a, b in zip(whole, parts, strict=True):
        assert_within(a, b, 1e-5, "chunked")


def test_lookup_reference_on_gpu_calls_no_bmm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It might be in TF32 there."""
    from fullfield.ops.correlation.reference import ReferencePair

    class OnGpu(Tensor):
        is_cuda = True

    case, target = make_case(), ReferencePair._gather_target_rows
    expected = look(case, "reference")
    monkeypatch.setattr(ReferencePair, "_gather_target_rows", lambda *arguments: target(*arguments).as_subclass(OnGpu))
    monkeypatch.setattr(torch, "bmm", lambda *_: pytest.fail("a batched product"))
    assert_within(look(case, "reference"), expected, 1e-5, "lookup")


def good_arguments() -> dict[str, object]:
    case = make_case((4, 5), channels=6)
    return {
        "fmap1": case.fmap1,
        "fmap2_levels": case.pyramid(),
        "coords": case.coords,
        "radius": 2,
    }


WRONG = {
    "fmap1": [
        (torch.zeros(2, 6, 4), r"fmap1: expected shape \[B, C, H1, W1\], got float32 tensor \[2, 6, 4\]"),
        (torch.zeros(2, 6, 4, 5, dtype=torch.int32), "fmap1: expected dtype"),
        (torch.zeros(2, 0, 4, 5), "fmap1: expected at least one channel"),
        ("x", "fmap1: expected a tensor"),
    ],
    "fmap2_levels": [
        ([], "fmap2_levels: expected a sequence of 1 to 8 tensors"),
        (3, "fmap2_levels: expected a sequence"),
        ([torch.zeros(2, 7, 4, 5)], r"fmap2_levels\[0\]: expected shape \[2, 6, H2, W2\]"),
        ([torch.zeros(1, 7, 4, 5)], r"fmap2_levels\[0\]: expected shape \[2, 6, H2, W2\]"),
        ([torch.zeros(2, 6, 4, 5, dtype=torch.float16)], r"fmap2_levels\[0\]: expected dtype float32"),
        ([torch.zeros(2, 6, 4, 5), torch.zeros(1, 6, 4, 5)], r"fmap2_levels\[1\]: expected shape"),
        ([torch.zeros(2, 6, 4, 5, device="meta")], r"fmap2_levels\[0\]: expected device cpu"),
        ([torch.zeros(2, 6, 4, 5)] * 9, "levels: expected an integer >= 1 and <= 8"),
    ],
    "coords": [
        (torch.zeros(2, 2, 5, 4), r"coords: expected shape \[2, 2, 4, 5\], got float32 tensor \[2, 2, 5, 4\]"),
        (torch.zeros(2, 3, 4, 5), "coords: expected shape"),
        (torch.zeros(1, 3, 5, 6), "coords: expected shape"),
        (torch.zeros(2, 2, 4, 5, dtype=torch.float16), "coords: expected dtype float32"),
        (torch.zeros(2, 2, 4, 5, dtype=torch.float64), "coords: expected dtype float32"),
        (torch.zeros(2, 2, 4, 5, device="meta"), "coords: expected device cpu"),
    ],
    "radius": [
        (-1, "radius: expected an integer >= 1"),
        (0, "radius: expected"),
        (9, "radius: expected"),
        (2.0, "radius: expected an integer"),
    ],
    "backend": [
        ("fast", "backend: expected one of cuda, cpu"),
        ("cuda", "backend: 'cuda' cannot serve this request .*; cpu: can; dense: can; reference: can"),
    ],
    "out_dtype": [(torch.int32, "out_dtype: expected one of")],
    "memory_format": [(torch.channels_last_3d, "memory_format: expected one of")],
}


@pytest.mark.parametrize(
    ("name", "value", "message"), [(n, v, m) for n, cases in WRONG.items() for v, m in cases], ids=str
)
def test_correlation_lookup_refuses_bad_arguments(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        correlation_lookup(**{**good_arguments(), name: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_correlation_lookup_explicit_backend_never_falls_back() -> None:
    case = make_case().double()
    with pytest.raises(InputError, match=r"cpu: needs float32, float16 or bfloat16 features, got torch.float64"):
        look(case, "cpu")
    assert look(case, None).dtype == torch.float64


@on_gpu
def test_correlation_backends_explain_refusals(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    case = backend.make()
    with pytest.raises(InputError, match=r"cuda: needs float32, float16 or bfloat16 features, got torch.float64"):
        look(case.double(), "cuda")
    assert CorrelationPyramid(case.fmap1, case.fmap2).backend == "cuda"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (7, 0))
    monkeypatch.setattr(_launching, "_explain_unsupported_gpu", _launching._explain_unsupported_gpu.__wrapped__)
    with pytest.raises(InputError, match=r"cuda: needs compute capability 7.5, got 7.0"):
        look(case, "cuda")
