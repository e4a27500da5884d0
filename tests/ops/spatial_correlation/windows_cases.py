"""Windows that every backend is tried on, and the truth by loops."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fullfield.ops.spatial_correlation import spatial_correlation
from fullfield.ops.spatial_correlation.protocol import DisplacementWindow

# (batch, channels, height, width), window: PWC-Net's, LiteFlowNet's, FlowNetC's and what none of them is.
CASES = [
    ((2, 5, 7, 40), DisplacementWindow((9, 9))),
    ((1, 19, 9, 35), DisplacementWindow((7, 7))),
    ((1, 9, 13, 37), DisplacementWindow((7, 7), (2, 2), (2, 2))),
    ((1, 6, 13, 37), DisplacementWindow((21, 21), (2, 2))),
    ((1, 3, 6, 9), DisplacementWindow((4, 6), (3, 2), (1, 2), (2, 1))),
    ((1, 3, 6, 49), DisplacementWindow((3, 45), (1, 1), (1, 1), (3, 4))),
    ((1, 3, 8, 40), DisplacementWindow((5, 5), (2, 4), (2, 4), (0, 8))),
    ((1, 34, 3, 2), DisplacementWindow((1, 3))),
]
ALIGNED_NOT = ((1, 3, 7, 9), DisplacementWindow((3, 5), (1, 1), (2, 3), (1, 0)))


def named(window: DisplacementWindow) -> dict[str, tuple[int, int]]:
    """As the public function takes it."""
    return {
        "patch_size": window.patch,
        "dilation_patch": window.dilation_patch,
        "stride": window.stride,
        "padding": window.padding,
    }


def draw(shape: tuple[int, ...], window: DisplacementWindow, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Both maps and a gradient of the result, whose numbers the type can hold."""
    generator = torch.Generator().manual_seed(sum(shape))
    out = (shape[0], *window.patch, *window.compute_output_size((shape[2], shape[3])))
    made = [torch.randn(size, generator=generator).to(dtype) for size in (shape, shape, out)]
    return [tensor.to(device) for tensor in made]


def by_loops(fmap1: Tensor, fmap2: Tensor, window: DisplacementWindow) -> Tensor:
    """The formula in float64, one displacement at a time."""
    f1, f2 = fmap1.double().numpy(), fmap2.double().numpy()
    batch, _, height, width = f1.shape
    out = np.zeros((batch, *window.patch, *window.compute_output_size((height, width))))
    h, w = np.indices(out.shape[3:])
    y, x = h * window.stride[0] - window.padding[0], w * window.stride[1] - window.padding[1]
    for i, j in np.ndindex(window.patch):
        v = y + i * window.dilation_patch[0] - window.radius[0]
        u = x + j * window.dilation_patch[1] - window.radius[1]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width) & (v >= 0) & (v < height) & (u >= 0) & (u < width)
        at = y[inside], x[inside], v[inside], u[inside]
        out[:, i, j, inside] = (f1[:, :, at[0], at[1]] * f2[:, :, at[2], at[3]]).sum(1)
    return torch.from_numpy(out)


def results(tensors: list[Tensor], window: DisplacementWindow, backend: str | None) -> list[Tensor]:
    """The result and both gradients."""
    one, two = (t.detach().clone().requires_grad_() for t in tensors[:2])
    out = spatial_correlation(one, two, **named(window), backend=backend)
    return [out.detach(), *torch.autograd.grad(out, (one, two), tensors[2].to(out))]


def compare(found: list[Tensor], truth: list[Tensor], dtype: torch.dtype) -> None:
    """Allow the rounding of the results, and of float32 sums, relative to the largest value."""
    for one, right in zip(found, truth, strict=True):
        assert one.dtype == dtype
        assert one.shape == right.shape
        off = (one.double() - right.double()).abs().nan_to_num(nan=float("inf"))
        assert float(off.max() / right.abs().max().clamp(min=1e-9)) <= max(torch.finfo(dtype).eps, 2e-6)
