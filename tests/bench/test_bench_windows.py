"""The benchmark of fixed windows and matching: all are timed, and no wrong result gets a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.windows import contenders
from benchmarks.runner import main

SMALL = ["windows", "--sizes", "64x64", "--dtype", "float32", "--repeats", "1", "--device", "cpu", "--quiet"]


def run(tmp_path: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    path = tmp_path / "results.json"
    code = main([*SMALL, *more, "-o", str(path)])
    return code, json.loads(path.read_text("utf-8"))["cases"]


@pytest.mark.usefixtures("ptlflow")
def test_windows_times_all_and_peers_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, cases = run(tmp_path, "--parts", "liteflownet", "matching")
    assert code == 0
    assert [case["part"] for case in cases] == ["liteflownet", "matching"] * 2
    names = {row["name"]: row for case in cases for row in case["rows"]}
    assert {"ours", "ptlflow's sampler", "whole matrix"} <= set(names)
    assert all(row["median_s"] > 0 for row in names.values())
    assert "× ours" in capsys.readouterr().out


def test_windows_gives_no_time_to_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = contenders.ours

    def wrong(*args: Any) -> Any:
        found = right(*args)
        return found * 1.001 if args[-1] != "reference" else found

    monkeypatch.setattr(contenders, "ours", wrong)
    monkeypatch.setattr(contenders, "peers", lambda _: ({}, {}))
    code, cases = run(tmp_path, "--parts", "liteflownet")
    assert code == 1
    assert cases[0]["rows"][0]["status"] == "check failed"
    assert "median_s" not in cases[0]["rows"][0]
