"""Points along a curve."""

from __future__ import annotations

import pytest
import torch

from fullfield import InputError
from fullfield.ops.neighbors import spatial_order
from fullfield.ops.neighbors.ordering import morton_code


@pytest.mark.parametrize("far", [0.0, 5e6])
def test_neighbours_come_together_and_clouds_stay_apart(far: float) -> None:
    cloud = torch.rand(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + far
    order = spatial_order(cloud, torch.tensor([0, 1500, 1500, 4000]))
    assert order[:1500].sort().values.tolist() == list(range(1500))
    assert order[1500:].sort().values.tolist() == list(range(1500, 4000))
    assert cloud[order].diff(dim=0).norm(dim=1).mean() < 0.25 * cloud.diff(dim=0).norm(dim=1).mean()
    assert torch.equal(order[1500:], spatial_order(cloud[1500:]) + 1500)


def test_codes_take_the_bits_in_turn() -> None:
    cells = torch.tensor([[0, 0, 1], [0, 1, 0], [1, 0, 0], [3, 3, 3], [2**21 - 1] * 3])
    assert morton_code(cells).tolist() == [1, 2, 4, 63, 2**63 - 1]


def test_equal_points_keep_their_order_and_none_are_fine() -> None:
    assert spatial_order(torch.ones(5, 3)).tolist() == [0, 1, 2, 3, 4]
    assert spatial_order(torch.zeros(0, 3)).shape == (0,)
    assert spatial_order(torch.zeros(0, 3), torch.tensor([0])).shape == (0,)


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match=r"^points: expected finite coordinates"):
        spatial_order(torch.full((2, 3), torch.nan))
    with pytest.raises(InputError, match=r"^offsets: "):
        spatial_order(torch.zeros(2, 3), torch.tensor([0, 3]))
