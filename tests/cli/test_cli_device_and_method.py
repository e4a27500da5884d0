"""Options that all estimating verbs share: ``--device auto``, and ``--method`` with a class of the user's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fullfield.cli.evaluate import _set_and_return_local_rank_device
from fullfield.io import read_flow, write_image
from fullfield.ops import devices
from fullfield.testing import sample_textured_scene
from fullfield.training.flow import ranks

OWN = """
import torch

class Shift:
    method, backend, parameters = "shift", "none", {"pixels": 2}

    def __call__(self, frame1, frame2, *, initial_flow=None, progress=None):
        return torch.full_like(frame1[:, :2], 2.0)
"""


@pytest.fixture(autouse=True)
def _frames(cli: Any) -> None:  # noqa: ARG001 - works in its folder
    scene = sample_textured_scene(48, 64, seed=3)
    write_image("a.png", scene.frame1)
    write_image("b.png", scene.frame2)


def test_flow_method_accepts_user_class(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_method.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    report = cli("flow", "a.png", "b.png", "-o", "out.flo", "--method", "own_method:Shift", "--json").json
    assert (report["method"], report["requested_method"]) == ("shift", "own_method:Shift")
    assert report["parameters"] == {"pixels": 2}
    assert torch.equal(read_flow("out.flo").flow, torch.full((2, 48, 64), 2.0))
    ran = cli("flow", "a.png", "b.png", "-o", "x.flo", "--method", "own_method:Absent")
    assert ran.code == 2
    assert "own_method:Absent: expected a class that can be imported" in ran.err
    ran = cli("flow", "a.png", "b.png", "-o", "x.flo", "--method", "own_method:Shift", "--iterations", "3")
    assert "--iterations: belongs to --method tvl1, not to own_method:Shift" in ran.err


def test_flow_device_defaults_to_auto(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def resolve(device: str, name: str = "device") -> torch.device:  # noqa: ARG001 - as the original
        requested.append(device)
        return torch.device("cpu")

    monkeypatch.setattr(devices, "resolve_device", resolve)
    fast = ("--method", "tvl1", "--preset", "fast", "--iterations", "1", "--warps", "1")
    report = cli("flow", "a.png", "b.png", "-o", "out.flo", *fast, "--json").json
    assert report["device"] == "cpu"
    assert requested[0] == "auto"


def test_evaluate_processes_use_separate_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _set_and_return_local_rank_device("auto", "cuda:0") == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("fullfield._check.resolve_available_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    assert (
        _set_and_return_local_rank_device("auto", "cuda:0")
        == _set_and_return_local_rank_device("cuda", "cuda")
        == "cuda:1"
    )
    assert _set_and_return_local_rank_device("cuda:0", "cuda:0") == "cuda:0"
    assert _set_and_return_local_rank_device("auto", "cpu") == "cpu"


def test_train_processes_use_separate_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield._check.resolve_available_device", torch.device)
    monkeypatch.setattr(ranks, "resolve_device", lambda _: torch.device("cuda:0"))
    assert ranks.choose_rank_device("auto") == ranks.choose_rank_device("cuda") == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert ranks.choose_rank_device("auto") == ranks.choose_rank_device("cuda") == torch.device("cuda:3")
    assert ranks.choose_rank_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setattr(ranks, "resolve_device", lambda _: torch.device("cpu"))
    assert ranks.choose_rank_device("auto") == torch.device("cpu")
