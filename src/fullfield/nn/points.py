"""Layers on native points: features [N, C] of consecutive clouds, ``sizes`` points each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield.ops.point_conv import PointGeometry, point_conv, point_pool
from fullfield.ops.point_conv.api import point_conv_layer_norm
from fullfield.ops.point_conv.protocol import check_and_expand_kernel_size
from fullfield.ops.point_norm import KINDS, Running, point_norm


class PointConv(nn.Module):
    """Convolution on points (:func:`fullfield.ops.point_conv.point_conv`), initialised as :class:`torch.nn.Conv3d`.

    The geometry determines whether it is strided, up-sampling, voxel or kNN; its kernel size must be this layer's.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        *,
        groups: int = 1,
        bias: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = check_and_expand_kernel_size(kernel_size)
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            _check.check_number(value, name, integer=True, low=1)
        is_valid = in_channels % groups == 0 and out_channels % groups == 0
        _check.require(is_valid, "groups", f"a divisor of {in_channels} and {out_channels} channels", groups)
        self.in_channels, self.out_channels, self.groups, self.backend = in_channels, out_channels, groups, backend
        self.weight = nn.Parameter(torch.empty(math.prod(self.kernel_size), in_channels // groups, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters uniformly within ±1 / √(K · Cin / groups)."""
        bound = 1.0 / math.sqrt(self.weight.shape[0] * self.weight.shape[1])
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, features: Tensor, geometry: PointGeometry) -> Tensor:
        """Convolve features [N, Cin]; return [M, Cout]."""
        if getattr(geometry, "kernel_size", self.kernel_size) != self.kernel_size:  # point_conv refuses other types
            raise _check.InputError(f"geometry: expected kernel size {self.kernel_size}, got {geometry.kernel_size}")
        return point_conv(features, self.weight, geometry, self.bias, self.groups, backend=self.backend)

    def extra_repr(self) -> str:
        """Return the parameters that ``repr`` prints."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, groups={self.groups}, "
            f"bias={self.bias is not None}"
        )


class PointNorm(nn.Module):
    """Normalisation with a learned scale and shift per channel.

    Args:
        kind: "layer": over the channels of each point. "batch": over all points of the batch, with running statistics,
            those of ``norm``, a :class:`torch.nn.BatchNorm1d`. "instance": over the points of each cloud.
    """

    def __init__(self, channels: int, kind: str = "layer", eps: float = 1e-5) -> None:
        super().__init__()
        _check.check_number(channels, "channels", integer=True, low=1)
        _check.check_choice(kind, "kind", KINDS)
        self.kind, self.eps = kind, eps
        self.norm: nn.Module | None = None
        if kind == "instance":
            self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        else:
            self.norm = nn.LayerNorm(channels, eps) if kind == "layer" else nn.BatchNorm1d(channels, eps)

    def forward(
        self,
        features: Tensor,  # [N, C]
        sizes: Sequence[int],
        residual: Tensor | None = None,  # [N, C]
        *,
        relu: bool = False,
    ) -> Tensor:  # [N, C]
        """Normalise (:func:`fullfield.ops.point_norm.point_norm`), add a residual and apply a ReLU if requested.

        Raises:
            InputError: for a batch norm in training of fewer than two points.
        """
        running = None
        if isinstance(self.norm, nn.BatchNorm1d):
            running = self._count_training_batch_and_get_statistics(self.norm, features.shape[0])
        return point_norm(
            features,
            *self._get_scale_and_shift(),
            self.kind,
            self.eps,
            sizes=sizes,
            running=running,
            residual=residual,
            relu=relu,
        )

    def convolve_and_normalize(
        self,
        conv: PointConv,
        features: Tensor,  # [N, Cin]
        geometry: PointGeometry,
        sizes: Sequence[int],
        residual: Tensor | None = None,  # [M, C]
        *,
        relu: bool = False,
    ) -> Tensor:  # [M, C]
        """Convolve and normalise, in one step if there are neither hooks nor a bias, which saves host time."""
        plain = conv.bias is None and self.kind == "layer" and geometry.kernel_size == conv.kernel_size
        if not plain or _has_hooks(conv) or _has_hooks(self):
            out: Tensor = self(conv(features, geometry), sizes, residual, relu=relu)
            return out
        return point_conv_layer_norm(
            features, conv.weight, geometry, *self._get_scale_and_shift(), self.eps,
            groups=conv.groups, residual=residual, relu=relu, backend=conv.backend,
        )  # fmt: skip

    def _get_scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift."""
        own: Any = self.norm or self
        return own.weight, own.bias

    def _count_training_batch_and_get_statistics(self, norm: Any, rows: int) -> Running:
        batch_count = norm.num_batches_tracked
        if self.training and rows > 1 and batch_count is not None:
            batch_count.add_(1)
        momentum = norm.momentum
        if momentum is None:  # the mean of all batches so far; waits for the device
            momentum = 1.0 / max(1, int(batch_count)) if self.training and batch_count is not None else 0.0
        return Running(norm.running_mean, norm.running_var, momentum, self.training)

    def extra_repr(self) -> str:
        """Return the parameters that ``repr`` prints."""
        return f"kind={self.kind}"


class PointPool(nn.Module):
    """Pooling over a geometry, "max" or "mean" (:func:`fullfield.ops.point_conv.point_pool`)."""

    def __init__(self, mode: str = "max") -> None:
        super().__init__()
        _check.check_choice(mode, "mode", ("max", "mean"))
        self.mode = mode

    def forward(self, features: Tensor, geometry: PointGeometry) -> Tensor:
        """Pool features [N, C]; return [M, C]."""
        return point_pool(features, geometry, self.mode)


class CloudPool(nn.Module):
    """Maximum or mean over each whole cloud; zeros for an empty one."""

    def __init__(self, mode: str = "mean") -> None:
        super().__init__()
        _check.check_choice(mode, "mode", ("max", "mean"))
        self.mode = mode

    def forward(self, features: Tensor, sizes: Sequence[int]) -> Tensor:
        """Pool features [N, C]; return [B, C]. Means are summed in float32 at least."""
        if sum(sizes) != features.shape[0]:  # under torch.compile they are symbols
            raise _check.InputError(f"sizes: expected {features.shape[0]} points in all, got {sum(sizes)}")
        exact = torch.float64 if features.dtype == torch.float64 else torch.float32
        rows = []
        for cloud in torch.split(features, list(sizes)) if len(sizes) != 1 else (features,):
            if not cloud.shape[0]:
                rows.append(cloud.new_zeros(cloud.shape[1]))
            else:
                rows.append(cloud.amax(0) if self.mode == "max" else cloud.mean(0, dtype=exact).to(features.dtype))
        return torch.stack(rows) if len(rows) != 1 else rows[0][None]


def _has_hooks(module: nn.Module) -> bool:
    """Return whether a call of the module does more than its ``forward``."""
    before, behind = module._forward_pre_hooks, module._forward_hooks
    return bool(before or behind or module._backward_pre_hooks or module._backward_hooks)
