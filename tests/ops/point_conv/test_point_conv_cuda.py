"""The CUDA backend on a GPU: against float64, memory, streams, graphs, sizes that the emulator cannot reach."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from point_cases import random_geometry
from torch import Tensor

from fullfield.ops.point_conv import PointGeometry, Triplets, backends, point_conv, radius_geometry, triplet_geometry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def draw(geometry: PointGeometry, channels: tuple[int, int], groups: int, dtype: torch.dtype) -> list[Tensor]:
    """Features, weight, bias, gradient."""
    generator = torch.Generator("cuda").manual_seed(3)
    shapes = (
        (geometry.points, channels[0]),
        (geometry.cells, channels[0] // groups, channels[1]),
        (channels[1],),
        (geometry.centers, channels[1]),
    )
    return [torch.randn(shape, generator=generator, device="cuda").to(dtype) for shape in shapes]


def results(tensors: list[Tensor], geometry: PointGeometry, groups: int, name: str) -> list[Tensor]:
    inputs = [t.detach().clone().requires_grad_() for t in tensors[:3]]
    out = point_conv(inputs[0], inputs[1], geometry, inputs[2], groups, backend=name)
    return [out.detach(), *torch.autograd.grad(out, inputs, tensors[3])]


def check(geometry: PointGeometry, channels: tuple[int, int], groups: int, dtype: torch.dtype) -> None:
    """Everything against float64, within the rounding of results and of float32 sums; the same bits twice."""
    tensors = draw(geometry, channels, groups, dtype)
    got, again = (results(tensors, geometry, groups, "cuda") for _ in range(2))
    exact = results([t.double() for t in tensors], geometry, groups, "reference")
    for name, value, twice, true in zip(("out", "features", "weight", "bias"), got, again, exact, strict=True):
        assert value.dtype == dtype
        assert torch.equal(value, twice), name
        check_close(value, true, name)


def check_close(value: Tensor, true: Tensor, name: str) -> None:
    # 16 bits are summed for as long as the tensor cores can; float32 in short sums.
    sums = 1e-5 if value.dtype == torch.float32 else 1e-4
    if name == "weight" and value.dtype != torch.float32:  # wgmma: a row's points in a cell are summed and rounded
        sums += torch.finfo(value.dtype).eps / 2
    away = (value.double() - true).abs()
    scale = float(true.abs().max()) if true.numel() else 0.0
    allowed = torch.finfo(value.dtype).eps * true.abs() + sums * scale
    assert bool((away <= allowed).all()), f"{name}: {float(away.max())} of {scale}"


@cache
def surface(kernel: int | tuple[int, int, int] = 3, strided: bool = False) -> PointGeometry:
    """Of a bumpy surface: like a scan, neighbours in few of the cells."""
    generator = torch.Generator().manual_seed(0)
    xy = torch.rand(20_000, 2, generator=generator)
    z = 0.05 * torch.sin(9 * xy[:, :1]) + 0.01 * torch.rand(20_000, 1, generator=generator)
    points = torch.cat([xy, z], 1).cuda()
    return radius_geometry(points, 0.012, kernel, points[::3].contiguous() if strided else None)


@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("channels", "groups"),
    [((64, 64), 1), ((64, 128), 1), ((3, 64), 1), ((17, 130), 1), ((32, 32), 32), ((48, 96), 2), ((256, 256), 1)],
    ids=str,
)
def test_within_float64_budget(dtype: torch.dtype, channels: tuple[int, int], groups: int) -> None:
    check(surface(), channels, groups, dtype)


@pytest.fixture(params=[1, 0], ids=["forms by size", "wgmma where it can be"])
def _bands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few rows take mma.sync; the forms with wgmma are for many, but right for any."""
    from fullfield.ops.point_conv.cuda import config, launch

    monkeypatch.setattr(config, "_BANDS", request.param)
    for plan in (launch._multiply_plan, launch._outer_plan):
        plan.cache_clear()
    yield
    for plan in (launch._multiply_plan, launch._outer_plan):
        plan.cache_clear()


@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [1, 2, (3, 1, 5), 5, 7])
def test_kernels_and_strides(dtype: torch.dtype, kernel: int | tuple[int, int, int]) -> None:
    check(surface(kernel, True), (24, 40), 1, dtype)


@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_triplets(dtype: torch.dtype) -> None:
    check(random_geometry(500, 300, 20_000).to("cuda"), (64, 64), 1, dtype)
    for sizes in ((0, 0), (4, 0), (0, 5), (4, 5)):
        check(random_geometry(*sizes, 0).to("cuda"), (3, 4), 1, dtype)


def many(points: int, each: int) -> PointGeometry:
    """``each`` triplets for every point, without a search."""
    index = torch.arange(points, device="cuda").repeat_interleave(each)
    step = torch.arange(each, device="cuda").repeat(points)
    return triplet_geometry(index, (index + step * 3) % points, (index + step) % 27, (points, points))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_peak_memory(dtype: torch.dtype) -> None:
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


@pytest.mark.alone
@pytest.mark.usefixtures("_bands")
@pytest.mark.parametrize("_bands", [1, 1 << 30], indirect=True, ids=["forms by size", "mma.sync"])
def test_offsets_past_two_to_the_31() -> None:
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
    grad = torch.ops.fullfield.point_conv_weight(wide, out, *geometry.directions(), True, 27, 1, "cuda")
    near = (features.double(), out[shift:].double())
    true = torch.ops.fullfield.point_conv_weight(*near, *small.directions(), True, 27, 1, "reference")
    assert float((grad.double() - true).abs().max()) <= 0.01 * float(true.abs().max())


def test_streams_and_graphs() -> None:
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


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, whatever waits for the device raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype: an error would leave it on
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_no_synchronisation() -> None:
    geometry = surface()
    for dtype in DTYPES:
        tensors = draw(geometry, (64, 64), 1, dtype)
        results(tensors, geometry, 1, "cuda")
        with no_waiting():
            results(tensors, geometry, 1, "cuda")


def test_the_kernel_is_chosen() -> None:
    assert backends("cuda")[0] == ("cuda", None)
    geometry = random_geometry(40, 30, 300).to("cuda")
    tensors = draw(geometry, (16, 16), 1, torch.float32)
    assert torch.equal(point_conv(*tensors[:2], geometry), point_conv(*tensors[:2], geometry, backend="cuda"))


def test_compiled_without_a_break() -> None:
    geometry = surface()
    features, weight, bias, _ = draw(geometry, (16, 16), 1, torch.bfloat16)
    run = torch.compile(point_conv, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(features, weight, geometry, bias), point_conv(features, weight, geometry, bias))
