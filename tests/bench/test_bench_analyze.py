"""Shares of the all-pairs matrix that lookups read, and ``python -m benchmarks analyze``, which prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.cases.correlation.analysis import (
    BLOCKS,
    LAYOUTS,
    read_shares,
    recorded_positions,
    window_statistics,
)
from tests.oracles.correlation import make_case


def by_brute_force(coords: Tensor, radius: int, size2: tuple[int, int], level: int, block: int, layout: str) -> float:
    """The whole matrix, cell by cell, then block by block."""
    updates, _, height, width = coords.shape
    rows, columns = size2[0] // 2**level, size2[1] // 2**level
    read = np.zeros((height * width, rows * columns), bool)
    for u, y, x in np.ndindex(updates, height, width):
        at = coords[u, :, y, x].double() / 2**level
        if not bool(at.isfinite().all()):
            continue
        left, top = (int(v) - radius for v in at.floor())
        for j in range(2 * radius + 2):
            for i in range(2 * radius + 2):
                if 0 <= left + i < columns and 0 <= top + j < rows:
                    read[y * width + x, (top + j) * columns + left + i] = True

    def block_of(pixel: int, across: int) -> tuple[int, int]:
        if layout == "row-major":
            return (pixel // block**2, 0)
        return (pixel // across // block, pixel % across // block)

    sources = [block_of(p, width) for p in range(height * width)]
    targets = [block_of(p, columns) for p in range(rows * columns)]
    hit = {(sources[p], targets[q]) for p, q in zip(*read.nonzero(), strict=True)}
    cells = sum((s, t) in hit for s in sources for t in targets)
    return cells / read.size


@pytest.mark.parametrize("motion", ["smooth", "outside"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [2, 4])
def test_equals_brute_force(motion: str, layout: str, block: int) -> None:
    coords = make_case((5, 9), (11, 7), batch=3, motion=motion).coords
    coords[1, 0, 2, 2] = float("nan")
    shares = read_shares(coords, 1, size2=(11, 7), levels=2, blocks=[block], layouts=[layout])
    for found in shares:
        expected = by_brute_force(coords, 1, (11, 7), found.level, block, layout)
        assert found.share == pytest.approx(expected, abs=1e-12)
    assert len(shares) == 2
    assert 0 < shares[0].share <= 1
    assert block > 2 or shares[0].share < 1


def test_recorded_lookups_have_the_papers_pattern(data_dir: Path) -> None:
    file = data_dir / "lookups" / "flow_easy_256x112.npy"
    if not file.exists():
        pytest.skip(f"{file.name} is absent")
    offsets = torch.from_numpy(np.load(file))
    # On a quarter of the map: the paper's grid.
    small = torch.nn.functional.interpolate(offsets, scale_factor=0.5, mode="area") / 2
    shares = {(s.layout, s.block): s.share for s in read_shares(recorded_positions(small))}
    assert len(shares) == 2 * len(BLOCKS) - 1
    # Table 3: 1.6 ± 0.4, 6.7 ± 1.1 and 4.2 ± 0.7, 20.6 ± 4.4 and 8.6 ± 1.4 percent over all of Sintel.
    assert 0.008 < shares["row-major", 1] < 0.024
    assert 0.03 < shares["patch-major", 4] < 0.06
    assert 0.05 < shares["patch-major", 8] < 0.12
    assert shares["patch-major", 8] < 0.5 * shares["row-major", 8]
    statistics = window_statistics(recorded_positions(offsets[-1:]))
    assert 100 < statistics.mean_columns < 260
    assert 0.8 < statistics.inside < 1


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
