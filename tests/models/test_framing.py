"""Padding, values, and the start flow on the 1/8 grid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fullfield.models.framing import (
    Padding,
    choose_padding,
    resample_flow_to_cells,
    scale_frame_to_signed_unit_range,
)
from refusals import refuses

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("mode", ["sintel", "kitti"])
def test_choose_padding_pads_to_multiples_of_eight(mode: str) -> None:
    for height, width in [(9, 31), (16, 24), (375, 1242), (436, 1024), (17, 40), (1, 1), (8, 3), (5, 200)]:
        padding = choose_padding(height, width, mode)
        frame = torch.rand(2, 3, height, width)
        padded = padding.pad(frame)
        rows, columns = padded.shape[-2:]
        assert rows % 8 == 0
        assert columns % 8 == 0
        assert rows == max(16, -(-height // 8) * 8)
        assert columns == max(16, -(-width // 8) * 8)
        assert torch.equal(padding.crop(padded), frame)
        assert 0 <= padding.right - padding.left <= 1
        if mode == "kitti":
            assert padding.top == 0
        else:
            assert 0 <= padding.bottom - padding.top <= 1


def test_normalize_frame_scales_uint8_and_float() -> None:
    field = torch.zeros(1, 2, 16, 24)
    assert choose_padding(16, 24).crop(field) is field
    assert choose_padding(15, 24).crop(field).shape == (1, 2, 15, 24)
    refuses("padding: expected one of sintel, kitti", choose_padding, 64, 64, "spring")
    whole = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    torch.testing.assert_close(
        scale_frame_to_signed_unit_range(whole), torch.tensor([-1.0, -0.6, 1.0]).view(1, 1, 1, 3)
    )
    torch.testing.assert_close(scale_frame_to_signed_unit_range(whole), scale_frame_to_signed_unit_range(whole / 255))
    assert scale_frame_to_signed_unit_range(whole, torch.float64).dtype == torch.float64


def linear(height: int, width: int, frame: tuple[int, int]) -> Tensor:
    """A field linear in the position on the frame, at any resolution, in pixels of its own grid."""
    y = (torch.arange(height, dtype=torch.float64) + 0.5) * frame[0] / height
    x = (torch.arange(width, dtype=torch.float64) + 0.5) * frame[1] / width
    pixels = torch.stack((0.3 * x + 0.1 * y[:, None] - 4, 0.2 * y[:, None] - 0.05 * x + 3))
    scale = torch.tensor([width / frame[1], height / frame[0]], dtype=torch.float64)
    return (pixels * scale[:, None, None]).float()[None]


@pytest.mark.parametrize("mode", ["sintel", "kitti"])
@pytest.mark.parametrize("frame", [(64, 96), (70, 91), (129, 63)])
@pytest.mark.parametrize("own", [(64, 96), (70, 91), (35, 47), (9, 12), (18, 23), (140, 182)])
def test_resample_flow_to_cells_samples_cell_centres(frame: tuple[int, int], own: tuple[int, int], mode: str) -> None:
    padding = choose_padding(*frame, mode)
    start = resample_flow_to_cells(linear(*own, frame), *frame, padding)
    rows, columns = start.shape[-2:]
    assert (rows * 8, columns * 8) == padding.pad(torch.zeros(1, 1, *frame)).shape[-2:]
    y = torch.arange(rows) * 8 + 4.0 - padding.top
    x = torch.arange(columns) * 8 + 4.0 - padding.left
    half_y, half_x = 0.5 * frame[0] / own[0], 0.5 * frame[1] / own[1]  # beyond the last centres the border goes on
    y, x = y.clamp(half_y, frame[0] - half_y), x.clamp(half_x, frame[1] - half_x)
    truth = torch.stack((0.3 * x + 0.1 * y[:, None] - 4, 0.2 * y[:, None] - 0.05 * x + 3)) / 8
    torch.testing.assert_close(start[0], truth, rtol=1e-5, atol=1e-5)


def test_resample_flow_to_cells_averages_quarter_to_eighth() -> None:
    quarter = torch.randn(2, 2, 32, 40, generator=torch.Generator().manual_seed(0))
    start = resample_flow_to_cells(quarter, 128, 160, choose_padding(128, 160))
    half = 0.5 * functional.interpolate(quarter, scale_factor=0.5, mode="bilinear")
    torch.testing.assert_close(start, half, rtol=0, atol=1e-6)
    eighth = torch.randn(1, 2, 16, 20)
    assert torch.equal(resample_flow_to_cells(eighth, 128, 160, Padding(0, 0, 0, 0)), eighth)
    assert torch.equal(
        resample_flow_to_cells(eighth[..., :1, :], 8, 160, choose_padding(8, 160)),
        eighth[..., :1, :].expand(-1, -1, 2, -1),
    )
    flow = torch.randn(1, 2, 5, 7, dtype=torch.float32, requires_grad=True)
    resample_flow_to_cells(flow, 37, 45, choose_padding(37, 45)).sum().backward()
    assert bool((flow.grad >= 0).all())
    assert float(flow.grad.sum()) > 0
