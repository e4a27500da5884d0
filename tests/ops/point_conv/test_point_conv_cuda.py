"""The point convolution's CUDA kernels against float64: on the emulator, and on a GPU what only that can tell.

The emulator does not show races between warps or the GPU's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from emulator import AMPERE, HOPPER, TURING, Emulator
from gpu_modes import no_waiting
from point_cases import draw, random_geometry, results
from torch import Tensor

from fullfield.ops import _launching
from fullfield.ops._launching import GpuProperties
from fullfield.ops.point_conv import (
    PointGeometry,
    explain_backends,
    point_conv,
    radius_geometry,
    triplet_geometry,
    triplets,
)
from fullfield.ops.point_conv import cuda as backend
from fullfield.ops.point_conv.cuda import config, launch
from fullfield.ops.point_conv.protocol import CONVOLUTIONS, ConvRequest
from fullfield.ops.point_conv.triplets import Triplets

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture
def machine(emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The backend "cuda" for tensors of the CPU, in memory that is poisoned and watched."""
    monkeypatch.setattr(backend, "explain_unsupported", lambda _: None)
    created = emulate(launch, gpu=HOPPER)
    emulate_as(monkeypatch, AMPERE)
    return created


def emulate_as(monkeypatch: pytest.MonkeyPatch, gpu: GpuProperties, bands: int | None = None) -> None:
    """``bands`` of 0: forms with wgmma for any number of rows."""
    for name in ("get_gpu_properties", "get_device_gpu_properties"):
        monkeypatch.setattr(_launching, name, lambda _: gpu)
    if bands is not None:
        monkeypatch.setattr(config, "_BANDS", bands)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells stand beside the words."""
    for module in (triplets, CONVOLUTIONS.load("cpu")):
        monkeypatch.setattr(module, "can_pack_index_and_cell", lambda columns, cells: False)  # noqa: ARG005


def weight_of_sums(geometry: PointGeometry, features: Tensor, grad: Tensor, groups: int) -> Tensor:
    """The weights' gradient, without signs, of those buckets that have more than one point."""
    i, j, k = geometry.triplets()
    bucket = i * geometry.cells + k
    size = geometry.center_count * geometry.cells
    sums = torch.zeros(size, features.shape[1], dtype=torch.float64).index_add_(0, bucket, features.double()[j])
    sums[torch.bincount(bucket, minlength=size) < 2] = 0
    sums = sums.abs().view(geometry.center_count, geometry.cells, groups, -1)
    grad = grad.double().abs().view(geometry.center_count, groups, -1)
    return torch.einsum("rkgi,rgo->kigo", sums, grad).flatten(2)


def check(
    geometry: PointGeometry,
    channels: tuple[int, int],
    groups: int,
    dtype: torch.dtype,
    operands: float = 0.0,
    bucket_sums: bool = False,
) -> list[Tensor]:
    """Everything against float64, within the rounding of results, of ``operands`` and of float32 sums.

    ``bucket_sums``: those of the weights' gradient are rounded, too.
    """
    tensors = draw(geometry, channels, groups, dtype)
    got = results(tensors, geometry, groups, "cuda")
    exact = results([t.double() for t in tensors], geometry, groups, "reference")
    for name, value, true in zip(("out", "features", "weight", "bias"), got, exact, strict=True):
        assert value.dtype == dtype
        scale = float(true.abs().max()) if true.numel() else 0.0
        eps = torch.finfo(dtype).eps
        distance = (value.double() - true).abs()
        allowed = eps * true.abs() + (2e-6 + operands) * scale
        if bucket_sums and name == "weight":
            allowed += 1.01 * eps / 2 * weight_of_sums(geometry, tensors[0], tensors[3], groups)
        assert bool((distance <= allowed).all()), f"{name}: {float((distance - allowed).max())}"
    return got


