"""``fullfield register``: reports, files, exit codes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fullfield import viz
from fullfield._kernels.cache_folder import iterate_candidate_cache_folders
from fullfield.cli import progress
from fullfield.io import PointCloud, pointcloud, read_point_cloud, write_point_cloud
from fullfield.io.point_formats.coordinate_system import CoordinateSystem, SystemRecord
from fullfield.io.pointcloud import read_coordinate_system_or_none
from fullfield.registration import AcceptedRegistration, measure_alignment
from fullfield.testing import sample_room_scan
from fullfield.viz import draw_sheet

pytest.importorskip("small_gicp")

TRUTH = np.array([[0.0, -1, 0, 2], [1, 0, 0, -3], [0, 0, 1, 0.5], [0, 0, 0, 1]])


@pytest.fixture
def scans(scene: Path) -> Path:
    """The folder with two scans of a room, the first with colours and normals, and one of another room."""
    first, second = sample_room_scan(3, 4500), sample_room_scan(3, 4500, scan_seed=1)
    first, second = first[first[:, 0] < 3.8], second[second[:, 0] > 1.0]
    colors = np.arange(3 * len(first)).reshape(-1, 3).astype(np.uint8)
    normals = np.tile(np.float32([0, 1, 0]), (len(first), 1))
    write_point_cloud(scene / "a.ply", PointCloud(first.astype(np.float32), colors, normals))
    write_point_cloud(scene / "b.npy", PointCloud(second @ TRUTH[:3, :3].T + TRUTH[:3, 3]))
    write_point_cloud(scene / "c.ply", PointCloud(sample_room_scan(22, 4500)))
    return scene


def test_register_writes_pose_and_report(cli: Any, scans: Path) -> None:
    np.savetxt(scans / "near.txt", TRUTH)
    ran = cli("register", "a.ply", "b.npy", "-o", "moved.ply", "--viz", "check.png", "--json", "--voxel", "0.09")
    assert ran.code == 0
    report = ran.json
    assert np.abs(np.array(report["transform"]) - TRUTH).max() < 0.02
    assert report["success"]
    assert report["reason"] is None
    assert 0.5 < report["confidence"] <= 1
    assert 20 < report["inliers"] < report["matches"]
    assert 0 < report["rmse"] < report["voxel"] == 0.09
    before, after = read_point_cloud(scans / "a.ply"), read_point_cloud(scans / "moved.ply")
    assert np.array_equal(after.colors, before.colors)
    assert np.allclose(after.normals, [-1, 0, 0], atol=0.01)
    assert np.abs(after.points - before.points @ TRUTH[:3, :3].T - TRUTH[:3, 3]).max() < 0.03
    assert (scans / "check.png").stat().st_size > 10_000

    ran = cli("register", "a.ply", "b.npy", "--init", "near.txt", "--voxel", "0.09")
    assert ran.code == 0
    printed = np.array([line.split() for line in ran.out.splitlines()[:4]], np.float64)
    assert np.abs(printed - TRUTH).max() < 0.02
    assert "matches agree" in ran.out


@pytest.mark.parametrize(("module", "options"), [("small_gicp", ()), ("scipy", ()), ("laspy", ("--merge", "all.las"))])
def test_register_names_missing_package_before_work(
    cli: Any, scans: Path, monkeypatch: pytest.MonkeyPatch, module: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("fullfield.cli.register._read_cloud", lambda *_: pytest.fail("a cloud was read"))
    ran = cli("register", "a.ply", "b.npy", *options)
    assert ran.code == 2
    assert {"scipy": "SciPy"}.get(module, module) in ran.err
    assert "part" not in ran.err, "the name of a temporary file"
    assert not (scans / "all.las").exists()


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names on the panels of each picture that is drawn."""
    seen: list[str] = []

    def noted(panels: Any, **more: Any) -> Any:
        seen.extend(panel[0] for panel in panels)
        return draw_sheet(panels, **more)

    monkeypatch.setattr(viz, "draw_sheet", noted)
    return seen


