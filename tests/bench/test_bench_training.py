"""``python -m benchmarks training``: steps are compared before their time counts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.training import steps
from benchmarks.runner import main
from fullfield.training.flow import SceneStyle

CALL = ["training", "--device", "cpu", "--sizes", "64x64", "--networks", "raft-small", "--batches", "1",
        "--updates", "1", "--repeats", "1", "-q"]  # fmt: skip


@pytest.fixture(autouse=True)
def _few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = steps.create_procedural_picture_pack
    monkeypatch.setattr(steps, "create_procedural_picture_pack", lambda _: drawn(2, 32, shape_count=4))
    monkeypatch.setattr(steps, "PairGenerator", partial(steps.PairGenerator, style=SceneStyle(instants=1)))


def test_training_command_first_losses_of_correlations_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "results.json"
    assert main([*CALL, "--correlations", "fullfield", "dense", "-o", str(stored)]) == 0
    (case,) = json.loads(stored.read_text())["cases"]
    ours, dense = case["rows"]
    assert ours["status"] == dense["status"] == "ok"
    assert ours["first_loss"] == pytest.approx(dense["first_loss"], rel=1e-4)
    assert "raft-small 64x64, batch 1" in capsys.readouterr().out


def test_training_gives_no_time_to_wrong_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = steps._network

    def spoilt(network: str, correlation: str) -> Any:
        model: Any = right(network, correlation)
        if correlation == "fullfield":
            inner = model.build_pyramid
            model.build_pyramid = lambda *maps: lambda coords: -5 * inner(*maps)(coords)
        return model

    monkeypatch.setattr(steps, "_network", spoilt)
    assert main([*CALL, "--correlations", "dense", "fullfield"]) == 1
    assert "check failed" in capsys.readouterr().err
