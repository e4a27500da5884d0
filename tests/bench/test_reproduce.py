"""``python -m benchmarks reproduce``: tables without runs, with runs, as files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.paper import command as reproduce
from benchmarks.paper.figures import OVER_SCALES, SHEETS
from benchmarks.paper.tables import TABLES

FAST = ("--preset", "fast", "--scales", "1", "--warps", "1", "--iterations", "2")


def test_names_are_those_of_the_package() -> None:
    assert set(reproduce.TABLES) == {*TABLES, "3"}
    assert set(reproduce.SHEETS) == {f"figure{number}" for number in SHEETS}
    assert set(reproduce.PLOTS) == {"figure1", *(f"figure{number}" for number in OVER_SCALES)}


def test_without_a_run_the_tables_say_so(cli: Any) -> None:
    ran = cli("reproduce")
    assert ran.code == 0
    for number in reproduce.TABLES:
        assert f"## Table {number}. " in ran.out
    assert "| not run " in ran.out
    assert "not in ptlflow" in ran.out
    assert ran.out.count("CVPR 2026") == len(reproduce.TABLES)


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


def test_a_stored_run_takes_its_place(cli: Any, run: Path) -> None:
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


def test_a_stand_in_that_no_run_is_of_is_refused(refused: Callable[..., str], run: Path) -> None:  # noqa: ARG001
    assert "--stand-in: no run is of yours; those found are of mine" in refused(
        "reproduce", "--only", "11", "--stand-in", "charge-8k=yours"
    )


def test_files(cli: Any, run: Path) -> None:  # noqa: ARG001
    pytest.importorskip("matplotlib")
    ran = cli("reproduce", "runs", "-o", "out", "--stand-in", "charge-8k=mine", "--frames", "pairs:mine")
    assert ran.code == 0, ran.err
    written = {path.name for path in Path("out").iterdir()}
    tables = {f"table{number}.csv" for number in reproduce.TABLES}
    assert written == {"tables.md", *tables, *(f"{name}.png" for name in (*reproduce.PLOTS, *reproduce.SHEETS))}
    assert "not run" not in ran.out


@pytest.mark.usefixtures("run")
def test_without_matplotlib_the_tables_are_written_and_the_plot_is_refused(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    asked = ("--only", "2", "figure1", "figure6", "--stand-in", "charge-8k=mine", "--frames", "pairs:mine")
    ran = cli("reproduce", "runs", "-o", "out", "-q", *asked)
    assert ran.code == 2
    assert {path.name for path in Path("out").iterdir()} == {"tables.md", "table2.csv", "figure6.png"}
    assert ran.err.startswith("fullfield: error: figure1: cannot be drawn without matplotlib")
    assert ran.err.count("\n") == 1
    assert "out/table2.csv" in ran.out


def test_what_is_not_run_is_said(cli: Any) -> None:
    ran = cli("reproduce", "-o", "out", "--only", "figure6", "3")
    assert ran.out.splitlines() == ["out/table3.csv", "out/tables.md", "figure6: not run"]


def test_lookups_fill_table_3(cli: Any) -> None:
    torch.manual_seed(0)
    import numpy as np

    np.save("l.npy", torch.randn(4, 2, 16, 24).numpy())
    found = cli("analyze", "l.npy", "--json", "--blocks", "8")
    assert found.code == 0, found.err
    Path("l.json").write_text(found.out)
    ran = cli("reproduce", "--only", "3", "--lookups", "l.json", "--json").json
    (row,) = [
        r
        for r in ran["tables"]["3"]["rows"]
        if r["source"] == "here" and r["row_major"] != "not run" and r["row_major"]
    ]
    assert row["Block"] == "8²"
    shares = {s["layout"]: 100 * s["share"] for s in found.json["files"][0]["shares"] if s["level"] == 0}
    assert row["patch_major"] == pytest.approx(shares["patch-major"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent",), "absent: expected a folder of runs"),
        (("--only", "figure1"), "--only figure1: is a picture"),
        (("--only", "4"), "invalid choice"),
        (("--stand-in", "mine"), "--stand-in: expected SET=NAME with SET one of charge-8k"),
        (("--only", "2", "--lookups", "a.png"), "--lookups: is for table 3"),
        (("--only", "3", "--lookups", "a.png"), "--lookups a.png: expected JSON"),
        (("--frames", "pairs:mine"), "--frames: is for the sheets"),
        (("-o", "a.png"), "a.png: is a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes(refused: Callable[..., str], arguments: tuple[str, ...], words: str) -> None:
    assert words in refused("reproduce", *arguments)
