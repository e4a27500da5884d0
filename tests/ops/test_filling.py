"""interpolate_unknown_pixels: what is known stays, the rest continues it."""

from __future__ import annotations

import pytest
import torch

from fullfield import InputError
from fullfield.ops._filling import interpolate_unknown_pixels


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (5, 1), (24, 33), (64, 64)])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_interpolate_unknown_pixels_keeps_known_values(size: tuple[int, int], channels: int) -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.rand(channels, *size, generator=draw)
    known = torch.rand(size, generator=draw) < 0.3
    known[0, 0] = True
    spoiled = values.masked_fill(~known, float("nan"))
    filled = interpolate_unknown_pixels(spoiled, known)
    assert torch.equal(filled[:, known], values[:, known])
    for plane, source in zip(filled, values, strict=True):
        assert source[known].min() - 1e-6 <= plane.min()
        assert plane.max() <= source[known].max() + 1e-6


def test_interpolate_unknown_pixels_continues_the_border() -> None:
    values = torch.arange(40.0).expand(2, 30, 40)
    known = torch.zeros(30, 40, dtype=torch.bool)
    known[:, 10:30] = True
    filled = interpolate_unknown_pixels(values, known)
    assert (filled[:, :, 9] - 10).abs().max() < 3
    assert (filled[:, :, 30] - 29).abs().max() < 3
    alone = known.clone()
    alone[15, 20] = False
    assert (interpolate_unknown_pixels(values, alone)[:, 15, 20] - 20).abs().max() < 1


def test_interpolate_unknown_pixels_without_known_pixels_is_zero() -> None:
    assert not interpolate_unknown_pixels(torch.ones(3, 5, 6), torch.zeros(5, 6, dtype=torch.bool)).any()


def test_interpolate_unknown_pixels_refuses_mismatched_shapes() -> None:
    with pytest.raises(InputError, match="valid: expected"):
        interpolate_unknown_pixels(torch.ones(3, 5, 6), torch.ones(5, 5, dtype=torch.bool))