def test_register_viz_titles_match_report(cli: Any, scans: Path, titles: list[str]) -> None:
    ran = cli("register", "a.ply", "b.npy", "--viz", "check.png", "--voxel", "0.09", "--json").json
    assert titles[1] == f"after: {ran['fitness']:.1%} within 0.09, RMSE {ran['rmse']:.4g}"
    assert 0.5 < ran["fitness"] < 1
    before = measure_alignment(read_point_cloud(scans / "a.ply"), read_point_cloud(scans / "b.npy"), voxel=0.09)
    assert titles[0] == f"before: {before.fitness:.1%} within 0.09, RMSE {before.rmse:.4g}"
    assert before.fitness < 0.3
    np.save(scans / "far.npy", read_point_cloud(scans / "b.npy").points + np.array([500.0, 0.0, 0.0]))
    assert cli("register", "a.ply", "far.npy", "--viz", "far.png", "--voxel", "0.09").code == 0
    assert titles[2] == "before: 0.0% within 0.09"


def test_register_viz_marks_refused_pose(cli: Any, scans: Path, titles: list[str]) -> None:
    ran = cli("register", "a.ply", "c.ply", "--viz", "no.png", "-o", "moved.ply", "--voxel", "0.1")
    assert (ran.code, ran.out) == (3, "")
    assert [title.split(":")[0] for title in titles] == ["before", "refused"]
    said = ran.err.splitlines()[-1]
    assert said.startswith("fullfield: register: not registered: ")
    assert "moved.ply not written; no.png shows the refused pose; if both show the same place, try --" in said
    assert not (scans / "moved.ply").exists()
    assert (scans / "no.png").stat().st_size > 10_000
    told = cli("register", "a.ply", "c.ply", "--viz", "no.png", "--voxel", "0.1", "--json").json
    assert told["transform"] is None
    assert np.allclose(np.array(told["candidate"])[3], (0, 0, 0, 1))
    assert told["picture"] == "no.png"
    np.save(scans / "flat.npy", np.random.default_rng(0).random((3000, 3)) * (4, 4, 0))
    ran = cli("register", "flat.npy", "b.npy", "--viz", "flat.png")
    assert "flat.png not written" in ran.err
    assert not (scans / "flat.png").exists()
    told = cli("register", "flat.npy", "b.npy", "--json").json
    assert told["transform"] is None
    assert "lie in a plane" in told["reason"]
    assert told["untried"] == ["descriptor", "init"]


