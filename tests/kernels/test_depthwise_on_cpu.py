"""The depthwise convolution by its kernel, run on the CPU by ``emulator``, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulator import AMPERE, HOPPER, Emulator
from torch.nn import functional

from fullfield.ops._fused import cuda
from fullfield.ops._launching import GpuProperties

ALLOWED = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("gpu", [AMPERE, HOPPER], ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("size", [(9, 17), (3, 8), (1, 1), (8, 14)], ids=str)
def test_depthwise_kernel_equals_convolution(
    emulate: Callable[..., Emulator], gpu: GpuProperties, dtype: torch.dtype, size: tuple[int, int]
) -> None:
    emulate(cuda, gpu=gpu, serve=True)
    draw = torch.Generator().manual_seed(6)
    x = torch.randn(2, 64, *size, generator=draw).to(dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(64, 1, 7, 7, generator=draw).to(dtype)
    out = torch.full((2, *size, 64), float("nan"), dtype=dtype)
    cuda.convolve_depthwise(x.permute(0, 2, 3, 1), weight.float().flatten(1).t().contiguous(), out)
    exact = functional.conv2d(x.double(), weight.double(), padding=3, groups=64)
    error = (out.permute(0, 3, 1, 2).double() - exact).abs().max()
    assert float(error) <= ALLOWED[dtype] * float(exact.abs().max())


@pytest.mark.parametrize("size", [(9, 17), (8, 14), (3, 8), (2, 40), (1, 1)], ids=str)
def test_loop_of_hopper_gives_the_same_bits_in_float16(emulate: Callable[..., Emulator], size: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(2, *size, 64, generator=draw).half()
    weight, bias = torch.randn(49, 64, generator=draw), torch.randn(64, generator=draw)
    results = []
    for gpu in (AMPERE, HOPPER):
        emulate(cuda, gpu=gpu, serve=True)
        plain, normed = torch.full((2, 2, *size, 64), float("nan"), dtype=x.dtype)
        cuda.convolve_depthwise(x, weight, plain)
        cuda.convolve_depthwise_and_normalize(x, weight, bias, 1e-6, normed)
        results.append((plain, normed))
    (plain, normed), (plain_on_hopper, normed_on_hopper) = results
    assert not plain.isnan().any()
    assert torch.equal(plain_on_hopper, plain)
    assert not normed.isnan().any()
    assert torch.equal(normed_on_hopper, normed)
