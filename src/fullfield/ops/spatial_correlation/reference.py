"""The spatial correlation in PyTorch: any device, dtype, window and transform; defines the truth."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fullfield.ops.spatial_correlation.protocol import DisplacementWindow, WindowRequest


def explain_unsupported(request: WindowRequest) -> str | None:  # noqa: ARG001 - the others' signature
    """Return None: the reference serves every request."""
    return None


def correlate_with_autograd(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow) -> Tensor:
    """Compute the correlation of checked arguments, one displacement at a time."""
    exact = torch.float64 if fmap1.dtype == torch.float64 else torch.float32
    (height, width), (ph, pw) = window.compute_output_size((fmap1.shape[2], fmap1.shape[3])), window.padding
    (sy, sx), (dy, dx), (ry, rx) = window.stride, window.dilation_patch, window.radius
    (rows, columns) = window.patch
    if height == 0 or width == 0:
        return (fmap1.sum() + fmap2.sum()) * fmap1.new_zeros((fmap1.shape[0], rows, columns, height, width))
    one = functional.pad(fmap1.to(exact), (pw, pw, ph, ph))[:, :, ::sy, ::sx]
    behind = (dy * (rows - 1) - ry, dx * (columns - 1) - rx)
    two = functional.pad(fmap2.to(exact), (pw + rx, pw + behind[1], ph + ry, ph + behind[0]))
    last_y, last_x = sy * (height - 1) + 1, sx * (width - 1) + 1
    lines = []
    for i in range(rows):
        planes = [
            (one * two[:, :, i * dy : i * dy + last_y : sy, j * dx : j * dx + last_x : sx]).sum(1)
            for j in range(columns)
        ]
        lines.append(torch.stack(planes, 1))
    return torch.stack(lines, 1).to(fmap1.dtype)  # no view, so that callers may change it in place


def compute_correlation(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow) -> Tensor:
    """Compute the products of a window; see :func:`fullfield.ops.spatial_correlation.spatial_correlation`."""
    return correlate_with_autograd(fmap1, fmap2, window)


def compute_requested_gradients(
    fmap1: Tensor, fmap2: Tensor, grad: Tensor, window: DisplacementWindow, requested: tuple[bool, bool]
) -> list[Tensor]:
    """Return the requested gradients of the two maps."""
    with torch.enable_grad():
        maps = [fmap1.detach(), fmap2.detach()]
        differentiable = [m.requires_grad_() for m, is_requested in zip(maps, requested, strict=True) if is_requested]
        gradients = torch.autograd.grad(correlate_with_autograd(maps[0], maps[1], window), differentiable, grad)
    return list(gradients)
