"""Made-up scenes, and the pairs that are cut from clouds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fullfield.registration.descriptors import compute_normals_and_shapes
from fullfield.testing import sample_room_scan
from fullfield.training.pairs import (
    MAX_MATCH_DISTANCE,
    OverlappingPair,
    _draw_keep_probabilities,
    _is_visible_from,
    match_mutual_nearest_points,
    sample_synthetic_scene_points,
    synthesize_overlapping_pair_if_possible,
)

Floats = NDArray[np.float64]


def pair_of(seed: int, cells: int = 600) -> OverlappingPair:
    draw = np.random.default_rng(seed)
    pair = synthesize_overlapping_pair_if_possible(sample_synthetic_scene_points(draw, 20_000), draw, cells)
    assert pair is not None
    return pair


def test_sample_synthetic_scene_points_depends_on_seed_alone() -> None:
    scenes = [sample_synthetic_scene_points(np.random.default_rng(seed), 5000) for seed in (0, 0, *range(1, 9))]
    assert all(scene.shape == (5000, 3) and np.isfinite(scene).all() for scene in scenes)
    assert np.array_equal(scenes[0], scenes[1])
    widths = [float(np.ptp(scene, axis=0).max()) for scene in scenes[1:]]
    assert len(set(widths)) == len(widths)
    assert min(widths) < 10 < 20 < max(widths)  # rooms and streets


def test_sample_synthetic_scene_points_has_varied_curvature() -> None:
    flat, sharp = [], []
    for seed in range(6):
        scene = sample_synthetic_scene_points(np.random.default_rng(seed))
        radius = 0.015 * float(np.ptp(scene, axis=0).max())
        curvature = compute_normals_and_shapes(scene, scene[::60], radius, radius)[1][:, 0]
        flat.append((curvature < 0.02).mean())
        sharp.append((curvature > 0.2).mean())
    assert 0.1 < np.mean(flat) < 0.9
    assert 0.02 < np.mean(sharp) < 0.7


@pytest.mark.parametrize("seed", range(4))
def test_synthesized_pair_shares_reported_points(seed: int) -> None:
    pair = pair_of(seed)
    turn = pair.truth[:3, :3]
    assert np.allclose(turn @ turn.T, np.eye(3), atol=1e-9)
    assert np.linalg.det(turn) == pytest.approx(1)
    assert np.abs(turn - np.eye(3)).max() > 0.1
    there = pair.target.points[pair.target.described_rows]
    apart = np.linalg.norm(
        pair.source_descriptor_points_in_target[pair.matches[:, 0]] - there[pair.matches[:, 1]], axis=1
    )
    assert apart.max() <= MAX_MATCH_DISTANCE
    assert len(pair.matches) >= 32
    assert len(np.unique(pair.matches[:, 0])) == len(np.unique(pair.matches[:, 1])) == len(pair.matches)
    assert len(pair.matches) < 0.9 * max(len(pair.source.described_rows), len(there))  # parts only
    for side in (pair.source, pair.target):
        cells = np.floor(side.points[side.described_rows])
        assert len(np.unique(cells, axis=0)) == len(side.described_rows)  # one a voxel
        assert np.abs((side.points.min(0) + side.points.max(0)) / 2).max() < 1.5
        assert 50 < len(side.described_rows) < 5000


def test_synthesized_pair_depends_on_seed_alone() -> None:
    first, again, other = pair_of(3), pair_of(3), pair_of(4)
    assert np.array_equal(first.source.points, again.source.points)
    assert np.array_equal(first.truth, again.truth)
    assert not np.allclose(first.truth, other.truth)
    cloud = sample_room_scan(3)
    near = synthesize_overlapping_pair_if_possible(cloud, np.random.default_rng(0), 500)
    far = synthesize_overlapping_pair_if_possible(100 * cloud + 5e5, np.random.default_rng(0), 500)
    assert abs(len(near.source.described_rows) - len(far.source.described_rows)) < 5
    assert np.allclose(near.truth, far.truth, atol=1e-3)
    draw = np.random.default_rng(0)
    assert synthesize_overlapping_pair_if_possible(np.zeros((5000, 3)), draw) is None
    assert synthesize_overlapping_pair_if_possible(draw.random((40, 3)), draw) is None


def test_match_mutual_nearest_points_returns_mutual_pairs() -> None:
    draw = np.random.default_rng(1)
    first, second = 8 * draw.random((80, 3)), 8 * draw.random((60, 3))
    apart = np.linalg.norm(first[:, None] - second[None], axis=2)
    wanted = [
        [i, j]
        for i in range(80)
        if apart[:, j := int(apart[i].argmin())].argmin() == i and apart[i, j] <= MAX_MATCH_DISTANCE
    ]
    assert match_mutual_nearest_points(first, second).tolist() == wanted
    assert match_mutual_nearest_points(first[:0], second).shape == (0, 2)


def test_is_visible_from_excludes_points_behind_wall() -> None:
    draw = np.random.default_rng(2)
    wall, behind = draw.uniform(-1, 1, (2, 4000, 3))
    wall[:, 0], behind[:, 0] = 0.0, -1.0
    seen = _is_visible_from(np.concatenate([wall, 0.5 * behind]), np.array([1.0, 0.0, 0.0]))
    assert seen[:4000].mean() > 0.95
    assert seen[4000:].mean() < 0.05


def test_compute_keep_probability_is_uniform_or_falls() -> None:
    points = np.random.default_rng(3).random((500, 3))
    shares = [_draw_keep_probabilities(points, np.random.default_rng(seed)) for seed in range(20)]
    assert all(0 < share.min() <= share.max() <= 0.95 for share in shares)
    assert 3 < sum(np.ptp(share) > 0.05 for share in shares) < 17
