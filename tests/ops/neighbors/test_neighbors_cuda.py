"""The CUDA kernels of points, on the emulator and on a GPU: what the search's bits alone do not show."""

from __future__ import annotations

import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from cloud_cases import cloud, places, same, surface, without_gpu
from emulator import Emulator
from torch import Tensor

from benchmarks.cases.points import listing as points_listing
from fullfield import InputError
from fullfield._kernels.nvrtc import KernelSource
from fullfield._kernels.structures import CStructures
from fullfield.io import read_point_cloud
from fullfield.models.pointcnnpp import PointPyramid
from fullfield.ops import _launching
from fullfield.ops.neighbors import cuda as neighbors
from fullfield.ops.neighbors import downsampling, explain_backends, grid_downsample, knn_search, radius_search
from fullfield.ops.neighbors import reference as neighbors_by_brute_force
from fullfield.ops.neighbors.downsampling import check_and_downsample_repeatedly
from fullfield.ops.neighbors.ragged import check_shape_and_build_cloud
from fullfield.ops.point_conv import (
    PointGeometry,
    knn_geometry,
    point_conv,
    point_pool,
    radius_geometry,
    reference,
    triplet_geometry,
    voxel_geometry,
)
from fullfield.ops.point_conv import cuda as conv_kernels
from fullfield.ops.point_conv import triplets as packing
from fullfield.ops.point_conv.cuda import pooling, triplets

emulated = pytest.mark.usefixtures("machine")


def gpu(test: Any) -> Any:
    return pytest.mark.gpu(without_gpu(test))


def alike(found: PointGeometry, right: PointGeometry) -> bool:
    directions = zip(found.list_triplet_tensors_by_direction(), right.list_triplet_tensors_by_direction(), strict=True)
    return all(torch.equal(a.cpu(), b.cpu()) for one, two in directions for a, b in zip(one, two, strict=True))


def check_radius(points: Tensor, radius: float) -> None:
    assert same(*(radius_search(points, radius, backend=name) for name in ("cuda", "reference")))


def check_knn(points: Tensor, k: int, queries: Tensor | None = None) -> None:
    assert same(*(knn_search(points, k, queries, backend=name) for name in ("cuda", "reference")))


@emulated
def test_radius_search_sorts_rows_of_every_length() -> None:
    """At most 32 neighbours, what fits shared memory, and more: each is sorted elsewhere."""
    points = torch.cat([cloud(40, 1, 0.3), cloud(200, 2, 0.2) + 5, cloud(400, 3, 0.1) - 5])
    actual = radius_search(points, 1.0, backend="cuda")
    assert set(actual.offsets.diff().tolist()) == {40, 200, 400}
    check_radius(points, 1.0)


@emulated
@pytest.mark.parametrize("k", [33, 70, 300])
def test_knn_search_many_neighbors_equals_reference(k: int) -> None:
    check_knn(cloud(200), k, cloud(5, seed=2))


@emulated
def test_neighbors_cuda_tree_of_three_levels() -> None:
    check_knn(surface(33 * 33 * 3), 4, surface(40, seed=9))


@emulated
def test_radius_search_shared_buckets_equal_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "_count_table_slots", lambda _: 64)
    check_radius(surface(300), 0.1)


@emulated
def test_run_radius_searches_equals_single_searches() -> None:
    """Those in the same points with the same radius share their buckets."""
    points, offsets, none = surface(300), torch.tensor([0, 300]), torch.zeros(0, 3)
    split_offsets = torch.tensor([0, 100, 300])
    searches = [
        (points, points, offsets, offsets, 0.1),
        (points, points[::3].contiguous(), offsets, torch.tensor([0, 100]), 0.1),
        (points, points, split_offsets, split_offsets, 0.1),
        (points, points, offsets, offsets, 0.2),
        (points[:100], points[:100], torch.tensor([0, 100]), torch.tensor([0, 100]), 0.1),
        (points, none, offsets, torch.tensor([0, 0]), 0.1),
    ]
    for actual, search in zip(neighbors.run_radius_searches(searches), searches, strict=True):
        right = neighbors_by_brute_force.radius_search(*search)
        assert all(torch.equal(a, b) for a, b in zip(actual, right, strict=True))
    assert neighbors.run_radius_searches([]) == []


