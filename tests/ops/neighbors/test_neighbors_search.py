"""Radius and kNN search: every backend against brute force, bit for bit; ragged clouds, odd places, bad input."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.ops.neighbors import BACKENDS, Neighbors, backends, knn_search, radius_search

scipy_spatial = pytest.importorskip("scipy.spatial")


HERE = [name for name, reason in backends() if reason is None]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    reason = dict(backends())[request.param]
    if reason is not None:
        pytest.skip(reason)
    name: str = request.param
    return name


def cloud(count: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return (torch.rand(count, 3, generator=torch.Generator().manual_seed(seed)) - 0.5) * 2 * spread


def rows(found: Neighbors) -> list[list[int]]:
    edges = found.offsets.tolist()
    return [found.indices[a:b].tolist() for a, b in pairwise(edges)]


def same(first: Neighbors, second: Neighbors) -> bool:
    return torch.equal(first.offsets, second.offsets) and torch.equal(first.indices, second.indices)


def test_radius_search_is_what_a_k_d_tree_finds(backend: str) -> None:
    points, queries = cloud(2000), cloud(300, seed=1, spread=3.0)
    tree = scipy_spatial.cKDTree(points.double().numpy())
    wanted = [sorted(found) for found in tree.query_ball_point(queries.double().numpy(), 0.3)]
    found = radius_search(points, 0.3, queries, backend=backend)
    assert rows(found) == wanted
    assert sum(map(len, wanted)) > 300
    assert found.offsets.dtype == torch.int64
    assert found.indices.dtype == torch.int32


def test_knn_search_is_what_a_k_d_tree_finds(backend: str) -> None:
    points, queries = cloud(2000), cloud(300, seed=1, spread=3.0)
    _, wanted = scipy_spatial.cKDTree(points.double().numpy()).query(queries.double().numpy(), 7)
    found = knn_search(points, 7, queries, backend=backend)
    assert rows(found) == wanted.tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 13, 500])
@pytest.mark.parametrize("lattice", [False, True])
def test_backends_agree_to_the_bit(count: int, lattice: bool) -> None:
    points = cloud(count, seed=3)
    if lattice:  # duplicates, and distances that equal each other and the radius
        points = (points * 2).round() / 4
    queries = torch.cat([points[: count // 2], cloud(20, seed=4, spread=4.0)])
    for asked in (None, queries):
        assert same(*(radius_search(points, 0.25, asked, backend=b) for b in HERE))
        assert same(*(knn_search(points, 5, asked, backend=b) for b in HERE))


def test_ragged_clouds_do_not_see_each_other(backend: str) -> None:
    parts, asked = (
        [cloud(90, 1), cloud(0), cloud(3, 2), cloud(150, 3)],
        [cloud(5, 4), cloud(4, 5), cloud(0), cloud(9, 6)],
    )
    offsets = torch.tensor([0, *np.cumsum([len(p) for p in parts])])
    query_offsets = torch.tensor([0, *np.cumsum([len(p) for p in asked])])
    whole = {"offsets": offsets, "query_offsets": query_offsets, "backend": backend}
    for search, how in ((radius_search, 0.7), (knn_search, 6)):
        wanted: list[list[int]] = []
        for part, query, start in zip(parts, asked, offsets.tolist(), strict=False):
            wanted += [[i + start for i in row] for row in rows(search(part, how, query, backend=backend))]
        assert rows(search(torch.cat(parts), how, torch.cat(asked), **whole)) == wanted  # type: ignore[operator]


def test_surveyed_coordinates_are_recentred(backend: str) -> None:
    near = cloud(400).double()
    far = near + torch.tensor([500_000.0, 5_200_000.0, 300.0], dtype=torch.float64)
    for search, how in ((radius_search, 0.4), (knn_search, 6)):
        assert rows(search(far, how, backend=backend)) == rows(search(near, how, backend=backend))  # type: ignore[operator]
    assert rows(radius_search(far.float(), 0.4, backend=backend)) != rows(radius_search(near, 0.4, backend=backend))


def test_a_stray_point_costs_a_survey_no_precision(backend: str) -> None:
    """Where nothing came back, scanners write (0, 0, 0)."""
    near = cloud(400).double()
    far = torch.cat([torch.zeros(3, 3), near + torch.tensor([500_000.0, 5_200_000.0, 300.0])])
    clouds, queries = torch.tensor([0, 0, 403, 403]), far[5:50:3]
    for own, asked in ((None, None), (queries, torch.tensor([0, 0, len(queries), len(queries)]))):
        found = rows(radius_search(far, 0.4, own, offsets=clouds, query_offsets=asked, backend=backend))
        right = rows(radius_search(near, 0.4, None if own is None else near[2:47:3], backend=backend))
        assert [[i - 3 for i in row] for row in found[0 if asked is not None else 3 :]] == right


def test_a_small_radius_in_a_wide_cloud() -> None:
    points = torch.cat([cloud(200) * 0.01, cloud(200) * 0.01 + 1e6, -cloud(200) * 1e6])
    assert same(*(radius_search(points, 1e-3, backend=b) for b in HERE))
    far = torch.tensor([[1e30, 0.0, 0.0], [-1e30, 1e30, 0.0], [0.0, 0.0, 0.0]])
    assert same(*(radius_search(points, 0.01, far, backend=b) for b in HERE))


def test_threads_change_nothing() -> None:
    points, threads = cloud(3000), torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append((radius_search(points, 0.2), knn_search(points, 9)))
    finally:
        torch.set_num_threads(threads)
    assert all(same(*pair) for pair in zip(*results, strict=True))


def test_input_is_left_alone_and_may_be_strided() -> None:
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
def test_mistakes_are_named(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"points": torch.zeros(5, 3), "radius": 1.0, **change}
    with pytest.raises(InputError, match=message):
        radius_search(**arguments)  # type: ignore[arg-type]


def test_the_comparison_can_fail() -> None:
    points = cloud(50)
    assert not same(radius_search(points, 0.5), radius_search(points, 0.6))
    assert not same(knn_search(points, 5), knn_search(points.flip(0), 5))
