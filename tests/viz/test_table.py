"""The table's pictures are those of flow_to_image, to its steps."""

from __future__ import annotations

import pytest
import torch

from fullfield import InputError
from fullfield.viz import flow_to_image
from fullfield.viz.wheel import FlowColors

pytestmark = pytest.mark.unit


def vectors(longest: float) -> torch.Tensor:
    """All directions and lengths up to ``longest``."""
    angle = torch.linspace(-3.2, 3.2, 301)
    length = torch.linspace(0, longest, 200)[:, None]
    return torch.stack([length * angle.cos(), length * angle.sin()])


def test_flow_colors_match_color_wheel() -> None:
    flow = vectors(7.9)
    found = FlowColors(8.0).draw(flow)
    assert (found.dtype, found.shape) == (torch.uint8, (3, 200, 301))
    off = (found.int() - flow_to_image(flow, max_motion=8.0).int()).abs()
    assert off.max() <= 8  # the wheel's colours change by up to 63 from one to the next, a table's step is 1/232
    assert off.float().mean() < 0.7


def test_flow_colors_darken_long_vectors() -> None:
    flow = vectors(40.0)[:, 60:]  # from 12 px on
    off = (FlowColors(8.0).draw(flow).int() - flow_to_image(flow, max_motion=8.0).int()).abs()
    assert off.max() <= 8


def test_flow_colors_scale_follows_motion() -> None:
    colors = FlowColors()
    colors.draw(torch.full((2, 32, 32), 3.0))
    assert colors.max_motion == pytest.approx(18**0.5)
    colors.draw(torch.full((2, 32, 32), 6.0))
    assert colors.max_motion == pytest.approx(72**0.5)
    colors.draw(torch.zeros(2, 32, 32))
    assert colors.max_motion == pytest.approx(0.95 * 72**0.5)
    outlier = torch.zeros(2, 320, 320)
    outlier[:, 0, 0] = 1e6
    assert FlowColors().draw(outlier).float().mean() > 254


def test_flow_colors_accept_nonfinite_flow() -> None:
    flow = torch.zeros(2, 8, 9)
    flow[0, 1, 1], flow[1, 2, 2], flow[0, 3, 3] = float("nan"), float("inf"), 1e30
    picture = FlowColors(4.0).draw(flow)
    assert (picture[:, 5] == 255).all()


def test_flow_colors_refuse_bad_arguments() -> None:
    with pytest.raises(InputError, match="max_motion"):
        FlowColors(0.0)
    with pytest.raises(InputError, match="flow"):
        FlowColors(1.0).draw(torch.zeros(3, 4, 4))


def test_flow_colors_ignore_few_fast_vectors() -> None:
    flow = torch.full((2, 80, 80), 2.0)
    flow[:, :16, :16] = 60.0  # 4 % of the picture
    colors = FlowColors()
    picture = colors.draw(flow).float()
    assert colors.max_motion < 3
    assert (picture.amax(0) - picture.amin(0))[40:].mean() > 100
