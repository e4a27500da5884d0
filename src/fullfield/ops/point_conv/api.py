"""The operator's public form."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.point_conv import op
from fullfield.ops.point_conv.arguments import check_conv
from fullfield.ops.point_conv.dispatch import CONVOLUTIONS
from fullfield.ops.point_conv.geometry import PointGeometry
from fullfield.ops.point_conv.protocol import Request


def backends(device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> list[tuple[str, str | None]]:
    """(name, None) for every backend that can serve a 3×3×3 convolution of 64 channels here, (name, reason) else.

    Preferred first.
    """
    request = Request(
        device=torch.empty(0, device=device).device,
        dtype=dtype,
        channels=(64, 64),
        groups=1,
        cells=27,
        rows=100_000,
        columns=100_000,
        entries=1_500_000,
        precision=torch.get_float32_matmul_precision(),
    )
    return CONVOLUTIONS.reasons(request)


def point_conv(
    features: Tensor,  # [N, Cin]
    weight: Tensor,  # [K, Cin / groups, Cout]
    geometry: PointGeometry,  # of N points and M centres
    bias: Tensor | None = None,  # [Cout]
    groups: int = 1,
    *,
    backend: str | None = None,
) -> Tensor:  # [M, Cout]
    """Compute ``out[i] = bias + Σ weight[k].T @ features[j]`` over the triplets (i, j, k) of the geometry.

    ``weight.view(*geometry.kernel_size, Cin / groups, Cout)`` has the axes of the coordinates: cell
    k = (kx·ty + ky)·tz + kz holds the points k − t // 2 grid steps from a centre. Group g reads the input channels from
    g·Cin / groups on and writes the outputs from g·Cout / groups on, as in :class:`torch.nn.Conv3d`. A centre without
    triplets gets the bias.

    Nothing of the size of triplets times channels is stored. Products of 16-bit features are exact and summed in
    float32. The result is differentiable in features, weight and bias, any number of times, and deterministic on every
    backend. Under autocast all three are cast to its dtype.

    Args:
        features: float32, float16, bfloat16 or float64.
        weight: of the same dtype and device.
        geometry: triplets of points, centres and kernel cells.
        bias: of the same dtype and device, or None.
        groups: number of groups of channels.
        backend: "cuda", "cpu" or "reference". None chooses the best one that can run; a named one never falls back.

    Raises:
        InputError: naming the argument that does not fit; for ``backend``, with every backend's reason.
        NotImplementedError: for forward-mode tangents.

    Source: PointCNN++ (arXiv 2511.23227).
    """
    _check.require(isinstance(geometry, PointGeometry), "geometry", "a PointGeometry", geometry)
    place = geometry.device
    if isinstance(features, Tensor) and features.device == place and torch.is_autocast_enabled(place.type):
        dtype = torch.get_autocast_dtype(place.type)
        if features.dtype != torch.float64:
            features, weight = features.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
    check_conv(features, weight, bias, geometry.points, geometry.cells, place, groups)
    if torch.is_grad_enabled() and features.requires_grad:
        geometry.require_gradient()
    return op.convolve(features, weight, bias, *geometry.directions(), geometry.mirrored, groups, backend)