CHANNELS = [((3, 5), 1), ((64, 64), 1), ((17, 130), 1), ((1, 1), 1), ((32, 32), 32), ((12, 18), 6), ((8, 96), 2)]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("number", range(len(CHANNELS)))
def test_point_conv_cuda_emulated_matches_float64(number: int) -> None:
    check(random_geometry(45, 37, 400), *CHANNELS[number], (torch.float32, torch.bfloat16)[number % 2])


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("channels", "groups", "dtype"),
    [((64, 64), 1, torch.float16), ((17, 130), 1, torch.float32), ((12, 18), 6, torch.bfloat16)],
    ids=str,
)
def test_point_conv_on_turing_equals_reference(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, channels: tuple[int, int], groups: int
) -> None:
    emulate_as(monkeypatch, TURING)
    check(random_geometry(70, 50, 900), channels, groups, dtype)


@pytest.mark.usefixtures("machine")
def test_point_conv_turing_medium_precision_matches_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_as(monkeypatch, TURING)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    check(random_geometry(70, 50, 900), (24, 40), 1, torch.float32, operands=2.0**-11)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("mirrored", torch.float32), ("strided", torch.bfloat16), ("kernel 5", torch.float16)],
    ids=str,
)
def test_point_conv_cuda_of_clouds_equals_reference(machine: Emulator, kind: str, dtype: torch.dtype) -> None:
    """Several tiles, warps and segments; other orders of threads and of copies."""
    generator = torch.Generator().manual_seed(1)
    points = torch.rand(330, 3, generator=generator)
    offsets = torch.tensor([0, 200, 200, 330])
    if kind == "strided":
        centers = torch.tensor([0, 67, 67, 110])
        geometry = radius_geometry(points, 0.1, (3, 2, 4), points[::3], offsets=offsets, center_offsets=centers)
    else:
        geometry = radius_geometry(points, 0.1, 5 if kind == "kernel 5" else 3, offsets=offsets)
    sets = []
    for schedule, resident in ((0, 4), (3, 1)):
        machine.schedule, machine.resident = schedule, resident
        sets.append(check(geometry, (40, 24), 1, dtype))
    for one, two in zip(*sets, strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("precision", "operands"), [("high", 2.0**-11), ("medium", 2.0**-8)])
def test_point_conv_cuda_follows_matmul_precision(precision: str, operands: float) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        check(random_geometry(30, 30, 300), (20, 16), 1, torch.float32, 4 * operands)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("dtype", "tiles", "resident"),
    [(torch.bfloat16, 2, True), (torch.bfloat16, 2, False), (torch.bfloat16, 1, True), (torch.float32, 1, True)],
    ids=str,
)
def test_point_conv_cuda_forward_forms_are_equal(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tiles: int, resident: bool
) -> None:
    geometry = random_geometry(150, 80, 1500)
    tensors = draw(geometry, (40, 64 if tiles == 2 else 30), 1, dtype)
    columns, slabs = (64 if tiles == 2 else 32), 2

    def result(*form: Any) -> Tensor:
        monkeypatch.setattr(launch, "choose_multiply_variant", lambda *_: config.MultiplyVariant(columns, slabs, *form))
        launch._plan_multiply_launches.cache_clear()
        return results(tensors, geometry, 1, "cuda")[0]

    assert torch.equal(result(tiles, resident, 64, 1), result(1, False, 128, 3))
    launch._plan_multiply_launches.cache_clear()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("slabs", "cells", "dtype"),
    [(1, 8, torch.float16), (2, 2, torch.float32), (2, 1, torch.float16), (4, 4, torch.float32)],
    ids=str,
)
def test_point_conv_cuda_shared_rows_match_float64(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, slabs: int, cells: int
) -> None:
    geometry = random_geometry(50, 80, 900)
    variant = config.MultiplyVariant(64, 4, 1, False, 32 * slabs * cells, 1, slabs, cells)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "choose_multiply_variant", lambda *_: variant)
        launch._plan_multiply_launches.cache_clear()
        check(geometry, (128, 128), 1, dtype)
        if dtype == torch.float16:
            check(geometry, (128, 128), 2, dtype)
    launch._plan_multiply_launches.cache_clear()


