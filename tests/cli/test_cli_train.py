"""``fullfield train descriptor``, and ``fullfield register --weights`` with what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullfield.testing import sample_room_scan
from fullfield.training import descriptor

TURN = np.array([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]])
SMALL = ("--channels", "6", "--layers", "0", "--pairs", "1", "--block", "2", "--cells", "300")
TINY = (*SMALL, "--steps", "2", "--every", "1")


@pytest.fixture
def scans(scene: Path) -> Path:
    """The folder with two scans of a room that share two thirds, the second turned."""
    first, second = sample_room_scan(3, 4500), sample_room_scan(3, 4500, scan_seed=1)
    np.save(scene / "a.npy", first[first[:, 0] < 3.8])
    np.save(scene / "b.npy", second[second[:, 0] > 1.0] @ TURN.T)
    return scene


def test_train_descriptor_writes_weights_that_register_reads(cli: Any, scans: Path) -> None:
    pytest.importorskip("small_gicp")
    ran = cli("train", "descriptor", "-o", "run", "--clouds", "a.npy", *TINY, "--json", "-q")
    assert ran.code == 0
    report = ran.json
    assert report["weights"] == "run/weights.safetensors"
    assert [row["step"] for row in report["history"]] == [1, 2]
    assert report["training"]["descriptor"]["channels"] == 6
    wider = ("--scales", "2", "--start", "run/weights.safetensors", *TINY, "--json", "-q")
    assert cli("train", "descriptor", "-o", "wider", *wider).json["training"]["descriptor"]["scales"] == 2
    refused = cli(
        "train", "descriptor", "-o", "other", "--start", "run/weights.safetensors", *TINY, "--layers", "1", "-q"
    )
    assert refused.err.startswith(
        "fullfield: error: --start: expected weights of 6 channels, 1 layers and at most 1 scale"
    )
    before = (scans / "run" / "weights.safetensors").read_bytes()
    ran = cli("train", "descriptor", "-o", "run", "--clouds", "a.npy", *TINY, "-q")
    assert ran.code == 0
    assert ran.out.startswith("run/weights.safetensors: 2 steps")
    assert (scans / "run" / "weights.safetensors").read_bytes() == before

    words = ("register", "a.npy", "b.npy", "--voxel", "0.09", "--json")
    ran = cli(*words, "--weights", "run/weights.safetensors")  # hardly trained, it is of use
    assert ran.code == 0
    assert ran.json["weights"] == "run/weights.safetensors"
    assert np.abs(np.array(ran.json["transform"])[:3, :3] - TURN).max() < 0.01
    plain = cli(*words).json
    assert plain["weights"] is None
    assert (plain["descriptor"], ran.json["descriptor"]) == ("fpfh", "learned")
    shipped = cli(*words, "--descriptor", "learned")
    assert shipped.code == 0
    assert (shipped.json["descriptor"], shipped.json["weights"]) == ("learned", None)
    assert shipped.json["matches"] not in (plain["matches"], ran.json["matches"])
    assert plain["matches"] != ran.json["matches"]


def test_train_descriptor_exits_with_1_on_divergence(cli: Any, scene: Path) -> None:
    ran = cli("train", "descriptor", "-o", "run", *SMALL, "--steps", "9", "--learning-rate", "1e30", "-q")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("fullfield: error: --learning-rate: ")
    assert ran.err.count("\n") == 1
    assert not (scene / "run" / "weights.safetensors").exists()


def test_train_descriptor_interrupted_reports_last_checkpoint(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_steps: list[int] = []
    train_step, command = descriptor._train_step_and_get_loss, ("train", "descriptor", "-o", "run", *TINY, "-q")

    def interrupt(model: Any, optimizer: Any, training: Any, step: int, *arguments: Any) -> float:
        if step in interrupted_steps:
            raise KeyboardInterrupt
        return train_step(model, optimizer, training, step, *arguments)

    monkeypatch.setattr(descriptor, "_train_step_and_get_loss", interrupt)
    for step, stored in ((0, "nothing was stored yet"), (1, "the same command continues from step 1")):
        interrupted_steps[:] = [step]
        ran = cli(*command)
        assert (ran.code, ran.out, ran.err) == (130, "", f"fullfield: error: interrupted; run: {stored}\n")
