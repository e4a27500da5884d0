"""Layers of networks that compare a fixed window, or match by a softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.matching import global_attention, local_attention
from fullfield.ops.spatial_correlation import spatial_correlation

Size = int | tuple[int, int]


class SpatialCorrelationSampler(torch.nn.Module):
    """Replacement of ``spatial_correlation_sampler.SpatialCorrelationSampler`` and ptlflow's form of it.

    ``sampler(input1, input2)`` of [B, C, H, W] maps is [B, PH, PW, OH, OW]; see
    :func:`fullfield.ops.spatial_correlation.spatial_correlation`. It needs no compiled extension.

    Args:
        kernel_size, dilation: 1; larger kernels are refused.
        patch_size, stride, padding, dilation_patch: numbers or pairs (vertical, horizontal).
        backend: as the function's.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(
        self,
        kernel_size: Size = 1,
        patch_size: Size = 1,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        dilation_patch: Size = 1,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("kernel_size", kernel_size), ("dilation", dilation)):
            _check.require(value in (1, (1, 1)), name, "1", value)
        self.kernel_size, self.patch_size, self.stride, self.padding = kernel_size, patch_size, stride, padding
        self.dilation, self.dilation_patch, self.backend = dilation, dilation_patch, backend

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """Return the products [B, PH, PW, OH, OW]."""
        return spatial_correlation(
            input1,
            input2,
            self.patch_size,
            dilation_patch=self.dilation_patch,
            stride=self.stride,
            padding=self.padding,
            backend=self.backend,
        )

    def extra_repr(self) -> str:
        """Return the parameters that ``repr`` prints."""
        return f"patch_size={self.patch_size}, stride={self.stride}, dilation_patch={self.dilation_patch}"


class FlowPropagation(torch.nn.Module):
    """GMFlow's propagation of flow between pixels that look alike, in linear memory.

    Weights have the names of GMFlow's ``FeatureFlowAttention`` and UniMatch's ``SelfAttnPropagation`` and fit both.

    Args:
        in_channels: of the features.

    Source: Xu et al., GMFlow, 2022, section 3.3.
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(in_channels, in_channels)
        self.k_proj = torch.nn.Linear(in_channels, in_channels)

    def forward(
        self,
        feature: Tensor,  # [B, C, H, W]
        flow: Tensor,  # [B, V, H, W]
        radius: int | None = None,
    ) -> Tensor:  # [B, V, H, W]
        """Propagate flow from the whole map, or from the window of ±``radius``."""
        rows = feature.flatten(2).transpose(1, 2)
        query = self.q_proj(rows)
        # Over the whole map GMFlow projects the query again, and its weights were trained with that.
        key = self.k_proj(query if radius is None else rows)
        one, two = (t.transpose(1, 2).unflatten(2, feature.shape[2:]) for t in (query, key))
        return global_attention(one, two, flow) if radius is None else local_attention(one, two, flow, radius)
