"""Vectors carried to where they point: the kernels beside PyTorch, and both beside the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.ops._splatting import (
    cpu,
    fill_unknown_vectors,
    predict_next_flow,
    reference,
    splat_scaled_flow_with_cover_and_confidence,
)

SIZES = [(1, 1), (1, 9), (7, 1), (37, 53)]


def wild(height: int, width: int, seed: int = 0) -> Tensor:
    """Vectors that meet, leave the frame and are not finite."""
    flow = 6 * torch.randn(2, height, width, generator=torch.Generator().manual_seed(seed))
    flow[0, height // 2 :] = flow[0, height // 2 :].round()  # ends that fall together, halfway between pixels too
    flow[0, : height // 4] += 0.5
    if height * width > 20:
        flow[:, height // 3, ::5] = float("nan")
        flow[1, height // 2, ::7] = float("inf")
        flow[0, 0, 0], flow[1, -1, -1] = 3e9, -1e30
    return flow


def share(height: int, width: int, part: float, seed: int = 1) -> Tensor:
    return torch.rand(height, width, generator=torch.Generator().manual_seed(seed)) < part


@pytest.fixture(autouse=True)
def served() -> None:
    """float32 on the CPU reaches the kernels."""
    pytest.importorskip("numba")
    assert cpu.is_supported(torch.zeros(2, 1, 1))
    assert not cpu.is_supported(torch.zeros(2, 1, 1, dtype=torch.float64))


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_predict_next_flow_kernels_equal_pytorch(height: int, width: int) -> None:
    for seed in range(3):
        flow = wild(height, width, seed)
        before = flow.clone()
        assert torch.equal(predict_next_flow(flow), reference.predict_next_flow(flow))
        assert torch.equal(flow.nan_to_num(), before.nan_to_num())
        turned = flow.transpose(1, 2)
        assert torch.equal(predict_next_flow(turned), reference.predict_next_flow(turned.contiguous()))


@pytest.mark.parametrize("part", [0.0, 0.02, 0.6, 1.0])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_fill_holes_kernels_equal_pytorch(height: int, width: int, part: float) -> None:
    known = share(height, width, part)
    flow = torch.where(known, wild(height, width).nan_to_num(0, 1, 1), float("nan"))
    filled = fill_unknown_vectors(flow, known)
    assert filled.isfinite().all()
    assert torch.equal(filled[:, known], flow[:, known])
    torch.testing.assert_close(filled, reference.fill_unknown_vectors(flow, known), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_splat_flow_kernels_equal_pytorch(height: int, width: int, part: float) -> None:
    known = share(height, width, 0.9)
    flow = torch.where(known, wild(height, width).nan_to_num(0, 1, 1), 0.0)
    trust = torch.rand(height, width, generator=torch.Generator().manual_seed(5))
    exact = reference.splat_scaled_flow_with_cover_and_confidence(flow.double(), part, trust.double(), known)
    for found, wanted, plain in zip(
        splat_scaled_flow_with_cover_and_confidence(flow, part, trust, known),
        exact,
        reference.splat_scaled_flow_with_cover_and_confidence(flow, part, trust, known),
        strict=True,
    ):
        ours, theirs = ((values - wanted).abs().max() for values in (found, plain))
        assert float(ours) <= 2 * float(theirs) + 1e-4


def test_splatting_in_float64_is_close_to_float32() -> None:
    flow = wild(37, 53)
    torch.testing.assert_close(predict_next_flow(flow.double()).float(), predict_next_flow(flow), rtol=1e-5, atol=1e-4)


def test_splatting_refuses_bad_arguments() -> None:
    flow, plane = torch.zeros(2, 4, 5), torch.zeros(4, 5)
    with pytest.raises(InputError, match="flow: expected shape"):
        predict_next_flow(torch.zeros(3, 4, 5))
    with pytest.raises(InputError, match="valid: expected shape"):
        fill_unknown_vectors(flow, torch.ones(5, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="confidence: expected shape"):
        splat_scaled_flow_with_cover_and_confidence(flow, 0.5, torch.zeros(4), plane.bool())
