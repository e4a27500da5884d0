"""The points benchmark: clouds, who takes part, that all compute the same, and that no wrong result gets a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.bench import failed, measure
from benchmarks.cases.points import clouds as points_clouds
from benchmarks.cases.points import command as bench_points
from benchmarks.cases.points import contenders as points_contenders
from benchmarks.cases.points import measure as points
from benchmarks.cases.points import network as points_network
from benchmarks.cases.points.contenders import Contender, Problem
from benchmarks.cases.points.measure import Plan
from benchmarks.cases.points.plots import FILES, draw
from benchmarks.cases.points.report import PUBLISHED, markdown, report
from benchmarks.runner import main
from fullfield.models.pointcnnpp import PointResNetConfig
from fullfield.ops.point_conv import point_conv, voxel_geometry

ROOM = points_clouds.room(1200)


@pytest.fixture(autouse=True, scope="module")
def _small_network() -> Any:
    """Not 11 million parameters."""
    small = partial(PointResNetConfig, channels=(4, 4), blocks=(1, 1), stem_kernel=3, classes=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points_network, "PointResNetConfig", small)
        yield


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def quiet(text: str) -> None:
    del text


def measured(plan: Plan, note: Any, keep: Any = quiet, known: Any = (), **more: Any) -> list[dict[str, Any]]:
    return measure(points.cases(plan, note), note, keep, known, order=bench_points.PARTS, **more)


def plan_of(*parts: str, who: list[Contender] | None = None) -> Plan:
    contenders = [*points_contenders.our_contenders(["reference"]), *points_contenders.baselines()]
    return Plan(
        ROOM,
        torch.device("cpu"),
        contenders if who is None else who,
        parts,
        grid=0.007,
        coarse=0.05,
        channels=[(4, 6)],
        dtypes=[torch.float32],
        sizes=[300, 600],
        network_points=300,
        limit_sizes=[200, 300],
        ablation_sizes=[300],
        network_dtype=torch.float32,
        voxel_dtype=torch.float32,
        full_cell=100,
        repeats=1,
    )


# ---- clouds


def test_voxels_of_keeps_copies_apart() -> None:
    """Every copy has the triplets that it has alone, and none with another."""
    scene = points_clouds.join("two", [ROOM.points, ROOM.points[::2] + 1.0])
    alone, _ = points_clouds.voxels_of(scene, 0.03)
    count = len(alone.points)
    few, _ = points_clouds.voxels_of(scene, 0.03, count // 3)
    many, numbers = points_clouds.voxels_of(scene, 0.03, 9 * count)
    assert (len(few.points), len(many.points)) == (count // 3, 9 * count)
    assert len(torch.unique(numbers, dim=0)) == 9 * count
    assert int(numbers.min()) >= 0
    assert torch.equal((many.points.double() / 0.03).floor().long(), numbers)
    triplets = [voxel_geometry(one.points, 0.03).forward.entries.numel() for one in (alone, many)]
    assert triplets[1] == 9 * triplets[0]


# ---- no wrong result gets a time


def broken(where: str) -> Contender:
    def prepare(problem: Problem) -> points_contenders.Apply:
        def apply(features: Tensor, weight: Tensor) -> Tensor:
            given, kernel = features, weight
            if where == "features":
                given = features.detach() + 2 * (features - features.detach())
            if where == "weight":
                kernel = weight.detach() + 2 * (weight - weight.detach())
            out = point_conv(given, kernel, problem.geometry, backend="reference")
            return out * 1.001 if where == "forward" else out

        return apply

    return Contender(f"broken {where}", prepare, ours=True)


@pytest.mark.parametrize("where", ["forward", "features", "weight"])
def test_points_gives_no_time_to_wrong_result(where: str) -> None:
    who = [broken(where), *points_contenders.our_contenders(["reference"])]
    (case, *_) = measured(plan_of("layer", who=who), quiet)
    wrong, right = case["rows"]
    assert wrong["status"] == "check failed"
    assert "off by" in wrong["reason"]
    assert "forward" not in wrong
    assert right["status"] == "ok"
    assert right["training"]["median_s"] > 0
    assert any("broken" in problem for problem in failed([case]))


def test_points_goes_on_when_peer_fails() -> None:
    def prepare(problem: Problem) -> points_contenders.Apply:
        raise AssertionError(f"not on {problem.device}")

    who = [Contender("peer", prepare), *points_contenders.our_contenders(["reference"])]
    (case, *_) = measured(plan_of("layer", who=who), quiet)
    failing, right = case["rows"]
    assert (failing["status"], failing["reason"]) == ("failed", "not on cpu")
    assert right["status"] == "ok"


# ---- all of it


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    plan = plan_of(*points.PARTS)
    kept: list[int] = []
    cases = measured(plan, quiet, lambda done: kept.append(len(done)))
    assert kept == list(range(1, len(cases) + 1))
    return {"bench": "points", "cases": cases, "absent": {"spconv": "is not here"}, "environment": {"cpu": "a test"}}


def test_points_command_measures_every_part(results: dict[str, Any]) -> None:
    parts = [case["part"] for case in results["cases"]]
    assert set(parts) == set(points.PARTS) == set(bench_points.PARTS)
    assert parts.count("limit") == 2
    assert parts.count("sizes") == parts.count("voxels") == 4
    for case in results["cases"]:
        ours = [row for row in case["rows"] if row["ours"]]
        assert ours
        assert all(row["status"] == "ok" for row in ours), case
        others = [row for row in case["rows"] if not row["ours"]]
        assert all(row["status"] == ("cannot" if "listing" in row["name"] else "ok") for row in others), case
    assert failed(results["cases"]) == []
    assert json.loads(json.dumps(results)) == results
    by_part = {case["part"]: case for case in results["cases"]}
    assert {row["name"] for row in by_part["lowering"]["rows"]} >= {"im2col + GEMM", "GEMM + reduction"}
    assert [row["name"] for row in by_part["order"]["rows"]] == [
        "reference",
        *(f"listing sorted by {order}" for order in "kij"),
    ]
    series = {(case["part"], case["series"], case["size"]) for case in results["cases"] if "series" in case}
    assert ("sizes", "made-up room", 600) in series
    assert ("sizes", "made-up room, 5 cm grid", 300) in series
    assert ("voxels", "voxels of 5 cm", 600) in series
    assert by_part["knn"]["triplets"] == 16 * by_part["knn"]["points"]
    whole, *others = by_part["network"]["rows"]
    assert {"geometry", "forward", "training", "whole"} <= set(whole)
    assert [other["name"] for other in others] == ["ResNet-18, 225 points", "ResNet-18, 318 points"]
    worst = [case for case in results["cases"] if case["part"] == "worst"]
    (line,) = [case for case in worst if case["label"].startswith("1,200 points on a line")]
    assert 14 < line["triplets"] / line["points"] < 18
    two, dense, sparse = [case["triplets"] for case in worst[-3:]]
    assert two == dense + sparse


INTERPRETED = """
import torch
from benchmarks.cases.points.listing_triton import listing_in_triton

