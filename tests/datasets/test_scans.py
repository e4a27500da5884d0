"""Lists of pairs of point clouds, read from small trees in the real formats."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fullfield import InputError
from fullfield.datasets import SCANS, open_scans
from fullfield.datasets.scans import KITTIOdometry
from fullfield.datasets.three_d_match import SCENES, ThreeDMatch
from fullfield.io import PointCloud, write_point_cloud
from refusals import refuses

pytestmark = pytest.mark.unit

Floats = NDArray[np.float64]


def turned(angle: float, shift: tuple[float, float, float]) -> Floats:
    pose = np.eye(4)
    pose[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    pose[:3, 3] = shift
    return pose


def block(first: int, second: int, matrix: Floats) -> str:
    rows = "\n".join("\t".join(f"{value:.9f}" for value in line) for line in matrix)
    return f"{first}\t{second}\t5\n{rows}\n"


def three_d_match(root: Path, log: str = "kitchen/gt.log") -> Path:
    points = np.random.default_rng(0).random((30, 3))
    (root / "kitchen").mkdir(parents=True)
    for i in range(4):
        write_point_cloud(root / "kitchen" / f"cloud_bin_{i}.ply", PointCloud(points + i))
    path = root / log
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block(0, 1, turned(0.1, (1, 2, 3))) + block(0, 3, turned(0.3, (0, 0, 1))))
    path.with_name("gt.info").write_text(block(0, 1, np.eye(6)) + block(0, 3, 7 * np.eye(6)))
    return root


@pytest.mark.parametrize("log", ["kitchen/gt.log", "kitchen-evaluation/gt.log", "benchmarks/3DMatch/kitchen/gt.log"])
def test_3dmatch_lists_pairs_and_poses(tmp_path: Path, log: str) -> None:
    pairs = open_scans("3dmatch", three_d_match(tmp_path, log))
    assert [(r.name, r.scene, r.counted) for r in pairs.records] == [
        ("kitchen/0_1", "kitchen", False),
        ("kitchen/0_3", "kitchen", True),
    ]
    sample = pairs[1]
    assert sample.source.points[:, 0].min() > 2.9  # cloud 3 moves onto cloud 0
    assert sample.target.points[:, 0].max() < 1.1
    assert torch.allclose(sample.truth, torch.from_numpy(turned(0.3, (0, 0, 1))), atol=1e-8)
    assert float(sample.information[5, 5]) == 7
    assert "3dmatch, 2 pairs" in repr(pairs)


def test_3dlomatch_reads_own_lists(tmp_path: Path) -> None:
    three_d_match(tmp_path)
    with pytest.raises(InputError, match=r"expected its list of pairs in .*benchmarks/3DLoMatch/kitchen/gt\.log"):
        ThreeDMatch(tmp_path, benchmark="3dlomatch")
    other = tmp_path / "benchmarks" / "3DLoMatch" / "kitchen"
    other.mkdir(parents=True)
    (other / "gt.log").write_text(block(1, 3, np.eye(4)))
    pairs = open_scans("3dlomatch", tmp_path)
    assert [r.name for r in pairs.records] == ["kitchen/1_3"]
    assert pairs[0].information is None


def test_3dmatch_splits_have_own_scenes(tmp_path: Path) -> None:
    assert {split: len(names) for split, names in SCENES.items()} == {"train": 48, "val": 6, "test": 8}
    assert len({name for names in SCENES.values() for name in names}) == 62
    names = {
        "7-scenes-redkitchen": "test",
        "bundlefusion-office0_2": "val",  # a part of a scene, as Predator cuts it
        "rgbd-scenes-v2-scene_10": "val",
        "rgbd-scenes-v2-scene_11": "train",
        "sun3d-mit_76_417-76-417b_2_1": "train",
    }
    kitchen = three_d_match(tmp_path / "one") / "kitchen"
    for name in names:
        shutil.copytree(kitchen, tmp_path / "all" / name)
    for split in SCENES:
        found = open_scans(f"3dmatch-{split}", tmp_path / "all")
        assert {record.scene for record in found.records} == {name for name, own in names.items() if own == split}
        assert found.name == f"3dmatch-{split}"
    assert len(open_scans("3dmatch", tmp_path / "all").records) == 2 * len(names)
    (tmp_path / "all" / "benchmarks" / "3DMatch" / "7-scenes-chess").mkdir(parents=True)
    (tmp_path / "all" / "benchmarks" / "3DMatch" / "7-scenes-chess" / "gt.log").write_text("")
    assert ThreeDMatch(tmp_path / "all", split="test").records  # another split's missing clouds do not matter
    refuses("7-scenes-chess: expected clouds", ThreeDMatch, tmp_path / "all", split="train")
    refuses("split: expected one of train, val, test, got 'dev'", ThreeDMatch, tmp_path, split="dev")


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("gt.log", b"0 1 5\n1 0 0 0\n", "expected blocks of 5 lines, got 2"),
        ("gt.log", b"0 1 5\n" + b"1 0 0 x\n" * 4, "block 1: expected two numbers and 4 rows of 4"),
        ("gt.log", b"zero 1 5\n" + b"1 0 0 0\n" * 4, "block 1: expected two numbers"),
        ("gt.log", b"0 9 5\n" + b"1 0 0 0\n" * 4, "has no block 0 9|cloud_bin_9"),
        ("gt.log", b"0 1 5\n\xff\xfe", r"gt\.log: expected text in UTF-8, got byte 0xff at 6"),
        ("gt.log", b"0 1 5\n" + b"0 0 0 0\n" * 4, r"gt\.log: pose 0 1: expected a rotation and a translation"),
        ("gt.info", b"0 1 5\n" + b"1 0 0 0 0 0\n" * 6, "has no block 0 3, which gt.log has"),
    ],
)
def test_3dmatch_names_broken_lists(tmp_path: Path, file: str, data: bytes, words: str) -> None:
    three_d_match(tmp_path)
    (tmp_path / "kitchen" / file).write_bytes(data)
    refuses(words, ThreeDMatch, tmp_path)


@pytest.mark.parametrize("log", ["stairs-evaluation/gt.log", "benchmarks/3DMatch/stairs/gt.log"])
def test_3dmatch_names_scene_without_clouds(tmp_path: Path, log: str) -> None:
    three_d_match(tmp_path)
    (tmp_path / log).parent.mkdir(parents=True)
    (tmp_path / log).write_text(block(0, 2, np.eye(4)))
    refuses(rf"stairs: expected clouds .*, as .*{log} lists", ThreeDMatch, tmp_path)


CAMERA = np.array([[0.0, -1, 0, 0.1], [0, 0, -1, -0.2], [1, 0, 0, 0.3], [0, 0, 0, 1]])


def kitti(root: Path, places: list[float], sequences: tuple[str, ...] = ("08", "09", "10")) -> Path:
    """A car that drives along its x axis and turns slowly, as the camera (z forward) sees it."""
    for name in sequences:
        velodyne = root / "sequences" / name / "velodyne"
        velodyne.mkdir(parents=True)
        lines = []
        for i, at in enumerate(places):
            np.full((3, 4), i, np.float32).tofile(velodyne / f"{i:06d}.bin")
            pose = CAMERA @ turned(0.01 * i, (at, 0, 0)) @ np.linalg.inv(CAMERA)
            lines.append(" ".join(f"{value:.9e}" for value in pose[:3].ravel()))
        (root / "sequences" / name / "calib.txt").write_text(
            "P0: 1 0\nTr: " + " ".join(f"{value:.9e}" for value in CAMERA[:3].ravel()) + "\n"
        )
        (root / "poses").mkdir(exist_ok=True)
        (root / "poses" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.parametrize("below", ["", "dataset"])
def test_kitti_odometry_lists_pairs_and_poses(tmp_path: Path, below: str) -> None:
    kitti(tmp_path / below, [4.0 * i for i in range(9)])  # 3 frames are 12 m
    pairs = open_scans("kitti-odometry", tmp_path)
    assert [r.name for r in pairs.records[:3]] == ["08/000000_000002", "08/000003_000005", "09/000000_000002"]
    assert {r.scene for r in pairs.records} == {"08", "09", "10"}
    assert pairs.coarse
    sample = pairs[1]
    assert sample.source.points[0, 0] == 3
    assert sample.target.points[0, 0] == 5
    expected = np.linalg.inv(turned(0.05, (20, 0, 0))) @ turned(0.03, (12, 0, 0))  # in the lidar's axes
    assert torch.allclose(sample.truth, torch.from_numpy(expected), atol=1e-6)


def test_kitti_odometry_skips_scans_without_distant_partner(tmp_path: Path) -> None:
    kitti(tmp_path / "a", [0.0, 0.1, 0.2, *(4.0 * i for i in range(1, 6))], ("06", "07"))
    names = [r.name for r in open_scans("kitti-odometry-val", tmp_path / "a").records]
    assert names == ["06/000000_000004", "07/000000_000004"]
    kitti(tmp_path / "b", [4.0 * i for i in range(12)])
    for i in (2, 3):
        (tmp_path / "b" / "sequences" / "08" / "velodyne" / f"{i:06d}.bin").unlink()
    assert [r.name for r in KITTIOdometry(tmp_path / "b").records[:3]] == [
        "08/000000_000001",
        "08/000004_000006",
        "08/000007_000009",
    ]


def test_kitti_odometry_omits_published_exception(tmp_path: Path) -> None:
    places = [
        *(20.0 * i for i in range(16)),
        *(300 + 0.2 * i for i in range(1, 44)),
        *(400.0 + 20 * i for i in range(3)),
    ]
    names = {r.name for r in KITTIOdometry(kitti(tmp_path, places)).records}
    assert "09/000015_000058" in names
    assert "08/000015_000058" not in names


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("poses/08.txt", b"", r"08\.txt: expected a pose of 12 numbers a line, found none"),
        ("poses/08.txt", b"\xff\n", r"08\.txt: expected text in UTF-8"),
        ("poses/08.txt", b"0 0 0 0 0 0 0 0 0 0 0 0\n" * 9, r"08\.txt: line 1: expected a rotation"),
        ("poses/08.txt", b"1 0 0\n", r"08\.txt: line 1: expected 12 numbers"),
        ("poses/08.txt", b"1 0 0 0 0 1 0 0 0 0 1 0\n", r"has 1 poses, but there is .*000008\.bin"),
        ("sequences/08/calib.txt", b"Tr: \xc3\x28\n", r"calib\.txt: expected text in UTF-8"),
        ("sequences/08/calib.txt", b"Tr: 0 0 0 0 0 0 0 0 0 0 0 0\n", r"calib\.txt: Tr: expected a rotation"),
        ("sequences/08/calib.txt", b"P0: 1\n", "expected a line Tr: with 12 numbers"),
        ("sequences/08/calib.txt", b"Tr: a b\n", "Tr: expected 12 numbers, got 'a b'"),
    ],
)
def test_kitti_odometry_names_broken_files(tmp_path: Path, file: str, data: bytes, words: str) -> None:
    kitti(tmp_path, [4.0 * i for i in range(9)])
    (tmp_path / file).write_bytes(data)
    refuses(words, KITTIOdometry, tmp_path)


def test_kitti_odometry_names_missing_files(tmp_path: Path) -> None:
    refuses("expected the folder of KITTI's odometry sequences", KITTIOdometry, tmp_path)
    kitti(tmp_path, [4.0 * i for i in range(9)], ("08",))
    refuses(r"09.*does not exist", KITTIOdometry, tmp_path)
    refuses("dataset: expected one of", open_scans, "sintel", tmp_path)
    assert set(SCANS) >= {"3dmatch", "3dlomatch", "kitti-odometry"}


def own_pairs(root: Path) -> None:
    points = np.random.default_rng(0).random((30, 3))
    for name in ("a 1.ply", "b.ply"):
        write_point_cloud(root / name, PointCloud(points))
    np.savetxt(root / "pose.txt", turned(0.1, (1, 2, 3))[:3])
    np.save(root / "pose.npy", turned(0.2, (1, 2, 3)))


def test_scan_pairs_reads_list(tmp_path: Path) -> None:
    own_pairs(tmp_path)
    (tmp_path / "pairs.txt").write_text("# mine\na 1.ply\tb.ply\tpose.txt\n\nb.ply b.ply pose.npy\n")
    pairs = open_scans("pairs", tmp_path)
    assert (pairs.name, len(pairs)) == (tmp_path.name, 2)
    first, second = pairs
    assert (first.name, second.name) == ("a 1_b", "b_b")
    assert len(first.source) == 30
    np.testing.assert_allclose(first.truth.numpy(), turned(0.1, (1, 2, 3)), atol=1e-12)
    np.testing.assert_allclose(second.truth.numpy(), turned(0.2, (1, 2, 3)), atol=1e-12)
    assert pairs.criteria.max_rmse == 0.2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected pairs of clouds of"),
        ("b.ply b.ply", "line 1 should hold SOURCE TARGET POSE, got 2 words"),
        ("b.ply c.ply pose.txt", "line 1 names .*c.ply, which does not exist"),
        ("b.ply b.ply pairs.txt", "expected a pose, 12 or 16 numbers"),
        ("b.ply b.ply empty.txt", "expected a finite 4×4 matrix"),
        ("b.ply b.ply mirror.txt", "expected a rotation and a translation"),
        (b"\xff\xfe", "expected text in UTF-8"),
    ],
)
def test_scan_pairs_names_broken_list(tmp_path: Path, text: str | bytes, words: str) -> None:
    own_pairs(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    np.savetxt(tmp_path / "mirror.txt", np.diag([-1.0, 1, 1, 1]))
    (tmp_path / "pairs.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    refuses(words, open_scans, "pairs", tmp_path)


def test_open_scans_names_missing_files(tmp_path: Path) -> None:
    refuses(r"expected pairs\.txt, a line SOURCE TARGET POSE", open_scans, "pairs", tmp_path)
    refuses("expected pairs of clouds of 3dmatch, found none", ThreeDMatch, tmp_path)
    refuses("does not exist", ThreeDMatch, tmp_path / "nowhere")
    three_d_match(tmp_path)
    (tmp_path / "kitchen" / "cloud_bin_3.ply").unlink()
    refuses(r"cloud_bin_3\.ply: does not exist, but gt\.log lists it", ThreeDMatch, tmp_path)
