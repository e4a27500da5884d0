"""Grid downsampling against a loop over cells."""

from __future__ import annotations

import math

import pytest
import torch

from fullfield import InputError
from fullfield.ops.neighbors import grid_downsample


def by_hand(points: torch.Tensor, cell: float, first: int = 0) -> list[int]:
    best: dict[tuple[int, ...], tuple[float, int]] = {}
    for index, point in enumerate(points.double().tolist()):
        corner = tuple(math.floor(c / cell) for c in point)
        away = sum((c / cell - k - 0.5) ** 2 for c, k in zip(point, corner, strict=True))
        best[corner] = min(best.get(corner, (math.inf, 0)), (away, index))
    return sorted(index + first for _, index in best.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_point_nearest_to_the_centre_stays(dtype: torch.dtype) -> None:
    points = (torch.rand(500, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) - 0.5) * 4
    kept = grid_downsample(points, 0.5)
    assert kept.indices.tolist() == by_hand(points, 0.5)
    assert kept.offsets.tolist() == [0, len(kept.indices)]
    assert 0 < len(kept.indices) < 500


def test_ragged_clouds_are_thinned_apart() -> None:
    points = torch.rand(300, 3, generator=torch.Generator().manual_seed(1))
    kept = grid_downsample(points, 0.4, offsets=torch.tensor([0, 100, 100, 300]))
    first, second = by_hand(points[:100], 0.4), by_hand(points[100:], 0.4, 100)
    assert kept.indices.tolist() == first + second
    assert kept.offsets.tolist() == [0, len(first), len(first), len(first) + len(second)]


def test_duplicates_leave_the_first_and_nothing_leaves_nothing() -> None:
    assert grid_downsample(torch.ones(9, 3), 0.3).indices.tolist() == [0]
    assert grid_downsample(torch.empty(0, 3), 0.3).indices.tolist() == []
    assert grid_downsample(torch.empty(0, 3), 0.3, offsets=torch.tensor([0, 0])).offsets.tolist() == [0, 0]


def test_a_cell_too_small_for_its_coordinates_is_refused() -> None:
    with pytest.raises(InputError, match="cell: expected cells whose numbers fit"):
        grid_downsample(torch.tensor([[1e20, 0.0, 0.0]]), 1e-3)
