"""The gradients of convex up-sampling by kernels, run on the CPU by ``emulator``, against PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulator import Emulator
from torch import Tensor

from fullfield.nn import upsampling
from fullfield.nn.upsampling import convex_upsample
from fullfield.ops import _launching
from fullfield.ops._fused import cuda, reference

ALLOWED = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(autouse=True)
def _emulated(emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(cuda, serve=True)
    monkeypatch.setattr(
        upsampling, "explain_unsupported_device", _launching.explain_unsupported_device
    )  # as the emulator has it


def draw(batch: int, channels: int, height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Field, weights before their softmax, gradient of the result."""
    generator = torch.Generator().manual_seed(height * width)
    sizes = (channels, height, width), (576, height, width), (channels, 8 * height, 8 * width)
    field, mask, grad = (torch.randn(batch, *size, generator=generator) for size in sizes)
    return 3 * field, (2 * mask).to(dtype), grad


@pytest.mark.parametrize(
    ("shape", "dtype", "channels_last"),
    [
        ((2, 2, 3, 5), torch.float32, False),
        ((1, 2, 4, 3), torch.bfloat16, True),
        ((3, 6, 1, 1), torch.float16, True),
        ((1, 7, 2, 5), torch.float32, False),
    ],
    ids=str,
)
def test_convex_upsample_kernels_equal_reference(
    shape: tuple[int, int, int, int], dtype: torch.dtype, channels_last: bool
) -> None:
    field, mask, grad = draw(*shape, dtype)
    if channels_last:
        mask = mask.contiguous(memory_format=torch.channels_last)
    inputs = field.requires_grad_(), mask.requires_grad_()
    out = convex_upsample(*inputs, 8)
    assert type(out.grad_fn).__name__ == "_ConvexBackward"
    found = out.detach(), *torch.autograd.grad(out, inputs, grad.transpose(2, 3).contiguous().transpose(2, 3))
    twice = field.detach().double().requires_grad_(), mask.detach().double().requires_grad_()
    exact_out = reference.convex_upsample(*twice, 8)
    exact = exact_out.detach(), *torch.autograd.grad(exact_out, twice, grad.double())
    for name, one, other, kind in zip(
        ("result", "field", "mask"), found, exact, (torch.float32,) * 2 + (dtype,), strict=True
    ):
        assert one.dtype == kind, name
        assert float((one.double() - other).abs().max()) <= ALLOWED[kind] * float(other.abs().max()), name


def test_convex_upsample_second_derivatives_equal_reference() -> None:
    """Also where the mask was made of the field, and for many gradients at once."""
    field, mask, grad = draw(1, 2, 2, 3, torch.float32)
    inputs = field.requires_grad_(), mask.requires_grad_()

    def found(up: Callable[[Tensor, Tensor, int], Tensor]) -> list[Tensor]:
        result = up(field, mask + field.mean().sin(), 8) + up(field, mask * field.mean(), 8)
        batched = torch.autograd.grad(result, inputs, grad[None].repeat(2, 1, 1, 1, 1), True, is_grads_batched=True)
        first = torch.autograd.grad(result, inputs, grad, create_graph=True)
        second = torch.autograd.grad(sum((g.square().sum() for g in first), torch.zeros(())), inputs)
        return [*batched, *(g.detach() for g in first), *second]

    for one, other in zip(found(convex_upsample), found(reference.convex_upsample), strict=True):
        torch.testing.assert_close(one, other)


def test_convex_kernels_explain_unsupported_requests() -> None:
    field, mask, _ = draw(1, 8, 2, 3, torch.float32)
    assert "1 to 7 channels" in str(cuda.explain_convex_gradients_refusal(field, mask, 8))
    assert type(convex_upsample(field.requires_grad_(), mask, 8).grad_fn).__name__ != "_ConvexBackward"
    assert "a factor of 8" in str(cuda.explain_convex_gradients_refusal(field[:, :2], mask, 4))
