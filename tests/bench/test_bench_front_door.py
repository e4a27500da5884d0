"""Benchmark of the public calls: every part runs, and a wrong flow gets no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.front_door import command, measure

SMALL = ("--sizes", "96x64", "--auto-size", "96x64", "--file-size", "96x64", "--batch", "2", "--batch-size", "64x48")


@pytest.mark.usefixtures("scene")
def test_every_part_runs(cli: Callable[..., Any], tmp_path: Path) -> None:
    ran = cli("front-door", "--device", "cpu", "--repeats", "1", *SMALL, "-o", "r.json")
    assert ran.code == 0, ran.err
    cases = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert [case["label"] for case in cases] == ["estimate, 96x64", "auto, 96x64", "2 pairs, 64x48", "files, 96x64"]
    assert all(row["status"] == "ok" for case in cases for row in case["rows"])
    assert all(len(bar) == 2 for case in cases for bar in case["bars"].values())
    text = cli("front-door", "--stored", "r.json").out
    assert "estimate / network: " in text
    assert "auto, exact, error in px" in text
    assert len(cases) == len(command.PARTS)


@pytest.mark.usefixtures("scene")
def test_a_wrong_flow_gets_no_time(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SAME", -1.0)
    ran = cli("front-door", "--device", "cpu", "--repeats", "1", "--parts", "batch", *SMALL)
    assert ran.code == 1
    assert "differs from the network's" in ran.err
