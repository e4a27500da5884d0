"""Convex up-sampling against its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.nn import upsampling
from fullfield.nn.upsampling import convex_upsample
from fullfield.ops._fused.reference import convex_upsample as definition  # tests/ops/fused compare it with unfold


def example(factor: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 7, 5, dtype=dtype), 3 * torch.randn(2, 9 * factor * factor, 7, 5, dtype=dtype)


@pytest.mark.unit
@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_convex_upsample_equals_formula(factor: int) -> None:
    field, mask = example(factor)
    torch.testing.assert_close(convex_upsample(field, mask, factor), definition(field, mask, factor))


@pytest.mark.unit
@pytest.mark.parametrize("elements", [1, 3000, 9000])
def test_convex_upsample_is_independent_of_strips(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    field, mask = example(8)
    whole = convex_upsample(field, mask, 8)
    monkeypatch.setattr(upsampling, "_ELEMENTS", elements)
    torch.testing.assert_close(convex_upsample(field, mask, 8), whole, atol=0, rtol=0)


@pytest.mark.unit
def test_convex_upsample_gradients_pass_gradcheck() -> None:
    # With one place inside, and borders on every side.
    field, mask = (whole[..., :3, :3].clone().requires_grad_() for whole in example(2, torch.float64))
    assert torch.autograd.gradcheck(lambda f, m: convex_upsample(f, m, 2), (field, mask))
    with torch.no_grad():
        assert not convex_upsample(field, mask, 2).requires_grad
    assert convex_upsample(field, mask.detach(), 2).requires_grad
    assert convex_upsample(field.detach(), mask, 2).requires_grad


@pytest.mark.unit
def test_convex_upsample_keeps_dtype_of_field() -> None:
    field, mask = example(8)
    out = convex_upsample(field, mask.half(), 8)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, definition(field, mask.half().float(), 8))


@pytest.mark.unit
def test_convex_upsample_compiles_and_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    field, mask = example(4)
    monkeypatch.setattr(upsampling, "_ELEMENTS", 1)
    compiled = torch.compile(convex_upsample, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(field, mask, 4), definition(field, mask, 4))


def test_convex_upsample_refuses_bad_arguments() -> None:
    field, mask = example(4)
    with pytest.raises(InputError, match="mask: expected shape"):
        convex_upsample(field, mask, 8)
    with pytest.raises(InputError, match="factor: expected an integer >= 1"):
        convex_upsample(field, mask, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("factor", [2, 4, 8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_convex_upsample_on_gpu_equals_cpu(factor: int, dtype: torch.dtype) -> None:
    field, mask = (t.cuda() for t in example(factor))
    mask = mask.to(dtype)
    whole = convex_upsample(field, mask, factor)
    torch.testing.assert_close(whole, definition(field, mask.float(), factor), atol=1e-5, rtol=1e-5)
    field.requires_grad_()
    torch.testing.assert_close(convex_upsample(field, mask, factor).detach(), whole, atol=1e-5, rtol=1e-5)
