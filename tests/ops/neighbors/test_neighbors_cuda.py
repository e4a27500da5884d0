"""Search, downsampling and triplets on a GPU: what the CPU gives, bit for bit, at sizes that only a GPU is for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.io import read_point_cloud
from fullfield.models.pointcnnpp import PointPyramid
from fullfield.ops.neighbors import Neighbors, backends, grid_downsample, knn_search, radius_search
from fullfield.ops.point_conv import knn_geometry, point_pool, radius_geometry, voxel_geometry

REASON = dict(backends("cuda"))["cuda"] if torch.cuda.is_available() else "no GPU that PyTorch can use"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def cloud(count: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return (torch.rand(count, 3, generator=torch.Generator().manual_seed(seed)) - 0.5) * 2 * spread


PLACES = {
    "volume": cloud(3000),
    "lattice": (cloud(3000, 3) * 4).round() / 8,
    "plane": cloud(3000, 5) * torch.tensor([1.0, 1.0, 0.0]),
    "one place": torch.ones(700, 3),
    "one point": torch.zeros(1, 3),
    "nothing": torch.zeros(0, 3),
    "far apart": torch.cat([cloud(600) * 0.1, cloud(600) * 0.1 + 1e6, cloud(600) * 1e30]),
    "surveyed": cloud(2000).double() + torch.tensor([500_000.0, 5_200_000.0, 300.0], dtype=torch.float64),
    "strays": torch.cat([torch.zeros(99, 3), cloud(2000).double() + torch.tensor([500_000.0, 5_200_000.0, 300.0])]),
}


def same(found: Neighbors, right: Neighbors) -> bool:
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, right, strict=True))


@pytest.mark.parametrize("place", PLACES)
def test_search_and_downsampling(place: str) -> None:
    points = PLACES[place]
    count = len(points)
    queries = torch.cat([points[::3], cloud(100, 4, 4.0).to(points.dtype)])
    cuts = torch.tensor([0, count // 3, count // 3, count])
    asked = torch.tensor([0, 10, 20, len(queries)]).clamp(max=len(queries))
    for clouds in ({}, {"offsets": cuts, "query_offsets": asked}):
        own = {"offsets": clouds["offsets"]} if clouds else {}
        for search, how in ((radius_search, 0.25), (knn_search, 7), (knn_search, 100)):
            given = (points.cuda(), how, queries.cuda())
            assert same(
                search(*given, **clouds, backend="cuda"),  # type: ignore[operator]
                search(points, how, queries, **clouds, backend="reference"),  # type: ignore[operator]
            )
            assert same(
                search(points.cuda(), how, **own, backend="cuda"),  # type: ignore[operator]
                search(points, how, **own, backend="reference"),  # type: ignore[operator]
            )
        found = grid_downsample(points.cuda(), 0.3 if place != "far apart" else 1e20, **own)
        right = grid_downsample(points, 0.3 if place != "far apart" else 1e20, **own)
        assert torch.equal(found.indices.cpu(), right.indices)
        assert torch.equal(found.offsets, right.offsets)


@pytest.mark.parametrize("place", ["volume", "lattice", "surveyed"])
@pytest.mark.parametrize("kernel", [(3, 3, 3), (5, 5, 5), (2, 4, 7)])
def test_geometries(place: str, kernel: tuple[int, int, int]) -> None:
    points = PLACES[place]
    for centers in (None, points[::5]):
        there = None if centers is None else centers.cuda()
        for found, right in (
            (radius_geometry(points.cuda(), 0.1, kernel, there), radius_geometry(points, 0.1, kernel, centers)),
            (knn_geometry(points.cuda(), 0.1, 9, kernel, there), knn_geometry(points, 0.1, 9, kernel, centers)),
        ):
            for one, two in zip(found.directions(), right.directions(), strict=True):
                assert all(torch.equal(a.cpu(), b) for a, b in zip(one, two, strict=True))


def test_voxels_that_begin_at_a_point() -> None:
    """Quotients are rounded once: 0.3 / 0.1 lies below 3, 0.3 times 1 / 0.1 does not."""
    points = (torch.arange(-30, 30, dtype=torch.float64)[:, None] / 10).repeat(1, 3)
    found, right = voxel_geometry(points.cuda(), 0.1), voxel_geometry(points, 0.1)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found.triplets(), right.triplets(), strict=True))


def test_several_geometries_at_once() -> None:
    """Searches that share buckets, and a cloud that ends in one point a level."""
    points, offsets = cloud(4000, 7, 0.5), torch.tensor([0, 1500, 1500, 1501, 4000])
    steps = [(0, 1, 5), (1, 1, 3), (1, 2, 3), (2, 2, 3), (2, 1, 3), (4, 4, 3)]
    found, right = (PointPyramid.prepare(p, 0.05, 5, steps, offsets=offsets) for p in (points.cuda(), points))
    assert found.sizes == right.sizes
    for one, two in zip(found.kept, right.kept, strict=True):
        assert torch.equal(one.cpu(), two)
    for step in steps:
        ways = (g.geometries[step].directions() for g in (found, right))
        for one, two in zip(*ways, strict=True):
            assert all(torch.equal(a.cpu(), b) for a, b in zip(one, two, strict=True)), step


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["max", "mean"])
def test_pooling(mode: str, dtype: torch.dtype) -> None:
    points = cloud(2000)
    geometry = radius_geometry(points, 0.1, 3, points[::4])
    features = torch.randn(2000, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.randn(geometry.centers, 24).to(dtype)
    results = []
    for device in ("cuda", "cpu"):
        given = features.to(device).requires_grad_()
        out = point_pool(given, geometry.to(device), mode)
        (grad,) = torch.autograd.grad(out, given, weight.to(device))
        results.append((out.cpu(), grad.cpu()))
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right)


def test_bad_coordinates_are_refused() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        points = cloud(1000).cuda()
        points[17, 1] = bad
        for call in (lambda p: radius_search(p, 0.1), lambda p: knn_search(p, 3), lambda p: grid_downsample(p, 0.1)):
            with pytest.raises(InputError, match="1 of 1000 points have NaN"):
                call(points)


def test_every_run_and_stream_gives_the_same() -> None:
    points = (cloud(200_000) * torch.tensor([1.0, 1.0, 0.01])).cuda()
    first = radius_geometry(points, 0.01, 3, points[::3])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        again = radius_geometry(points, 0.01, 3, points[::3])
    stream.synchronize()
    for one, two in zip(first.directions(), again.directions(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_results_take_no_memory_that_is_still_read() -> None:
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


def test_ten_million_points() -> None:
    """Rows of some queries against brute force; pairs beyond 2³¹ bytes."""
    generator = torch.Generator("cuda").manual_seed(0)
    points = torch.rand(10_000_000, 3, generator=generator, device="cuda") * torch.tensor([1.0, 1, 0.01], device="cuda")
    found = radius_search(points, 0.0022, backend="cuda")
    near = knn_search(points, 5, points[:1000], backend="cuda")
    assert found.indices.numel() > 2**27
    for number in range(0, 1000, 50):
        x, y, z = (points - points[number]).square().unbind(1)
        square = (x + y) + z
        limit = torch.tensor(0.0022).square().item()
        row = found.indices[found.offsets[number] : found.offsets[number + 1]]
        assert torch.equal(row.long(), (square <= limit).nonzero()[:, 0])
        assert torch.equal(near.indices[5 * number : 5 * number + 5].long(), square.sort(stable=True).indices[:5])


def test_sums_of_many_blocks() -> None:
    """Buckets, rows, rows of the other side and points that stay: thousands of blocks sum them up at once."""
    side = 240
    axis = torch.arange(side, dtype=torch.float32, device="cuda")
    points = torch.cartesian_prod(axis, axis, axis)
    numbers = torch.arange(side**3 + 1, device="cuda")
    for _ in range(3):
        found = radius_search(points, 0.5, backend="cuda")
        assert torch.equal(found.offsets, numbers)
        assert torch.equal(found.indices.long(), numbers[:-1])
        kept = grid_downsample(points, 2.0).indices
        assert torch.equal(kept, (points % 2 == 1).all(1).nonzero()[:, 0])
        turned = radius_geometry(points, 0.25, 3, points[kept]).backward
        assert turned is not None
        assert torch.equal(turned.rows.diff().nonzero()[:, 0], kept)
        assert torch.equal(turned.rows[kept + 1], numbers[1 : 1 + kept.numel()])


def test_a_real_cloud(data_dir: Path) -> None:
    points = read_point_cloud(data_dir / "pointclouds" / "indoor_dense" / "cloud_bin_0.ply").points
    points = torch.as_tensor(points)
    if (reason := dict(backends())["cpu"]) is not None:
        pytest.skip(reason)
    assert same(radius_search(points.cuda(), 0.013), radius_search(points, 0.013))
    assert same(knn_search(points.cuda(), 16), knn_search(points, 16))
    found, right = (radius_geometry(p, 0.007, 3) for p in (points.cuda(), points))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found.forward, right.forward, strict=True))
    thin, exact = (grid_downsample(p, 0.02).indices for p in (points.cuda(), points))
    assert torch.equal(thin.cpu(), exact)
    assert [*pairwise([0, *found.offsets.tolist()[1:]])] == [(0, len(points))]
