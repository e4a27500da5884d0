"""The training loss's kernels, run on the CPU by ``emulator``, against PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulator import Emulator
from torch import Tensor

from fullfield.training.flow.convex_loss import convex_mixture_loss_and_error, cuda, reference

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


@pytest.fixture(autouse=True)
def _emulated(emulate: Callable[..., Emulator]) -> None:
    emulate(cuda, serve=True)


def draw(batch: int, height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fields whose scales lie on both sides of their limits; weights, truth, and what counts."""
    generator = torch.Generator().manual_seed(height * width)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    field = normal(batch, 6, height, width) * 3
    mask = (normal(batch, 576, height, width) * 2).to(dtype)
    truth = normal(batch, 2, 8 * height, 8 * width) * 3
    counted = torch.rand(batch, 8 * height, 8 * width, generator=generator) < 0.7
    return field, mask, torch.where(counted[:, None], truth, torch.nan), counted


def gradients(call: object, field: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = field.clone().requires_grad_(), mask.clone().requires_grad_()
    loss, error = call(*inputs)  # type: ignore[operator]
    return loss.detach(), error, *torch.autograd.grad(3 * loss, inputs)


@pytest.mark.parametrize(
    ("shape", "dtype", "channels_last"),
    [((2, 3, 5), torch.float32, False), ((1, 4, 3), torch.bfloat16, True), ((3, 1, 1), torch.float16, True)],
    ids=str,
)
def test_convex_loss_kernels_equal_reference(
    shape: tuple[int, int, int], dtype: torch.dtype, channels_last: bool
) -> None:
    field, mask, truth, counted = draw(*shape, dtype)
    if channels_last:
        mask = mask.contiguous(memory_format=torch.channels_last)
    low, high = -2.0, 4.0

    def exact(f: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return reference.compute_loss_and_error_sums(f, m, truth.double(), counted, 8, low, high)

    def ours(f: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return convex_mixture_loss_and_error(f, m, truth, counted, log_scale_min=low, log_scale_max=high)

    expected = gradients(exact, field.double(), mask.double())
    found = gradients(ours, field, mask)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert abs(float(one - other)) <= 1e-5 * abs(float(other))
    for name, one, other, limit in (("field", found[2], expected[2], 2e-5), ("mask", found[3], expected[3], 1.0)):
        allowed = (TOLERANCE[dtype] if limit == 1.0 else limit) * float(other.abs().max())
        assert float((one.double() - other).abs().max()) <= allowed, name
    assert found[3].dtype == dtype
    again = gradients(ours, field, mask)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    inputs = field.requires_grad_(), mask.requires_grad_()
    for grad in torch.autograd.grad(ours(*inputs)[0], inputs, create_graph=True):
        for wanted in inputs:
            with pytest.raises(RuntimeError, match="convex_mixture_loss_and_error is differentiable only once"):
                torch.autograd.grad(grad.sum(), wanted, allow_unused=True, retain_graph=True)
