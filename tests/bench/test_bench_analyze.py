"""Shares of the all-pairs matrix that lookups read, and ``python -m benchmarks analyze``, which prints them."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from benchmarks.cases.correlation.analysis import (
    LAYOUTS,
    read_shares,
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
def test_analyze_equals_brute_force(motion: str, layout: str, block: int) -> None:
    coords = make_case((5, 9), (11, 7), batch=3, motion=motion).coords
    coords[1, 0, 2, 2] = float("nan")
    shares = read_shares(coords, 1, size2=(11, 7), levels=2, blocks=[block], layouts=[layout])
    for found in shares:
        expected = by_brute_force(coords, 1, (11, 7), found.level, block, layout)
        assert found.share == pytest.approx(expected, abs=1e-12)
    assert len(shares) == 2
    assert 0 < shares[0].share <= 1
    assert block > 2 or shares[0].share < 1
