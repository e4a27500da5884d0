"""The paper's tables: what it reports is consistent, and stored runs find their places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import published
from benchmarks.paper.matching import Runs, read_runs
from benchmarks.paper.tables import TABLES, Table
from benchmarks.paper.writing import markdown

pytestmark = pytest.mark.unit

METRICS = ("px1", "epe", "lm_px1", "lm_epe")


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
    sequential: bool = True,
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
        "runtime": {"mean_s": seconds, "std_s": 0.25, "median_s": seconds, "sequential": sequential},
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
def test_runs_find_matches_one_cell(tmp_path: Path, change: dict[str, Any], place: str | None) -> None:
    store(tmp_path / "run", **{"method": "raft", **OURS, "scale": "1/4", **change})
    runs = Runs(read_runs([tmp_path]))
    found = {v for v in ("default", "on_demand", "mixed", "ours") if runs.find("raft", "charge-8k", "1/4", v)}
    assert found == ({place} if place else set())


def test_paper_tables_show_measured_below_published(tmp_path: Path) -> None:
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


def test_paper_tables_without_runs_show_not_run() -> None:
    for number, make in TABLES.items():
        table = make(Runs([]))
        assert len(table.lines) == len(published.rows(number))
        for row in table.lines:
            words = set(row.here.values()) - {None}
            assert words <= {"not run", "not in ptlflow", "n/a"}, (number, row)
            assert words & {"not run", "not in ptlflow"}
