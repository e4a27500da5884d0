"""Gradients of the GPU kernels: accuracy, sums over lookups that move, the same bits in every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from fullfield.testing.correlation import Case, assert_within, budget, make_case, rounded, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Rounding of the window gradients before they are multiplied with the features.
ROUNDING = {torch.float32: 2.0**-22, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def there(case: Case) -> Case:
    return replace(case, fmap1=case.fmap1.cuda(), fmap2=case.fmap2.cuda(), coords=case.coords.cuda())


def weights(case: Case, count: int = 1, seed: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    channels = case.levels * (2 * case.radius + 1) ** 2
    shape = (case.coords.shape[0], channels, *case.coords.shape[2:])
    return [torch.randn(shape, generator=generator).cuda() for _ in range(count)]


def gradients(
    case: Case, shifts: Sequence[float], grads: Sequence[Tensor], dtype: torch.dtype, backend: str = "cuda"
) -> tuple[Tensor, ...]:
    """Of both maps, from lookups of one pair at positions that are shifted as given."""
    maps = [m.to("cuda", dtype).requires_grad_() for m in (case.fmap1, case.fmap2)]
    pair = CorrelationPyramid(*maps, case.levels, case.radius, backend=backend)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    outs = [pair(case.coords.to("cuda", exact) + shift) for shift in shifts]
    return torch.autograd.grad(outs, maps, [g.to(out) for g, out in zip(grads, outs, strict=True)])


# Within the patch kept for each pixel, just beyond it, and far away.
SHIFTS = {"still": [0.0, 0.2, 0.4], "drifting": [0.0, 0.7, 1.6, 2.4, 3.1], "jumping": [0.0, 25.0, -11.3, 300.0, 0.1]}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("motion", ["smooth", "random"])
@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=SHIFTS)
@pytest.mark.parametrize(
    ("size1", "size2", "batch", "channels", "levels", "radius"),
    [
        ((17, 33), (10, 40), 2, 67, 4, 4),
        ((48, 72), (48, 72), 1, 256, 4, 4),
        ((5, 18), (19, 21), 1, 600, 2, 2),
        ((3, 50), (3, 50), 1, 16, 2, 8),
        ((8, 8), (5, 3), 3, 130, 8, 1),
    ],
)
def test_sums_of_lookups_that_move(
    dtype: torch.dtype,
    motion: str,
    shifts: list[float],
    size1: tuple[int, int],
    size2: tuple[int, int],
    batch: int,
    channels: int,
    levels: int,
    radius: int,
) -> None:
    case = make_case(size1, size2, batch=batch, channels=channels, levels=levels, radius=radius, motion=motion)
    case = rounded(case, dtype)
    grads = weights(case, len(shifts))
    exact = gradients(case, shifts, grads, torch.float64, "reference")
    # In 16 bits plain PyTorch pools with rounding, the kernels without: float32's error and the result's rounding.
    eager = gradients(case, shifts, grads, torch.float32, "reference")
    got = gradients(case, shifts, grads, dtype)
    for name, value, true, plain in zip(("fmap1", "fmap2"), got, exact, eager, strict=True):
        pooled = 4 if dtype != torch.float32 else 0  # levels rounded once more
        allowed = budget(plain, true, dtype) + (2 + pooled) * ROUNDING[dtype] * float(true.abs().max())
        assert_within(value, true, allowed, name)


def test_float32_is_float32() -> None:
    """At "highest" no worse than plain PyTorch in float32, over gradients of very different sizes."""
    case = make_case((40, 56), channels=192, levels=4, radius=4)
    grads = weights(case, 3)
    for grad in grads:
        grad[..., :28] *= 1e-6
    exact = gradients(case, [0.0, 0.6, 4.0], grads, torch.float64, "reference")
    eager = gradients(case, [0.0, 0.6, 4.0], grads, torch.float32, "reference")
    got = gradients(case, [0.0, 0.6, 4.0], grads, torch.float32)
    for value, true, plain in zip(got, exact, eager, strict=True):
        assert_within(value, true, budget(plain, true, torch.float32), "gradient")
    # Where everything is small the errors are small too.
    corner = (..., slice(None), slice(0, 8))
    assert_within(got[0][corner], exact[0][corner], 1e-5 * float(exact[0][corner].abs().max()), "small gradients")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("motion", ["smooth", "random"])
def test_the_same_bits_in_every_run(dtype: torch.dtype, motion: str) -> None:
    case = make_case((120, 160), motion=motion, channels=64, levels=4, radius=4)
    grads = weights(case, 4)
    torch.use_deterministic_algorithms(True)
    try:
        first = gradients(case, [0.0, 0.5, 30.0, 31.0], grads, dtype)
        for _ in range(3):
            again = gradients(case, [0.0, 0.5, 30.0, 31.0], grads, dtype)
            assert torch.equal(first[0], again[0])
            assert torch.equal(first[1], again[1])
    finally:
        torch.use_deterministic_algorithms(False)


def test_forgotten_marks_would_show() -> None:
    """Multiplying out is what makes lookups that jump add up."""
    from fullfield.ops.correlation.cuda import launch_backward

    case = make_case((24, 40), channels=32, levels=2, radius=3)
    grads = weights(case, 2)
    exact = gradients(case, [0.0, 20.0], grads, torch.float64, "reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_backward, "ADD", launch_backward.FIRST_LOOKUP)
        got = gradients(case, [0.0, 20.0], grads, torch.float32)
    with pytest.raises(AssertionError, match="off by"):
        assert_within(got[0], exact[0], 1e-2 * float(exact[0].abs().max()), "fmap1")


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_only_one_map_requires_its_gradient(wanted: tuple[bool, bool]) -> None:
    case = there(make_case())
    (weight,) = weights(case)
    expected = run(case, weight, backend="cuda", dtype=torch.float32)
    maps = [m.detach().requires_grad_(w) for m, w in zip((case.fmap1, case.fmap2), wanted, strict=True)]
    pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda")
    outs = [pair(case.coords), pair(case.coords + 40), pair(case.coords)]
    zero = torch.zeros_like(weight)
    (got,) = torch.autograd.grad(outs, [m for m in maps if m.requires_grad], [weight, zero, zero])
    assert_within(got, expected.fmap1 if wanted[0] else expected.fmap2, 1e-5, "gradient")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_coordinates_alone_require_their_gradient(dtype: torch.dtype) -> None:
    case = rounded(make_case((9, 21), channels=70, levels=4, radius=4), dtype)
    (weight,) = weights(case)
    exact = run(case, weight.cpu(), backend="reference")
    case = there(case)
    coords = case.coords.clone().requires_grad_()
    pair = CorrelationPyramid(case.fmap1.to(dtype), case.fmap2.to(dtype), case.levels, case.radius, backend="cuda")
    for layout in (torch.contiguous_format, torch.channels_last):
        (got,) = torch.autograd.grad(pair(coords), coords, weight.to(memory_format=layout))
        eps = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert_within(got, exact.coords, eps * float(exact.coords.abs().max()), "coords")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_incoming_gradients_of_any_dtype_and_layout(dtype: torch.dtype) -> None:
    case = there(make_case((20, 30), channels=40, levels=3))
    maps = [m.requires_grad_() for m in (case.fmap1, case.fmap2)]
    (weight,) = weights(case)
    weight = weight.to(dtype)
    expected = torch.autograd.grad(
        CorrelationPyramid(*maps, case.levels, case.radius, backend="reference")(case.coords), maps, weight.float()
    )
    for layout in (torch.contiguous_format, torch.channels_last):
        pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda", out_dtype=dtype)
        got = torch.autograd.grad(pair(case.coords), maps, weight.contiguous(memory_format=layout))
        for a, b in zip(got, expected, strict=True):
            assert_within(a, b, 1e-5 * float(b.abs().max()), "gradient")
    # One number for all taps: no strides at all.
    pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda")
    got = torch.autograd.grad(pair(case.coords).sum(), maps)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in got)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_unusable_coordinates_take_no_gradient(bad: float) -> None:
    case = there(make_case((16, 24), channels=32))
    maps = [m.requires_grad_() for m in (case.fmap1, case.fmap2)]
    (weight,) = weights(case)
    weight[..., 5, 7] = float("nan")
    coords = case.coords.clone()
    coords[..., 5, 7] = bad
    pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda")
    got = torch.autograd.grad([pair(coords), pair(coords + 30)], maps, [weight, weight])
    assert all(g.isfinite().all() for g in got)
    assert not got[0][..., 5, 7].any()


def test_a_gradient_that_is_not_finite_stays_near() -> None:
    """It reaches its pixel, the positions of its window, and nothing else."""
    case = there(make_case((24, 48), channels=32, levels=1, radius=3, batch=1))
    maps = [m.requires_grad_() for m in (case.fmap1, case.fmap2)]
    (weight,) = weights(case)
    weight[0, 10, 12, 20] = float("nan")
    pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda")
    first, second = torch.autograd.grad(pair(case.coords), maps, weight)
    spoilt = first.isnan().any(1)[0]
    assert spoilt[12, 20]
    assert int(spoilt.sum()) == 1
    assert 0 < int(second.isnan().any(1).sum()) <= 4


def test_gradients_of_many_lookups_add_up() -> None:
    case = there(make_case((20, 30), channels=40, levels=3))
    (weight,) = weights(case)
    maps = [m.requires_grad_() for m in (case.fmap1, case.fmap2)]
    pair = CorrelationPyramid(*maps, case.levels, case.radius, backend="cuda")
    outs = [pair(case.coords + 0.37 * i) for i in range(5)]
    got = torch.autograd.grad(outs, maps, [weight] * 5, retain_graph=True)
    parts = [torch.autograd.grad(out, maps, weight, retain_graph=True) for out in outs]
    for a, b in zip(got, (sum(p) for p in zip(*parts, strict=True)), strict=True):
        assert_within(a, b, 1e-5 * float(b.abs().max()), "gradient")
