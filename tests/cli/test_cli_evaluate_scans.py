"""``fullfield evaluate fpfh``: pairs of point clouds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullfield.io import PointCloud, write_point_cloud
from fullfield.testing import sample_room_scan

pytest.importorskip("small_gicp")


@pytest.fixture
def rooms(scene: Path) -> str:
    """Two scans of a room and one of another, as 3DMatch's."""
    home = scene / "set" / "room"
    home.mkdir(parents=True)
    true = np.eye(4)
    true[:3, 3] = (0.5, -1.0, 0.2)
    clouds = sample_room_scan(3, 4500) + true[:3, 3], sample_room_scan(7, 4500), sample_room_scan(3, 4500, scan_seed=1)
    for number, points in enumerate(clouds):
        write_point_cloud(home / f"cloud_bin_{number}.ply", PointCloud(points))
    text = "".join("\n".join((f"0 {j} 3", *(" ".join(map(str, line)) for line in true), "")) for j in (1, 2))
    (home / "gt.log").write_text(text)
    return "3dmatch:set"


def test_evaluate_scans_prints_table_and_scores_again(cli: Any, refused: Callable[..., str], rooms: str) -> None:
    few = ("--ransac", "500")
    ran = cli("evaluate", "fpfh", rooms, "--samples", "400,60", *few)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("runs/3dmatch/fpfh: fpfh, 2 pairs, 1 of them count")
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows[1][:3] == ["#samples", "RR", "%"]
    assert [row[:2] for row in rows[2:4]] == [["400", "100.0"], ["60", "100.0"]]
    assert "max_rmse 0.2, inlier_distance 0.1, inlier_ratio 0.05" in ran.out
    stored = json.loads(Path("runs/3dmatch/fpfh/samples-60/result.json").read_text())
    assert stored["config"]["parameters"] == {"voxel": None, "seed": 0, "iterations": 500, "samples": 60}
    assert not stored["pairs"]["room/0_1"]["accepted"]
    assert stored["pairs"]["room/0_2"]["matches"] <= 60

    again = cli("evaluate", "fpfh", rooms, "--samples", "400,60", "--score-only", "--max-rre", "1e-9", "--json").json
    assert [run["scores"]["rr"] for run in again["runs"]] == [0, 0]
    assert again["runs"][0]["criteria"]["max_rmse"] is None
    assert "pairs" not in again["runs"][0]
    assert (
        cli("evaluate", "fpfh", rooms, "--samples", "400", *few, "--json").json["runs"][0]["this_call"]["estimated"]
        == 0
    )
    words = ("--samples", "400", "--score-only", "-o", "runs/3dmatch/fpfh")
    assert "samples-400: holds fpfh, not learned" in refused("evaluate", "learned", rooms, *words)


def test_evaluate_scans_passes_parameters_to_method(cli: Any, refused: Callable[..., str], rooms: str) -> None:
    words = ("--samples", "300", "--voxel", "0.12", "--seed", "5", "--ransac", "500", "-o", "mine")
    result = cli("evaluate", "fpfh", rooms, *words, "--json").json["runs"][0]
    assert result["run"] == "mine/samples-300"
    assert result["config"]["parameters"] == {"voxel": 0.12, "seed": 5, "iterations": 500, "samples": 300}
    message = refused("evaluate", "fpfh", rooms, "--samples", "300", "-o", "mine")
    assert "--voxel was 0.12, is None" in message
    assert "--ransac was 500, is 50000" in message


def test_evaluate_scans_protocol_lists_ransac_and_pipeline(cli: Any, rooms: str) -> None:
    few = ("--ransac", "500", "--voxel", "0.12", "--protocol", "pointcnnpp", "--samples", "400,60")
    ran = cli("evaluate", "fpfh", rooms, *few)
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert [row[:2] for row in rows[2:6]] == [
        ["400", "RANSAC"],
        ["400", "100.0"],
        ["60", "RANSAC"],
        ["60", "100.0"],
    ]
    assert "max_rmse 0.2, inlier_distance 0.1, inlier_ratio 0.05" in ran.out
    stored = json.loads(Path("runs/3dmatch/fpfh/ransac-samples-400/result.json").read_text())
    assert stored["config"]["parameters"] == {
        "voxel": 0.12, "seed": 0, "iterations": 500, "samples": 400, "ransac_only": True
    }  # fmt: skip
    assert stored["pairs"]["room/0_1"]["accepted"]  # nothing judges it
    whole = json.loads(Path("runs/3dmatch/fpfh/samples-400/result.json").read_text())
    assert not whole["pairs"]["room/0_1"]["accepted"]
    assert stored["pairs"]["room/0_2"]["ir"] == whole["pairs"]["room/0_2"]["ir"]
    again = cli("evaluate", "fpfh", rooms, *few[-4:], "--score-only", "--max-rre", "1e-9", "--json").json
    assert [run["scores"]["rr"] for run in again["runs"]] == [0] * 4
