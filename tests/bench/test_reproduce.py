"""``python -m benchmarks reproduce``: tables without runs, with runs, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import command as reproduce

FAST = ("--preset", "fast", "--scales", "1", "--warps", "1", "--iterations", "2")


@pytest.fixture
def run(cli: Any, scene: Path) -> Path:
    """A run of TV-L1 that passes for one of RAFT."""
    (scene / "mine").mkdir()
    for name in ("a.png", "b.png", "truth.flo"):
        (scene / "mine" / name).write_bytes((scene / name).read_bytes())
    (scene / "mine" / "pairs.txt").write_text("a.png b.png truth.flo\n")
    (scene / "runs" / "mine" / "tvl1").mkdir(parents=True)
    assert cli("fullfield", "evaluate", "tvl1", "pairs:mine", *FAST, "-o", "runs/mine/tvl1").code == 0
    config = json.loads(Path("runs/mine/tvl1/config.json").read_text())
    config |= {"method": "raft", "parameters": {"updates": 32, "warm_start": False, "weights": "raft-sintel"}}
    Path("runs/mine/tvl1/config.json").write_text(json.dumps(config))
    return scene / "runs" / "mine" / "tvl1"


def test_reproduce_fills_cell_of_stored_run(cli: Any, run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    ran = cli("reproduce", "--only", "11", "2", "--stand-in", "charge-8k=mine", "--json").json
    assert ran["runs"] == ["runs/mine/tvl1"]
    (row,) = [
        row
        for row in ran["tables"]["11"]["rows"]
        if row["source"] == "here" and row["ours.runtime_s"] not in ("not run", "n/a")
    ]
    assert (row["Method"], row["Scale"]) == ("RAFT", "1/1")
    assert row["ours.runtime_s"] == result["runtime"]["mean_s"]
    assert row["epe"] == result["scores"]["epe"]
    assert row["lm_epe"] == "no data"
    assert "stand in" in ran["tables"]["2"]["notes"][0]


def test_reproduce_writes_files(cli: Any, run: Path) -> None:  # noqa: ARG001
    pytest.importorskip("matplotlib")
    ran = cli("reproduce", "runs", "-o", "out", "--stand-in", "charge-8k=mine", "--frames", "pairs:mine")
    assert ran.code == 0, ran.err
    written = {path.name for path in Path("out").iterdir()}
    tables = {f"table{number}.csv" for number in reproduce.TABLES}
    assert written == {"tables.md", *tables, *(f"{name}.png" for name in (*reproduce.PLOTS, *reproduce.SHEETS))}
    assert "not run" not in ran.out
