"""Pictures of aligned clouds."""

from __future__ import annotations

import math

import pytest
import torch

from fullfield import InputError
from fullfield.viz import draw_alignment
from fullfield.viz.points import draw_alignment_legend

pytestmark = pytest.mark.unit


def test_alignment_view_colors_show_errors() -> None:
    plate = torch.cartesian_prod(torch.arange(8.0), torch.arange(4.0), torch.zeros(1))
    view = {"max_error": 1.0, "size": (120, 240)}
    blue = draw_alignment(plate, plate + torch.tensor([0.0, 0, 1]), torch.zeros(32), **view)
    red = draw_alignment(plate, plate + torch.tensor([0.0, 0, 1]), torch.full((32,), 9.0), **view)
    behind = draw_alignment(plate, plate - torch.tensor([0.0, 0, 1]), torch.zeros(32), **view)
    assert blue.shape == (3, 120, 240)
    assert blue.dtype == torch.uint8

    def pixels(image: torch.Tensor, color: tuple[int, int, int]) -> int:
        return int((image == torch.tensor(color, dtype=torch.uint8).reshape(3, 1, 1)).all(0).sum())

    assert pixels(blue, (43, 92, 255)) == 32 * 4
    assert pixels(red, (255, 38, 38)) == 32 * 4
    assert sorted(pixels(image, (112, 118, 128)) for image in (blue, behind)) == [0, 32 * 4]


def test_alignment_view_accepts_unusual_clouds() -> None:
    none, one = torch.empty(0, 3), torch.ones(1, 3)
    for target, source in ((none, none), (one, none), (none, one), (torch.full((4, 3), math.nan), one)):
        assert draw_alignment(target, source, torch.zeros(len(source)), max_error=1.0).shape == (3, 720, 960)
    with pytest.raises(InputError, match="max_error"):
        draw_alignment(one, one, torch.zeros(1), max_error=0.0)


def test_draw_alignment_legend_shows_color_scale() -> None:
    key = draw_alignment_legend(256, max_error=0.2)
    assert key.shape == (3, 32, 256)
    assert key[2, 10, 20] > key[0, 10, 20]  # blue at the left
    assert key[0, 10, 238] > key[2, 10, 238]
    wide = draw_alignment_legend(384, max_error=0.0924)  # no letter is cut off
    assert (wide[:, 24:, 360:] == wide[:, -1:, -1:]).all()
