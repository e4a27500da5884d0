"""Registration on lists of pairs: transforms stored once, refusals counted, scores from their definitions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fullfield import InputError
from fullfield.cli import evaluate_scans as evaluate_scans_verb
from fullfield.datasets import open_scans
from fullfield.datasets.scans import KITTIOdometry, RegistrationCriteria, ScanDataset, ScanRecord
from fullfield.evaluation import EvaluationSettings, Registrar, evaluate_scans, score_scans
from fullfield.evaluation.run import ScanRun
from fullfield.evaluation.scans import POINTCNNPP, PROTOCOLS, register_store_and_count_missing_pairs
from fullfield.evaluation.sharing import ProcessRank
from fullfield.io import PointCloud, read_point_cloud, write_point_cloud
from fullfield.registration import LearnedDescriptor, Registration
from fullfield.registration.learned_network import DescriptorConfig, DescriptorNetwork
from fullfield.registration.refinement import measure_true_overlap
from fullfield.testing import sample_room_scan
from refusals import refuses

pytest.importorskip("small_gicp")

Floats = NDArray[np.float64]
CLOUD = np.random.default_rng(1).random((400, 3))


def pose(turn: float, shift: float) -> Floats:
    """Turned about z by degrees, shifted along x."""
    result, angle = np.eye(4), np.radians(turn)
    result[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    result[0, 3] = shift
    return result


TRUE = [pose(10 * i, 0.5 * i) for i in range(5)]


class Listed(ScanDataset):
    """Five pairs in two scenes; the first pair of "a" does not count."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        records = []
        for i, true in enumerate(TRUE):
            for name, points in (("s", CLOUD), ("t", CLOUD @ true[:3, :3].T + true[:3, 3])):
                if not (root / f"{name}{i}.ply").exists():
                    write_point_cloud(root / f"{name}{i}.ply", PointCloud(points))
            scene = "aab"[i % 3]
            files = root / f"s{i}.ply", root / f"t{i}.ply"
            record = ScanRecord(f"{scene}/{i}", *files, torch.from_numpy(true), scene=scene, counted=i > 0)
            records.append(record)
        super().__init__("listed", root, records)


class Wrong:
    """Finds the true pose, changed as told; of pair 2 nothing. Half of its matches are good."""

    method_name = "wrong"

    def __init__(self, turn: float = 1.0, shift: float = 0.1, stop_at: int | None = None) -> None:
        self.turn, self.shift, self.stop_at, self.calls = turn, shift, stop_at, 0

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"turn": self.turn, "shift": self.shift}

    def __call__(self, source: PointCloud, target: PointCloud) -> Registration:
        self.calls += 1
        if self.stop_at is not None and self.calls > self.stop_at:
            raise KeyboardInterrupt
        i = next(
            i
            for i, true in enumerate(TRUE)
            if np.allclose(CLOUD[0] @ true[:3, :3].T + true[:3, 3], target.points[0], atol=1e-5)
        )
        matched = np.stack((source.points, target.points), 1)[:100]
        matched[50:, 1] += 1.0
        if i == 2:
            return Registration(None, False, "nothing fits", 0.1, 100, 0, 0.0, math.nan, 0.05, matched)
        found = TRUE[i] @ pose(self.turn * i, self.shift * i)
        return Registration(found, True, None, 0.9, 100, 50, 1.0, 0.01, 0.05, matched)


@pytest.fixture
def pairs(tmp_path: Path) -> Listed:
    return Listed(tmp_path / "set")


