"""The runner refuses numbers it cannot stand behind, and writes down where they came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.cases.tvl1 import cpu as tvl1
from benchmarks.harness import Candidate, CheckFailed, interleaved
from benchmarks.runner import main
from benchmarks.stored import write_results
from fullfield import InputError, estimate
from fullfield.io import write_flow
from fullfield.ops.tvl1.config import PRESETS


def quiet(text: str) -> None:
    del text


def test_interleaved_runs_candidates_in_turn() -> None:
    order: list[str] = []

    def candidate(name: str) -> Candidate:
        return Candidate(name, lambda: order.append(name), lambda _: None)

    timings = interleaved([candidate("a"), candidate("b"), candidate("c")], 3, quiet)
    assert order == [*"abc", *"abc", *"bca", *"cab"]
    assert [t.name for t in timings] == ["a", "b", "c"]
    assert all(len(t.seconds) == 3 and min(t.seconds) <= t.median <= max(t.seconds) for t in timings)


def test_interleaved_raises_for_wrong_result() -> None:
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        return 41

    with pytest.raises(CheckFailed, match="wrong: expected 42, got 41; no time is reported"):
        interleaved([Candidate("wrong", call, lambda x: None if x == 42 else f"expected 42, got {x}")], 3, quiet)
    assert calls == 1


def test_tvl1_check_refuses_wrong_flow() -> None:
    pair = tvl1.synthetic_pair(48, 64)
    check = tvl1._check(pair, {}, "x")
    assert check(pair.flow) is None
    assert "end-point error" in str(check(torch.zeros_like(pair.flow)))
    assert "NaN" in str(check(pair.flow * float("nan")))


def test_write_results_stores_environment(tmp_path: Path) -> None:
    write_results(tmp_path / "r.json", {"cases": []})
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored["cases"] == []
    assert {"cpu", "threads", "versions", "commit", "date"} <= set(stored["environment"])
    assert stored["environment"]["versions"]["torch"] == torch.__version__
    with pytest.raises(InputError, match="expected an existing folder"):
        write_results(tmp_path / "none" / "r.json", {})


def test_tvl1_command_writes_and_prints_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tvl1.synthetic_pair(64, 96)
    monkeypatch.setattr(tvl1, "synthetic_pair", lambda: small)
    monkeypatch.setattr(tvl1, "peers", list)

    def command(frames: list[Path], preset: str, output: Path) -> dict[str, Any]:
        """Write the flow as the command does, whose process test_large_frames starts."""
        write_flow(output, estimate(*frames, "tvl1", preset=preset).flow)
        return {}

    monkeypatch.setattr(tvl1, "_flow_command", command)
    out = tmp_path / "r.json"
    assert main(["tvl1", "--repeats", "1", "-o", str(out), "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    stored = json.loads(out.read_text())
    assert printed["cases"] == stored["cases"]
    fixed, own, whole = stored["cases"]
    assert {row["name"] for row in whole["rows"]} == {"fast", "default"}
    assert all(row["median_s"] > 0 for row in whole["rows"])
    assert fixed["rows"][0]["rate"] == pytest.approx(fixed["rows"][0]["work"] / fixed["rows"][0]["median_s"])
    assert {row["name"] for row in own["rows"]} == {f"fullfield {name}" for name in PRESETS}
    assert main(["tvl1", "--repeats", "1"]) == 0
    captured = capsys.readouterr()
    assert "pixel-iterations/s" in captured.out
    assert "not installed here, so not measured" in captured.err