torch.manual_seed(0)
points, centers, cells, inputs, outputs, count = 70, 60, 27, 40, 70, 300
triplets = tuple(torch.randint(limit, (count,)) for limit in (centers, points, cells))
features, weight = (torch.randn(*shape, requires_grad=True) for shape in ((points, inputs), (cells, inputs, outputs)))
out = listing_in_triton(triplets, centers)(features, weight)
i, j, k = triplets
wanted = torch.zeros(centers, outputs).index_add(0, i, torch.einsum("tc,tcd->td", features[j], weight[k]))
grad = torch.randn(centers, outputs)
pairs = zip(*(torch.autograd.grad(value, (features, weight), grad) for value in (out, wanted)), strict=True)
for got, right in ((out, wanted), *pairs):
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.long
def test_triton_listing_equals_convolution() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_points_report_names_unmeasured_peers(results: dict[str, Any]) -> None:
    lines, page = "\n".join(report(results)), markdown(results)
    assert "spconv: not measured: is not here" in lines
    assert "the supplement's listing: cannot: runs on NVIDIA GPUs" in lines
    assert all(line[2] in page for line in PUBLISHED)


@pytest.mark.long
def test_points_draw_writes_figures(results: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = draw(results, tmp_path)
    assert {path.name for path in written} == set(FILES.values()) - {FILES["limit"]}
    assert all(path.stat().st_size > 2000 for path in written)


def test_points_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_points, "MADE_UP", {False: 600, True: 600})
    out = tmp_path / "points.json"
    arguments = ["points", "--device", "cpu", "--channels", "4x4", "--repeats", "1", "-o", str(out), "-q"]
    assert main([*arguments, "--parts", "layer", "--resume"]) == 0
    stored = json.loads(out.read_text())
    assert stored["verdicts"][-1].endswith("of 2 cases")
    assert stored["environment"]["versions"]["torch"]
    assert "cuda" in stored["absent"]
    wrong = stored["cases"][0]
    stored["environment"]["commit"] = "before"
    next(row for row in wrong["rows"] if row["ours"])["status"] = "failed"
    out.write_text(json.dumps(stored))
    assert main([*arguments, "--parts", "layer", "build", "--resume"]) == 0
    cases = json.loads(out.read_text())["cases"]
    assert [case["part"] for case in cases] == ["build", "build", "layer", "layer"]
    kept = [case for case in cases if case.get("commit") == "before"]
    assert [case["label"] for case in kept] == [stored["cases"][1]["label"]]
    assert "of commit before" in capsys.readouterr().out
    for change, message in (
        ({"grid": 1.0}, "--resume: expected results of grid 0.007, got 1.0"),
        ({"bench": "other"}, "got something else"),
        ({"cases": [{"rows": []}]}, "got something else"),
    ):
        out.write_text(json.dumps({**stored, **change}))
        assert main([*arguments, "--resume"]) == 2
        assert message in capsys.readouterr().err