def test_evaluate_scans_equals_definitions(pairs: Listed, tmp_path: Path) -> None:
    result = evaluate_scans(Wrong(), pairs, tmp_path / "run", criteria=RegistrationCriteria(max_rre=3.5, max_rte=0.35))
    scores, scenes = result["scores"], result["scenes"]
    rows = result["pairs"]
    assert [round(rows[r.name]["rre"], 4) for r in pairs.records if rows[r.name]["accepted"]] == [0, 1, 3, 4]
    assert [round(rows[r.name]["rte"], 4) for r in pairs.records if rows[r.name]["accepted"]] == [0, 0.1, 0.3, 0.4]
    assert math.isnan(rows["b/2"]["rre"])
    assert rows["b/2"]["reason"] == "nothing fits"
    # Counted are 1, 3, 4 of a and 2 of b; 4 is beyond the limits, 2 was refused.
    assert scenes["a"]["rr"] == pytest.approx(2 / 3)
    assert scenes["b"]["rr"] == 0
    assert scores["rr"] == pytest.approx(1 / 3)
    assert scores["rr_pairs"] == pytest.approx(2 / 4)
    assert scores["accepted"] == pytest.approx(3 / 4)
    assert scores["wrong"] == pytest.approx(1 / 3)
    assert scores["rre"] == pytest.approx(2.0)
    assert scores["rte"] == pytest.approx(0.2)
    assert (scores["pairs"], scores["counted"]) == (5, 4)
    assert scores["ir"] == pytest.approx(0.5, abs=0.02)
    assert scores["fmr"] == 1.0
    assert math.isnan(scenes["b"]["rre"])
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["scores"]["rr"] == scores["rr"]
    assert result["this_call"]["estimated"] == 5


def test_score_scans_with_other_criteria_estimates_nothing(pairs: Listed, tmp_path: Path) -> None:
    method = Wrong()
    evaluate_scans(method, pairs, tmp_path / "run")
    assert method.calls == 5 + 1
    run = ScanRun.load(tmp_path / "run")
    assert score_scans(pairs, run, criteria=RegistrationCriteria(max_rre=1.5))["scores"]["rr_pairs"] == 1 / 4
    assert score_scans(pairs, run, criteria=RegistrationCriteria())["scores"]["rr_pairs"] == 3 / 4
    assert score_scans(pairs, run, criteria=RegistrationCriteria(inlier_ratio=0.6))["scores"]["fmr"] == 0
    assert score_scans(pairs, run, criteria=RegistrationCriteria(inlier_distance=3.0))["scores"]["ir"] == 1
    again = Wrong()
    evaluate_scans(again, pairs, tmp_path / "run")
    assert again.calls == 0


def test_evaluate_scans_rmse_uses_overlap_or_information_matrix(pairs: Listed, tmp_path: Path) -> None:
    result = evaluate_scans(Wrong(), pairs, tmp_path / "run", criteria=RegistrationCriteria(max_rmse=0.15))
    change = pose(1.0, 0.1)
    exact = np.sqrt(((CLOUD @ change[:3, :3].T + change[:3, 3] - CLOUD) ** 2).sum(1).mean())
    assert result["pairs"]["a/1"]["rmse"] == pytest.approx(exact, rel=0.02)
    assert result["pairs"]["a/1"]["overlap"] == 1
    assert result["scores"]["rr_pairs"] == 1 / 4
    pairs.records = tuple(replace(r, information=torch.eye(6, dtype=torch.float64)) for r in pairs.records)
    weighed = score_scans(pairs, ScanRun.load(tmp_path / "run"))
    assert weighed["pairs"]["a/1"]["rmse"] == pytest.approx(math.hypot(0.1, math.sin(math.radians(0.5))))


