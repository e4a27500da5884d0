"""Parameters of a network in the form that the fused passes take."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield.ops.fused.protocol import CELL_CHANNELS

LANE = 8
"""Channels are padded to multiples of this: 16 bytes of half precision."""
_CELL = 12  # values of one frame in a cell of 2×2 pixels


def lanes(channels: int) -> int:
    """Return ``channels`` padded to a multiple of :data:`LANE`."""
    return -(-channels // LANE) * LANE


@dataclass(frozen=True)
class Form:
    """Device and dtype of prepared parameters."""

    device: torch.device
    dtype: torch.dtype
    made: list[Tensor] = field(default_factory=list, repr=False, compare=False)
    """Every parameter converted so far."""

    def filters(self, weight: Tensor) -> Tensor:
        """Convert weights of a convolution [C', C, kh, kw] to channels-last."""
        return self._kept(weight.to(self.device, self.dtype).contiguous(memory_format=torch.channels_last))

    def rows(self, weight: Tensor) -> Tensor:
        """Convert weights [C', C] of a product with rows of channels to [C, C'], contiguous."""
        return self._kept(weight.t().to(self.device, self.dtype).contiguous())

    def small(self, values: Tensor) -> Tensor:
        """Convert a bias of a convolution or product."""
        return self._kept(values.to(self.device, self.dtype).contiguous())

    def exact(self, values: Tensor) -> Tensor:
        """Convert values that the passes read in float32."""
        return self._kept(values.to(self.device, torch.float32).contiguous())

    def _kept(self, values: Tensor) -> Tensor:
        self.made.append(values)
        return values


def folded(conv: nn.Conv2d, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
    """Return weight and bias (float64) of a convolution with the batch norm in eval mode after it, if any."""
    weight = conv.weight.detach().double()
    bias = weight.new_zeros(weight.shape[0]) if conv.bias is None else conv.bias.detach().double()
    if norm is None or isinstance(norm, nn.Identity):
        return weight, bias
    if not isinstance(norm, nn.BatchNorm2d) or norm.running_mean is None or norm.running_var is None:
        raise TypeError(f"expected a batch norm with statistics, got {type(norm).__name__}")
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    shift = -norm.running_mean.double() * scale
    if norm.affine:
        gain = norm.weight.detach().double()
        scale, shift = scale * gain, shift * gain + norm.bias.detach().double()
    return weight * scale[:, None, None, None], bias * scale + shift


def stem(weight: Tensor, frames: tuple[int, ...]) -> Tensor:
    """Convert a 7×7 convolution of stride 2 on frames to a 4×4 convolution on cells of 2×2 pixels.

    ``weight`` is [C', 3 · len(frames), 7, 7]; ``frames`` names the frame of a cell that each group of three
    channels reads. The result is [C', 32, 4, 4], zero for what is not read.
    """
    out = weight.new_zeros(weight.shape[0], CELL_CHANNELS, 4, 4)
    for group, frame in enumerate(frames):
        for row in range(7):
            for column in range(7):
                # Tap 3 is the pixel 2y, the first of cell y, which is tap 2 of the cells.
                cell_row, y = divmod(row - 3, 2)
                cell_column, x = divmod(column - 3, 2)
                first = _CELL * frame + 6 * y + 3 * x
                out[:, first : first + 3, cell_row + 2, cell_column + 2] = weight[
                    :, 3 * group : 3 * group + 3, row, column
                ]
    return out


def padded(weight: Tensor, outputs: int, inputs: int | None = None) -> Tensor:
    """Pad [C', C, ...] with zero filters up to ``outputs`` and zero channels up to ``inputs``."""
    more = 0 if inputs is None else inputs - weight.shape[1]
    return functional.pad(weight, [0, 0] * (weight.ndim - 2) + [0, more, 0, outputs - len(weight)])


def taps(weight: Tensor) -> Tensor:
    """Convert a 3×3 convolution [2, C, 3, 3] to products of single pixels [24, C].

    Rows are ordered by kernel row, kernel column and output, slow to fast, and end with zeros.
    """
    flat = weight.permute(2, 3, 0, 1).reshape(18, weight.shape[1])
    return padded(flat, lanes(18))
