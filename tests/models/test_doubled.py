"""Two sizes of the same frames made one flow."""

from __future__ import annotations

import math

import pytest
import torch

from fullfield.models.cascade import FlowWithScale, enlarged, more_confident


def test_every_pixel_takes_the_surer_flow_in_its_own_pixels() -> None:
    own = FlowWithScale(torch.full((1, 2, 3, 5), 1.0), torch.zeros(1, 1, 3, 5))
    large = FlowWithScale(torch.tensor([8.0, 4.0])[None, :, None, None].expand(1, 2, 6, 10), torch.zeros(1, 1, 6, 10))
    large.log_scale[..., 6:] = 1.0  # columns 6 to 9 of the large one are 3 and 4
    flow, log_scale = more_confident(own, large)
    assert flow[0].tolist() == [[[4.0, 4.0, 4.0, 1.0, 1.0]] * 3, [[2.0, 2.0, 2.0, 1.0, 1.0]] * 3]
    assert torch.allclose(log_scale[0, 0, 0], torch.tensor([-math.log(2.0)] * 3 + [0.0, 0.0]))


@pytest.mark.parametrize("which", ["own", "large"])
@pytest.mark.parametrize("surest", [-1.0, 1.0])
def test_an_overflow_at_either_size_shows(which: str, surest: float) -> None:
    own = FlowWithScale(torch.zeros(1, 2, 3, 5), torch.full((1, 1, 3, 5), surest))
    large = FlowWithScale(torch.zeros(1, 2, 6, 10), torch.zeros(1, 1, 6, 10))
    spoilt = own if which == "own" else large
    spoilt.flow[..., 0, 0] = math.nan
    flow = more_confident(own, large).flow
    assert flow[0, :, 0, 0].isnan().all()
    assert flow[0, :, 2, 4].isfinite().all()


def test_what_is_enlarged_stays_in_its_place() -> None:
    frame = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    large = enlarged(frame)
    assert large.shape == (2, 3, 16, 24)
    assert torch.allclose(torch.nn.functional.avg_pool2d(large, 2)[..., 1:-1, 1:-1], _blurred(frame), atol=1e-6)


def _blurred(frame: torch.Tensor) -> torch.Tensor:
    """What enlarging and averaging come to: (1, 6, 1) / 8 both ways, and no shift."""
    kernel = torch.tensor([1.0, 6.0, 1.0]) / 8
    weights = (kernel[:, None] * kernel).expand(frame.shape[1], 1, 3, 3)
    return torch.nn.functional.conv2d(frame, weights, groups=frame.shape[1])
