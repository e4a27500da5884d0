"""CPU backend for float32: compiled kernels of one thread, which release the GIL."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield._kernels.numba_cache import KernelModule, explain_missing_numba

_kernels = KernelModule(f"{__package__}._cpu_kernels", "kernels that move vectors")


def is_supported(flow: Tensor) -> bool:
    """Return whether the kernels can process ``flow``."""
    return flow.device.type == "cpu" and flow.dtype == torch.float32 and explain_missing_numba() is None


def predict_next_flow(flow: Tensor) -> Tensor:
    """Move each vector along itself; see :func:`fullfield.ops._splatting.predict_next_flow`."""
    valid = torch.zeros(flow.shape[1:], dtype=torch.uint8)
    target = torch.zeros(flow.shape, dtype=torch.float32)
    kernels = _kernels()
    kernels.scatter_longest_vectors(flow.detach().contiguous().numpy(), target.numpy(), valid.numpy())
    kernels.fill_unknown_pixels_by_rings_(target.numpy(), valid.numpy())
    return target


def fill_unknown_vectors(flow: Tensor, valid: Tensor) -> Tensor:
    """Fill unknown vectors; see :func:`fullfield.ops._splatting.fill_unknown_vectors`."""
    have = valid.to(torch.uint8).contiguous().clone()
    field = torch.where(valid, flow.detach(), 0.0)
    _kernels().fill_unknown_pixels_by_rings_(field.numpy(), have.numpy())
    return field


def splat_scaled_flow_with_cover_and_confidence(
    flow: Tensor, length_fraction: float, confidence: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Splat a flow; see :func:`fullfield.ops._splatting.splat_scaled_flow_with_cover_and_confidence`."""
    confidence = confidence.detach().to(torch.float32)
    weights = torch.stack((torch.exp(12 * confidence), confidence))
    sums = torch.zeros(5, *flow.shape[1:], dtype=torch.float32)
    have = valid.to(torch.uint8).contiguous()
    _kernels().splat_scaled_vectors_into_sums(
        flow.detach().contiguous().numpy(), float(length_fraction), weights.numpy(), have.numpy(), sums.numpy()
    )
    weight = sums[2].clamp(min=1e-12)
    return sums[:2] / weight, sums[3], sums[4] / weight
