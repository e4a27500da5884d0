"""The GPU kernels against the float64 reference: values, gradients, and every corner of the semantics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.nn import CorrelationPyramid
from fullfield.ops import launching
from fullfield.ops.correlation import correlation_lookup
from fullfield.testing.correlation import Case, Results, assert_within, budget, make_case, rounded, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Rounding of the window gradients before they are multiplied with the features, relative to the largest value.
PRODUCT = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def there(case: Case) -> Case:
    return replace(case, fmap1=case.fmap1.cuda(), fmap2=case.fmap2.cuda(), coords=case.coords.cuda())


def weights(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    channels = case.levels * (2 * case.radius + 1) ** 2
    return torch.randn((case.coords.shape[0], channels, *case.coords.shape[2:]), generator=generator)


def look(case: Case, **options: object) -> Tensor:
    options.setdefault("backend", "cuda")
    pair = CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, **options)  # type: ignore[arg-type]
    return pair(case.coords)


def check(case: Case, dtype: torch.dtype, *, pooled: bool = True) -> None:
    """Values and all gradients of the kernels against the same numbers in float64."""
    case = rounded(case, dtype)
    weight = weights(case)

    def one(kind: torch.dtype, backend: str) -> Results:
        fmap1, fmap2 = (t.to("cuda", kind).requires_grad_() for t in (case.fmap1, case.fmap2))
        coords = case.coords.to("cuda", torch.float64 if kind == torch.float64 else torch.float32).requires_grad_()
        if pooled:
            out = CorrelationPyramid(fmap1, fmap2, case.levels, case.radius, backend=backend)(coords)
        else:
            out = correlation_lookup(fmap1, [fmap2], coords, case.radius, backend=backend)
        return Results(out.detach(), *torch.autograd.grad(out, (fmap1, fmap2, coords), weight.to(out)))

    exact = one(torch.float64, "reference")
    eager = one(dtype, "reference")
    got = one(dtype, "cuda")
    for name, value, true, plain in zip(Results._fields, got, exact, eager, strict=True):
        scale = float(true.abs().max()) if true.numel() else 0.0
        allowed = (
            budget(plain, true, value.dtype) + 8 * torch.finfo(torch.float32).eps * scale * case.fmap1.shape[1] ** 0.5
        )
        if name in ("fmap1", "fmap2"):
            allowed += PRODUCT[dtype] * scale
        assert_within(value, true, allowed, name)


SHAPES = [
    # size1, size2, batch, channels, levels, radius
    ((9, 13), (9, 13), 2, 20, 3, 3),
    ((17, 33), (10, 40), 1, 67, 4, 4),
    ((1, 1), (8, 8), 3, 1, 1, 1),
    ((3, 50), (3, 50), 1, 16, 2, 8),
    ((8, 8), (5, 3), 2, 130, 8, 1),  # levels that pool to nothing
    ((6, 20), (1, 1), 1, 7, 2, 5),
    ((20, 37), (45, 70), 1, 256, 6, 4),
    ((5, 18), (19, 21), 1, 600, 2, 2),  # several blocks of channels
    ((13, 17), (40, 60), 2, 64, 3, 6),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("motion", ["smooth", "random", "outside", "integer"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_within_float64_budget(dtype: torch.dtype, motion: str, shape: tuple) -> None:  # type: ignore[type-arg]
    size1, size2, batch, channels, levels, radius = shape
    case = make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius, motion=motion)
    if levels > 1 and dtype == torch.float32:
        check(case, dtype)
    # Pooling in 16 bits rounds in the reference and not in the kernels: the levels' arithmetic is compared on one.
    check(replace(case, levels=1), dtype, pooled=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pools_without_rounding(dtype: torch.dtype, shape: tuple) -> None:  # type: ignore[type-arg]
    size1, size2, batch, channels, levels, radius = shape
    case = rounded(make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius), dtype)
    exact = run(case, weights(case), backend="reference")
    got = run(there(case), weights(case).cuda(), backend="cuda", dtype=dtype)
    for name, a, b in zip(exact._fields, got, exact, strict=True):
        assert_within(a, b, 3 * torch.finfo(dtype).eps * float(b.abs().max()), name)


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.ops.correlation.cuda import launch

    original = launch.Cuda.lookup
    monkeypatch.setattr(launch.Cuda, "lookup", lambda *arguments: original(*arguments) * 1.001)
    with pytest.raises(AssertionError, match="out: off by"):
        check(make_case(), torch.float32)


@pytest.mark.parametrize(("precision", "eps"), [("high", 2.0**-11), ("medium", 2.0**-8)])
def test_float32_follows_the_matmul_precision(precision: str, eps: float) -> None:
    case = make_case((17, 33), channels=128, levels=4, radius=4)
    case = replace(case, fmap1=1e-6 * case.fmap1, fmap2=1e5 * case.fmap2)  # float16's range is not the limit
    exact = run(case, weights(case), backend="reference")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        got = run(there(case), weights(case).cuda(), backend="cuda", dtype=torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)
    for name, a, b in zip(exact._fields, got, exact, strict=True):
        assert_within(a, b, 3 * eps * float(b.abs().max()), name)
    with pytest.raises(AssertionError, match="off by"):  # the precision is really lower
        assert_within(got.out, exact.out, 0.02 * eps * float(exact.out.abs().max()), "out")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 3e9])
@pytest.mark.parametrize("axis", [0, 1])
def test_unusable_coordinates_touch_their_pixel_only(bad: float, axis: int) -> None:
    case = there(make_case((5, 9), levels=2, radius=2))
    weight = weights(case).cuda()
    coords = case.coords.clone()
    coords[1, axis, 2, 3] = bad
    weight_there = weight.clone()
    weight_there[1, :, 2, 3] = 0.0
    clean = run(case, weight_there, backend="cuda", dtype=torch.float32)
    weight[1, :, 2, 3] = float("nan") if bad != bad else 1.0
    got = run(replace(case, coords=coords), weight, backend="cuda", dtype=torch.float32)
    expected = clean.out.clone()
    expected[1, :, 2, 3] = 0.0
    assert torch.equal(got.out, expected)
    assert not got.fmap1[1, :, 2, 3].any()
    assert not got.coords[1, :, 2, 3].any()
    for a, b in zip(got[1:], clean[1:], strict=True):
        assert_within(a, b, 1e-5, "gradient")


def test_empty_batches_and_maps() -> None:
    got = run(there(make_case(batch=0)), torch.empty(0, 147, 9, 13), backend="cuda", dtype=torch.float32)
    assert got.out.shape == (0, 147, 9, 13)
    assert got.fmap1.shape == got.fmap2.shape == (0, 20, 9, 13)
    case = there(make_case((0, 5), (0, 7), levels=2))
    assert run(case, torch.empty(2, 98, 0, 5), backend="cuda", dtype=torch.float32).out.shape == (2, 98, 0, 5)
    case = there(make_case((4, 5), (0, 7), levels=2))
    got = run(case, weights(case), backend="cuda", dtype=torch.float32)
    assert not got.out.any()
    assert not got.fmap1.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_do_not_matter(dtype: torch.dtype) -> None:
    case = there(make_case((9, 13), (8, 12), channels=16))
    maps = [m.to(dtype).requires_grad_() for m in (case.fmap1, case.fmap2)]
    wide = torch.zeros(2, 32, 9, 26, device="cuda", dtype=dtype)
    wide[:, ::2, :, ::2] = maps[0].detach()
    strided = [wide[:, ::2, :, ::2].requires_grad_(), maps[1].detach().to(memory_format=torch.channels_last)]
    strided[1].requires_grad_()
    coords = case.coords.transpose(2, 3).contiguous().transpose(2, 3)
    outs = [
        correlation_lookup(*m, xy, case.radius, backend="cuda")
        for m, xy in (((maps[0], [maps[1]]), case.coords), ((strided[0], [strided[1]]), coords))
    ]
    assert torch.equal(*outs)
    weight = weights(replace(case, levels=1)).cuda()
    expected = torch.autograd.grad(outs[0], maps, weight, retain_graph=True)
    for grad in (weight.to(memory_format=torch.channels_last), weight.transpose(1, 2).contiguous().transpose(1, 2)):
        for a, b in zip(torch.autograd.grad(outs[1], strided, grad, retain_graph=True), expected, strict=True):
            assert_within(a, b, 4 * torch.finfo(dtype).eps * float(b.abs().max()), "gradient")
    expanded = torch.ones(1, 1, 1, 1, device="cuda").expand(outs[0].shape)  # every stride 0
    sums = torch.autograd.grad(outs[0], maps, expanded.contiguous())
    for a, b in zip(torch.autograd.grad(outs[1], strided, expanded), sums, strict=True):
        assert_within(a, b, 4 * torch.finfo(dtype).eps * float(b.abs().max()), "gradient")


def test_constant_coordinates_without_strides() -> None:
    case = there(make_case())
    same = torch.tensor([3.25, 4.5], device="cuda").view(1, 2, 1, 1).expand(case.coords.shape)
    assert torch.equal(look(replace(case, coords=same)), look(replace(case, coords=same.contiguous())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("radius", [2, 4, 8])
@pytest.mark.parametrize("features", DTYPES, ids=str)
def test_output_dtype_and_layout(dtype: torch.dtype, radius: int, features: torch.dtype) -> None:
    case = there(make_case((9, 21), (30, 40), channels=200, radius=radius))
    case = replace(case, fmap1=case.fmap1.to(features), fmap2=case.fmap2.to(features))
    expected = look(case)
    assert expected.is_contiguous()
    for layout in (torch.contiguous_format, torch.channels_last):
        got = look(case, out_dtype=dtype, memory_format=layout)
        assert got.dtype == dtype
        assert got.is_contiguous(memory_format=layout)
        # Kernels of another tile height may sum in another order.
        assert_within(got, expected.to(dtype), torch.finfo(dtype).eps * 8 + 1e-6, "result")


@pytest.mark.parametrize("motion", ["smooth", "random", "outside"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_every_element_of_the_output_is_written(
    motion: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = there(make_case((37, 53), (45, 64), levels=4, motion=motion))
    expected = look(case, memory_format=layout)
    empty = torch.empty

    def poisoned(*args: object, **options: object) -> Tensor:
        tensor = empty(*args, **options)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor  # type: ignore[no-any-return]

    monkeypatch.setattr(torch, "empty", poisoned)
    assert torch.equal(look(case, memory_format=layout), expected)


def test_runs_as_written_under_autocast() -> None:
    case = there(make_case())
    weight = weights(case).cuda()
    plain = run(case, weight, backend="cuda", dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        cast = run(case, weight, backend="cuda", dtype=torch.float32)
    for a, b in zip(cast, plain, strict=True):
        assert_within(a, b, 1e-5, "autocast")


@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_the_same_bits_in_every_run(motion: str) -> None:
    case = there(make_case((48, 70), motion=motion, channels=64, radius=4))
    weight = weights(case).cuda()
    first, second = (run(case, weight, backend="cuda", dtype=torch.float32) for _ in range(2))
    for name, one, two in zip(first._fields, first, second, strict=True):
        assert torch.equal(one, two), name


def test_changing_the_features_does_not_change_the_pair() -> None:
    case = there(make_case())
    pair = CorrelationPyramid(case.fmap1, case.fmap2, case.levels, case.radius, backend="cuda")
    before = pair(case.coords)
    case.fmap1.zero_()
    case.fmap2.zero_()
    assert torch.equal(pair(case.coords), before)


def test_refusals() -> None:
    case = there(make_case())
    with pytest.raises(InputError, match=r"cuda: needs float32, float16 or bfloat16 features, got torch.float64"):
        look(case.double())
    assert CorrelationPyramid(case.fmap1, case.fmap2).backend == "cuda"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda _=None: (7, 0))
        patch.setattr(launching, "_why_not", launching._why_not.__wrapped__)
        with pytest.raises(InputError, match=r"cuda: needs compute capability 7.5, got 7.0"):
            look(case)


@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_large_maps(motion: str) -> None:
    """Enough tiles for the persistent grid to go around, against a sample of pixels."""
    case = there(make_case((224, 320), batch=2, channels=64, levels=4, radius=4, motion=motion))
    got = look(case)
    rows = slice(100, 104)
    few = replace(case, fmap1=case.fmap1[:, :, rows].double(), coords=case.coords[:, :, rows].double())
    exact = look(replace(few, fmap2=case.fmap2.double()), backend="reference")
    assert_within(got[:, :, rows], exact, 1e-5 * float(exact.abs().max()), "rows")
