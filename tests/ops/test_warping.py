"""Bilinear warping: against loops, at positions that float32 cannot hold, and outside the frame."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.ops import warping
from fullfield.ops.warping import warp_planes_and_mark_inside


def random_case(size: tuple[int, int], batch: int = 2, channels: int = 3, motion: float = 4.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size[0] * 100 + size[1])
    planes = torch.randn(batch, channels, *size, generator=generator, dtype=torch.float64)
    flow = motion * torch.randn(batch, 2, *size, generator=generator, dtype=torch.float64)
    flow[:, :, ::3] = flow[:, :, ::3].round()  # targets on pixels, among them those of the last row and column
    flow[..., :1] = 0
    return planes, flow


def warp_by_loops(planes: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    batch, channels, height, width = planes.shape
    warped = torch.zeros_like(planes)
    inside = torch.zeros(batch, height, width, dtype=torch.bool)
    for b in range(batch):
        for row in range(height):
            for column in range(width):
                x, y = column + float(flow[b, 0, row, column]), row + float(flow[b, 1, row, column])
                inside[b, row, column] = 0 <= x <= width - 1 and 0 <= y <= height - 1
                x, y = min(max(x, 0.0), width - 1.0), min(max(y, 0.0), height - 1.0)
                for channel in range(channels):
                    for i in (math.floor(x), math.floor(x) + 1):
                        for j in (math.floor(y), math.floor(y) + 1):
                            weight = max(0.0, 1 - abs(x - i)) * max(0.0, 1 - abs(y - j))
                            pixel = planes[b, channel, min(j, height - 1), min(i, width - 1)]
                            warped[b, channel, row, column] += weight * pixel
    return warped, inside


@pytest.mark.parametrize("size", [(7, 9), (1, 6), (5, 1), (1, 1), (2, 2)])
def test_warp_equals_loops(size: tuple[int, int]) -> None:
    planes, flow = random_case(size)
    warped, inside = warp_planes_and_mark_inside(planes, flow)
    expected, expected_inside = warp_by_loops(planes, flow)
    torch.testing.assert_close(warped, expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(inside, expected_inside)
    assert inside.any()


def test_warp_in_strips_equals_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    planes, flow = (tensor.float() for tensor in random_case((13, 11)))
    whole = warp_planes_and_mark_inside(planes, flow)
    monkeypatch.setattr(warping, "_CPU_PIXELS", 30)
    strips = warp_planes_and_mark_inside(planes, flow)
    assert all(map(torch.equal, strips, whole))


def test_warp_keeps_fractions_at_far_positions() -> None:
    """A float32 position near 40,000 has steps of 1/256 pixel; the fraction of the flow has none of that error."""
    width = 40_000
    planes = torch.arange(width, dtype=torch.float64).expand(1, 1, 2, width)
    flow = torch.zeros(1, 2, 2, width)
    flow[:, 0] = 0.0011
    warped, inside = warp_planes_and_mark_inside(planes, flow)
    assert (warped[..., :-1] - planes[..., :-1] - 0.0011).abs().max() < 1e-8
    assert inside[..., :-1].all()
    assert not inside[..., -1].any()


def test_warp_repeats_border_outside() -> None:
    planes = torch.arange(12.0).view(1, 1, 3, 4)
    flow = torch.zeros(1, 2, 3, 4)
    flow[0, 0] = torch.tensor([[-1e30, 1e30, torch.inf, -torch.inf]] * 3)
    warped, inside = warp_planes_and_mark_inside(planes, flow)
    assert torch.equal(warped[0, 0], torch.tensor([[0.0, 3, 3, 0], [4, 7, 7, 4], [8, 11, 11, 8]]))
    assert not inside.any()
    warped, inside = warp_planes_and_mark_inside(planes, torch.full_like(flow, torch.nan))
    assert warped.isfinite().all()
    assert not inside.any()


def test_warp_gradients_pass_gradcheck() -> None:
    planes, flow = random_case((4, 5), batch=1, channels=2, motion=1.0)
    flow = flow.floor() + 0.2 + 0.6 * torch.rand_like(flow)  # away from the kinks at pixels
    assert torch.autograd.gradcheck(
        lambda a, b: warp_planes_and_mark_inside(a, b)[0], (planes.requires_grad_(), flow.requires_grad_())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_warp_keeps_dtype_of_planes(dtype: torch.dtype) -> None:
    planes, flow = random_case((9, 8))
    warped, inside = warp_planes_and_mark_inside(planes.to(dtype), flow.float())
    expected, expected_inside = warp_planes_and_mark_inside(planes.to(dtype).double(), flow.float())
    assert warped.dtype == dtype
    assert torch.equal(inside, expected_inside)
    assert (warped.double() - expected).abs().max() <= 8 * torch.finfo(dtype).eps * planes.abs().max()


def test_warp_accepts_empty_and_strided_planes() -> None:
    warped, inside = warp_planes_and_mark_inside(torch.zeros(0, 3, 4, 5), torch.zeros(0, 2, 4, 5))
    assert (warped.shape, inside.shape) == ((0, 3, 4, 5), (0, 4, 5))
    planes, flow = random_case((6, 7))
    strided = planes.movedim(1, -1).contiguous().movedim(-1, 1)
    assert torch.equal(warp_planes_and_mark_inside(strided, flow)[0], warp_planes_and_mark_inside(planes, flow)[0])


def test_warp_refuses_bad_arguments() -> None:
    planes, flow = random_case((6, 7))
    for arguments, message in (
        ((planes[0], flow), r"planes: expected shape \[B, C, H, W\]"),
        ((planes.byte(), flow), "planes: expected"),
        ((planes, flow[..., :5]), r"flow: expected shape \[2, 2, 6, 7\]"),
        ((planes, flow.long()), "flow: expected"),
    ):
        with pytest.raises(InputError, match=message):
            warp_planes_and_mark_inside(*arguments)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_warp_on_gpu_equals_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warping, "_GPU_PIXELS", 100)
    planes, flow = (tensor.float() for tensor in random_case((23, 31)))
    flow[0, 0, 3, 4] = torch.nan
    warped, inside = warp_planes_and_mark_inside(planes.cuda(), flow.cuda())
    expected, expected_inside = warp_planes_and_mark_inside(planes, flow)
    assert torch.equal(inside.cpu(), expected_inside)
    torch.testing.assert_close(warped.cpu(), expected, atol=1e-6, rtol=1e-6)
