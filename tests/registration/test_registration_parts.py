"""Descriptors, matches, RANSAC, refinement: each against what it must be."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from fullfield.registration import search
from fullfield.registration.deformation import Deformation
from fullfield.registration.descriptors import (
    BINS,
    compute_fpfh_histograms,
    compute_plane_normals,
    find_mutual_matches,
    find_nearest_within,
    is_close_to_any,
)
from fullfield.registration.group import fit_group_poses_dropping_contradictions
from fullfield.registration.packages import import_module_of_extra
from fullfield.registration.ransac import apply_transform, fit_rigid_transforms, search_pose_hypotheses
from fullfield.registration.refinement import Refiner
from fullfield.registration.result import AcceptedRegistration, RefusedRegistration
from fullfield.registration.verdict import FPFH_LIMITS, LEARNED_LIMITS, Doubts, Evidence, estimate_confidence

Floats = NDArray[np.float64]


def turned(seed: int) -> Floats:
    draw = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(draw.normal(size=(3, 3)))
    result = np.eye(4)
    result[:3, :3], result[:3, 3] = turn * np.linalg.det(turn), draw.normal(size=3)
    return result


def by_hand(points: Floats, normals: Floats, radius: float) -> Floats:
    """The histograms by loops over pairs."""

    def place(value: float) -> int:
        return min(max(int(value * BINS), 0), BINS - 1)

    count = len(points)
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    near = (apart <= radius) & (apart > 0)
    own = np.zeros((count, 3 * BINS))
    for i in range(count):
        for j in np.flatnonzero(near[i]):
            u, d, n = normals[i], (points[j] - points[i]) / apart[i, j], normals[j]
            v = np.cross(d, u)
            v /= np.linalg.norm(v)
            n = n if u @ n >= 0 else -n
            phi, theta = u @ d, np.arctan2(np.cross(u, v) @ n, u @ n)
            phi, theta = (phi, theta) if phi >= 0 else (-phi, -theta)
            for part, value in enumerate(((v @ n + 1) / 2, phi, theta / np.pi + 0.5)):
                own[i, part * BINS + place(value)] += 1 / near[i].sum()
    weights = np.where(near, 1 / np.where(near, apart, 1) ** 2, 0)
    summed = (weights @ own).reshape(count, 3, BINS)
    return (summed / np.maximum(summed.sum(2, keepdims=True), 1e-300)).reshape(count, -1)


def cloud(seed: int, count: int = 60) -> tuple[Floats, Floats]:
    draw = np.random.default_rng(seed)
    normals = draw.normal(size=(count, 3))
    return draw.random((count, 3)), normals / np.linalg.norm(normals, axis=1, keepdims=True)


def test_compute_fpfh_histograms_equals_loops_in_any_pose() -> None:
    points, normals = cloud(0)
    assert np.allclose(compute_fpfh_histograms(points, normals, 0.4), by_hand(points, normals, 0.4), atol=1e-9)
    points, normals = cloud(1)
    pose, signs = turned(2), np.where(np.arange(60) % 3, 1.0, -1.0)[:, None]
    other = compute_fpfh_histograms(apply_transform(pose, points), signs * normals @ pose[:3, :3].T, 0.4)
    assert (
        np.abs(other - compute_fpfh_histograms(points, normals, 0.4)).max() < 0.05
    )  # a value on a bin's edge may change bins
    assert np.abs(compute_fpfh_histograms(points, normals[::-1], 0.4) - other).max() > 0.2
    assert not compute_fpfh_histograms(np.eye(3) * 100, np.eye(3), 1.0).any()


def test_estimated_normals_are_perpendicular_to_plane() -> None:
    draw = np.random.default_rng(3)
    flat = np.concatenate([draw.random((400, 2)), draw.normal(scale=1e-3, size=(400, 1))], axis=1)
    pose = turned(4)
    normals = compute_plane_normals(apply_transform(pose, flat), apply_transform(pose, flat[:50]), 0.3)
    assert np.abs(normals @ pose[:3, 2]).min() > 0.999
    assert np.allclose(np.linalg.norm(normals, axis=1), 1)


@pytest.mark.unit
def test_find_mutual_matches_returns_mutual_nearest_rows() -> None:
    draw = np.random.default_rng(5)
    first, second = draw.random((300, 5)), draw.random((200, 5))
    apart = np.linalg.norm(first[:, None] - second[None], axis=2)
    forth, back = apart.argmin(1), apart.argmin(0)
    wanted = [[i, j] for i, j in enumerate(forth.tolist()) if back[j] == i]
    assert find_mutual_matches(first, second).tolist() == wanted
    assert find_mutual_matches(first[:0], second).shape == (0, 2)
    same = find_mutual_matches(np.repeat(first[:2], 3, axis=0), first[:2])  # of rows alike, the first
    assert same.tolist() == [[0, 0], [3, 1]]


def test_find_nearest_within_equals_loops() -> None:
    draw = np.random.default_rng(9)
    points, queries = draw.random((300, 3)) * 10, draw.random((200, 3)) * 14 - 2
    points[7] = points[3]
    queries[0] = points[3]
    apart = np.linalg.norm(points[None] - queries[:, None], axis=2)
    found, who = find_nearest_within(points, queries, 1.0)
    near = apart.min(1) <= 1.0
    assert 0 < near.sum() < 200
    assert np.array_equal(who, np.where(near, apart.argmin(1), -1))
    assert who[0] == 3
    assert np.allclose(found[near], apart.min(1)[near])
    assert np.isinf(found[~near]).all()
    assert find_nearest_within(points, queries + 100, 1.0)[1].tolist() == [-1] * 200


@pytest.mark.unit
@pytest.mark.parametrize("outlier", [None, 1e7])
def test_is_close_to_any_omits_distant_points_only(outlier: float | None) -> None:
    draw = np.random.default_rng(10)
    points, queries = draw.random((200, 3)) * 20, draw.random((2000, 3)) * 60 - 20
    if outlier is not None:
        points = np.concatenate([points, np.full((1, 3), outlier)])
    apart = np.linalg.norm(points[None] - queries[:, None], axis=2).min(1)
    found = is_close_to_any(points, queries, 4.0)
    assert found[apart <= 4.0].all()
    if outlier is None:
        assert not found[apart > 4.0 * 1.25 * 3**0.5].any()
    assert not is_close_to_any(points[:1], points[:1] + 50, 4.0).any()


@pytest.mark.unit
def test_fit_rigid_returns_rotations_without_reflection() -> None:
    points = np.random.default_rng(6).normal(size=(4, 10, 3))
    poses = np.stack([turned(seed) for seed in range(4)])
    assert np.allclose(fit_rigid_transforms(points, apply_transform(poses, points)), poses, atol=1e-9)
    mirrored = fit_rigid_transforms(points, points * (1, 1, -1))
    assert np.allclose(np.linalg.det(mirrored[:, :3, :3]), 1)


@pytest.mark.unit
def test_search_hypotheses_finds_pose_among_wrong_matches() -> None:
    draw = np.random.default_rng(7)
    source = draw.random((600, 3)) * 30
    truth = turned(8)
    target = apply_transform(truth, source) + draw.normal(scale=0.2, size=source.shape)
    target[60:] = draw.random((540, 3)) * 30  # one in ten is right
    found = search_pose_hypotheses(source, target, 1.0, seed=1)
    assert 55 <= found[0].inliers <= 75
    assert np.abs(apply_transform(found[0].transform, source[:60]) - apply_transform(truth, source[:60])).max() < 0.5
    assert found[0].inliers > 2 * found[1].inliers
    again = search_pose_hypotheses(source, target, 1.0, seed=1)
    assert all(np.array_equal(a.transform, b.transform) for a, b in zip(found, again, strict=True))
    assert search_pose_hypotheses(np.zeros((2, 3)), np.zeros((2, 3)), 1.0) == []
    assert search_pose_hypotheses(np.zeros((50, 3)), np.zeros((50, 3)), 1.0) == []


@pytest.mark.unit
def test_refiner_ignores_points_without_partners() -> None:
    """A search far from the other cloud takes ten times as long as one beside it."""
    pytest.importorskip("small_gicp")
    rng = np.random.default_rng(0)
    target = rng.random((2000, 3)) * (20, 20, 1) + np.sin(rng.random((2000, 1)) * 3) * (0, 0, 4)
    near, far = target + 0.3, rng.random((500, 3)) + 200.0
    start, sizes = np.eye(4), []
    refiner = Refiner(np.concatenate((near, far)), target)
    align = refiner._gicp.align

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(import_module_of_extra("small_gicp"), name)

        def align(self, target: object, source: object, *rest: object, **options: object) -> object:
            sizes.append(source.size())  # type: ignore[attr-defined]
            return align(target, source, *rest, **options)

    refiner._gicp = Watched()
    found = refiner(start, (2.0, 1.0))
    assert sizes == [2000, 2000]
    np.testing.assert_array_equal(found, Refiner(near, target)(start, (2.0, 1.0)))
    assert np.array_equal(Refiner(far, target)(start, (2.0, 1.0)), start)


@pytest.mark.unit
def test_verdict_requires_score_ratio_and_overlap() -> None:
    good = Evidence(100, 15, 0.5, 0.5, 0.9, 0.4, 0.4, FPFH_LIMITS)
    assert good.score == pytest.approx(6.75)
    assert good.is_accepted
    assert good.reason is None
    sure = Doubts(0.0, 0.0, is_doubtful=False)
    assert (
        0.5
        < estimate_confidence(good, sure._replace(distinctive_contradiction=0.05))
        < estimate_confidence(good, sure)
        < 1.0
    )
    assert estimate_confidence(good, sure._replace(rival=0.8)) < estimate_confidence(good, sure)
    assert estimate_confidence(good._replace(agreeing_fraction=0.2), sure) < estimate_confidence(good, sure)
    assert estimate_confidence(good._replace(inliers=9000), sure) == 0.99  # certain it never is
    assert estimate_confidence(good._replace(inliers=9000), sure._replace(is_doubtful=True)) < 0.9
    assert estimate_confidence(good, sure._replace(distinctive_contradiction=1.0)) < 0.1
    assert good._replace(limits=LEARNED_LIMITS).is_accepted
    weak = good._replace(inliers=9)
    assert weak.is_accepted
    for refused in (
        weak._replace(limits=LEARNED_LIMITS),  # it needs 6, and has 4.05
        good._replace(matches=220),  # fewer than 15 % of those that could agree
        good._replace(matches=130, limits=LEARNED_LIMITS),  # than 25 %
        good._replace(inliers=5, overlap=1.0),
        good._replace(inliers=90, overlap=0.07),
        good._replace(aligned_fraction=0.3),
    ):
        assert not refused.is_accepted
        assert refused.reason is not None


ACCEPTED = AcceptedRegistration(np.eye(4), True, None, 0.9, 100, 90, 0.9, 0.01, 0.1)
REFUSED = RefusedRegistration(None, False, "nothing", 0.1, 100, 3, 0.1, 0.01, 0.1)


@pytest.mark.parametrize(
    ("accepted", "posed", "frame"),
    [
        ([], {0}, 0),
        ([(1, 0)], {0, 1}, 0),
        ([(2, 1)], {1, 2}, 1),  # the first cloud is the odd one
        ([(1, 0), (3, 2)], {0, 1}, 0),
        ([(3, 0), (2, 1), (4, 2)], {1, 2, 4}, 1),
    ],
)
def test_combine_registrations_poses_largest_group(
    accepted: list[tuple[int, int]], posed: set[int], frame: int
) -> None:
    points = np.random.default_rng(0).uniform(0, 10, (200, 3))
    pairs = [(source, target) for source in range(5) for target in range(source)]
    group = fit_group_poses_dropping_contradictions(
        [points] * 5, {pair: ACCEPTED if pair in accepted else REFUSED for pair in pairs}
    )
    assert {number for number, pose in enumerate(group.poses) if pose is not None} == posed
    assert group.frame == frame
    assert np.array_equal(group.poses[frame], np.eye(4))
    assert not group.contradictions
    assert not group.is_complete
    measured = {(pair.source, pair.target) for pair in group.pairs if not np.isnan(pair.residual)}
    assert measured == {pair for pair in accepted if set(pair) <= posed}


@pytest.mark.parametrize("switches", [1, 2, 3])
def test_register_judges_every_replacing_pose(switches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    poses = [np.eye(4) for _ in range(4)]
    for number, pose in enumerate(poses):
        pose[0, 3] = number
    judged: list[float] = []
    evidence = SimpleNamespace(is_accepted=True)
    pair = SimpleNamespace(
        source=SimpleNamespace(fine=None, points=None),
        target=SimpleNamespace(fine=None),
        rank_poses_by_evidence=lambda refined: [(evidence, refined[0])],
        compare=lambda _: SimpleNamespace(contradicted_fraction=0.0),
    )

    def find_rivals(pose: Floats, *_: object) -> list[SimpleNamespace]:
        number = int(pose[0, 3])
        return [SimpleNamespace(transform=poses[number + 1], is_better=True)] if number < switches else []

    for name, replacement in (
        ("_find_reflection_objection", lambda *_: None),
        ("_find_free_motion_objection", lambda _, pose: judged.append(pose[0, 3])),
        ("find_rivals", find_rivals),
        ("Refiner", lambda *_: lambda pose, _reaches: pose),
        ("_measure_deformation_or_explain_by_matches", lambda *_: Deformation(None, is_deformed=False)),
        ("Windows", lambda *_: None),
        ("select_undecided_rivals", lambda *_: []),
        ("_find_change_objection", lambda *_: None),
    ):
        monkeypatch.setattr(search, name, replacement)
    objection, pose, _ = search._judge_pose_or_better_rival(pair, evidence, poses[0], [], SimpleNamespace(seed=0))
    assert judged == [0, 1, 2][: switches + 1]
    if switches < 3:
        assert objection is None
        assert pose[0, 3] == switches
    else:
        assert objection is not None
        assert "another one fits better still" in objection.reason
        assert [other[0, 3] for other in objection.alternatives] == [3]