def test_point_conv_cuda_shares_few_rows_only() -> None:
    def form(rows: int, channels: tuple[int, int] = (64, 64), dtype: torch.dtype = torch.float16) -> tuple[int, int]:
        request = ConvRequest(torch.device("cuda", 0), dtype, channels, 1, 27, rows, rows, 15 * rows)
        device = GpuProperties(0, "", "sm_80", 108, 163 << 10)
        actual = config.choose_multiply_variant(request, config.choose_operand_format(request, False), device)
        assert actual.threads % (32 * actual.warps_sharing_rows) == 0
        return actual.slab_parts, actual.cell_parts

    assert form(200, (512, 512)) == (16, 1)
    assert form(800, (256, 256)) == (8, 2)
    assert form(2_800, (128, 128)) == (4, 2)
    assert form(10_000) == (2, 2)
    assert form(40_000) == (1, 1)
    assert form(200, (512, 512), torch.float32) == (8, 1)


# The half precisions differ in the type that loads and products are told. float32 is multiplied in parts by the same
# kernel.
HOPPER_CASES = [
    ((136, 40), 1, torch.float16),
    ((96, 144), 2, torch.bfloat16),
    ((64, 64), 1, torch.float32),
    ((17, 130), 1, torch.float32),
    ((32, 32), 32, torch.bfloat16),
]


