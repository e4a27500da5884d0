"""The benchmark of patched models: both run the same, and no wrong result gets a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bench import failed, measure
from benchmarks.cases.networks import patched
from benchmarks.cases.networks.patched import Plan
from benchmarks.runner import main
from fullfield.nn import RAFTCorrBlock

pytestmark = pytest.mark.usefixtures("ptlflow")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _few_updates(ptlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ptlflow.get_model

    def short(name: str) -> Any:
        model = original(name)
        model.iters = 1
        return model

    monkeypatch.setattr(ptlflow, "get_model", short)


def quiet(_: object) -> None:
    pass


def test_patched_measures_original_and_patched_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["patched", "raft_small", "--sizes", "136x128", "--train", "--repeats", "1", "--device", "cpu", "-q"]
    assert main([*command, "-o", str(tmp_path / "results.json")]) == 0
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["bench"] == "patched"
    assert stored["environment"]["versions"]["torch"] == torch.__version__
    (case,) = stored["cases"]
    own, ours = case["rows"]
    assert (own["name"], ours["name"]) == ("as it is", "patched")
    assert own["median_s"] > 0
    assert ours["median_s"] > 0
    assert 0 < ours["check"]["error"] < 1e-4
    assert 0 < ours["check"]["gradient_error"] < 1e-4
    assert 0 < case["lookups"]["inside"] <= 1
    text = capsys.readouterr().out
    assert "raft_small 136×128" in text
    assert "% time" in text


def test_patched_gives_no_time_to_wrong_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RAFTCorrBlock.__call__
    monkeypatch.setattr(RAFTCorrBlock, "__call__", lambda self, coords: 2 * original(self, coords))
    (case,) = measure(patched.cases(Plan(("raft_small",), ((128, 128),), CPU, repeats=1), quiet), quiet)
    assert case["rows"][1]["status"] == "check failed"
    assert "median_s" not in case["rows"][1]
    assert len(failed([case])) == 1


def test_patched_refuses_unmeasurable_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patched", "raftt"]) == 2
    assert "expected names of ptlflow's models" in capsys.readouterr().err
    assert main(["patched", "raft", "--train", "--alt-cuda-corr", str(tmp_path)]) == 2
    assert "has no gradient" in capsys.readouterr().err
