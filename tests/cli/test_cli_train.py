"""``fullfield train descriptor``, and ``fullfield register --weights`` with what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullfield.testing import room_scan

TURN = np.array([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]])
SMALL = ("--channels", "6", "--layers", "0", "--pairs", "1", "--block", "2", "--cells", "300")
TINY = (*SMALL, "--steps", "2", "--every", "1")


@pytest.fixture
def scans(scene: Path) -> Path:
    """The folder with two scans of a room that share two thirds, the second turned."""
    first, second = room_scan(3, 4500), room_scan(3, 4500, scan=1)
    np.save(scene / "a.npy", first[first[:, 0] < 3.8])
    np.save(scene / "b.npy", second[second[:, 0] > 1.0] @ TURN.T)
    return scene


def test_train_then_register(cli: Any, scans: Path) -> None:
    pytest.importorskip("small_gicp")
    ran = cli("train", "descriptor", "-o", "run", "--clouds", "a.npy", *TINY, "--json", "-q")
    assert ran.code == 0
    report = ran.json
    assert report["weights"] == "run/weights.safetensors"
    assert [row["step"] for row in report["history"]] == [1, 2]
    assert report["training"]["descriptor"]["channels"] == 6
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


def test_a_training_that_diverges_ends_with_1(cli: Any, scene: Path) -> None:
    ran = cli("train", "descriptor", "-o", "run", *SMALL, "--steps", "9", "--learning-rate", "1e30", "-q")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("fullfield: error: --learning-rate: ")
    assert ran.err.count("\n") == 1
    assert not (scene / "run" / "weights.safetensors").exists()


def test_mistakes_are_one_line(refused: Any, scans: Path) -> None:
    (scans / "w.safetensors").write_text("<html>")
    np.save(scans / "few.npy", np.zeros((9, 3)))
    (scans / "file").write_text("")
    train = ("train", "descriptor", "-o", "run")
    mistakes = {
        ("register", "a.npy", "b.npy", "--weights", "w.safetensors"): "w.safetensors: expected weights",
        ("register", "a.npy", "b.npy", "--weights", "no.safetensors"): "no.safetensors: no such file",
        (
            "register",
            "a.npy",
            "b.npy",
            "--descriptor",
            "fpfh",
            "--weights",
            "w.safetensors",
        ): "--weights: expected --descriptor learned, got fpfh",
        ("train", "nothing", "-o", "run"): "invalid choice: 'nothing'",
        ("train", "descriptor"): "-o/--output",
        ("train", "descriptor", "-o", "file"): "file: is a file; --output",
        (*train, "--clouds", "no.npy"): "no.npy: no such file",
        (*train, "--clouds", "a.png"): "a.png: unknown suffix",
        (*train, "--clouds", "few.npy"): "few.npy: expected at least 1000 finite points",
        (*train, "--scans", "a.npy", "no.npy", "p.txt"): "no.npy: no such file",
        (*train, "--scans", "a.npy", "b.npy", "p.txt"): "p.txt: no such file",
        (*train, "--scans", "a.npy", "b.npy", "file"): "file: the file is empty",
        (*train, "--minutes", "0"): "--minutes",
        (*train, "--pairs", "3"): "--block: expected a multiple of 3 pairs",
        (*train, "--channels", "2000"): "--channels: expected an integer",
        (*train, "--channels", "8,x"): "--channels",
        (*train, "--layers", "20"): "--layers: expected an integer >= 0",
        (*train, "--learning-rate", "1e38"): "--learning-rate: expected a number > 0 and <= 1e+30",
        (*train, "--synthetic", "2"): "--synthetic: expected a number",
        (*train, "--cells", "5"): "--cells: expected an integer >= 100",
        (*train, "--seed", "-1"): "--seed: expected a whole number >= 0",
        (*train, "--device", "tpu"): "--device: expected a device",
    }
    for argv, message in mistakes.items():
        assert message in refused(*argv), argv
    assert not (scans / "run" / "weights.safetensors").exists()