@pytest.mark.parametrize(("channels", "groups", "dtype"), HOPPER_CASES, ids=str)
def test_point_conv_hopper_equals_reference(
    machine: Emulator, monkeypatch: pytest.MonkeyPatch, channels: tuple[int, int], groups: int, dtype: torch.dtype
) -> None:
    """Three units of rows for two blocks, several rounds of the ring of weights; hundreds of triplets in a cell."""
    gpu = replace(HOPPER, processors=2)
    emulate_as(monkeypatch, gpu, bands=0)
    generator = torch.Generator().manual_seed(4)
    i, j, k = (torch.randint(maximum, (2000,), generator=generator) for maximum in (560, 280, 27))
    i[:500], k[:500] = 5, 3
    pairs = torch.unique(torch.stack((i, j)), dim=1)
    geometry = triplet_geometry(*pairs, k[: pairs.shape[1]], (560, 280), 3)
    wide = dtype != torch.float32 and min(channels) // groups > 32
    sets = []
    for schedule in (0, 3):
        machine.schedule = schedule
        sets.append(check(geometry, channels, groups, dtype, bucket_sums=wide))
    request = ConvRequest(torch.device("cuda", 0), dtype, channels, groups, 27, 560, 280, pairs.shape[1])
    operands = config.choose_operand_format(request, False)
    assert isinstance(config.choose_multiply_variant(request, operands, gpu), config.HopperMultiplyVariant)
    assert (
        isinstance(config.choose_outer_product_variant(request, operands, gpu), config.HopperOuterProductVariant)
        == wide
    )
    for one, two in zip(*sets, strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("machine", "beside")
def test_point_conv_hopper_accepts_empty_rows_and_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warpgroups and whole bands without triplets, weights that nobody takes, cells beside the words."""
    emulate_as(monkeypatch, HOPPER, bands=0)
    i = torch.tensor([3, 3, 3, 70, 600, 600, 699])
    j = torch.tensor([0, 4, 2, 9, 0, 1, 9])
    k = torch.tensor([0, 0, 341, 300, 7, 342, 256])
    geometry = triplet_geometry(i, j, k, (700, 10), 7)
    assert geometry.forward.cells.numel()
    channels, dtype = (64, 72), torch.bfloat16  # takes wgmma twice
    out = check(geometry, channels, 1, dtype)[0]
    assert torch.equal(out[400], draw(geometry, channels, 1, dtype)[2])


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("kind", ["kernel 5", "strided", "beside", "long rows"])
def test_point_conv_hopper_accepts_every_geometry(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Rows of more words than are looked at together, with and without the block's cells; more cells than a block's."""
    emulate_as(monkeypatch, HOPPER, bands=0)
    points = torch.rand(200, 3, generator=torch.Generator().manual_seed(6))
    if kind == "kernel 5":
        geometry = radius_geometry(points, 0.25, (5, 3, 4))
        assert int(geometry.forward.rows.diff().max()) > 64
    elif kind == "strided":
        geometry = radius_geometry(points, 0.1, 3, points[::3])
    elif kind == "beside":
        request.getfixturevalue("beside")
        geometry = random_geometry(60, 100, 2500, kernel=7)
        assert geometry.forward.cells.numel()
    else:
        centers = torch.tensor([[5.0, 5.0, 5.0], [0.5, 0.5, 0.5], [-5.0, 0.0, 0.0], [0.4, 0.5, 0.6]])
        geometry = radius_geometry(points, 0.4, centers=centers)
        assert geometry.forward.rows.diff().tolist()[::2] == [0, 0]
    dtype = torch.float16 if kind in ("kernel 5", "long rows") else torch.bfloat16
    check(geometry, (64, 72), 1, dtype, bucket_sums=True)


def test_point_conv_cuda_shared_segments_match_float64(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.bfloat16
    geometry = random_geometry(700, 300, 2500)
    tensors = draw(geometry, (64, 64), 1, dtype)
    exact = results([t.double() for t in tensors], geometry, 1, "reference")[2]
    fewer = replace(HOPPER, processors=15)
    emulate_as(monkeypatch, fewer, bands=0)
    monkeypatch.setattr(launch, "_COMMON_BYTES", 2 * 27 * 64 * 64 * 4)
    sets = []
    for schedule, resident in ((0, 4), (3, 8), (4, 2)):  # the last: blocks start in the opposite order
        machine.schedule, machine.resident = schedule, resident
        sets.append(check(geometry, (64, 64), 1, dtype, bucket_sums=True)[2])
    assert all(torch.equal(sets[0], other) for other in sets[1:])
    assert float((sets[0].double() - exact).norm() / exact.norm()) < torch.finfo(dtype).eps


@pytest.mark.usefixtures("machine")
def test_point_conv_cuda_sums_beyond_float16_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points in a cell, many, and more than are looked at together; the gradient itself is small."""
    emulate_as(monkeypatch, HOPPER, bands=0)
    generator = torch.Generator().manual_seed(5)
    centers = torch.cat((torch.randint(60, (700,), generator=generator), torch.full((90,), 17)))
    cells = torch.cat((torch.randint(5, (700,), generator=generator), torch.full((90,), 20)))
    pairs = torch.randperm(120, generator=generator)
    points = torch.cat((torch.randint(100, (700,), generator=generator), pairs[:90]))
    retained = torch.unique(torch.stack((centers, points)), dim=1, return_inverse=True)[1]
    first = torch.zeros(int(retained.max()) + 1, dtype=torch.long).scatter_(
        0, retained.flip(0), torch.arange(790).flip(0)
    )
    geometry = triplet_geometry(centers[first], points[first], cells[first], (60, 120), 3)
    features, weight, bias, grad = draw(geometry, (64, 64), 1, torch.float16)
    large = (20_000 + 40_000 * torch.rand(features.shape, generator=generator)) * features.sign()
    large[:, :20] = large[:, :20].abs()  # of one sign: sums of two are too large, too
    large[:, 40:44] = features[:, 40:44]  # beside small ones
    tensors = [large.half(), weight, bias, (grad * 1e-4).half()]
    inputs = tensors[0], tensors[3]
    request = ConvRequest(torch.device("cuda", 0), torch.float16, (64, 64), 1, 27, 60, 120, len(first))
    assert isinstance(
        config.choose_outer_product_variant(request, config.choose_operand_format(request, False), HOPPER),
        config.HopperOuterProductVariant,
    )
    actual = launch.sum_outer_products(request, *inputs, geometry.forward)
    exact = results([t.double() for t in tensors], geometry, 1, "reference")[2]
    buckets = weight_of_sums(geometry, *inputs, 1)
    assert float(exact.abs().max()) < 60_000
    i, j, k = geometry.triplets()
    sums = torch.zeros(60 * 27, 64, dtype=torch.float64).index_add_(0, i * 27 + k, inputs[0].double()[j])
    assert float(sums.abs().max()) > 16 * 65504
    distance = (actual.double() - exact).abs()
    eps = torch.finfo(torch.float16).eps
    assert bool((distance <= eps * exact.abs() + 1.01 * eps / 2 * buckets + 1e-3 * exact.abs().amax(2, True)).all())
    assert bool((distance[:, 40:44] <= 2e-3 * exact[:, 40:44].abs().max()).all())
    spoiled = tensors[0].clone()
    spoiled[int(points[first][0])] = torch.inf  # comes to an end
    assert not launch.sum_outer_products(request, spoiled, inputs[1], geometry.forward).isfinite().all()


@pytest.mark.parametrize("rows", [95_000, 1_000_000])
def test_point_conv_cuda_shares_memory_is_bounded(rows: int) -> None:
    device = replace(HOPPER, processors=132)
    request = ConvRequest(torch.device("cuda", 0), torch.bfloat16, (64, 64), 1, 27, rows, rows, 16 * rows)
    operands = config.choose_operand_format(request, False)
    variant = config.choose_outer_product_variant(request, operands, device)
    columns, cell_blocks = variant.halves, -(-27 // variant.cells)
    segments, slots, share = launch._choose_segments_slots_and_floats_per_slot(
        request, columns, cell_blocks, variant, device
    )
    assert slots * share * 4 <= 8 << 20
    assert segments * cell_blocks >= min(device.processors, rows // 32)


def test_point_conv_cuda_selects_mma_for_few_rows() -> None:
    def forms(rows: int, device: GpuProperties) -> set[str]:
        request = ConvRequest(torch.device("cuda", 0), torch.float16, (64, 64), 1, 27, rows, rows, 15 * rows)
        operands = config.choose_operand_format(request, False)
        actual = (
            config.choose_multiply_variant(request, operands, device),
            config.choose_outer_product_variant(request, operands, device),
        )
        return {type(variant).__name__ for variant in actual}

    large = replace(HOPPER, processors=132)
    assert forms(900_000, large) == {"HopperMultiplyVariant", "HopperOuterProductVariant"}
    assert forms(5_000, large) == {"MultiplyVariant", "OuterProductVariant"}
    assert forms(900_000, replace(large, arch="sm_90")) == {"MultiplyVariant", "OuterProductVariant"}
    assert forms(900_000, AMPERE) == {"MultiplyVariant", "OuterProductVariant"}


@pytest.mark.usefixtures("machine")
@pytest.mark.usefixtures("beside")
def test_point_conv_cuda_with_cells_across_bit_words() -> None:
    geometry = random_geometry(40, 50, 500, kernel=7)
    assert geometry.forward.cells.numel()
    check(geometry, (8, 8), 1, torch.bfloat16)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("sizes", [(0, 0), (4, 0), (0, 5), (4, 5)])
def test_point_conv_cuda_without_triplets_is_zero(sizes: tuple[int, int]) -> None:
    geometry = random_geometry(*sizes, 0)
    tensors = draw(geometry, (3, 4), 1, torch.float32)
    out, one, two, three = results(tensors, geometry, 1, "cuda")
    assert torch.equal(out, tensors[2].expand(sizes[0], 4))
    assert not one.any()
    assert not two.any()
    torch.testing.assert_close(three, tensors[3].sum(0))
    assert not point_conv(tensors[0], tensors[1], geometry, backend="cuda").any()


@pytest.mark.usefixtures("machine")
def test_point_conv_cuda_long_rows_match_float64() -> None:
    """Thousands of points in one cell of one centre; rows without any beside it."""
    points = torch.rand(3000, 3, generator=torch.Generator().manual_seed(2)) * 0.1
    centers = torch.tensor([[5.0, 5.0, 5.0], [0.05, 0.05, 0.05], [-5.0, 0.0, 0.0]])
    geometry = radius_geometry(points, 1.0, centers=centers)
    assert geometry.forward.rows.tolist() == [0, 0, 3000, 3000]
    for dtype in (torch.float32, torch.float16):
        check(geometry, (16, 16), 1, dtype)


@pytest.mark.usefixtures("machine")
def test_point_conv_cuda_nonfinite_values_stay_local() -> None:
    geometry = random_geometry(40, 30, 200)
    for dtype in (torch.float32, torch.bfloat16):
        features, weight, _, grad = draw(geometry, (16, 16), 1, dtype)
        clean = point_conv(features, weight, geometry, backend="cuda")
        features[7, 3], features[9, 1] = float("inf"), float("nan")
        got = point_conv(features, weight, geometry, backend="cuda")
        i, j, k = geometry.triplets()
        seen = torch.zeros(40, dtype=torch.bool)
        seen[i[(j == 7) | (j == 9)]] = True
        assert torch.equal(got[~seen], clean[~seen])
        assert not got[seen].isfinite().all(1).any()
        weights = torch.ops.fullfield.point_conv_weight(
            features, grad, *geometry.list_triplet_tensors_by_direction(), False, geometry.cells, 1, "cuda"
        )
        hit = torch.zeros(geometry.cells, dtype=torch.bool)
        hit[k[(j == 7) | (j == 9)]] = True
        assert weights[~hit].isfinite().all()
        assert not weights[hit].isfinite().flatten(1).all(1).any()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("power", [-60, 60])
def test_point_conv_cuda_float32_scales_any_magnitude(power: int) -> None:
    """Values become float16 only after scaling, whatever their size."""
    geometry = random_geometry(30, 30, 300)
    tensors = draw(geometry, (20, 16), 1, torch.float32)
    tensors[0] = tensors[0] * 2.0**power
    tensors[1] = tensors[1] * 2.0 ** (-power // 2)
    exact = results([t.double() for t in tensors], geometry, 1, "reference")
    for value, true in zip(results(tensors, geometry, 1, "cuda"), exact, strict=True):
        assert float((value.double() - true).abs().max()) <= 2e-6 * float(true.abs().max())


@pytest.mark.usefixtures("machine")
def test_point_conv_cuda_derivatives_equal_indexed_products() -> None:
    """Those of indexed products in float64, which share nothing with the operator."""
    geometry = random_geometry(4, 6, 15, kernel=2)
    tensors = draw(geometry, (2, 4), 2, torch.float32)
    i, j, k = geometry.triplets()

    def plain(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        products = torch.einsum("tgi,tigo->tgo", features[j].view(-1, 2, 1), weight[k].view(-1, 1, 2, 2))
        return bias.expand(4, 4).index_add(0, i, products.flatten(1))

    def ours(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return point_conv(features, weight, geometry, bias, 2, backend="cuda")

    def derivatives(convolve: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        features, weight, bias, grad = (t.to(dtype).requires_grad_() for t in tensors)
        out = convolve(features, weight, bias)
        first = torch.autograd.grad(out, (features, weight, bias), grad, create_graph=True)
        second = torch.autograd.grad(first, (features, weight, grad), [(t.detach() + 1).cos() for t in first])
        return tuple(actual.detach() for actual in (*first, *second))

    for got, exact in zip(derivatives(ours, torch.float32), derivatives(plain, torch.float64), strict=True):
        assert float((got.double() - exact).abs().max()) <= 1e-5 * float(exact.abs().max())


@pytest.mark.usefixtures("machine")
def test_point_conv_cuda_accepts_unaligned_rows() -> None:
    """Slices that begin anywhere give the same bits, and a bias that does not lie together."""
    geometry = random_geometry(20, 20, 150)
    features, weight, bias, _ = draw(geometry, (8, 8), 1, torch.bfloat16)
    moved = torch.zeros(20 * 8 + 3, dtype=torch.bfloat16)[3:].view(20, 8).copy_(features)
    assert moved.data_ptr() % 16
    apart = torch.stack((bias, -bias), 1)[:, 0]
    out = [point_conv(f, weight, geometry, b, backend="cuda") for f, b in ((features, bias), (moved, apart))]
    assert torch.equal(*out)


# ---- on a GPU


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
    return pytest.mark.gpu(skip(test))


def check_on_gpu(geometry: PointGeometry, channels: tuple[int, int], groups: int, dtype: torch.dtype) -> None:
    """Everything against float64, within the rounding of results and of float32 sums; the same bits twice."""
    tensors = draw(geometry, channels, groups, dtype)
    got, repeated = (results(tensors, geometry, groups, "cuda") for _ in range(2))
    exact = results([t.double() for t in tensors], geometry, groups, "reference")
    for name, value, twice, true in zip(("out", "features", "weight", "bias"), got, repeated, exact, strict=True):
        assert value.dtype == dtype
        assert torch.equal(value, twice), name
        check_close(value, true, name)


def check_close(value: Tensor, true: Tensor, name: str) -> None:
    # 16 bits are summed for as long as the tensor cores can; float32 in short sums.
    sums = 1e-5 if value.dtype == torch.float32 else 1e-4
    if name == "weight" and value.dtype != torch.float32:  # wgmma: a row's points in a cell are summed and rounded
        sums += torch.finfo(value.dtype).eps / 2
    distance = (value.double() - true).abs()
    scale = float(true.abs().max()) if true.numel() else 0.0
    allowed = torch.finfo(value.dtype).eps * true.abs() + sums * scale
    assert bool((distance <= allowed).all()), f"{name}: {float(distance.max())} of {scale}"


@cache
def surface(kernel: int | tuple[int, int, int] = 3, strided: bool = False) -> PointGeometry:
    """Of a bumpy surface: like a scan, neighbours in few of the cells."""
    generator = torch.Generator().manual_seed(0)
    xy = torch.rand(20_000, 2, generator=generator)
    z = 0.05 * torch.sin(9 * xy[:, :1]) + 0.01 * torch.rand(20_000, 1, generator=generator)
    points = torch.cat([xy, z], 1).cuda()
    return radius_geometry(points, 0.012, kernel, points[::3].contiguous() if strided else None)


@on_gpu
@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("channels", "groups"),
    [((64, 64), 1), ((64, 128), 1), ((3, 64), 1), ((17, 130), 1), ((32, 32), 32), ((48, 96), 2), ((256, 256), 1)],
    ids=str,
)
def test_point_conv_on_gpu_matches_float64(dtype: torch.dtype, channels: tuple[int, int], groups: int) -> None:
    check_on_gpu(surface(), channels, groups, dtype)


@pytest.fixture(params=[1, 0], ids=["forms by size", "wgmma where it can be"])
def _bands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few rows take mma.sync; the forms with wgmma are for many, but right for any."""
    monkeypatch.setattr(config, "_BANDS", request.param)
    for plan in (launch._plan_multiply_launches, launch._plan_outer_product_launches):
        plan.cache_clear()
    yield
    for plan in (launch._plan_multiply_launches, launch._plan_outer_product_launches):
        plan.cache_clear()


@on_gpu
@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [1, 2, (3, 1, 5), 5, 7])
def test_point_conv_on_gpu_every_kernel_size_matches_float64(
    dtype: torch.dtype, kernel: int | tuple[int, int, int]
) -> None:
    check_on_gpu(surface(kernel, True), (24, 40), 1, dtype)


@on_gpu
@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_point_conv_on_gpu_random_triplets_match_float64(dtype: torch.dtype) -> None:
    check_on_gpu(random_geometry(500, 300, 20_000).to("cuda"), (64, 64), 1, dtype)
    for sizes in ((0, 0), (4, 0), (0, 5), (4, 5)):
        check_on_gpu(random_geometry(*sizes, 0).to("cuda"), (3, 4), 1, dtype)


def many(points: int, each: int) -> PointGeometry:
    """``each`` triplets for every point, without a search."""
    index = torch.arange(points, device="cuda").repeat_interleave(each)
    step = torch.arange(each, device="cuda").repeat(points)
    return triplet_geometry(index, (index + step * 3) % points, (index + step) % 27, (points, points))


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_point_conv_on_gpu_peak_memory_is_bounded(dtype: torch.dtype) -> None:
    """Results, weights in the kernels' order and the gradient's shares; nothing of triplets times channels."""
    geometry = many(100_000, 30)
    features, weight, _, grad = draw(geometry, (64, 64), 1, dtype)
    inputs = (features.requires_grad_(), weight.requires_grad_())
    torch.autograd.grad(point_conv(*inputs, geometry), inputs, grad)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    got = torch.autograd.grad(point_conv(*inputs, geometry), inputs, grad)
    torch.cuda.synchronize()
    grown = torch.cuda.max_memory_allocated() - before
    results = features.nbytes + got[0].nbytes + got[1].nbytes
    assert grown <= results + (64 << 20) + 4 * weight.nbytes, f"{grown >> 20} MiB"


@on_gpu
@pytest.mark.alone
@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("_bands", [1, 1 << 30], indirect=True, ids=["forms by size", "mma.sync"])
def test_point_conv_on_gpu_accepts_offsets_beyond_2_31() -> None:
    """Elements of features and of results beyond 2^31."""
    if torch.cuda.mem_get_info()[0] < 60 << 30:
        pytest.skip("needs 60 GiB of free memory")
    small = surface()
    copies = (1 << 31) // (small.points * 64) + 2
    far = small.points * copies
    shift = (copies - 1) * small.points
    features, weight, _, _ = draw(small, (64, 64), 1, torch.bfloat16)
    wide = torch.zeros(far, 64, dtype=torch.bfloat16, device="cuda")
    wide[shift:] = features
    rows = torch.cat([torch.zeros(shift, dtype=torch.int64, device="cuda"), small.forward.rows])
    moved = small.forward.entries + shift
    geometry = PointGeometry(
        Triplets(rows, moved, small.forward.cells), None, True, (3, 3, 3), far, *([torch.tensor([0, far])] * 2)
    )
    assert far * 64 > 1 << 31
    out = point_conv(wide, weight, geometry, backend="cuda")
    # Not against the kernels on the small cloud: fewer rows are multiplied in another form, with another order of sums.
    check_close(out[shift:], point_conv(features.double(), weight.double(), small, backend="reference"), "out")
    assert not out[:shift].any()
    grad = torch.ops.fullfield.point_conv_weight(
        wide, out, *geometry.list_triplet_tensors_by_direction(), True, 27, 1, "cuda"
    )
    near = (features.double(), out[shift:].double())
    true = torch.ops.fullfield.point_conv_weight(
        *near, *small.list_triplet_tensors_by_direction(), True, 27, 1, "reference"
    )
    assert float((grad.double() - true).abs().max()) <= 0.01 * float(true.abs().max())


@on_gpu
def test_point_conv_on_gpu_works_in_streams_and_graphs() -> None:
    geometry = surface()
    features, weight, bias, _ = draw(geometry, (64, 64), 1, torch.bfloat16)
    expected = point_conv(features, weight, geometry, bias)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        aside = point_conv(features, weight, geometry, bias)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(aside, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = point_conv(features, weight, geometry, bias)
    features.copy_(torch.randn_like(features))
    graph.replay()
    assert torch.equal(out, point_conv(features, weight, geometry, bias))


@on_gpu
def test_point_conv_cuda_does_not_synchronize() -> None:
    geometry = surface()
    for dtype in DTYPES:
        tensors = draw(geometry, (64, 64), 1, dtype)
        results(tensors, geometry, 1, "cuda")
        with no_waiting():
            results(tensors, geometry, 1, "cuda")


@on_gpu
def test_point_conv_on_gpu_chooses_cuda() -> None:
    assert explain_backends("cuda")[0] == ("cuda", None)
    geometry = random_geometry(40, 30, 300).to("cuda")
    tensors = draw(geometry, (16, 16), 1, torch.float32)
    assert torch.equal(point_conv(*tensors[:2], geometry), point_conv(*tensors[:2], geometry, backend="cuda"))


@on_gpu
def test_point_conv_on_gpu_compiles_without_graph_break() -> None:
    geometry = surface()
    features, weight, bias, _ = draw(geometry, (16, 16), 1, torch.bfloat16)
    run = torch.compile(point_conv, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(features, weight, geometry, bias), point_conv(features, weight, geometry, bias))