_SUMS = """
struct SumParams {
    const int *numbers;
    i64 *out;
    u64 *passed;
    i64 *ends;
    i64 count;
};
extern "C" __global__ void __launch_bounds__(256) sum_up(const __grid_constant__ SumParams p) {
    i64 block;
    const i64 end = running_sums(p.numbers, p.out, p.count, p.passed, block);
    if (threadIdx.x == 0) p.ends[block] = end;
}
"""
_Sums = CStructures(_SUMS)["SumParams"]
_OWN, _WHOLE = 1 << 62, -(1 << 63)  # as batches.cuh marks a block's own sum and the sum up to a block


def sums(machine: Emulator, numbers: Tensor, passed: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """What `running_sums` writes, and what its blocks return; both begin as -1."""
    source = KernelSource(_launching.read_source(_launching.HALVES, _launching.BATCHES) + _SUMS)
    out, ends = torch.full((len(numbers),), -1), torch.full((len(passed),), -1)
    params = _Sums(*map(_launching.get_address, (numbers, out, passed, ends)), len(numbers))
    _launching.load_kernels(machine, source, 0).launch("sum_up", blocks, 256, params)  # type: ignore[arg-type]
    return out, ends


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 2047, 2048, 2049, 40 * 2048 + 5])
def test_prefix_sums_equal_cumsum(machine: Emulator, count: int, schedule: int) -> None:
    machine.schedule = schedule
    numbers = torch.randint(0, 2**31, (count,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    blocks = max(1, -(-count // 2048))
    passed = torch.zeros(1 + blocks, dtype=torch.int64)
    out, ends = sums(machine, numbers, passed, blocks)
    right = numbers.to(torch.int64).cumsum(0)  # beyond 2^31
    assert torch.equal(out, right)
    assert int(ends[blocks - 1]) == (int(right[-1]) if count else 0)
    assert passed[0] == blocks
    assert torch.equal(passed[1:] - _WHOLE, ends[:blocks])


@pytest.mark.parametrize("own", [0, 1, 31, 32, 33, 70])
def test_downsampling_sums_are_bounded_by_block(machine: Emulator, own: int) -> None:
    """Each reads words until one holds all before it. Were there more to read, work would grow with the blocks squared:
    the words before that one are wrong here. What lies between are blocks' own sums."""
    block, before = 100, 3 << 40
    numbers = torch.arange(block * 2048 + 300, dtype=torch.int32)
    passed = torch.full((block + 2,), _OWN | 1 << 50)
    passed[0] = block  # have begun
    nearest = block - 1 - own
    passed[1 + nearest] = _WHOLE | before
    passed[2 + nearest : 1 + block] = _OWN | 5
    passed[1 + block] = 0
    out, ends = sums(machine, numbers, passed, 1)
    start = block * 2048
    assert torch.equal(out[start:], before + 5 * own + numbers[start:].to(torch.int64).cumsum(0))
    assert bool((out[:start] == -1).all())
    assert int(passed[1 + block] - _WHOLE) == int(ends[block]) == int(out[-1])


def test_grid_downsample_launches_expected_kernels(machine: Emulator) -> None:
    """Buckets, row offsets, rows of the other side, points that stay."""
    points = surface(2500)
    machine.launched.clear()
    actual = radius_search(points, 0.05, backend="cuda")
    assert sorted(machine.launched) == sorted(
        ["count_points", "start_buckets", "place_points", "count_neighbors", "start_rows", "write_neighbors"]
    )
    machine.launched.clear()
    triplets.transpose_triplets(
        triplets.build_triplets((actual.offsets, actual.indices), points, points, 0.03, (3, 3, 3)), 2500, 27
    )
    assert sorted(machine.launched) == sorted(
        ["assemble_rows", "count_entries", "start_rows", "scatter_entries", "sort_rows"]
    )
    machine.launched.clear()
    grid_downsample(points, 0.05)
    assert sorted(machine.launched) == ["choose_points", "claim_cells", "keep_points"]


@emulated
def test_neighbors_sums_of_several_blocks_equal_reference() -> None:
    """More numbers than a block sums: buckets, row offsets, points that stay, rows of the other side."""
    points = surface(2500)
    check_radius(points, 0.02)
    actual = radius_search(points, 0.05, backend="cuda")
    inputs = ((actual.offsets, actual.indices), points, points, 0.03, (3, 3, 3))
    created = triplets.build_triplets(*inputs)
    assert same(triplets.transpose_triplets(created, 2500, 27), reference.transpose_triplets(created, 2500, 27))


@emulated
def test_chained_downsampling_equals_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    points, offsets = surface(5000), torch.tensor([0, 1700, 1700, 5000])
    for clouds in (None, offsets):
        cells = [0.02, 0.04, 0.3]
        first, actual = check_and_downsample_repeatedly(check_shape_and_build_cloud(points, clouds), cells)
        assert first.max_magnitude == float(points.abs().max())
        monkeypatch.setattr(downsampling, "_CHAINED", 3000)  # the first waits, the others do not
        _, repeated = check_and_downsample_repeatedly(check_shape_and_build_cloud(points, clouds), cells)
        for one, two, cell in zip(actual, repeated, cells, strict=True):
            right = grid_downsample(first.points, cell, offsets=first.offsets)
            with monkeypatch.context() as patch:
                patch.setattr(neighbors, "explain_unsupported", lambda _: "not now")
                plain = grid_downsample(first.points, cell, offsets=first.offsets)
            for direction in (one, two):
                for retained in (direction.kept, right.indices):
                    assert torch.equal(retained, plain.indices)
                assert torch.equal(direction.cloud.offsets, plain.offsets)
                assert torch.equal(direction.cloud.points, first.points[plain.indices])
            first = one.cloud


@emulated
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_radius_search_refuses_nonfinite_coordinates(bad: float) -> None:
    points = surface(400)
    points[7, 1] = points[390, 2] = bad
    with pytest.raises(
        InputError, match=r"^points: expected finite coordinates, 2 of 400 points have NaN or infinity$"
    ):
        PointPyramid.build(points, 0.1, 3, [(0, 1, 3)])


@emulated
def test_radius_search_keeps_buckets_until_indices_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The indices' memory is asked for last; it must not be that of the buckets, which are still to be read."""
    created: list[weakref.ref[object]] = []
    fill, finish = (
        neighbors._CellTables.allocate_and_fill_tables,
        neighbors._RadiusSearchLaunch.write_indices_and_get_neighbors,
    )

    def filling(*arguments: Any) -> Any:
        tables = fill(*arguments)
        created.extend(weakref.ref(table) for table in tables)
        return tables

    def finishing(searches: Any, totals: Any) -> Any:
        assert created
        assert all(table() is not None for table in created)
        return finish(searches, totals)

    monkeypatch.setattr(neighbors._CellTables, "allocate_and_fill_tables", filling)
    monkeypatch.setattr(neighbors._RadiusSearchLaunch, "write_indices_and_get_neighbors", finishing)
    check_radius(surface(300), 0.1)


def test_neighbors_cuda_pyramid_of_several_clouds(machine: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    points, offsets = surface(500), torch.tensor([0, 200, 200, 201, 500])
    steps = [(0, 1, 3), (1, 1, 3), (1, 2, 3), (2, 2, 3), (2, 1, 3)]
    machine.launched.clear()
    with monkeypatch.context() as patch:
        patch.setattr(conv_kernels, "explain_triplets_unsupported", lambda _: None)
        actual = PointPyramid.build(points, 0.1, 3, steps, offsets=offsets)
    names = ("count_points", "count_neighbors", "write_neighbors", "assemble_rows", "scatter_entries", "sort_rows")
    assert [machine.launched[name] for name in names] == [1] * len(names)  # for all steps together
    with monkeypatch.context() as patch:
        patch.setattr(neighbors, "explain_unsupported", lambda _: "not now")
        right = PointPyramid.build(points, 0.1, 3, steps, offsets=offsets)
    assert actual.sizes == right.sizes
    assert all(alike(actual.geometries[step], right.geometries[step]) for step in steps)


# ---- triplets


@pytest.fixture(params=["in the words", "beside", "beside once"])
def cells_where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where cells stand; "once": beside those of more than 150 columns."""
    if request.param != "in the words":
        maximum = 0 if request.param == "beside" else 150
        for module in (packing, triplets):
            monkeypatch.setattr(module, "can_pack_index_and_cell", lambda columns, _: columns <= maximum)
    name: str = request.param
    return name


@emulated
@pytest.mark.usefixtures("cells_where")
@pytest.mark.parametrize("kernel", [(3, 3, 3), (2, 5, 7), (8, 8, 8), (1, 1, 1)])
def test_triplets_cuda_equal_reference(kernel: tuple[int, int, int]) -> None:
    points, centers = surface(200), torch.cat([surface(200)[::2], cloud(30, 8)])
    for radius in (0.2, 0.6, 9.0):  # rows of up to 10, 150, 200
        near = radius_search(points, radius, centers, backend="reference")
        inputs = ((near.offsets, near.indices), points, centers, 0.11, kernel)
        actual = triplets.build_triplets(*inputs)
        assert same(actual, reference.build_triplets(*inputs))
        cells = kernel[0] * kernel[1] * kernel[2]
        assert same(triplets.transpose_triplets(actual, 200, cells), reference.transpose_triplets(actual, 200, cells))


@emulated
def test_triplets_of_long_and_empty_rows_equal_reference() -> None:
    points = cloud(300, 2)
    for centers in (cloud(3, 4), torch.zeros(0, 3), cloud(3, 4) + 100):
        near = radius_search(points, 9.0, centers, backend="reference")
        inputs = ((near.offsets, near.indices), points, centers, 0.5, (3, 3, 3))
        actual = triplets.build_triplets(*inputs)
        assert same(actual, reference.build_triplets(*inputs))
        assert same(triplets.transpose_triplets(actual, 300, 27), reference.transpose_triplets(actual, 300, 27))


@emulated
def test_assemble_triplets_rounds_halves_to_even() -> None:
    points = torch.tensor([[0.5, 1.5, -0.5], [-1.5, 2.5, 0.25], [1e30, -1e30, 0.0]])
    rows, indices = torch.tensor([0, 3]), torch.arange(3, dtype=torch.int32)
    inputs = ((rows, indices), points, torch.zeros(1, 3), 1.0, (5, 5, 5))
    assert same(triplets.build_triplets(*inputs), reference.build_triplets(*inputs))


# ---- pooling


def geometries() -> list[PointGeometry]:
    points = surface(150)
    i, j = torch.arange(40) % 7, torch.arange(40) // 7 * 3
    return [
        radius_geometry(points, 0.1),
        radius_geometry(points, 0.1, 3, points[::5]),
        knn_geometry(points, 0.1, 40, 3, points[:9]),
        triplet_geometry(i, j, torch.zeros_like(i), (20, 150)),
    ]


@emulated
@pytest.mark.usefixtures("cells_where")
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("max", torch.float32), ("max", torch.bfloat16), ("mean", torch.float64), ("mean", torch.float16)],
    ids=str,
)
def test_point_pool_cuda_equals_reference(monkeypatch: pytest.MonkeyPatch, mode: str, dtype: torch.dtype) -> None:
    for number, geometry in enumerate(geometries()):
        generator = torch.Generator().manual_seed(number)
        features = torch.randn(150, 5, generator=generator).mul(2).round().div(2).to(dtype)  # ties
        features[7, 0] = torch.nan
        weight = torch.randn(geometry.center_count, 5, generator=generator).to(dtype)
        results = []
        for emulated in (True, False):
            with monkeypatch.context() as patch:
                patch.setattr(
                    pooling, "explain_unsupported", lambda _, emulated=emulated: None if emulated else "not now"
                )
                inputs = features.clone().requires_grad_()
                out = point_pool(inputs, geometry, mode)
                (grad,) = torch.autograd.grad(out, inputs, weight)
                results.append((out.detach(), grad))
        for actual, right in zip(*results, strict=True):
            torch.testing.assert_close(actual, right, equal_nan=True)
        if mode == "max":
            assert torch.equal(results[0][0].nan_to_num(9.0), results[1][0].nan_to_num(9.0))


# ---- the baseline of the benchmark


@emulated
@pytest.mark.parametrize("order", points_listing.ORDERS)
def test_neighbors_cuda_listing_equals_reference(order: str) -> None:
    points, cin, cout = surface(150), 5, 40
    generator = torch.Generator().manual_seed(0)
    for geometry in (radius_geometry(points, 0.1), radius_geometry(points, 0.1, 3, points[::5])):
        tensors = [torch.randn(s, generator=generator) for s in ((150, cin), (27, cin, cout))]
        grad = torch.randn(geometry.center_count, cout, generator=generator)
        results = []
        for dtype in (torch.float32, torch.float64):
            inputs = [t.to(dtype).requires_grad_() for t in tensors]
            if dtype == torch.float32:
                out = points_listing.listing(geometry.triplets(), geometry.center_count, order)(*inputs)
            else:
                out = point_conv(*inputs, geometry, backend="reference")
            results.append((out.detach(), *torch.autograd.grad(out, inputs, grad.to(dtype))))
        for actual, right in zip(*results, strict=True):
            torch.testing.assert_close(actual, right.float(), rtol=1e-4, atol=1e-3)


# ---- on a GPU


@gpu
@pytest.mark.parametrize("place", ["volume", "lattice", "surveyed"])
@pytest.mark.parametrize("kernel", [(3, 3, 3), (5, 5, 5), (2, 4, 7)])
def test_geometries_cuda_equal_reference(place: str, kernel: tuple[int, int, int]) -> None:
    points = places(3000)[place]
    for centers in (None, points[::5]):
        device_centers = None if centers is None else centers.cuda()
        for actual, right in (
            (
                radius_geometry(points.cuda(), 0.1, kernel, device_centers),
                radius_geometry(points, 0.1, kernel, centers),
            ),
            (
                knn_geometry(points.cuda(), 0.1, 9, kernel, device_centers),
                knn_geometry(points, 0.1, 9, kernel, centers),
            ),
        ):
            assert alike(actual, right)


@gpu
def test_voxel_geometry_rounds_quotients_once() -> None:
    """Quotients are rounded once: 0.3 / 0.1 lies below 3, 0.3 times 1 / 0.1 does not."""
    points = (torch.arange(-30, 30, dtype=torch.float64)[:, None] / 10).repeat(1, 3)
    actual, right = voxel_geometry(points.cuda(), 0.1), voxel_geometry(points, 0.1)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(actual.triplets(), right.triplets(), strict=True))


@gpu
def test_point_pyramid_prepare_on_gpu_equals_reference() -> None:
    """Searches that share buckets, and a cloud that ends in one point a level."""
    points, offsets = cloud(4000, 7, 0.5), torch.tensor([0, 1500, 1500, 1501, 4000])
    steps = [(0, 1, 5), (1, 1, 3), (1, 2, 3), (2, 2, 3), (2, 1, 3), (4, 4, 3)]
    actual, right = (PointPyramid.build(p, 0.05, 5, steps, offsets=offsets) for p in (points.cuda(), points))
    assert actual.sizes == right.sizes
    for one, two in zip(actual.kept_indices, right.kept_indices, strict=True):
        assert torch.equal(one.cpu(), two)
    assert all(alike(actual.geometries[step], right.geometries[step]) for step in steps)


@gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["max", "mean"])
def test_point_pool_on_gpu_equals_cpu(mode: str, dtype: torch.dtype) -> None:
    points = cloud(2000)
    geometry = radius_geometry(points, 0.1, 3, points[::4])
    features = torch.randn(2000, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.randn(geometry.center_count, 24).to(dtype)
    results = []
    for device in ("cuda", "cpu"):
        inputs = features.to(device).requires_grad_()
        out = point_pool(inputs, geometry.to(device), mode)
        (grad,) = torch.autograd.grad(out, inputs, weight.to(device))
        results.append((out.cpu(), grad.cpu()))
    for actual, right in zip(*results, strict=True):
        torch.testing.assert_close(actual, right)


@gpu
def test_neighbors_on_gpu_refuse_nonfinite_coordinates() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        points = cloud(1000).cuda()
        points[17, 1] = bad
        for call in (lambda p: radius_search(p, 0.1), lambda p: knn_search(p, 3), lambda p: grid_downsample(p, 0.1)):
            with pytest.raises(InputError, match="1 of 1000 points have NaN"):
                call(points)


@gpu
def test_radius_geometry_on_gpu_is_deterministic() -> None:
    points = (cloud(200_000) * torch.tensor([1.0, 1.0, 0.01])).cuda()
    first = radius_geometry(points, 0.01, 3, points[::3])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        repeated = radius_geometry(points, 0.01, 3, points[::3])
    stream.synchronize()
    assert alike(first, repeated)


@gpu
def test_neighbors_results_reuse_no_memory_in_use() -> None:
    """One free block that every allocation is cut from."""
    points = (cloud(200_000) * torch.tensor([1.0, 1.0, 0.01])).cuda()
    right = radius_search(points, 0.03, backend="cuda")
    near = knn_search(points, 8, backend="cuda")
    torch.cuda.empty_cache()
    for _ in range(3):
        block = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
        del block
        assert same(radius_search(points, 0.03, backend="cuda"), right)
        assert same(knn_search(points, 8, backend="cuda"), near)
        torch.cuda.empty_cache()


@gpu
def test_radius_search_of_ten_million_points_equals_brute_force() -> None:
    """Rows of some queries against brute force; pairs beyond 2³¹ bytes."""
    generator = torch.Generator("cuda").manual_seed(0)
    points = torch.rand(10_000_000, 3, generator=generator, device="cuda") * torch.tensor([1.0, 1, 0.01], device="cuda")
    actual = radius_search(points, 0.0022, backend="cuda")
    near = knn_search(points, 5, points[:1000], backend="cuda")
    assert actual.indices.numel() > 2**27
    for number in range(0, 1000, 50):
        x, y, z = (points - points[number]).square().unbind(1)
        square = (x + y) + z
        limit = torch.tensor(0.0022).square().item()
        row = actual.indices[actual.offsets[number] : actual.offsets[number + 1]]
        assert torch.equal(row.long(), (square <= limit).nonzero()[:, 0])
        assert torch.equal(near.indices[5 * number : 5 * number + 5].long(), square.sort(stable=True).indices[:5])


@gpu
def test_radius_geometry_sums_of_many_blocks_match() -> None:
    """Buckets, rows, rows of the other side and points that stay: thousands of blocks sum them up at once."""
    side = 240
    axis = torch.arange(side, dtype=torch.float32, device="cuda")
    points = torch.cartesian_prod(axis, axis, axis)
    numbers = torch.arange(side**3 + 1, device="cuda")
    for _ in range(3):
        actual = radius_search(points, 0.5, backend="cuda")
        assert torch.equal(actual.offsets, numbers)
        assert torch.equal(actual.indices.long(), numbers[:-1])
        retained = grid_downsample(points, 2.0).indices
        assert torch.equal(retained, (points % 2 == 1).all(1).nonzero()[:, 0])
        turned = radius_geometry(points, 0.25, 3, points[retained]).backward
        assert turned is not None
        assert torch.equal(turned.rows.diff().nonzero()[:, 0], retained)
        assert torch.equal(turned.rows[retained + 1], numbers[1 : 1 + retained.numel()])


@gpu
def test_neighbors_cuda_real_cloud_equals_reference(data_dir: Path) -> None:
    points = read_point_cloud(data_dir / "pointclouds" / "indoor_dense" / "cloud_bin_0.ply").points
    points = torch.as_tensor(points)
    if (reason := dict(explain_backends())["cpu"]) is not None:
        pytest.skip(reason)
    assert same(radius_search(points.cuda(), 0.013), radius_search(points, 0.013))
    assert same(knn_search(points.cuda(), 16), knn_search(points, 16))
    actual, right = (radius_geometry(p, 0.007, 3) for p in (points.cuda(), points))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(actual.forward, right.forward, strict=True))
    thin, exact = (grid_downsample(p, 0.02).indices for p in (points.cuda(), points))
    assert torch.equal(thin.cpu(), exact)
    assert [*pairwise([0, *actual.offsets.tolist()[1:]])] == [(0, len(points))]


def search_on_a_gpu(place: str) -> None:
    """Compare one place's searches with the reference, for GPUs that stand for others."""
    points = places(3000)[place]
    assert same(radius_search(points.cuda(), 0.25, backend="cuda"), radius_search(points, 0.25, backend="reference"))
    assert same(knn_search(points.cuda(), 7, backend="cuda"), knn_search(points, 7, backend="reference"))
    assert torch.equal(grid_downsample(points.cuda(), 0.3).indices.cpu(), grid_downsample(points, 0.3).indices)