def test_evaluate_scans_resumes_and_refuses_other_settings(pairs: Listed, tmp_path: Path) -> None:
    whole = evaluate_scans(Wrong(), pairs, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        evaluate_scans(Wrong(stop_at=3), pairs, tmp_path / "run")
    rest = Wrong()
    result = evaluate_scans(rest, pairs, tmp_path / "run")
    assert rest.calls == 3 + 1
    assert result["scores"] == pytest.approx(whole["scores"], nan_ok=True)
    refuses(r"parameters\.turn was 1\.0, is 2\.0", evaluate_scans, Wrong(turn=2.0), pairs, tmp_path / "run")
    refuses("device: expected cpu", evaluate_scans, Wrong(), pairs, tmp_path / "gpu", EvaluationSettings(device="cuda"))


@pytest.mark.parametrize("file", ["predictions/a/1.json", "predictions/a/1.npy"])
def test_evaluate_scans_repeats_incomplete_transform(pairs: Listed, tmp_path: Path, file: str) -> None:
    whole = evaluate_scans(Wrong(), pairs, tmp_path / "run")
    path = tmp_path / "run" / file
    path.unlink() if path.suffix == ".json" else path.write_bytes(path.read_bytes()[:-9])
    refuses("there is no whole prediction of a/1; predict again", score_scans, pairs, ScanRun.load(tmp_path / "run"))
    again = Wrong()
    assert evaluate_scans(again, pairs, tmp_path / "run")["scores"] == pytest.approx(whole["scores"], nan_ok=True)
    assert again.calls == 1 + 1


@pytest.mark.parametrize(
    ("folder", "change", "words"),
    [
        ("predictions", {}, r"a/1\.npy: the array is not in NumPy's format"),
        ("predictions", {"success": 1}, r"a/1\.json: expected an entry success \(true or false\), got 1"),
        ("predictions", {"transform": [[1]]}, r"a/1\.json: expected an entry transform \(4 rows of 4\)"),
        ("predictions", {"seconds": None}, r"a/1\.json: expected an entry seconds"),
        ("truth", {"pose": None}, r"a/1\.json: expected an entry pose"),
        ("truth", {"moment": [1, 2]}, r"a/1\.json: expected an entry moment"),
        ("truth", {"overlap": "all"}, r"a/1\.json: expected an entry overlap"),
    ],
)
def test_score_scans_names_stored_files_with_missing_entries(
    pairs: Listed, tmp_path: Path, folder: str, change: dict[str, Any], words: str
) -> None:
    evaluate_scans(Wrong(), pairs, tmp_path / "run")
    path = tmp_path / "run" / folder / "a" / "1.json"
    if change:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    else:
        path = path.with_suffix(".npy")
        path.write_bytes(b"x" * path.stat().st_size)
    refuses(words, evaluate_scans, Wrong(), pairs, tmp_path / "run")


def test_score_scans_sees_changed_truth_and_refuses_changed_clouds(pairs: Listed, tmp_path: Path) -> None:
    evaluate_scans(Wrong(0.0, 0.0), pairs, tmp_path / "run")
    run = ScanRun.load(tmp_path / "run")
    moved = torch.from_numpy(pose(0.0, 3.0))
    pairs.records = tuple(replace(r, truth=moved @ r.truth) for r in pairs.records)
    assert score_scans(pairs, run)["pairs"]["a/1"]["rte"] == pytest.approx(3.0)
    write_point_cloud(pairs.records[1].source, PointCloud(CLOUD + 1))
    refuses("holds predictions of other frames", score_scans, pairs, run)


def test_predict_scans_shares_pairs_between_processes(pairs: Listed, tmp_path: Path) -> None:
    whole = evaluate_scans(Wrong(), pairs, tmp_path / "alone")
    for rank in range(2):
        process = ProcessRank(rank, 2)
        config = ScanRun.load(tmp_path / "alone").config
        register_store_and_count_missing_pairs(
            Wrong(), pairs, ScanRun(tmp_path / "shared", config), EvaluationSettings(process=process)
        )
    last = Wrong()
    assert evaluate_scans(last, pairs, tmp_path / "shared")["scores"] == pytest.approx(whole["scores"], nan_ok=True)
    assert last.calls == 0


def test_evaluate_scans_learned_registrar_is_own_method(pairs: Listed, tmp_path: Path) -> None:
    config = DescriptorConfig(channels=4, layers=1)
    files = [tmp_path / f"{seed}.safetensors" for seed in (0, 1)]
    for seed, file in enumerate(files):
        torch.manual_seed(seed)
        LearnedDescriptor(DescriptorNetwork(config)).save(file)
    few = {"samples": 200, "iterations": 2000}
    method = Registrar(weights=files[0], **few)
    result = evaluate_scans(method, pairs, tmp_path / "run")
    assert result["config"]["method"] == method.method_name == "learned"
    plain = evaluate_scans(Registrar(**few), pairs, tmp_path / "fpfh")
    assert plain["config"]["method"] == "fpfh"
    assert [row["ir"] for row in result["pairs"].values()] != [row["ir"] for row in plain["pairs"].values()]
    refuses(r"parameters\.weights was", evaluate_scans, Registrar(weights=files[1], **few), pairs, tmp_path / "run")


def test_pointcnnpp_protocol_lists_published_methods_and_limits(tmp_path: Path) -> None:
    """RANSAC alone and the whole pipeline, 5000 to 250 matches, 50,000 trials; its limits for rooms and for KITTI."""
    methods = POINTCNNPP.build_ransac_and_full_registrars(voxel=0.1)
    names = [f"{stages}samples-{count}" for count in (5000, 2500, 1000, 500, 250) for stages in ("ransac-", "")]
    assert [method.run_name for method in methods] == names
    assert {method.parameters["iterations"] for method in methods} == {50_000}
    assert [method.ransac_only for method in methods] == [True, False] * 5
    rooms = Listed(tmp_path / "set")
    assert POINTCNNPP.choose_criteria(rooms) == RegistrationCriteria(
        max_rmse=0.2, inlier_distance=0.1, inlier_ratio=0.05
    )
    street = KITTIOdometry.__new__(KITTIOdometry)
    assert POINTCNNPP.choose_criteria(street) == RegistrationCriteria(max_rre=1.0, max_rmse=0.2, inlier_distance=0.6)
    assert tuple(PROTOCOLS) == evaluate_scans_verb.PROTOCOLS


def test_evaluate_scans_names_empty_cloud(pairs: Listed, tmp_path: Path) -> None:
    write_point_cloud(pairs.records[2].source, PointCloud(np.full((5, 3), np.nan)))
    with pytest.raises(InputError, match=r"b/2: source: expected at least 1 finite point"):
        evaluate_scans(Registrar(iterations=2000), pairs, tmp_path / "run")


def test_measure_true_overlap_refine_corrects_pose() -> None:
    first, second = sample_room_scan(3), sample_room_scan(3, scan_seed=1)
    far = np.array([1e5, -2e5, 50.0])
    exact = pose(30, 2.0)
    target = (second @ exact[:3, :3].T + exact[:3, 3]) + far
    truth = exact.copy()
    truth[:3, 3] += far
    off = truth.copy()
    off[:3, 3] += (0.2, -0.15, 0.1)
    refined = measure_true_overlap(first, target, off, max_distance=0.1, refine=True)
    assert np.abs(refined.pose - truth).max() < 0.02
    assert refined.fraction > 0.9
    assert np.isin(refined.points.round(6), first.round(6)).all()
    kept = measure_true_overlap(first, target, off, max_distance=0.1)
    assert np.allclose(kept.pose, off, atol=1e-9)
    assert kept.fraction < refined.fraction
    nothing = measure_true_overlap(first, target + 1000, truth, max_distance=0.1, refine=True)
    assert (len(nothing.points), nothing.fraction) == (0, 0.0)


def shared_tree(root: Path, data_dir: Path) -> Path:
    """The shared 3DMatch pairs as the benchmark lays them out: cloud 2 moves onto 0; and a pair of two scenes."""
    clouds = data_dir / "pointclouds" / "3dmatch"
    scenes = sorted(path for path in clouds.iterdir() if path.is_dir())
    for at, scene in enumerate(scenes):
        home = root / scene.name
        home.mkdir(parents=True)
        write_point_cloud(home / "cloud_bin_2.ply", PointCloud(np.load(scene / "source.npy")))
        write_point_cloud(home / "cloud_bin_0.ply", PointCloud(np.load(scene / "target.npy")))
        true = np.load(scene / "gt.npy")
        text = "0 2 5\n" + "\n".join(" ".join(map(str, line)) for line in true) + "\n"
        if at == 0:
            write_point_cloud(home / "cloud_bin_4.ply", PointCloud(np.load(scenes[1] / "source.npy")))
            text += "0 4 5\n" + "\n".join(" ".join(map(str, line)) for line in true) + "\n"
        (home / "gt.log").write_text(text)
    return root


def test_evaluate_scans_registers_shared_3dmatch_pairs(tmp_path: Path, data_dir: Path) -> None:
    pairs = open_scans("3dmatch", shared_tree(tmp_path / "set", data_dir))
    result = evaluate_scans(Registrar(), pairs, tmp_path / "run")
    rows = result["pairs"]
    assert [rows[name]["passed"] for name in sorted(rows)] == [True, False, True]
    assert not rows["7-scenes-redkitchen/0_4"]["accepted"]
    assert result["scores"]["rr"] == pytest.approx((0.5 + 1) / 2)
    assert result["scores"]["wrong"] == 0
    assert result["scores"]["rre"] < 3
    assert rows["7-scenes-redkitchen/0_2"]["overlap"] == pytest.approx(0.5, abs=0.15)


@pytest.mark.long
def test_evaluate_scans_registers_shared_kitti_pair(tmp_path: Path, data_dir: Path) -> None:
    """KITTI's layout; the pose in the list is 20 cm off, and evaluation finds the true one on the scans."""
    home = data_dir / "pointclouds" / "kitti_pair"
    true = np.loadtxt(home / "T_target_source.txt")
    camera = np.array([[0.0, -1, 0, 0.1], [0, 0, -1, -0.2], [1, 0, 0, 0.3], [0, 0, 0, 1]])
    off = true.copy()
    off[:3, 3] += (0.15, -0.1, 0.1)
    far = off.copy()
    far[:3, 3] += 30
    poses = [camera @ np.linalg.inv(at) @ np.linalg.inv(camera) for at in (np.eye(4), off, far)]
    assert np.linalg.norm(true[:3, 3]) < 10
    for name in ("08", "09", "10"):
        scans = tmp_path / "set" / "sequences" / name / "velodyne"
        scans.mkdir(parents=True)
        for number, cloud in enumerate(("source", "target")):
            points = read_point_cloud(home / f"{cloud}.ply").points[:: 1 if name == "08" else 40]
            np.pad(points, ((0, 0), (0, 1))).astype(np.float32).tofile(scans / f"{number:06d}.bin")
        (scans.parent / "calib.txt").write_text("Tr: " + " ".join(map(str, camera[:3].ravel())) + "\n")
        (tmp_path / "set" / "poses").mkdir(exist_ok=True)
        lines = [" ".join(map(str, at[:3].ravel())) for at in poses]
        (tmp_path / "set" / "poses" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    pairs = open_scans("kitti-odometry", tmp_path / "set")
    assert [record.name for record in pairs.records] == [f"{name}/000000_000001" for name in ("08", "09", "10")]
    result = evaluate_scans(Registrar(), pairs, tmp_path / "run")
    row = result["pairs"]["08/000000_000001"]
    assert row["passed"]
    assert row["rte"] < 0.05  # 0.2 against the pose of the list
    assert row["rmse"] < 0.1
    stored = np.array(json.loads((tmp_path / "run" / "truth" / "08" / "000000_000001.json").read_text())["pose"])
    assert np.abs(stored - true).max() < 0.05
    assert row["overlap"] > 0.5
