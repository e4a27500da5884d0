"""The GPU kernels on features and results of more than 2**31 elements."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fullfield.nn import CorrelationPyramid
from tests.oracles.correlation import assert_within

SIZE = (2901, 1451)  # with two images and 256 channels just above 2**31 elements of features
LEVELS, RADIUS, EDGE = 4, 4, 12
NEEDED = 110 << 30

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < NEEDED, reason="needs 110 GiB of GPU memory"
    ),
]


class Big(NamedTuple):
    fmap1: Tensor
    fmap2: Tensor
    coords: Tensor


@pytest.fixture(scope="module")
def big() -> Big:
    torch.manual_seed(0)
    maps = [torch.randn(2, 256, *SIZE, device="cuda", dtype=torch.float16) for _ in range(2)]
    assert maps[0].numel() > 1 << 31
    y, x = torch.meshgrid(*(torch.arange(n, device="cuda") for n in SIZE), indexing="ij")
    wave = torch.stack((2.3 * torch.sin(y / 9), 1.7 * torch.cos(x / 7)))
    return Big(maps[0], maps[1], (torch.stack((x, y)) + wave).expand(2, -1, -1, -1).contiguous())


def corners(whole: Tensor) -> list[Tensor]:
    """The first pixels in memory, the middle ones and the last: [B, C, EDGE, EDGE] of each."""
    middle = [slice(n // 2, n // 2 + EDGE) for n in SIZE]
    return [whole[:, :, :EDGE, :EDGE], whole[:, :, middle[0], middle[1]], whole[:, :, -EDGE:, -EDGE:]]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_lookup_beyond_2_31_elements_equals_reference(big: Big, layout: torch.memory_format) -> None:
    pair = CorrelationPyramid(
        big.fmap1, big.fmap2, LEVELS, RADIUS, backend="cuda", out_dtype=torch.float16, memory_format=layout
    )
    out = pair(big.coords)
    assert out.numel() > 1 << 31
    for first, coords, got in zip(corners(big.fmap1), corners(big.coords), corners(out), strict=True):
        exact = CorrelationPyramid(first, big.fmap2, LEVELS, RADIUS, backend="reference")(coords.contiguous())
        assert_within(got, exact, 2e-3 * float(exact.abs().max()), "result")


def test_lookup_gradients_beyond_2_31_elements_equal_reference(big: Big) -> None:
    """Of a loss over the last pixels: what reaches both maps and the positions there."""
    fmap1, fmap2, coords = (t.detach().requires_grad_() for t in big)
    out = CorrelationPyramid(fmap1, fmap2, LEVELS, RADIUS, backend="cuda", out_dtype=torch.float16)(coords)
    weight = torch.zeros_like(out)
    last = torch.randn(2, out.shape[1], EDGE, EDGE, device="cuda", dtype=torch.float16)
    weight[:, :, -EDGE:, -EDGE:] = last
    grads = torch.autograd.grad(out, (fmap1, fmap2, coords), weight)
    del out, weight

    first, at = (corners(t)[2].detach().contiguous().requires_grad_() for t in (big.fmap1, big.coords))
    start = [(n - 320) // 8 * 8 for n in SIZE]  # before it nobody looks; a multiple of 8 keeps the levels' grids
    tail = (slice(start[0], None), slice(start[1], None))
    second = big.fmap2[:, :, tail[0], tail[1]].contiguous().requires_grad_()
    origin = torch.tensor([start[1], start[0]], device="cuda").view(1, 2, 1, 1)
    exact = CorrelationPyramid(first, second, LEVELS, RADIUS, backend="reference")(at - origin)
    wanted = torch.autograd.grad(exact, (first, second, at), last.float())
    edge = (slice(-EDGE, None), slice(-EDGE, None))
    for name, got, want, place in zip(("fmap1", "fmap2", "coords"), grads, wanted, (edge, tail, edge), strict=True):
        part = got[:, :, place[0], place[1]]
        assert_within(part, want, 4e-3 * float(want.abs().max()), name)
        assert torch.count_nonzero(part) == torch.count_nonzero(got), f"{name} elsewhere"
