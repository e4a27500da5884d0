"""The paper's tables: what it reports is consistent, and stored runs find their places."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.paper import figures, published
from benchmarks.paper.matching import METHODS, Runs, read_runs
from benchmarks.paper.tables import TABLES, Table, sampled_cells
from benchmarks.paper.writing import comma_separated, markdown
from fullfield import InputError
from fullfield.datasets import CHARGE_SHOTS, Rendered
from fullfield.io import write_flow, write_image

METRICS = ("px1", "epe", "lm_px1", "lm_epe")


@pytest.mark.parametrize("number", ["2", "7", "8"])
def test_percentages_are_those_of_the_numbers(number: str) -> None:
    checked = 0
    for row in published.rows(number):
        for name in ("default", "on_demand"):
            cell = row[name]
            if cell == "OOM":
                continue
            for key, unit in (("runtime", "s"), ("memory", "gib")):
                its, ours = cell[f"{key}_{unit}"], row["ours"][f"{key}_{unit}"]
                low, high = (its - 0.005) / (ours + 0.005), (its + 0.005) / (ours - 0.005)
                percent = cell[f"{key}_percent"]
                if percent:
                    assert 100 * (low - 1) - 1 <= percent <= 100 * (high - 1) + 1, (row, name, key)
                else:
                    assert low <= 1.005, (row, name, key)
                    assert high >= 0.995, (row, name, key)
                checked += 1
    assert checked > 30
    for row in published.rows("1") + published.rows("6"):
        if row["without_s"]:
            low = (row["best_s"] - 0.005) / (row["without_s"] + 0.005)
            high = (row["best_s"] + 0.005) / (row["without_s"] - 0.005)
            assert 100 * (low - 1) - 1 <= row["change_percent"] <= 100 * (high - 1) + 1


def store(
    folder: Path,
    method: str,
    *,
    dataset: str = "charge-8k",
    backend: str = "automatic",
    used: str = "cuda",
    seconds: float = 1.0,
    gib: float | None = 4.0,
    scores: dict[str, float] | None = None,
    failure: str | None = None,
    alone: bool = True,
    pairs: int = 332,
    **parameters: Any,
) -> Path:
    """A run as ``evaluate`` leaves it, without its predictions."""
    folder.mkdir(parents=True)
    config = {
        "device": "some GPU",
        "dataset": {"name": dataset, "pairs": pairs, "frames": "0"},
        "method": method,
        "parameters": {"warm_start": False, **parameters},
        "backend": backend,
    }
    (folder / "config.json").write_text(json.dumps(config))
    result = {
        "config": config,
        "averaging": "pooled",
        "scores": scores,
        "runtime": {"mean_s": seconds, "std_s": 0.25, "median_s": seconds, "alone": alone},
        "peak_bytes": None if gib is None else int(gib * 2**30),
        "backends": [used],
    }
    if failure is not None:
        (folder / "failure.json").write_text(json.dumps({"failure": failure}))
    else:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def scores(px1: float, **more: float) -> dict[str, float]:
    return {"px1": px1, "epe": px1 / 10, "lm_px1": 2 * px1, "lm_epe": px1 / 5, **more}


def line(table: Table, *labels: str) -> Any:
    (found,) = [line for line in table.lines if line.labels == labels]
    return found


OURS = {"updates": 32, "coarse_updates": None, "cascade": False, "precision": "exact", "weights": "raft-sintel"}
SEA = {**OURS, "updates": 4, "weights": "sea-raft-m-sintel"}
CASCADED = {**SEA, "cascade": True, "coarse_updates": 4}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({}, "ours"),
        ({"backend": "dense", "used": "dense"}, "default"),
        ({"used": "dense"}, "default"),
        ({"backend": "mixed", "used": "cuda"}, "mixed"),
        ({"backend": "reference", "used": "reference"}, "on_demand"),
        ({"method": "ptlflow:raft", "used": "ptlflow", "patched": False, "weights": "sintel"}, "default"),
        ({"method": "ptlflow:raft", "patched": True}, "ours"),
        ({"method": "ptlflow:raft", "used": "alt_cuda_corr", "patched": False, "alt_cuda_corr": "0a1b"}, "on_demand"),
        ({"updates": 12}, None),
        ({"precision": "fast"}, None),
        ({"warm_start": True}, None),
        ({"weights": "raft-things"}, None),
        ({"weights": "random"}, None),
        ({"weights": "mine-sintel"}, None),
        ({"weights": "a.pth", "weights_sha256": "90630d2e7d48"}, "ours"),
        ({"weights": "sintel.pth", "weights_sha256": "fcfa4125d641"}, None),
        ({"method": "ptlflow:raft", "patched": True, "weights": "things"}, None),
        ({"pairs": 331}, None),
        ({"cascade": True, "coarse_updates": 32}, None),
        ({"method": "raft-small"}, None),
        ({"dataset": "kubric-8k"}, None),
        ({"scale": "1/2"}, None),
    ],
    ids=str,
)
def test_a_run_has_one_place(tmp_path: Path, change: dict[str, Any], place: str | None) -> None:
    store(tmp_path / "run", **{"method": "raft", **OURS, "scale": "1/4", **change})
    runs = Runs(read_runs([tmp_path]))
    found = {v for v in ("default", "on_demand", "mixed", "ours") if runs.find("raft", "charge-8k", "1/4", v)}
    assert found == ({place} if place else set())


@pytest.mark.parametrize(
    ("parameters", "method"),
    [
        (SEA, "sea-raft"),
        (CASCADED, "sea-raft-cascaded"),
        ({**CASCADED, "updates": 1, "coarse_updates": 3}, "sea-raft-3+1"),
        ({**CASCADED, "updates": 2, "coarse_updates": 6}, "sea-raft-6+2"),
    ],
)
def test_shares_of_updates_are_methods_of_their_own(tmp_path: Path, parameters: dict[str, Any], method: str) -> None:
    store(tmp_path / "run", "sea-raft-m", **parameters)
    runs = Runs(read_runs([tmp_path]))
    assert [name for name in METHODS if runs.find(name, "charge-8k", "1/1")] == [method]


def test_measured_values_stand_under_the_papers(tmp_path: Path) -> None:
    store(tmp_path / "a", "raft", **OURS, scale="1/4", seconds=0.2, gib=4.0, scores=scores(20.0))
    store(tmp_path / "b", "raft", **OURS, scale="1/4", backend="dense", used="dense", seconds=0.25, gib=8.0)
    store(tmp_path / "c", "raft", **OURS, scale="1/2", backend="dense", failure="out of memory")
    runs = Runs(read_runs([tmp_path]))
    row = line(TABLES["2"](runs), "RAFT", "2048 - 1/4")
    assert row.paper["default.runtime_s"] == 0.25
    assert row.here["ours.runtime_s"] == 0.2
    assert row.here["default.memory_gib"] == 8.0
    assert row.here["default.runtime_percent"] == pytest.approx(25)
    assert row.here["default.memory_percent"] == pytest.approx(100)
    assert row.here["on_demand.runtime_s"] == "not run"
    assert line(TABLES["2"](runs), "RAFT", "4096 - 1/2").here["default.runtime_s"] == "OOM"
    full = line(TABLES["11"](runs), "RAFT", "1/4")
    assert [full.here[key] for key in METRICS] == [20.0, 2.0, 40.0, 4.0]
    text = markdown(TABLES["2"](runs))
    assert "| 0.25 (+25%) " in text
    assert "some GPU" in text
    assert "Averaging: pooled." in text
    assert "raft: raft-sintel" in text
    assert "| 0.20 ± 0.25 " in markdown(TABLES["11"](runs))


def test_table_1_has_our_best_scale(tmp_path: Path) -> None:
    for scale, error, seconds in (("1/4", 15.0, 0.3), ("1/2", 21.0, 1.0)):
        name = scale.replace("/", "")
        store(tmp_path / name, "raft", **OURS, scale=scale, seconds=seconds, scores=scores(error))
        slow = {"backend": "dense", "used": "dense", "seconds": 2 * seconds}
        store(tmp_path / f"{name}d", "raft", **OURS, scale=scale, **slow)
    row = line(TABLES["1"](Runs(read_runs([tmp_path]))), "RAFT", "4096 - 1/2")
    assert row.here_label == "best here: 1/4"
    assert (row.here["px1"], row.here["best_s"], row.here["without_s"]) == (15.0, 0.3, 0.6)
    assert row.here["change_percent"] == pytest.approx(-50)
    assert row.paper["change_percent"] == -63


def test_without_runs_every_place_says_so() -> None:
    for number, make in TABLES.items():
        table = make(Runs([]))
        assert len(table.lines) == len(published.rows(number))
        for row in table.lines:
            words = set(row.here.values()) - {None}
            assert words <= {"not run", "not in ptlflow", "n/a"}, (number, row)
            assert words & {"not run", "not in ptlflow"}


def test_fewer_pairs_have_rows_of_their_own(tmp_path: Path) -> None:
    store(tmp_path / "a", "raft", **OURS, scale="1/4", seconds=0.2, scores=scores(20.0))
    store(tmp_path / "b", "raft", **OURS, scale="1/4", backend="dense", used="dense", seconds=9.0, pairs=4)
    store(tmp_path / "c", "raft", **OURS, scale="1/2", seconds=8.0, scores=scores(7.0), pairs=4)
    table = TABLES["11"](Runs(read_runs([tmp_path])))
    whole, parts = table.lines[: len(published.rows("11"))], table.lines[len(published.rows("11")) :]
    by_scale = {row.labels[1]: row for row in whole if row.labels[0] == "RAFT"}
    assert by_scale["1/4"].here["default.runtime_s"] == by_scale["1/2"].here["ours.runtime_s"] == "not run"
    assert [(row.labels, row.here_label) for row in parts] == [
        (("RAFT", "1/4"), "4 of 332 pairs"),
        (("RAFT", "1/2"), "4 of 332 pairs"),
    ]
    assert parts[0].here["default.runtime_s"] == 9.0
    assert parts[0].here["ours.runtime_s"] == "not run"
    text = markdown(table)
    (own,) = [row for row in text.splitlines() if "1/2, 4 of 332 pairs" in row]
    assert "| here " in own
    rows = list(csv.DictReader(io.StringIO(comma_separated(table))))
    assert [(row["source"], row["at"]) for row in rows[-2:]] == [("here", "4 of 332 pairs")] * 2
    pytest.importorskip("matplotlib")
    figures.accuracy_over_runtime(TABLES["1"](Runs(read_runs([tmp_path]))))


def test_sampled_cells() -> None:
    def share(block: int, layout: str, value: float, level: int = 0) -> dict[str, Any]:
        return {"level": level, "block": block, "layout": layout, "share": value}

    files = [
        {"shares": [share(8, "row-major", 0.2), share(8, "patch-major", value), share(8, "patch-major", 0.9, 1)]}
        for value in (0.08, 0.12)
    ]
    table = sampled_cells([{"files": files}])
    row = line(table, "8²")
    assert row.paper == {"row_major": 20.6, "row_major_std": 4.4, "patch_major": 8.6, "patch_major_std": 1.4} | {
        "saved_percent": 58
    }
    assert row.here["patch_major"] == pytest.approx(10)
    assert row.here["patch_major_std"] == pytest.approx(2)
    assert row.here["saved_percent"] == pytest.approx(50)
    assert line(table, "4²").here["row_major"] == "not run"
    with pytest.raises(InputError, match="benchmarks analyze"):
        sampled_cells([{"files": [{"shape": 1}]}])


def test_sheets(tmp_path: Path) -> None:
    assert figures.qualitative_sheet(Runs([]), "6") is None
    generator = torch.Generator().manual_seed(3)
    names = [f"{shot}/frame_{i:04d}" for shot in CHARGE_SHOTS for i in (101, 102, 103)]
    for scale in ("1/4", "1/1"):
        folder = store(tmp_path / "runs" / scale[-1], "raft", **OURS, scale=scale, scores=scores(10.0))
        for name in names:
            path = folder / "predictions" / f"{name}.flo"
            path.parent.mkdir(parents=True, exist_ok=True)
            flow = torch.randn(2, 32, 64, generator=generator)
            write_flow(path, flow)
            path.with_suffix(".json").write_text(json.dumps({"bytes": path.stat().st_size}))
    for name in names:
        shot, frame = name.split("/")
        base = tmp_path / "charge" / shot
        count = frame.removeprefix("frame_")
        (base / "frames").mkdir(parents=True, exist_ok=True)
        (base / "flow").mkdir(exist_ok=True)
        write_image(base / "frames" / f"{frame}.png", torch.rand(3, 32, 64, generator=generator))
        write_flow(base / "flow" / f"flow_{count}.flo5", torch.randn(2, 64, 128, generator=generator))
    runs = Runs(read_runs([tmp_path / "runs"]))
    assert [(figures.qualitative_sheet(runs, n) or ("",))[0] for n in ("6", "13", "14", "15")] == [
        "010_0050/frame_0102",
        "010_0050/frame_0102",
        "040_0040/frame_0102",
        "060_0130/frame_0102",
    ]
    plain = figures.qualitative_sheet(runs, "14")
    shutil.rmtree(tmp_path / "runs" / "4" / "predictions")  # they are large
    assert (figures.qualitative_sheet(runs, "14") or ("",))[0] == "040_0040/frame_0102"
    framed = figures.qualitative_sheet(runs, "14", Rendered(tmp_path / "charge"))
    assert plain is not None
    assert framed is not None
    assert framed[1].shape[1] > 1.5 * plain[1].shape[1]
    assert not torch.equal(framed[1], torch.full_like(framed[1], 128))
