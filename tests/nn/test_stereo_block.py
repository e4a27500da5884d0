"""RAFT-Stereo's block: against its formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fullfield import InputError
from fullfield.nn import StereoCorrBlock
from tests.oracles.correlation import assert_within


def definition(fmap1: Tensor, fmap2: Tensor, x: Tensor, levels: int, radius: int) -> Tensor:
    """The volume of every row in float64, pooled along x, and read through hat functions. x: [B, H, W]."""
    volume = torch.einsum("bchw,bchx->bhwx", fmap1.double(), fmap2.double()) / fmap1.shape[1] ** 0.5
    taps = torch.arange(-radius, radius + 1).double()
    out = []
    for level in range(levels):
        if level:
            volume = functional.avg_pool1d(volume.flatten(0, 1), 2).view(*volume.shape[:3], -1)
        at = x.double()[..., None] / 2**level + taps
        hats = (1 - (at[..., None] - torch.arange(volume.shape[3])).abs()).clamp(min=0)
        out.append(torch.einsum("bhwx,bhwix->bihw", volume, hats))
    return torch.cat(out, 1)


def make(widths: tuple[int, int] = (21, 21), channels: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Channel splits (not contiguous), and positions that leave the map on both sides."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(2, 2 * channels, 7, width, generator=generator)[:, ::2] for width in widths)
    coords = torch.randn(2, 2, 7, widths[0], generator=generator)
    coords[:, 0] = torch.arange(widths[0]) * widths[1] / widths[0] + 8 * coords[:, 0]
    return left, right, coords


@pytest.mark.parametrize(("levels", "radius", "widths"), [(4, 4, (21, 21)), (2, 3, (17, 30)), (1, 1, (5, 5))])
@pytest.mark.parametrize("channels", [4, 160])
def test_stereo_corr_block_equals_definition(levels: int, radius: int, widths: tuple[int, int], channels: int) -> None:
    left, right, coords = make(widths, channels)
    leaves = [left.clone().requires_grad_(), right.clone().requires_grad_()]
    block = StereoCorrBlock(leaves[0], leaves[1], levels, radius)
    assert (block._products is not None) == (channels == 160)
    out = block(coords)
    exact = definition(leaves[0], leaves[1], coords[:, 0], levels, radius)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    assert_within(out, exact, 2e-5 * float(exact.detach().abs().max()), "result")
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    got, wanted = (torch.autograd.grad(value, leaves, weight.to(value)) for value in (out, exact))
    for name, a, b in zip(("fmap1", "fmap2"), got, wanted, strict=True):
        assert_within(a, b, 2e-5 * float(b.abs().max()), name)


def test_stereo_corr_block_forms_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole images, as on CUDA, and every row an image of its own."""
    left, right, coords = make()
    by_row = StereoCorrBlock(left, right)(coords)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    block = StereoCorrBlock(left, right, backend="cpu")
    monkeypatch.undo()
    assert not block._by_row
    assert_within(block(coords), by_row, 1e-5, "whole images")


@pytest.mark.parametrize("channels", [4, 160])
def test_stereo_corr_block_is_zero_outside(channels: int) -> None:
    left, right, coords = make(channels=channels)
    for column, value in enumerate((float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 21 + 5.0, -6.0)):
        coords[1, 0, 3, column] = value
    out = StereoCorrBlock(left, right, 3)(coords)
    assert out.isfinite().all()
    assert not out[1, :, 3, :5].any()
    assert not out[1, :9, 3, 5:7].any()  # at the finest level nothing is near
    assert out[1, :, 2].any()


@pytest.mark.parametrize("channels", [4, 160])
def test_stereo_corr_block_coordinate_gradient_equals_definition(channels: int) -> None:
    left, right, coords = make(channels=channels)
    x = coords[:, :1].clone().requires_grad_()
    out = StereoCorrBlock(left, right)(x)
    assert torch.equal(out, StereoCorrBlock(left, right)(coords))
    exact = definition(left, right, x[:, 0], 4, 4)
    got, wanted = (torch.autograd.grad(value.square().sum(), x)[0] for value in (out, exact))
    assert_within(got, wanted, 1e-4 * float(wanted.abs().max()), "coords")


@pytest.mark.parametrize("channels", [4, 160])
def test_stereo_corr_block_empty_levels_are_zero(channels: int) -> None:
    left, right, coords = make((5, 5), channels)
    out = StereoCorrBlock(left, right, 5, 2)(coords)
    assert_within(out[:, :15], definition(left, right, coords[:, 0], 3, 2), 1e-5, "result")
    assert not out[:, 15:].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [4, 160])
def test_stereo_corr_block_accepts_dtypes_and_autocast(dtype: torch.dtype, channels: int) -> None:
    left, right, coords = (t.to(dtype) if i < 2 else t for i, t in enumerate(make(channels=channels)))
    exact = definition(left, right, coords[:, 0], 2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = StereoCorrBlock(left, right, 2, 2)(coords)
    assert out.dtype == torch.float32
    rounding = max(1e-5, torch.finfo(dtype).eps)  # coarser levels are of the features' dtype
    assert_within(out, exact, rounding * float(exact.abs().max()), "result")


@pytest.mark.unit
def test_stereo_corr_block_refuses_bad_arguments() -> None:
    left, right, coords = make()
    with pytest.raises(InputError, match="fmap2: expected 7 rows, as fmap1 has"):
        StereoCorrBlock(left, right[:, :, :6])
    with pytest.raises(InputError, match="radius: expected an integer"):
        StereoCorrBlock(left, right, radius=0)
    with pytest.raises(InputError, match="coords: expected shape"):
        StereoCorrBlock(left, right)(coords[:, :, :6])


SCRIPT = """
import sys, torch
from fullfield.nn import StereoCorrBlock
from peak_memory import PeakMemory

def work(width):
    maps = [torch.randn(1, 8, 2, width, requires_grad=True) for _ in range(2)]
    coords = torch.arange(width).expand(1, 2, 2, width) + 0.3
    StereoCorrBlock(*maps)(coords).sum().backward()

work(64)
with PeakMemory() as memory:
    work(int(sys.argv[1]))
print(memory.growth_mib * 2**20)
"""


@pytest.mark.unit
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_stereo_corr_block_memory_is_linear_in_width(run_measured_script: Callable[..., str]) -> None:
    """The rows' volumes of 16384 columns alone would be 2 GiB."""
    assert float(run_measured_script(SCRIPT, 16384)) < 200e6
