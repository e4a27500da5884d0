"""Registration as a whole: made-up rooms, real pairs, pairs that have nothing in common, bad input."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fullfield.io import read_point_cloud
from fullfield.io.pointcloud import check_and_orthonormalize_pose
from fullfield.metrics import registration_rmse, relative_rotation_error, relative_translation_error
from fullfield.registration import (
    AcceptedRegistration,
    RefusedRegistration,
    Registration,
    compute_alignment_errors,
    measure_alignment,
    read_pose,
    register,
    register_by_ransac,
)
from fullfield.registration.descriptors import find_nearest
from fullfield.registration.register import Settings, register_clouds
from fullfield.registration.scan import _compute_median_spacing, choose_voxel
from fullfield.registration.search import _select_distinct_poses
from fullfield.testing import sample_room_scan
from refusals import refuses

pytest.importorskip("small_gicp")

Floats = NDArray[np.float64]


def pose(seed: int, shift: float = 5.0) -> Floats:
    draw = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(draw.normal(size=(3, 3)))
    result = np.eye(4)
    result[:3, :3] = turn * np.linalg.det(turn)
    result[:3, 3] = draw.normal(size=3) * shift
    return result


def moved(transform: Floats, points: Floats) -> Floats:
    return points @ transform[:3, :3].T + transform[:3, 3]


def errors(found: Registration, truth: Floats, points: Floats) -> tuple[float, float, float]:
    """RRE, RTE, RMSE."""
    assert found.success, found.reason
    pred, true = torch.from_numpy(found.transform), torch.from_numpy(truth)
    rmse = registration_rmse(pred, true, torch.from_numpy(points))
    return float(relative_rotation_error(pred, true)), float(relative_translation_error(pred, true)), float(rmse)


@pytest.fixture(scope="module")
def room() -> tuple[Floats, Floats]:
    """Two scans of one room that share two thirds."""
    first, second = sample_room_scan(3), sample_room_scan(3, scan_seed=1)
    return first[first[:, 0] < 3.8], second[second[:, 0] > 1.0]


def test_register_ignores_distant_stray_point(room: tuple[Floats, Floats]) -> None:
    """Projected coordinates, and the (0, 0, 0) that some scanners write where nothing was measured."""
    source, target = (cloud * 0.1 + (450_000.0, 5_400_000.0, 300.0) for cloud in room)
    assert errors(register(np.vstack((source, np.zeros(3))), target), np.eye(4), source)[2] < 0.002


def test_register_recovers_any_pose(room: tuple[Floats, Floats]) -> None:
    source, target = room
    truth = pose(1)
    found = register(source, moved(truth, target))
    assert errors(found, truth, source)[2] < 0.02
    assert found.confidence > 0.9
    assert found.reason is None
    assert str(found).startswith(f"Registration(confidence {found.confidence:.3f}, ")
    assert "\n" not in str(found)
    assert 0.5 < found.fitness < 0.9
    assert found.rmse < found.voxel
    again = register(source, moved(truth, target))
    assert np.array_equal(found.transform, again.transform)
    assert isinstance(found, AcceptedRegistration)
    assert found.candidate is None
    measured = measure_alignment(source, moved(truth, target), found.transform, voxel=found.voxel)
    assert measured == pytest.approx((found.fitness, found.rmse), rel=1e-6)
    assert measure_alignment(source, target + 100, voxel=0.1).fitness == 0


def test_register_by_ransac_returns_unrefined_pose(room: tuple[Floats, Floats]) -> None:
    source, target = room
    truth = pose(4)
    whole = register(source, moved(truth, target), voxel=0.09)
    plain = register_by_ransac(source, moved(truth, target), voxel=0.09)
    assert np.array_equal(plain.matched, whole.matched)
    assert errors(whole, truth, source)[2] < errors(plain, truth, source)[2] < 0.1
    assert np.isnan((plain.confidence, plain.fitness, plain.rmse)).all()
    few = register_by_ransac(source, moved(truth, target), voxel=0.09, samples=20)
    assert few.matches == len(few.matched) == 20
    other = sample_room_scan(22, 4500)
    assert not register(source, other, voxel=0.1).success
    assert register_by_ransac(source, other, voxel=0.1).transform is not None
    none = register_by_ransac(source, other, voxel=0.1, samples=3)
    assert none.reason == "no pose was found that 3 of 3 matches agree on"
    refuses("samples: expected an integer >= 3", register_by_ransac, source, other, samples=2)


def test_register_accepts_surveyed_coordinates_and_open3d_clouds(room: tuple[Floats, Floats]) -> None:
    source, target = room
    utm = np.array([[500_000.0, 5_200_000.0, 250.0]])
    clouds = (SimpleNamespace(points=points + utm, colors=[], normals=[]) for points in (source, target))
    found = register(*clouds, voxel=0.09)
    assert found.success
    assert np.abs(moved(found.transform, source + utm) - source - utm).max() < 0.03


def test_register_refines_and_judges_initial_pose(room: tuple[Floats, Floats]) -> None:
    source, target = room
    truth, nudge = pose(2), np.eye(4)
    nudge[:3, 3] = (0.15, -0.1, 0.1)
    assert errors(register(source, moved(truth, target), init=truth @ nudge), truth, source)[2] < 0.02
    turn = np.radians(20)
    nudge[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    middle = source.mean(0)
    nudge[:3, 3] = middle - nudge[:3, :3] @ middle + 5 * 0.09 * np.array([0.6, 0.0, 0.8])
    assert errors(register(source, moved(truth, target), init=truth @ nudge, voxel=0.09), truth, source)[2] < 0.02
    lost = register(source, moved(truth, target), init=pose(3))
    assert isinstance(lost, RefusedRegistration)
    assert lost.transform is None
    assert lost.candidate is not None
    there = measure_alignment(source, moved(truth, target), lost.candidate, voxel=lost.voxel)
    assert there == pytest.approx((lost.fitness, lost.rmse), rel=1e-6, nan_ok=True)


def test_register_names_distant_initial_pose_and_no_reflection(room: tuple[Floats, Floats]) -> None:
    """A reflection brings more matches together than a pose that is far off, but fewer than the right one."""
    scan, other = sample_room_scan(3), moved(pose(2), sample_room_scan(3, scan_seed=1))
    for source, target, init in ((*room, pose(3)), (scan, other, np.eye(4)), (scan, other, pose(5))):
        lost = register(source, target, init=init)
        assert lost.cause == "init"
        assert str(lost.reason).startswith("the initial pose is too far off: it leads to a pose in which ")
        assert lost.confidence < 0.5
        assert lost.untried == ()


def test_register_initial_pose_of_mirrored_scan_is_compared_with_search(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = sample_room_scan(3) * (-1.0, 1.0, 1.0)
    monkeypatch.setattr("fullfield.registration.search._find_distant_start_objection", lambda *_: None)
    mirrored = register(scan, sample_room_scan(3, scan_seed=1), init=np.eye(4))
    assert mirrored.cause == "mirror"
    searched = register(scan, sample_room_scan(3, scan_seed=1))
    counts = [int(re.search(r"the best pose (\d+)", str(found.reason))[1]) for found in (mirrored, searched)]
    assert counts[0] >= 0.9 * counts[1]
    whole = register(sample_room_scan(3), moved(pose(2), sample_room_scan(3, scan_seed=1)), init=pose(3))
    assert whole.cause == "overlap"


def test_register_refuses_different_rooms() -> None:
    found = register(sample_room_scan(21, 4500), sample_room_scan(22, 4500))
    assert not found.success
    assert found.transform is None
    assert found.confidence < 0.5
    assert found.untried == ("descriptor", "init")
    assert str(found).startswith("Registration(refused: ")
    assert found.reason
    assert "\n" not in found.reason


def test_register_refuses_mirrored_scan() -> None:
    """Its descriptors are the same, and walls and floor alone make a pose of which 63 matches agree."""
    scan = sample_room_scan(3)
    assert register(scan, sample_room_scan(3, scan_seed=1)).success
    found = register(scan * (-1.0, 1.0, 1.0), sample_room_scan(3, scan_seed=1))
    assert not found.success
    assert found.transform is None
    assert found.confidence < 0.5
    assert str(found.reason).startswith("one cloud looks like a mirror image of the other: a reflection brings ")
    assert found.untried == ()


def test_register_reports_progress_and_refuses_too_few_matches(room: tuple[Floats, Floats]) -> None:
    reports: list[tuple[float, str]] = []
    register_clouds(*room, Settings(voxel=0.09), lambda fraction, words: reports.append((fraction, words)))
    assert [fraction for fraction, _ in reports] == sorted(fraction for fraction, _ in reports)
    assert reports[0][1] == "describing the source, voxel 0.09"
    assert len(reports) == 6
    source, target = room
    found = register(np.repeat(source, 3, axis=0), target, voxel=0.09)
    assert np.array_equal(found.transform, register(source, target, voxel=0.09).transform)
    found = register(*room, voxel=1e-6)  # no point has a neighbour
    assert not found.success
    assert f"have {found.matches} matches" in str(found.reason)


def test_register_ignores_nonfinite_points(room: tuple[Floats, Floats]) -> None:
    source, target = room
    holes = source.copy()
    holes[::7] = np.nan
    found = register(holes, target, voxel=0.09)
    assert errors(found, np.eye(4), source)[2] < 0.02
    apart = compute_alignment_errors(holes, target, found.transform)
    assert np.isnan(apart[::7]).all()
    assert np.nanmedian(apart) < 0.1
    least = float(np.nanquantile(apart, 0.9))
    near = compute_alignment_errors(holes, target, found.transform, max_distance=least)
    assert np.isnan(near[::7]).all()
    assert np.array_equal(near[apart <= least], apart[apart <= least])
    assert np.isinf(near[apart > least]).all()
    assert np.isinf(compute_alignment_errors(source, target + 100, max_distance=1.0)).all()
    refuses("max_distance: expected a number > 0", compute_alignment_errors, source, target, max_distance=0.0)


def test_check_and_orthonormalize_pose_refuses_non_rigid_poses() -> None:
    points = np.random.default_rng(0).random((50, 3)) * 20
    poses = [np.eye(4) for _ in range(3)]
    poses[1][0, 3], poses[2][0, 3] = 0.3, 2.0
    assert [pose[0, 3] for pose in _select_distinct_poses(poses, points)] == [0.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuses(
            "expected a rotation and a translation", check_and_orthonormalize_pose, np.diag([1e308, 1, 1, 1]), "init"
        )


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        (np.zeros((1, 3)), "at the same place"),
        (np.ones((500, 3)), "at the same place"),
        (np.random.default_rng(0).random((5, 3)), "points are left at a voxel"),
        (np.random.default_rng(0).random((5000, 3)) * (4, 4, 0), "lie in a plane"),
        (np.random.default_rng(0).random((5000, 3)) * (4, 0, 0), "lie in a plane|points are left|at the same place"),
    ],
)
def test_register_refuses_clouds_without_overlap(room: tuple[Floats, Floats], points: Floats, reason: str) -> None:
    for pair, which in (((points, room[1]), "source"), ((room[0], points), "target")):
        found = register(*pair)
        if reason == "at the same place":
            assert found.reason == f"all the points of the {which} are at the same place"
        assert not found.success
        assert found.transform is None
        with pytest.raises(AssertionError, match=reason):
            errors(found, np.eye(4), room[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": np.empty((0, 3))}, "source: expected at least 1 finite point, got 0 of 0"),
        ({"source": np.full((9, 3), np.nan)}, "source: expected at least 1 finite point, got 0 of 9"),
        ({"target": np.zeros((3, 2))}, "target: expected points"),
        ({"voxel": -1.0}, "voxel: expected a number > 0"),
        ({"seed": -1}, "seed: expected an integer >= 0"),
        ({"iterations": 0}, "iterations: expected an integer >= 1"),
        ({"init": np.eye(3)}, "init: expected a finite 4×4 matrix"),
        ({"init": np.diag([1.0, 1, -1, 1])}, "init: expected a rotation and a translation"),
        ({"init": "here"}, "init: expected a finite 4×4 matrix"),
        (
            {"source": np.vstack((np.random.default_rng(0).random((99, 3)), [1e30, 0, 0]))},
            r"source: expected points close enough for a grid of voxels, got a point at \(1e\+30, 0, 0\)",
        ),
    ],
)
def test_register_names_bad_arguments(arguments: dict[str, object], message: str) -> None:
    refuses(message, register, **{"source": np.eye(3), "target": np.eye(3), **arguments})


def test_read_pose_reads_every_format(tmp_path: Path) -> None:
    truth = pose(4)
    np.savetxt(tmp_path / "a.txt", truth)
    np.savetxt(tmp_path / "b.txt", truth[:3].reshape(1, 12))
    np.save(tmp_path / "c.npy", truth)
    for name in ("a.txt", "b.txt", "c.npy"):
        assert np.allclose(read_pose(tmp_path / name), truth, atol=1e-12)
    for text in ("1 2 3", "", "a b", "1 0 0 0 0 1 0 0 0 0 2 0"):
        (tmp_path / "d.txt").write_text(text)
        refuses(r"d\.txt", read_pose, tmp_path / "d.txt")
    for name, data in (("d.txt", b"\xff\xfe 1 2"), ("d.npy", b"\x93NUMPY"), ("d.npy", b"PK\x03\x04")):
        (tmp_path / name).write_bytes(data)
        refuses(name.replace(".", r"\."), read_pose, tmp_path / name)


@pytest.mark.parametrize("kind", ["room", "lattice", "copies", "outlier"])
def test_compute_median_spacing_of_large_clouds_equals_definition(kind: str) -> None:
    draw = np.random.default_rng(3)
    points = {
        "room": lambda: sample_room_scan(1, 120_000),
        "lattice": lambda: draw.integers(0, 40, (120_000, 3)).astype(np.float64),
        "copies": lambda: np.vstack((np.repeat(draw.random((9_000, 3)), 9, axis=0), draw.random((40_000, 3)))),
        "outlier": lambda: np.vstack((draw.random((110_000, 3)), [1e30, 0.0, 0.0])),
    }[kind]()
    sampled = points[np.sort(np.random.default_rng(0).choice(len(points), 2000, replace=False))]
    distances = find_nearest(points, sampled, 8)[0]
    nearest = np.where(distances > 0, distances, np.inf).min(1)
    assert _compute_median_spacing(points) == np.median(nearest[np.isfinite(nearest)])


def test_choose_voxel_follows_scale_and_density() -> None:
    room = sample_room_scan(1, 20_000)
    voxel = choose_voxel(room, room)
    assert choose_voxel(room * 1000, room * 1000) == pytest.approx(1000 * voxel, rel=1e-6)
    assert choose_voxel(room[::50], room) > 1.2 * voxel


def pairs(data_dir: Path) -> dict[str, tuple[Floats, Floats, Floats]]:
    clouds = data_dir / "pointclouds"
    if not clouds.is_dir():
        pytest.skip(f"{clouds} is absent")
    found = {}
    for name, folder, source, target in (
        ("kitchen", "3dmatch/7-scenes-redkitchen", "source", "target"),
        ("hotel", "3dmatch/sun3d-hotel_umd-maryland_hotel3", "source", "target"),
        ("demo", "3dmatch_demo", "src", "ref"),
    ):
        arrays = (np.load(clouds / folder / f"{stem}.npy").astype(np.float64) for stem in (source, target, "gt"))
        found[name] = tuple(arrays)
    street = clouds / "kitti_pair"
    lidar = (read_point_cloud(street / f"{stem}.ply").points.astype(np.float64) for stem in ("source", "target"))
    found["street"] = (*lidar, read_pose(street / "T_target_source.txt"))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["kitchen", "hotel", "demo", "street"])
def test_register_real_pairs_meets_published_thresholds(data_dir: Path, name: str) -> None:
    source, target, truth = pairs(data_dir)[name]
    start = pose(7, shift=20.0)
    found = register(moved(start, source), target, seed=7)
    rre, rte, rmse = errors(found, truth @ np.linalg.inv(start), moved(start, source))
    assert rmse < 0.2
    if name == "street":
        assert rre < 1.0
        assert rte < 2.0


@pytest.mark.parametrize("change", ["cropped", "noisy", "thinned"])
def test_register_real_pair_survives_added_damage(data_dir: Path, change: str) -> None:
    source, target, truth = pairs(data_dir)["hotel"]
    draw = np.random.default_rng(0)
    if change == "cropped":
        source = source[source[:, 0] > np.quantile(source[:, 0], 0.4)]
    elif change == "noisy":
        source, target = (cloud + draw.normal(scale=0.01, size=cloud.shape) for cloud in (source, target))
    else:
        source = source[draw.random(len(source)) < 0.2]
    assert errors(register(source, target), truth, source)[2] < 0.2


def test_register_refuses_real_pairs_of_different_scenes(data_dir: Path) -> None:
    real = pairs(data_dir)
    (kitchen, kitchen2, _), (hotel, hotel2, _), street = real["kitchen"], real["hotel"], real["street"][0]
    wrong = [(kitchen, hotel), (kitchen2, hotel2), (hotel, real["demo"][0]), (street, kitchen), (street / 10, hotel)]
    for source, target in wrong:
        found = register(source, target)
        assert not found.success
        assert found.reason


def test_register_names_reason_for_repeated_points() -> None:
    random = np.random.default_rng(0)
    target = random.random((3000, 3))
    source = np.zeros_like(target)
    source[:100] = random.random((100, 3))
    for pair in ((source, target), (target, source)):
        refused = register(*(points.astype(np.float32) for points in pair))
        assert not refused.success
        assert "times as large" not in refused.reason