def test_register_prints_progress_of_long_work(cli: Any, scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scans
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    ran = cli("register", "a.ply", "b.npy", "--viz", "check.png", "--voxel", "0.09")
    assert "describing the target, voxel 0.09" in ran.err
    assert "drawing after" in ran.err
    assert cli("register", "a.ply", "b.npy", "--voxel", "0.09", "--quiet").err == ""


def test_register_refuses_lossy_output_before_search(cli: Any, scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError

    modules = [importlib.import_module(f"fullfield.registration.{name}") for name in ("register", "group")]
    for module, search in zip(modules, ("register_clouds", "register_group"), strict=True):
        monkeypatch.setattr(module, search, never)
    ran = cli("register", "a.ply", "b.npy", "-o", "out.npy")
    assert ran.code == 2
    assert "out.npy: .npy holds columns without names" in ran.err
    assert not (scans / "out.npy").exists()
    write_point_cloud(scans / "holes.ply", PointCloud(np.append(sample_room_scan(3, 4500), [[np.nan] * 3], axis=0)))
    for others in (("b.npy", "-o"), ("b.npy", "--merge"), ("b.npy", "c.ply", "--merge")):
        ran = cli("register", "holes.ply", *others, "out.las")
        assert ran.code == 2
        assert "error: out.las: LAS holds finite points only" in ran.err


def test_register_several_clouds_writes_poses_and_merged_cloud(
    cli: Any, scans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = Mock(wraps=pointcloud.merge_clouds_and_list_dropped_fields)
    monkeypatch.setattr(pointcloud, "merge_clouds_and_list_dropped_fields", merge)
    third = sample_room_scan(3, 4500, scan_seed=2) + np.array([0.0, 1.0, 0.0])
    write_point_cloud(scans / "d.ply", PointCloud(third))
    ran = cli("register", "a.ply", "b.npy", "d.ply", "--voxel", "0.09", "--merge", "all.las", "--json")
    assert ran.code == 0
    poses = [np.array(one["pose"]) for one in ran.json["poses"]]
    assert np.array_equal(poses[0], np.eye(4))
    assert np.abs(np.linalg.inv(poses[1]) - TRUTH).max() < 0.03
    assert np.abs(poses[2][:3, 3] - (0, -1, 0)).max() < 0.03
    assert ran.json["contradictions"] == []
    clouds = [read_point_cloud(scans / name) for name in ("a.ply", "b.npy", "d.ply")]
    assert len(read_point_cloud(scans / "all.las")) == sum(map(len, clouds))
    assert merge.call_count == 1
    (scans / "poses.json").write_text(ran.out)
    assert cli("register", "--apply", "poses.json", "d.ply", "-o", "moved.ply").code == 0
    moved = read_point_cloud(scans / "moved.ply").points
    assert np.abs(moved - third @ poses[2][:3, :3].T - poses[2][:3, 3]).max() < 1e-3
    printed = ran.json
    ran = cli("register", "--apply", "poses.json", "c.ply", "-o", "moved.ply")
    assert ran.code == 2
    assert "CLOUD: expected one of a.ply, b.npy, d.ply, whose poses poses.json has, got c.ply; --apply" in ran.err
    assert "poses.json:a.ply names the pose to take" in ran.err
    printed["poses"][2]["pose"] = None
    (scans / "refused.json").write_text(json.dumps(printed))
    ran = cli("register", "--apply", "refused.json", "d.ply", "-o", "moved.ply")
    assert ran.code == 2
    assert "refused.json: expected an accepted pose of d.ply, got none" in ran.err
    (scans / "other.json").write_text("[]")
    ran = cli("register", "--apply", "other.json", "d.ply", "-o", "moved.ply")
    assert ran.code == 2
    assert "other.json: expected what register --json printed" in ran.err
    ran = cli("register", "a.ply", "b.npy", "c.ply", "--voxel", "0.1")
    assert ran.code == 3
    assert "c.ply: no accepted pair connects it with a.ply" in ran.out
    assert "b.npy on a.ply: confidence 0." in ran.out
    assert ", differs by " in ran.out
    assert "c.ply on a.ply: refused: " in ran.out
    assert "; if both show the same place, try --descriptor learned or --init with a rough pose" in ran.out
    ran = cli("register", "a.ply", "b.npy", "c.ply", "--voxel", "0.1", "--merge", "some.ply")
    assert ran.code == 3
    assert "some.ply: a.ply and b.npy; without c.ply, which no accepted pair connects" in ran.out
    assert len(read_point_cloud(scans / "some.ply")) == sum(map(len, clouds[:2]))
    ran = cli("register", "a.ply", "c.ply", "c.ply", "--voxel", "0.1", "--merge", "none.ply")
    assert "none.ply: a.ply" not in ran.out
    assert "nan" not in ran.out
    ran = cli("register", "a.ply", "b.npy", "d.ply", "-o", "moved.ply")
    assert ran.code == 2
    assert "--output: is for two clouds" in ran.err


def test_register_several_clouds_poses_those_that_agree_where_first_does_not(cli: Any, scans: Path) -> None:
    ran = cli("register", "c.ply", "a.ply", "b.npy", "--voxel", "0.1", "--merge", "all.ply")
    assert ran.code == 3
    assert ran.out.startswith("poses in the frame of a.ply, since no accepted pair connects it with c.ply\n")
    assert "c.ply: no accepted pair connects it with a.ply" in ran.out
    assert "all.ply: a.ply and b.npy; without c.ply, which no accepted pair connects" in ran.out
    assert "nan" not in ran.out
    printed = cli("register", "c.ply", "a.ply", "b.npy", "--voxel", "0.1", "--json").json
    assert printed["frame"] == "a.ply"
    assert printed["poses"][0]["pose"] is None
    assert np.abs(np.linalg.inv(printed["poses"][2]["pose"]) - TRUTH).max() < 0.03
    merged, first, second = (read_point_cloud(scans / name) for name in ("all.ply", "a.ply", "b.npy"))
    assert len(merged) == len(first) + len(second)
    assert np.abs(merged.points[: len(first)] - first.points).max() < 1e-5


@pytest.mark.parametrize("is_pair", [True, False])
def test_register_apply_finds_pose_by_file_name(cli: Any, scene: Path, is_pair: bool) -> None:
    turned = [[0.0, -1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 2.0], [0.0, 0.0, 1.0, 3.0], [0.0, 0.0, 0.0, 1.0]]
    printed: dict[str, Any] = {"source": "C:\\thin\\a.ply", "target": "b.ply", "transform": turned}
    if not is_pair:
        names = {"b.ply": np.eye(4).tolist(), "C:\\thin\\a.ply": turned, "one/d.ply": turned, "two/d.ply": None}
        printed = {"poses": [{"cloud": name, "pose": pose} for name, pose in names.items()]}
    (scene / "poses.json").write_text(json.dumps(printed))
    (scene / "full").mkdir()
    for name in ("a.ply", "a.npy", "b.ply", "d.ply", "whatever.ply"):
        write_point_cloud(scene / "full" / name, np.float64([[1.0, 0.0, 0.0]]))
    cases = [("", "a.ply", 1), ("", "a.npy", 1), ("", "b.ply", 0), (":C:\\thin\\a.ply", "whatever.ply", 1)]
    for suffix, name, is_moved in [*cases, (":a.ply", "b.ply", 1), (":b.ply", "a.ply", 0)]:
        ran = cli("register", "--apply", f"poses.json{suffix}", f"full/{name}", "-o", "moved.ply")
        assert ran.code == 0, ran.err
        assert np.allclose(read_point_cloud(scene / "moved.ply").points, [[1, 3, 3] if is_moved else [1, 0, 0]])
    ran = cli("register", "--apply", "poses.json:x.ply", "full/a.ply", "-o", "moved.ply")
    assert ran.code == 2
    assert "--apply poses.json:x.ply: expected one of " in ran.err
    if not is_pair:
        said = cli("register", "--apply", "poses.json", "full/d.ply", "-o", "moved.ply").get_refusal()
        assert "got full/d.ply; its name fits one/d.ply and two/d.ply; --apply poses.json:b.ply names the" in said
        assert cli("register", "--apply", "poses.json:one/d.ply", "full/d.ply", "-o", "moved.ply").code == 0


def test_register_las_outputs_have_coordinate_system_of_frame(cli: Any, scans: Path) -> None:
    pytest.importorskip("laspy")

    def build_system(name: str) -> CoordinateSystem:
        return CoordinateSystem((SystemRecord(2112, "WKT", f'LOCAL_CS["{name}"]\0'.encode()),), True)

    clouds = {name: read_point_cloud(scans / name) for name in ("a.ply", "b.npy", "c.ply")}
    for source, target, name in (("a.ply", "a.las", "site"), ("b.npy", "b.las", "town"), ("a.ply", "s.las", "town")):
        cloud = PointCloud(clouds[source].points, coordinate_system=build_system(name))
        write_point_cloud(scans / target, cloud)
    same, outputs = ("s.las", "b.las", "--voxel", "0.09"), ("-o", "moved.las", "--merge", "both.las")
    ran = cli("register", *same, *outputs)
    assert ran.code == 0
    assert "coordinate systems" not in ran.err
    for name in ("moved.las", "both.las"):
        assert read_coordinate_system_or_none(scans / name).name == "town"
    ran = cli("register", "a.las", "b.las", "--voxel", "0.09", *outputs, "--json")
    note = "fullfield: note: the coordinate systems differ: a.las in site, b.las in town; they are not converted"
    assert [line for line in ran.err.splitlines() if "differ" in line] == [note]
    assert cli("register", "a.las", "b.las", "--voxel", "0.09", *outputs, "--quiet").err == ""
    assert read_coordinate_system_or_none(scans / "moved.las").name == "town"
    (scans / "pair.json").write_text(ran.out)
    assert cli("register", "--apply", "pair.json", "a.las", "-o", "again.las").err.splitlines() == [note]
    assert read_coordinate_system_or_none(scans / "again.las").name == "town"
    (scans / "b.las").rename(scans / "gone.las")
    assert cli("register", "--apply", "pair.json", "a.las", "-o", "again.las").err == ""
    assert read_coordinate_system_or_none(scans / "again.las").name == "site"
    ran = cli("register", "c.ply", "a.las", "b.npy", "--voxel", "0.1", "--merge", "all.las")
    assert ran.code == 3
    assert read_coordinate_system_or_none(scans / "all.las").name == "site"


def test_register_prints_what_limits_confidence(cli: Any, scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scans
    register_module = importlib.import_module("fullfield.registration.register")
    for doubt, words in (("a doubt", " (limited: a doubt), "), (None, ", ")):
        accepted = AcceptedRegistration(np.eye(4), True, None, 0.89, 100, 90, 0.9, 0.01, 0.1, doubt=doubt)
        monkeypatch.setattr(register_module, "register_clouds", lambda *_, result=accepted: result)
        assert f"confidence 0.890{words}90 of 100 matches" in cli("register", "a.ply", "b.npy").out
        assert cli("register", "a.ply", "b.npy", "--json").json["doubt"] == doubt


def test_register_apply_of_unknown_cloud_takes_source_pose(cli: Any, scene: Path) -> None:
    pose = np.eye(4) + np.outer([1, 0, 0, 0], [0, 0, 0, 5])
    (scene / "pair:1.json").write_text(json.dumps({"source": "a.ply", "target": "b.ply", "transform": pose.tolist()}))
    write_point_cloud(scene / "c.ply", np.float64([[1.0, 0.0, 0.0]]))
    assert cli("register", "--apply", "pair:1.json", "c.ply", "-o", "moved.ply").code == 0
    assert np.allclose(read_point_cloud(scene / "moved.ply").points, [[6, 0, 0]])


@pytest.mark.usefixtures("scans")
@pytest.mark.parametrize("is_known", [True, False])
def test_register_advises_weights_that_can_be_had(cli: Any, monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    monkeypatch.setattr("fullfield.models.weights.can_obtain_weights", lambda _: is_known)
    said = cli("register", "a.ply", "c.ply", "--voxel", "0.1").err.splitlines()[-1]
    folder = next(iterate_candidate_cache_folders()) / "weights"
    copy = "" if is_known else f" (copy weights/descriptor.safetensors from fullfield's source to {folder} first)"
    option = f"--descriptor learned{copy}"
    assert f"; if both show the same place, try {option} or --init with a rough pose or a third cloud" in said


def test_register_advice_matches_refusal_reason(cli: Any, scans: Path) -> None:
    for voxel in ("2", "20"):
        said = cli("register", "a.ply", "b.npy", "--voxel", voxel).err.splitlines()[-1]
        assert "; try a smaller --voxel: without the option it is 0." in said
        assert "--descriptor" not in said
    said = cli("register", "a.ply", "b.npy", "--voxel", "0.001").err.splitlines()[-1]
    assert "; try a larger --voxel: without the option it is 0." in said
    np.savetxt(scans / "far.txt", np.eye(4))
    said = cli("register", "a.ply", "b.npy", "--init", "far.txt").err.splitlines()[-1]
    assert "not registered: the initial pose is too far off: " in said
    assert said.endswith("; try leaving --init out")
    said = cli("register", "a.ply", "c.ply", "--init", "far.txt").err.splitlines()[-1]
    assert "; if both show the same place, try leaving --init out or --descriptor learned" in said
    np.save(scans / "mm.npy", 1000 * read_point_cloud(scans / "b.npy").points)
    said = cli("register", "a.ply", "mm.npy").err.splitlines()[-1]
    assert "not registered: the target seems " in said
    assert "times as large as the source (millimetres against metres?); try " in said
    assert said.endswith("; try converting one of the clouds to the unit or size of the other")
    draw = np.random.default_rng(0)
    for name in ("corner_1", "corner_2"):  # a gutter
        along, across, is_wall = draw.uniform(0, 6, 9000), draw.uniform(0, 2, 9000), draw.random(9000) < 0.5
        points = np.stack((along, np.where(is_wall, 0, across), np.where(is_wall, across, 0)), 1)
        np.save(scans / f"{name}.npy", points + draw.normal(scale=0.02, size=points.shape))
    said = cli("register", "corner_1.npy", "corner_2.npy").err.splitlines()[-1]
    assert "sliding along (1, 0, 0)" in said
    assert said.endswith("; try a scan with something across that direction")


def test_register_third_cloud_connects_two_without_overlap(cli: Any, scans: Path) -> None:
    """The advice of the refusal works."""
    first, between, last = (sample_room_scan(3, 9000, scan_seed=number) for number in range(3))
    for name, points in (("x", first[first[:, 0] < 1.9]), ("y", between), ("z", last[last[:, 0] > 2.1])):
        write_point_cloud(scans / f"{name}.ply", points)
    ran = cli("register", "x.ply", "z.ply", "--voxel", "0.07")
    assert ran.code == 3
    assert "or a third cloud that overlaps both" in ran.err
    ran = cli("register", "x.ply", "y.ply", "z.ply", "--voxel", "0.07", "--json")
    assert ran.code == 0
    for pose in ran.json["poses"]:
        assert np.abs(np.array(pose["pose"]) - np.eye(4)).max() < 0.03


def test_register_apply_moves_cloud_by_stored_pose(cli: Any, scans: Path) -> None:
    assert cli("register", "a.ply", "b.npy", "--voxel", "0.09", "--pose", "pose.txt", "--merge", "both.pcd").code == 0
    merged, first, second = (read_point_cloud(scans / name) for name in ("both.pcd", "a.ply", "b.npy"))
    assert len(merged) == len(first) + len(second)
    assert merged.colors is None  # the second has none
    assert cli("register", "--apply", "pose.txt", "c.ply", "-o", "moved.ply").code == 0
    before, after = read_point_cloud(scans / "c.ply"), read_point_cloud(scans / "moved.ply")
    assert np.abs(after.points - before.points @ TRUTH[:3, :3].T - TRUTH[:3, 3]).max() < 0.1
    ran = cli("register", "a.ply", "b.npy", "--voxel", "0.09", "--json")
    (scans / "pair.json").write_text(ran.out)
    for name, pose in (("a.ply", TRUTH), ("c.ply", TRUTH), ("b.npy", np.eye(4))):  # the target stays where it is
        assert cli("register", "--apply", "pair.json", name, "-o", "moved.ply").code == 0
        before, after = read_point_cloud(scans / name), read_point_cloud(scans / "moved.ply")
        assert np.abs(after.points - before.points @ pose[:3, :3].T - pose[:3, 3]).max() < (
            0.1 if name != "b.npy" else 1e-6
        )
    for arguments, message in (
        (("--apply", "pose.txt", "c.ply"), "--apply: expected one cloud and --output, got 1 cloud without --output"),
        (("c.ply",), "CLOUD: expected at least two clouds"),
        (("--apply", "pose.txt", "c.ply", "-o", "d.ply", "--merge", "e.ply"), "--merge: --apply moves a cloud"),
        (("--apply", "pose.txt", "c.ply", "-o", "d.ply", "--voxel", "1"), "--voxel: --apply moves a cloud"),
        (("--apply", "pose.txt", "c.ply", "-o", "d.ply", "--seed", "0"), "--seed: --apply moves a cloud"),
        (("--apply", "pose.txt", "c.ply", "-o", "d.ply", "--iterations", "50000"), "--iterations: --apply moves"),
        (("--apply", "pose.txt", "c.ply", "-o", "d.ply", "--device", "cpu"), "--device: --apply moves"),
        (("a.ply", "c.ply", "--device", "cuda"), "--device: expected auto or cpu, where FPFH is computed, got cuda"),
    ):
        ran = cli("register", *arguments)
        assert ran.code == 2
        assert message in ran.err


def test_register_columns_selects_layout_of_bin(cli: Any, scene: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, 9, 4000).astype("<f4")  # rows of 4 and of 5 both make sense
    numbers.tofile(scene / "a.bin")
    refused = cli("register", "a.bin", "a.bin")
    assert refused.code == 2
    assert "a.bin: expected rows of 4 float32 (KITTI) or 5 (nuScenes)" in refused.err
    assert "--columns" in refused.err
    assert "expected rows of" not in cli("register", "a.bin", "a.bin", "--columns", "5").err
    assert "--columns: expected" in cli("register", "a.bin", "a.bin", "--columns", "2").err
