"""Cascaded inference and two sizes made one flow, with networks that are known exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fullfield.models.cascade import (
    Cascade,
    FlowWithLogScale,
    average_flows_or_select_confident,
    compute_enlarged_size,
    list_quartered_sizes,
    mark_long_motion,
    resample_flow,
    resample_frame,
    resample_pair_to_sizes,
    select_more_confident_flow,
)
from fullfield.models.framing import STRIDE, choose_padding, resample_flow_to_cells
from refusals import refuses

SIZES = [(321, 405), (320, 384), (333, 340), (402, 327), (1371, 1131), (1285, 1601)]
THRESHOLD = 100


def affine(height: int, width: int, full: tuple[int, int]) -> Tensor:
    """One affine motion of a picture of ``full`` pixels, as a picture of height × width shows it: [1, 2, H, W]."""
    y = (torch.arange(height) + 0.5) / height * full[0] - 0.5
    x = (torch.arange(width) + 0.5) / width * full[1] - 0.5
    ys, xs = torch.meshgrid(y, x, indexing="ij")
    u = 7.3 + 0.021 * xs - 0.013 * ys
    v = -4.1 - 0.017 * xs + 0.026 * ys
    return torch.stack((u * width / full[1], v * height / full[0]))[None]


class Known:
    """A network that knows the motion where it starts from nothing, and elsewhere returns its start, as RAFT would:
    on the 1/8 grid of the padded frame, enlarged, cropped."""

    def __init__(self, full: tuple[int, int]) -> None:
        self.full = full
        self.calls: list[tuple[tuple[int, ...], int | None, bool]] = []

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, updates: int | None = None, initial_flow: Tensor | None = None
    ) -> Tensor:
        assert frame1.shape == frame2.shape
        height, width = frame1.shape[-2:]
        self.calls.append(((height, width), updates, initial_flow is not None))
        if initial_flow is None:
            return affine(height, width, self.full)
        padding = choose_padding(height, width)
        start = resample_flow_to_cells(initial_flow, height, width, padding)
        enlarged = functional.interpolate(start, scale_factor=STRIDE, mode="bilinear", align_corners=False) * STRIDE
        return padding.crop(enlarged)


def frames(height: int, width: int) -> tuple[Tensor, Tensor]:
    frame = torch.zeros(1, 3, height, width)
    return frame, frame


def interior(error: Tensor, levels: int) -> Tensor:
    """Without what the borders of the coarse fields, which go on as constants, reach."""
    margin = 20 * 4 ** (levels - 1)
    return error[..., margin:-margin, margin:-margin]


@pytest.mark.parametrize(
    ("size", "enlarged"),
    [
        ((436, 1024), (579, 1359)),
        ((375, 1242), (487, 1614)),
        ((384, 512), (768, 1024)),
        ((480, 640), (768, 1024)),
        ((768, 1024), (768, 1024)),
        ((720, 1280), (720, 1280)),
        ((1, 786_431), (1, 786_431)),
        ((700, 700), (800, 800)),  # not 887: the frames would be cascaded
        ((850, 900), (850, 900)),
        ((200, 200), (400, 400)),
        ((1, 1), (2, 2)),
    ],
)
def test_compute_enlarged_size_reaches_pixels_or_twice_the_size(
    size: tuple[int, int], enlarged: tuple[int, int]
) -> None:
    assert compute_enlarged_size(*size) == enlarged


def test_compute_cascade_sizes_returns_quarter_levels() -> None:
    assert list_quartered_sizes(3432, 8192) == [(3432, 8192), (858, 2048), (215, 512)]
    assert list_quartered_sizes(1716, 4096) == [(1716, 4096), (429, 1024)]
    assert list_quartered_sizes(1080, 1920) == [(1080, 1920), (270, 480)]
    assert list_quartered_sizes(800, 9000) == [(800, 9000)]
    assert list_quartered_sizes(801, 801) == [(801, 801), (200, 200)]
    assert list_quartered_sizes(802, 803) == [(802, 803), (201, 201)]  # 200.5 is rounded up
    assert list_quartered_sizes(6432, 15360) == [(6432, 15360), (1608, 3840), (402, 960)]
    assert list_quartered_sizes(3432, 8192, enlarges_last=True) == [(3432, 8192), (858, 2048), (430, 1024)]
    assert list_quartered_sizes(2160, 3840, enlarges_last=True) == [(2160, 3840), (540, 960)]
    assert list_quartered_sizes(400, 500, enlarges_last=True) == [(400, 500)]


def test_mark_long_motion_needs_a_quarter_of_the_pixels() -> None:
    flow = torch.zeros(3, 2, 10, 20)
    flow[0, 0, :, :6] = 41  # 164 px at four times the size, in 30 % of the pixels
    flow[1, 0, :, :4] = 100  # in 20 %
    flow[2, 1] = -39
    assert mark_long_motion(flow, 40, 80).tolist() == [True, False, False]
    assert mark_long_motion(flow, 40, 20).tolist() == [False, False, False], "x is not scaled"
    assert mark_long_motion(flow, 50, 80).tolist() == [True, False, True]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_cascade_resamples_affine_flow_without_shift(height: int, width: int) -> None:
    network = Known((height, width))
    flow = Cascade(network, threshold=THRESHOLD)(*frames(height, width))
    assert flow.shape == (1, 2, height, width)
    levels = len(network.calls)
    assert levels == (3 if height > 1000 else 2)
    truth = affine(height, width, (height, width))
    assert interior(flow - truth, levels - 1).abs().max() < 2e-4
    assert truth.abs().amax() > 8


def test_cascade_uses_coarse_updates_on_smaller_levels() -> None:
    network = Known((1371, 1131))
    pair = frames(1371, 1131)
    Cascade(network, updates=2, coarse_updates=6, threshold=THRESHOLD)(*pair)
    assert network.calls == [((86, 71), 6, False), ((343, 283), 6, True), ((1371, 1131), 2, True)]
    network.calls.clear()
    Cascade(network, updates=2, coarse_updates=6)(*frames(80, 90))
    assert network.calls == [((80, 90), 2, False)]
    network.calls.clear()
    Cascade(network, threshold=500)(*pair)
    assert [call[1] for call in network.calls] == [None, None]
    network.calls.clear()
    Cascade(network, updates=3, threshold=500)(*pair)
    Cascade(network, updates=3, threshold=500)(*pair, 5)
    assert [call[1] for call in network.calls] == [3, 3, 5, 5]


def test_cascade_initial_flow_starts_coarsest_level() -> None:
    network = Known((1371, 1131))
    start = affine(1371, 1131, (1371, 1131))
    flow = Cascade(network, threshold=THRESHOLD)(*frames(1371, 1131), initial_flow=start)
    assert all(given for _, _, given in network.calls)
    assert interior(flow - start, 3).abs().max() < 2e-4


def test_cascade_reduces_frames_by_averaging() -> None:
    seen = []

    def network(frame1: Tensor, frame2: Tensor, **_: Any) -> Tensor:
        seen.append((frame1, frame2))
        return frame1.new_zeros(1, 2, *frame1.shape[-2:], dtype=torch.float32)

    height, width = 1288, 1600
    ramp = torch.arange(width).expand(1, 3, height, width) / width
    bright = (torch.rand(1, 3, height, width) * 255).to(torch.uint8)
    Cascade(network, threshold=THRESHOLD)(ramp, ramp.flip(-1))
    Cascade(network, threshold=THRESHOLD)(bright, bright)
    assert seen[2][0] is ramp
    assert seen[5][0] is bright
    middle = torch.arange(width // 4) * 4 + 1.5
    assert torch.allclose(seen[1][0], (middle / width).expand_as(seen[1][0]), atol=1e-6)
    assert torch.allclose(seen[1][1], seen[1][0].flip(-1), atol=1e-6)
    assert seen[0][0].shape[-2:] == (81, 100)  # 322 is no multiple of 4
    block = bright[0, :, 401:403, 801:803].float().mean((1, 2)) / 255
    assert torch.allclose(seen[4][0][0, :, 100, 200], block, atol=1e-6)


def test_resample_flow_keeps_motion() -> None:
    for size in ((43, 87), (400, 201), (130, 190)):
        found = resample_flow(affine(130, 190, (130, 190)), *size)
        assert (found - affine(*size, (130, 190)))[..., 8:-8, 8:-8].abs().max() < 1e-4
    same = torch.rand(1, 2, 5, 6)
    assert resample_flow(same, 5, 6) is same


def test_cascade_refuses_bad_arguments() -> None:
    network = Known((8, 8))
    for arguments, message in (
        ({"updates": -1}, "updates: expected an integer >= 0, got int -1"),
        ({"coarse_updates": 1.5}, "coarse_updates: expected an integer >= 0"),
        ({"threshold": 0}, "threshold: expected an integer >= 1"),
    ):
        refuses(message, Cascade, network, **arguments)
    refuses("frame2: expected shape", Cascade(network), torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 9))
    large = torch.zeros(1, 3, 808, 808)
    for pair, message in (
        ((large.int(), large.int()), "frame1: expected dtype uint8 or floating, got int32"),
        ((large, large.to(torch.uint8)), "frame2: expected dtype float32, got uint8"),
    ):
        refuses(message, Cascade(network), *pair)
    refuses("network: expected something that is called like a network", Cascade, "raft")


def test_select_more_confident_flow_follows_log_scale() -> None:
    own = FlowWithLogScale(torch.full((1, 2, 3, 5), 1.0), torch.zeros(1, 1, 3, 5))
    large = FlowWithLogScale(
        torch.tensor([8.0, 4.0])[None, :, None, None].expand(1, 2, 6, 10), torch.zeros(1, 1, 6, 10)
    )
    large.log_scale[..., 6:] = 1.0  # columns 6 to 9 of the large one are 3 and 4
    flow, log_scale = select_more_confident_flow(own, large)
    assert flow[0].tolist() == [[[4.0, 4.0, 4.0, 1.0, 1.0]] * 3, [[2.0, 2.0, 2.0, 1.0, 1.0]] * 3]
    assert torch.allclose(log_scale[0, 0, 0], torch.tensor([-math.log(2.0)] * 3 + [0.0, 0.0]))


def test_resample_frame_enlarges_bicubically_and_reduces_bilinearly() -> None:
    frame = torch.rand(2, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    large, second = resample_pair_to_sizes(frame, frame, [(8, 12), (16, 24)])[1]
    assert large.shape == second.shape == (2, 3, 16, 24)
    assert torch.allclose(resample_frame(frame.flip((2, 3)), (16, 24)), large.flip((2, 3)), atol=1e-5), "no shift"
    ramp = torch.arange(12.0).expand(1, 1, 8, 12)
    step = resample_frame((ramp > 5).float(), (16, 24))
    assert float(step.max()) > 1.01, "bilinear values stay within those around"
    assert torch.allclose(resample_frame(frame, (4, 6)), functional.avg_pool2d(frame, 2), atol=1e-6)
    assert resample_frame(frame, (8, 12)) is frame
    values = (255 * frame).to(torch.uint8)
    assert resample_frame(values, (8, 12)) is values
    assert torch.allclose(resample_frame(values, (16, 24)), large, atol=0.01)


def test_select_more_confident_flow_limits_correction() -> None:
    own = FlowWithLogScale(torch.zeros(1, 2, 3, 5), torch.zeros(1, 1, 3, 5))
    large = FlowWithLogScale(torch.zeros(1, 2, 6, 10), torch.full((1, 1, 6, 10), -3.0))
    large.flow[:, 0] = 2 * 31.9
    assert select_more_confident_flow(own, large).flow[0, 0].unique().tolist() == pytest.approx([31.9])
    large.flow[:, 0] = 2 * 32.1
    flow, log_scale = select_more_confident_flow(own, large)
    assert torch.equal(flow, own.flow)
    assert torch.equal(log_scale, own.log_scale)


@pytest.mark.parametrize("which", ["own", "large"])
@pytest.mark.parametrize("surest", [-1.0, 1.0])
def test_select_more_confident_flow_keeps_nonfinite_values(which: str, surest: float) -> None:
    own = FlowWithLogScale(torch.zeros(1, 2, 3, 5), torch.full((1, 1, 3, 5), surest))
    large = FlowWithLogScale(torch.zeros(1, 2, 6, 10), torch.zeros(1, 1, 6, 10))
    spoilt = own if which == "own" else large
    spoilt.flow[..., 0, 0] = math.nan
    flow = select_more_confident_flow(own, large).flow
    assert flow[0, :, 0, 0].isnan().all()
    assert flow[0, :, 2, 4].isfinite().all()


def test_average_consistent_flows_weighs_by_expected_error() -> None:
    first = FlowWithLogScale(torch.zeros(1, 2, 1, 4), torch.zeros(1, 1, 1, 4))
    second = FlowWithLogScale(
        torch.zeros(1, 2, 1, 4), torch.tensor([0.0, -math.log(2.0), -math.log(2.0), 1.0])[None, None, None]
    )
    second.flow[0, 0, 0] = torch.tensor([2.9, 1.4, 1.6, 3.1])  # 3 expected errors are 3, 1.5, 1.5 and 3
    for one, two in ((first, second), (second, first)):
        flow, log_scale = average_flows_or_select_confident(one, two)
        assert flow[0, 0, 0].tolist() == pytest.approx([1.45, 1.4 * 0.8, 1.6, 0.0])
        assert log_scale.flatten().tolist() == pytest.approx([0, -math.log(2), -math.log(2), 0])
    sure = FlowWithLogScale(torch.zeros(1, 2, 1, 1), torch.full((1, 1, 1, 1), -5.0))
    near = FlowWithLogScale(torch.full((1, 2, 1, 1), 0.3), torch.full((1, 1, 1, 1), -5.0))
    assert average_flows_or_select_confident(sure, near).flow.unique().tolist() == pytest.approx([0.15])
    near.flow[0, 1] = math.nan
    assert average_flows_or_select_confident(sure, near).flow.isnan().any()
