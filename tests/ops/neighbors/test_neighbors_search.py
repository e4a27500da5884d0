"""Radius and kNN search, downsampling and order: the reference by hand, and every backend as it, bit for bit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cloud_cases import PLACES, Backend, cloud, places, rows, same, without_gpu

from fullfield import InputError
from fullfield._kernels.numba_cache import cpu_has_feature
from fullfield.ops.neighbors import cpu, cuda, grid_downsample, knn_search, radius_search, spatial_order
from fullfield.ops.neighbors.api import compute_morton_codes

scipy_spatial = pytest.importorskip("scipy.spatial")
KERNELS = ("cpu", "emulated", pytest.param("cuda", marks=[pytest.mark.gpu, without_gpu]))


def test_search_equals_scipy_kdtree() -> None:
    points, queries = cloud(2000), cloud(300, seed=1, spread=3.0)
    tree = scipy_spatial.cKDTree(points.double().numpy())
    expected = [sorted(actual) for actual in tree.query_ball_point(queries.double().numpy(), 0.3)]
    actual = radius_search(points, 0.3, queries, backend="reference")
    assert rows(actual) == expected
    assert sum(map(len, expected)) > 300
    assert actual.offsets.dtype == torch.int64
    assert actual.indices.dtype == torch.int32
    _, expected = tree.query(queries.double().numpy(), 7)
    assert rows(knn_search(points, 7, queries, backend="reference")) == expected.tolist()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", KERNELS, indirect=True)
def test_search_backends_equal_reference_bit_for_bit(backend: Backend, place: str) -> None:
    points = places(backend.count)[place]
    count = len(points)
    queries = torch.cat([points[::3], cloud(20, seed=4, spread=4.0).to(points.dtype)])
    cuts = torch.tensor([0, count // 3, count // 3, count])
    requested = torch.tensor([0, 10, 20, len(queries)])
    device_points = points.to(backend.device)
    directions: list[tuple[Any, int | float]] = [(radius_search, 0.25), (knn_search, 1), (knn_search, 7)]
    directions += [(knn_search, 100)] if backend.device == "cuda" else []
    number = itertools.count()
    for (search, how), own, ragged in itertools.product(directions, (None, queries), (False, True)):
        clouds = {"offsets": cuts} if ragged else {}
        clouds |= {"query_offsets": requested} if ragged and own is not None else {}
        if backend.name == "cuda" and backend.device == "cpu":
            cuda.LIBRARIES.schedule = next(number) % 2  # the last threads first, in turns
        at = None if own is None else own.to(backend.device)
        actual = search(device_points, how, at, **clouds, backend=backend.name)
        assert same(actual, search(points, how, own, **clouds, backend="reference"))
        if search is radius_search and own is None and not ragged:
            loose = search(device_points, how, sort_indices=False, backend=backend.name)
            assert list(map(sorted, rows(loose))) == rows(actual)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backend", KERNELS, indirect=True)
def test_grid_downsample_kernels_equal_reference(backend: Backend, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points = places(backend.count)[place]
    points = points.double() if place == "lattice" else points
    cell = 0.3 if place != "far apart" else 1e20
    for clouds in (None, torch.tensor([0, len(points) // 3, len(points) // 3, len(points)])):
        actual = grid_downsample(points.to(backend.device), cell, offsets=clouds)
        with monkeypatch.context() as patch:
            for module in (cpu, cuda):
                patch.setattr(module, "explain_unsupported", lambda _: "not now")
            right = grid_downsample(points, cell, offsets=clouds)
        assert torch.equal(actual.indices.cpu(), right.indices)
        assert torch.equal(actual.offsets, right.offsets)


def test_search_of_batch_equals_singles() -> None:
    point_clouds, requested = (
        [cloud(90, 1), cloud(0), cloud(3, 2), cloud(150, 3)],
        [cloud(5, 4), cloud(4, 5), cloud(0), cloud(9, 6)],
    )
    offsets = torch.tensor([0, *np.cumsum([len(p) for p in point_clouds])])
    query_offsets = torch.tensor([0, *np.cumsum([len(p) for p in requested])])
    full = {"offsets": offsets, "query_offsets": query_offsets, "backend": "reference"}
    for search, how in ((radius_search, 0.7), (knn_search, 6)):
        expected: list[list[int]] = []
        for cloud_points, query, start in zip(point_clouds, requested, offsets.tolist(), strict=False):
            expected += [
                [i + start for i in row] for row in rows(search(cloud_points, how, query, backend="reference"))
            ]
        assert rows(search(torch.cat(point_clouds), how, torch.cat(requested), **full)) == expected  # type: ignore[operator]


def test_radius_search_recenters_surveyed_coordinates() -> None:
    near = cloud(400).double()
    far = near + torch.tensor([500_000.0, 5_200_000.0, 300.0], dtype=torch.float64)
    for search, how in ((radius_search, 0.4), (knn_search, 6)):
        assert rows(search(far, how, backend="reference")) == rows(search(near, how, backend="reference"))  # type: ignore[operator]
    assert rows(radius_search(far.float(), 0.4, backend="reference")) != rows(
        radius_search(near, 0.4, backend="reference")
    )


def test_search_with_stray_point_keeps_precision() -> None:
    """Where nothing came back, scanners write (0, 0, 0)."""
    near = cloud(400).double()
    far = torch.cat([torch.zeros(3, 3), near + torch.tensor([500_000.0, 5_200_000.0, 300.0])])
    clouds, queries = torch.tensor([0, 0, 403, 403]), far[5:50:3]
    for own, requested in ((None, None), (queries, torch.tensor([0, 0, len(queries), len(queries)]))):
        actual = rows(radius_search(far, 0.4, own, offsets=clouds, query_offsets=requested, backend="reference"))
        right = rows(radius_search(near, 0.4, None if own is None else near[2:47:3], backend="reference"))
        assert [[i - 3 for i in row] for row in actual[0 if requested is not None else 3 :]] == right


@pytest.mark.parametrize("packs", [False, True])
def test_store_within_keeps_candidates_within_radius(packs: bool) -> None:
    numba, simd = pytest.importorskip("numba"), pytest.importorskip("fullfield.ops.neighbors._cpu_simd")
    if packs and not cpu_has_feature("avx512f"):
        pytest.skip("needs AVX-512")
    store_within, draw = simd.build_store_within_intrinsic(packs), np.random.default_rng(0)
    pack = numba.njit(lambda near, x, given, into: store_within(near, 2, x, given, 3, into, 5))
    squares, who = draw.integers(0, 6, 19).astype(np.float32), np.arange(100, 120, dtype=np.int32)
    actual = np.full(40, -1, np.int32)
    for limit in (-1.0, 3.0, 9.0):
        end = pack(squares, np.float32(limit), who, actual)
        expected = who[3:19][squares[2:18] <= limit]
        assert actual[5:end].tolist() == expected.tolist()


# Instructions are chosen at any level of optimization.
TARGET = """
import os, sys
import numba
import torch
from numba.core.registry import cpu_target
os.environ["FULLFIELD_CACHE_DIR"] = sys.argv[1]
numba.config.CPU_NAME, numba.config.CPU_FEATURES = "generic", ""
numba.config.OPT = type(numba.config.OPT)("1")
from fullfield.ops.neighbors import radius_search
points = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
found, right = (radius_search(points, 0.2, backend=backend) for backend in ("cpu", "reference"))
assert torch.equal(found.offsets, right.offsets) and torch.equal(found.indices, right.indices)
assert cpu_target.target_context.codegen().magic_tuple()[1:] == ("generic", "")
"""


def test_search_kernels_compile_for_limited_cpus(tmp_path: Path, run_script: Callable[..., str]) -> None:
    pytest.importorskip("numba")
    run_script(TARGET, tmp_path)


@pytest.mark.parametrize("backend", KERNELS[:1], indirect=True)
@pytest.mark.parametrize("count", [1, 3, 60])
def test_radius_search_rows_are_sorted(backend: Backend, count: int) -> None:
    points, queries = cloud(4000, spread=0.5), cloud(count, seed=1, spread=0.1)
    actual, right = (radius_search(points, 0.3, queries, backend=b) for b in (backend.name, "reference"))
    assert same(actual, right)
    assert right.offsets.diff().max() > 64  # beyond the insertion sort


def test_search_candidate_memory_exceeds_need_by_quarter() -> None:
    kernels = pytest.importorskip("fullfield.ops.neighbors._cpu_kernels")
    points, runs = cloud(1000).numpy(), np.zeros((9, 2), np.int64)
    runs[4] = 0, 1000
    empty = np.empty(0, np.int32), np.empty((3, 0), np.float32), np.empty(0, np.float32)
    order = np.arange(1000, dtype=np.int32)
    count, *arrays = kernels._gather_candidates_growing_arrays.py_func(
        points, points.T.copy(), order, runs, False, *empty
    )
    assert count == 1000
    assert [array.shape[-1] for array in arrays] == [1000 + 250 + 16] * 3


@pytest.mark.parametrize("backend", KERNELS[:1], indirect=True)
def test_radius_search_in_wide_cloud(backend: Backend) -> None:
    points = torch.cat([cloud(200) * 0.01, cloud(200) * 0.01 + 1e6, -cloud(200) * 1e6])
    assert same(*(radius_search(points, 1e-3, backend=b) for b in (backend.name, "reference")))
    far = torch.tensor([[1e30, 0.0, 0.0], [-1e30, 1e30, 0.0], [0.0, 0.0, 0.0]])
    assert same(*(radius_search(points, 0.01, far, backend=b) for b in (backend.name, "reference")))


def test_search_is_independent_of_threads() -> None:
    points, threads = cloud(3000), torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append((radius_search(points, 0.2), knn_search(points, 9)))
    finally:
        torch.set_num_threads(threads)
    assert all(same(*pair) for pair in zip(*results, strict=True))


def test_search_keeps_input_and_accepts_strides() -> None:
    wide = cloud(300).repeat(1, 2)
    before = wide.clone()
    assert same(radius_search(wide[:, :3], 0.5), radius_search(wide[:, :3].contiguous(), 0.5))
    assert same(knn_search(wide[:, 3:], 4), knn_search(wide[:, :3].contiguous(), 4))
    assert torch.equal(wide, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": torch.zeros(5, 2)}, r"points: expected shape \[N, 3\]"),
        ({"points": torch.zeros(5, 3, dtype=torch.int32)}, "points: expected dtype"),
        ({"points": torch.full((5, 3), torch.nan)}, "5 of 5 points have NaN"),
        (
            {"points": torch.full((5, 3), 1e200, dtype=torch.float64)},
            "points: expected coordinates of at most 1.7e[+]38",
        ),
        ({"radius": 0.0}, "radius: expected a number >= 1e-18 and <= 1e[+]18"),
        ({"radius": 1e-30}, "radius: expected"),  # squares that float32 does not hold
        ({"radius": 1e30}, "radius: expected"),
        ({"offsets": torch.tensor([0, 4])}, "offsets that rise from 0 to 5"),
        ({"offsets": torch.tensor([0, 3, 2, 5])}, "offsets that rise"),
        ({"queries": torch.zeros(2, 3, dtype=torch.float64)}, "queries: expected dtype float32"),
        ({"query_offsets": torch.tensor([0, 5])}, "query_offsets: expected None"),
        ({"queries": torch.zeros(2, 3), "query_offsets": torch.tensor([0, 1, 2])}, "expected 1 clouds"),
        ({"backend": "abacus"}, "backend: expected one of"),
    ],
)
def test_radius_search_refuses_bad_arguments(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"points": torch.zeros(5, 3), "radius": 1.0, **change}
    with pytest.raises(InputError, match=message):
        radius_search(**arguments)  # type: ignore[arg-type]


# ---- downsampling and order


def by_hand(points: torch.Tensor, cell: float, first: int = 0) -> list[int]:
    best: dict[tuple[int, ...], tuple[float, int]] = {}
    for index, point in enumerate(points.double().tolist()):
        corner = tuple(math.floor(c / cell) for c in point)
        distance = sum((c / cell - k - 0.5) ** 2 for c, k in zip(point, corner, strict=True))
        best[corner] = min(best.get(corner, (math.inf, 0)), (distance, index))
    return sorted(index + first for _, index in best.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grid_downsample_keeps_point_nearest_to_center(dtype: torch.dtype) -> None:
    points = (torch.rand(500, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) - 0.5) * 4
    retained = grid_downsample(points, 0.5)
    assert retained.indices.tolist() == by_hand(points, 0.5)
    assert retained.offsets.tolist() == [0, len(retained.indices)]
    assert 0 < len(retained.indices) < 500


def test_grid_downsample_of_batch_equals_singles() -> None:
    points = torch.rand(300, 3, generator=torch.Generator().manual_seed(1))
    retained = grid_downsample(points, 0.4, offsets=torch.tensor([0, 100, 100, 300]))
    first, second = by_hand(points[:100], 0.4), by_hand(points[100:], 0.4, 100)
    assert retained.indices.tolist() == first + second
    assert retained.offsets.tolist() == [0, len(first), len(first), len(first) + len(second)]


def test_grid_downsample_keeps_first_duplicate() -> None:
    assert grid_downsample(torch.ones(9, 3), 0.3).indices.tolist() == [0]
    assert grid_downsample(torch.empty(0, 3), 0.3).indices.tolist() == []
    assert grid_downsample(torch.empty(0, 3), 0.3, offsets=torch.tensor([0, 0])).offsets.tolist() == [0, 0]


def test_grid_downsample_refuses_cell_below_precision() -> None:
    with pytest.raises(InputError, match="cell: expected cells whose numbers fit"):
        grid_downsample(torch.tensor([[1e20, 0.0, 0.0]]), 1e-3)


@pytest.mark.parametrize("far", [0.0, 5e6])
def test_spatial_order_groups_neighbors_within_clouds(far: float) -> None:
    points = torch.rand(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + far
    order = spatial_order(points, torch.tensor([0, 1500, 1500, 4000]))
    assert order[:1500].sort().values.tolist() == list(range(1500))
    assert order[1500:].sort().values.tolist() == list(range(1500, 4000))
    assert points[order].diff(dim=0).norm(dim=1).mean() < 0.25 * points.diff(dim=0).norm(dim=1).mean()
    assert torch.equal(order[1500:], spatial_order(points[1500:]) + 1500)


def test_compute_morton_codes_interleaves_bits() -> None:
    cells = torch.tensor([[0, 0, 1], [0, 1, 0], [1, 0, 0], [3, 3, 3], [2**21 - 1] * 3])
    assert compute_morton_codes(cells).tolist() == [1, 2, 4, 63, 2**63 - 1]


def test_spatial_order_is_stable_and_accepts_no_points() -> None:
    assert spatial_order(torch.ones(5, 3)).tolist() == [0, 1, 2, 3, 4]
    assert spatial_order(torch.zeros(0, 3)).shape == (0,)
    assert spatial_order(torch.zeros(0, 3), torch.tensor([0])).shape == (0,)


def test_spatial_order_refuses_bad_arguments() -> None:
    with pytest.raises(InputError, match=r"^points: expected finite coordinates"):
        spatial_order(torch.full((2, 3), torch.nan))
    with pytest.raises(InputError, match=r"^offsets: "):
        spatial_order(torch.zeros(2, 3), torch.tensor([0, 3]))
