"""``python -m benchmarks analyze``: the share of the correlation volume that a recording reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cases.correlation.analysis import read_shares, recorded_positions


@pytest.fixture
def recording(scene: Path) -> Path:
    steps = 1 - 0.6 ** np.array([0, 1, 2, 4, 8, 12, 20, 31])
    y, x = np.mgrid[0:12, 0:20]
    flow = np.stack((2 * np.sin(y / 4), 1.5 * np.cos(x / 5)))
    np.save(scene / "a.npy", (steps[:, None, None, None] * flow).astype(np.float32))
    np.save(scene / "b.npy", (3 * steps[:, None, None, None] * flow).astype(np.float64))
    return scene


@pytest.mark.usefixtures("recording")
def test_shares_as_json(cli: Any, recording: Path) -> None:
    import torch

    ran = cli("analyze", "a.npy", "--radius", 2, "--levels", 2, "--blocks", 4, 1, "--json")
    assert ran.code == 0
    (one,) = ran.json["files"]
    coords = recorded_positions(torch.from_numpy(np.load(recording / "a.npy")))
    expected = read_shares(coords, 2, levels=2, blocks=[1]) + read_shares(coords, 2, levels=2, blocks=[4])
    assert one["shares"] == [share.as_dict() for share in expected]
    assert one["size"] == [12, 20]
    assert one["updates"] == 8
    assert 0 < one["inside"] <= 1
    assert one["mean_columns"] > 0
