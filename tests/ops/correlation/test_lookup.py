"""The operator against Python loops, peers and its own semantics, on every backend that runs here."""

from __future__ import annotations

import importlib
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid
from fullfield.testing.correlation import (
    Case,
    assert_within,
    budget,
    lookup_by_loops,
    make_case,
    rounded,
    run,
)

BACKENDS = ("reference", "dense", "cpu")
DOUBLE = ("reference", "dense")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def look(case: Case, backend: str | None, **options: object) -> Tensor:
    return correlation_lookup(case.fmap1, case.pyramid(), case.coords, case.radius, backend=backend, **options)  # type: ignore[arg-type]


def weights(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    channels = case.levels * (2 * case.radius + 1) ** 2
    return torch.randn((case.coords.shape[0], channels, *case.coords.shape[2:]), generator=generator)


@pytest.mark.parametrize("backend", DOUBLE)
@pytest.mark.parametrize("motion", ["smooth", "random", "outside", "integer"])
def test_equals_python_loops(backend: str, motion: str) -> None:
    case = make_case((5, 6), (7, 9), channels=5, levels=3, radius=2, motion=motion).double()
    expected = lookup_by_loops(case.fmap1, case.pyramid(), case.coords, case.radius)
    assert expected.abs().max() > 0.5
    assert_within(look(case, backend), expected, 1e-12, "lookup")


@pytest.mark.parametrize("motion", ["smooth", "random", "outside", "integer"])
def test_cpu_kernel_equals_python_loops(motion: str) -> None:
    case = make_case((5, 11), (7, 9), channels=19, levels=3, radius=2, motion=motion)
    expected = lookup_by_loops(case.fmap1, case.pyramid(), case.coords, case.radius)
    assert_within(look(case, "cpu"), expected, 1e-5, "lookup")


@pytest.mark.parametrize("backend", DOUBLE)
def test_gradcheck_away_from_kinks(backend: str) -> None:
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
    ((17, 33), (10, 40), 1, 67, 4, 4),
    ((1, 1), (8, 8), 3, 1, 1, 1),
    ((3, 50), (3, 50), 1, 16, 2, 8),
    ((8, 8), (5, 3), 2, 130, 8, 1),  # levels that pool to nothing
    ((6, 20), (1, 1), 1, 7, 2, 5),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("motion", ["smooth", "random"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_within_float64_budget(backend: str, dtype: torch.dtype, motion: str, shape: tuple) -> None:  # type: ignore[type-arg]
    size1, size2, batch, channels, levels, radius = shape
    case = make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius, motion=motion)
    case = rounded(case, dtype)
    weight = weights(case)
    # Pooling in 16 bits rounds; compare the lookup alone, on the levels as they are.
    levels_ = [level.to(dtype) for level in case.pyramid()]

    def one(kind: torch.dtype, name: str) -> tuple[Tensor, ...]:
        fmap1 = case.fmap1.to(kind).requires_grad_()
        maps = [level.to(kind).detach().requires_grad_() for level in levels_]
        coords = case.coords.to(torch.float64 if kind == torch.float64 else torch.float32).requires_grad_()
        out = correlation_lookup(fmap1, maps, coords, radius, backend=name)
        return (out.detach(), *torch.autograd.grad(out, (fmap1, coords, *maps), weight.to(out)))

    exact = one(torch.float64, "reference")
    eager = one(dtype, "reference")
    for index, (got, true, plain) in enumerate(zip(one(dtype, backend), exact, eager, strict=True)):
        kind = torch.float32 if index in (0, 2) else dtype  # results and coords are float32
        assert got.dtype == kind
        allowed = budget(plain, true, kind)
        if kind == torch.float32:  # sums of another order than eager's
            allowed += 8 * torch.finfo(kind).eps * float(true.abs().max() if true.numel() else 0) * channels**0.5
        assert_within(got, true, allowed, f"result {index}")


def test_long_sums_round_as_little_as_the_references() -> None:
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_pooling_gradient(backend: str) -> None:
    case = make_case((7, 9), (13, 11), levels=4, radius=2)
    exact = run(case, weights(case), backend="reference")
    got = run(case, weights(case), backend=backend, dtype=torch.float32)
    for name, a, b in zip(exact._fields, got, exact, strict=True):
        assert_within(a, b, 2e-5 * float(b.abs().max()), name)


def princeton(case: Case) -> Tensor:
    """RAFT's sampling of the pooled dense volume through grid_sample, in float64."""
    fmap1, fmap2, coords = (t.double() for t in (case.fmap1, case.fmap2, case.coords))
    batch, channels, height, width = fmap1.shape
    volume = torch.einsum("bchw,bcyx->bhwyx", fmap1, fmap2) / channels**0.5
    volume = volume.reshape(batch * height * width, 1, *fmap2.shape[2:])
    side = torch.arange(-case.radius, case.radius + 1, dtype=torch.float64)
    slow, fast = torch.meshgrid(side, side, indexing="ij")
    found = []
    for level in range(case.levels):
        if level:
            volume = torch.nn.functional.avg_pool2d(volume, 2)
        centre = coords.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / 2**level
        at = centre + torch.stack((slow, fast), -1)
        size = torch.tensor([volume.shape[3], volume.shape[2]], dtype=torch.float64)
        taps = torch.nn.functional.grid_sample(volume, 2 * at / (size - 1) - 1, align_corners=True)
        found.append(taps.reshape(batch, height, width, -1))
    return torch.cat(found, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_grid_sample_formula(backend: str) -> None:
    case = make_case((12, 15), (17, 18), channels=32, levels=4, radius=4)
    assert_within(look(case, backend), princeton(case), 1e-5, "lookup")


def test_the_grid_sample_formula_tells_the_order_of_offsets() -> None:
    case = make_case((6, 7), (6, 7), levels=1, radius=2)
    ours = look(case, "reference")
    swapped = ours.unflatten(1, (5, 5)).transpose(1, 2).flatten(1, 2)
    with pytest.raises(AssertionError, match="off by"):
        assert_within(swapped, princeton(case), 1e-2, "lookup")


@pytest.mark.parametrize("block", ["CorrBlock", "IterativeCorrBlock"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_ptlflow(backend: str, block: str, ptlflow: Any) -> None:
    module = importlib.import_module(f"{ptlflow.__name__}.models.raft.corr")
    case = make_case((16, 24), channels=32, levels=4, radius=4, batch=1)
    peer = getattr(module, block)(case.fmap1, case.fmap2, num_levels=4, radius=4)
    # ptlflow samples through normalised coordinates in float32.
    assert_within(look(case, backend), peer(case.coords), 1e-4, "lookup")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 3e9])
@pytest.mark.parametrize("axis", [0, 1])
def test_unusable_coordinates_touch_their_pixel_only(backend: str, bad: float, axis: int) -> None:
    case = make_case((5, 9), levels=2, radius=2)
    weight = weights(case)
    coords = case.coords.clone()
    coords[1, axis, 2, 3] = bad
    spoiled = Case(case.fmap1, case.fmap2, coords, case.levels, case.radius)
    weight_there = weight.clone()
    weight_there[1, :, 2, 3] = 0.0
    clean = run(case, weight_there, backend=backend, dtype=torch.float32)
    weight[1, :, 2, 3] = float("nan") if bad != bad else 1.0
    got = run(spoiled, weight, backend=backend, dtype=torch.float32)
    expected = clean.out.clone()
    expected[1, :, 2, 3] = 0.0
    assert torch.equal(got.out, expected)
    assert torch.equal(got.fmap1[1, :, 2, 3], torch.zeros(20))
    assert torch.equal(got.coords[1, :, 2, 3], torch.zeros(2))
    for a, b in zip(got[1:], clean[1:], strict=True):
        assert_within(a, b, 1e-5, "gradient")


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batch(backend: str) -> None:
    case = make_case(batch=0)
    got = run(case, weights(case), backend=backend, dtype=torch.float32)
    assert got.out.shape == (0, 147, 9, 13)
    assert got.fmap1.shape == case.fmap1.shape
    assert got.fmap2.shape == case.fmap2.shape


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_maps(backend: str) -> None:
    case = make_case((0, 5), (0, 7), levels=2)
    got = run(case, weights(case), backend=backend, dtype=torch.float32)
    assert got.out.shape == (2, 98, 0, 5)
    case = make_case((4, 5), (0, 7), levels=2)
    got = run(case, weights(case), backend=backend, dtype=torch.float32)
    assert torch.equal(got.out, torch.zeros(2, 98, 4, 5))
    assert not got.fmap1.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_the_input_do_not_matter(backend: str) -> None:
    case = make_case((9, 13), (8, 12), channels=16)
    wide = torch.zeros(2, 32, 9, 26)
    wide[:, ::2, :, ::2] = case.fmap1
    strided = Case(
        wide[:, ::2, :, ::2],
        case.fmap2.contiguous(memory_format=torch.channels_last),
        case.coords.transpose(2, 3).contiguous().transpose(2, 3),
        case.levels,
        case.radius,
    )
    assert not strided.fmap1.is_contiguous()
    assert not strided.coords.is_contiguous()
    got, again = look(case, backend), look(strided, backend)
    if backend == "cpu":
        assert torch.equal(again, got)
        return
    # PyTorch's products may sum in another order where strides differ.
    exact = look(case.double(), "reference")
    for out in (got, again):
        assert_within(out, exact, budget(look(case, "reference"), exact, torch.float32), "lookup")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_output_dtype_and_layout(backend: str, dtype: torch.dtype) -> None:
    case = make_case()
    expected = look(case, backend)
    got = look(case, backend, out_dtype=dtype, memory_format=torch.channels_last)
    assert got.dtype == dtype
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert expected.is_contiguous()
    assert torch.equal(got, expected.to(dtype))


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_as_written_under_autocast(backend: str) -> None:
    case = make_case()
    weight = weights(case)
    plain = run(case, weight, backend=backend, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run(case, weight, backend=backend, dtype=torch.float32)
    for a, b in zip(cast, plain, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_deterministic(backend: str) -> None:
    case = make_case((16, 24), motion="random", channels=32)
    first = run(case, weights(case), backend=backend, dtype=torch.float32)
    second = run(case, weights(case), backend=backend, dtype=torch.float32)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_cpu_kernel_does_not_depend_on_threads(motion: str) -> None:
    case = make_case((20, 40), motion=motion, channels=48, levels=2, radius=4)
    single = run(case, weights(case), backend="cpu", dtype=torch.float32)
    torch.set_num_threads(3)  # the fixture puts it back
    several = run(case, weights(case), backend="cpu", dtype=torch.float32)
    for a, b in zip(several, single, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_element_of_the_output_is_written(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case((7, 9), (5, 4), levels=4, motion="outside")
    expected = look(case, backend)
    empty = torch.empty

    def poisoned(*args: object, **options: object) -> Tensor:
        tensor = empty(*args, **options)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor  # type: ignore[no-any-return]

    monkeypatch.setattr(torch, "empty", poisoned)
    assert torch.equal(look(case, backend), expected)


def test_nothing_is_compiled_a_second_time() -> None:
    from fullfield.ops.correlation.cpu import _kernels

    for case in (make_case(), make_case((4, 4), (9, 8), channels=3, radius=1)):
        for layout in (torch.contiguous_format, torch.channels_last):
            look(case, "cpu", memory_format=layout)
        run(case, weights(case), backend="cpu", dtype=torch.float32)
    assert all(len(kernel.signatures) == 1 for kernel, _ in _kernels().ENTRY_POINTS.values())


def test_cpu_kernel_from_many_threads() -> None:
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
def test_cpu_kernel_after_fork() -> None:
    case = make_case((16, 24), channels=32)
    expected = float(look(case, "cpu").double().sum())
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(float(look(case, "cpu").double().sum())))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert answers.get() == expected


def test_nan_features_stay_in_their_windows() -> None:
    case = make_case((8, 16), levels=1, radius=1, motion="integer")
    clean = look(case, "cpu")
    fmap2 = case.fmap2.clone()
    fmap2[0, 3, 4, 7] = float("nan")
    spoiled = look(Case(case.fmap1, fmap2, case.coords, 1, 1), "cpu")
    reference = look(Case(case.fmap1, fmap2, case.coords, 1, 1), "reference")
    assert torch.equal(spoiled.isnan(), reference.isnan())
    assert 0 < int(spoiled.isnan().sum()) < spoiled.numel() // 8
    assert torch.equal(spoiled[~spoiled.isnan()], clean[~spoiled.isnan()])


def test_pyramid_is_repeated_average_pooling() -> None:
    fmap2 = torch.randn(2, 3, 13, 7, dtype=torch.float64, requires_grad=True)
    levels = correlation_pyramid(fmap2, 5)
    assert [tuple(level.shape[2:]) for level in levels] == [(13, 7), (6, 3), (3, 1), (1, 0), (0, 0)]
    by_hand = sum(fmap2[:, :, i:12:2, j:6:2] for i in (0, 1) for j in (0, 1)) / 4
    assert torch.allclose(levels[1], by_hand)
    pooled_twice = torch.nn.functional.interpolate(levels[0], scale_factor=0.5, mode="bilinear")
    assert torch.allclose(levels[1], pooled_twice[..., :6, :3])


def test_levels_pooled_here_or_by_the_caller_agree() -> None:
    case = make_case((9, 13), (11, 10), levels=4)
    for backend in BACKENDS:
        prepared = CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend=backend)
        assert torch.equal(prepared(case.coords), look(case, backend))


def test_one_finite_level_of_side_one() -> None:
    case = make_case((4, 4), (1, 1), levels=1, radius=1)
    assert_within(look(case, "cpu"), lookup_by_loops(case.fmap1, case.pyramid(), case.coords, 1), 1e-5, "lookup")


def test_reference_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.ops.correlation import reference

    case = make_case()
    whole = run(case, weights(case), backend="reference", dtype=torch.float32)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 64 * 20 * 4 * 7)
    parts = run(case, weights(case), backend="reference", dtype=torch.float32)
    for a, b in zip(whole, parts, strict=True):
        assert_within(a, b, 1e-5, "chunked")


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
        ([torch.zeros(2, 6, 4, 5, dtype=torch.float16)], r"fmap2_levels\[0\]: expected dtype float32"),
        ([torch.zeros(2, 6, 4, 5), torch.zeros(1, 6, 4, 5)], r"fmap2_levels\[1\]: expected shape"),
        ([torch.zeros(2, 6, 4, 5, device="meta")], r"fmap2_levels\[0\]: expected device cpu"),
        ([torch.zeros(2, 6, 4, 5)] * 9, "levels: expected an integer >= 1 and <= 8"),
    ],
    "coords": [
        (torch.zeros(2, 2, 5, 4), r"coords: expected shape \[2, 2, 4, 5\], got float32 tensor \[2, 2, 5, 4\]"),
        (torch.zeros(2, 3, 4, 5), "coords: expected shape"),
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
def test_wrong_arguments_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        correlation_lookup(**{**good_arguments(), name: value})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_explicit_backend_does_not_fall_back() -> None:
    case = make_case().double()
    with pytest.raises(InputError, match=r"cpu: needs float32, float16 or bfloat16 features, got torch.float64"):
        look(case, "cpu")
    assert look(case, None).dtype == torch.float64


def test_missing_numba_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield._kernels import Missing
    from fullfield.ops import backends
    from fullfield.ops.correlation import cpu

    case = make_case()
    monkeypatch.setattr(cpu, "why_not", lambda: Missing("numba is not installed (pip install numba)"))
    monkeypatch.setattr(backends, "_warned", set())
    with pytest.warns(UserWarning, match=r"the cpu kernel is not used \(numba is not installed") as seen:
        prepared = CorrelationPyramid(case.fmap1, case.fmap2, radius=2)
    assert prepared.backend == "reference"
    assert seen[0].filename == __file__
    CorrelationPyramid(case.fmap1, case.fmap2)  # would raise: warnings are errors here


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("backend", ["reference", "dense", None])
def test_on_the_gpu(backend: str | None) -> None:
    case = make_case((17, 33), (10, 40), channels=64, levels=4, radius=4)
    weight = weights(case)
    exact = run(case, weight, backend="reference")
    there = Case(case.fmap1.cuda(), case.fmap2.cuda(), case.coords.cuda(), case.levels, case.radius)
    got = run(there, weight.cuda(), backend=backend, dtype=torch.float32)
    for name, a, b in zip(exact._fields, got, exact, strict=True):
        assert_within(a, b, 1e-4 * float(b.abs().max()), name)
