"""RAFT's and SEA-RAFT's encoders: a residual network on cells of 2×2 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullfield.models.prepared.weights import Form, folded, stem
from fullfield.ops.fused.protocol import Norm, Passes


@dataclass(frozen=True)
class _Convolution:
    """A convolution and the norm behind it: folded in, or (``epsilon``) an instance norm."""

    weight: Tensor
    bias: Tensor
    shift: Tensor
    """The bias in float32."""
    stride: int
    padding: tuple[int, int]
    epsilon: float | None

    def raw(self, passes: Passes, x: Tensor) -> tuple[Tensor, Norm]:
        """The result without bias, and what its norm does to it."""
        y = passes.convolve(x, self.weight, stride=self.stride, padding=self.padding)
        return y, Norm(None, self.shift) if self.epsilon is None else passes.moments(y, self.epsilon)

    def relu(self, passes: Passes, x: Tensor) -> Tensor:
        """The normed result, rectified."""
        if self.epsilon is None:
            return passes.convolve(x, self.weight, self.bias, relu=True, stride=self.stride, padding=self.padding)
        return passes.affine_(*self.raw(passes, x))


def _convolution(form: Form, conv: nn.Conv2d, norm: nn.Module | None) -> _Convolution:
    epsilon = None
    if isinstance(norm, nn.InstanceNorm2d):
        # Any bias is part of the mean that it takes away.
        epsilon, norm = norm.eps, None
    weight, bias = folded(conv, norm)
    stride, padding = conv.stride[0], (int(conv.padding[0]), int(conv.padding[1]))
    return _Convolution(form.filters(weight), form.small(bias), form.exact(bias), stride, padding, epsilon)


def _norms(block: nn.Module) -> list[nn.Module]:
    names = ("norm1", "norm2", "norm3") if hasattr(block, "norm1") else ("bn1", "bn2", "bn3")
    return [getattr(block, name) for name in names if hasattr(block, name)]


class _Block:
    """Convolutions beside a shortcut, as both networks' residual blocks."""

    def __init__(self, form: Form, block: nn.Module) -> None:
        convs = [getattr(block, name) for name in ("conv1", "conv2", "conv3") if hasattr(block, name)]
        self.convs = [_convolution(form, conv, norm) for conv, norm in zip(convs, _norms(block), strict=True)]
        shortcut: Any = block.downsample
        plain = shortcut is None or isinstance(shortcut, nn.Identity)
        self.shortcut = None if plain else _convolution(form, shortcut[0], shortcut[1])

    def __call__(self, passes: Passes, x: Tensor) -> Tensor:
        y = self.convs[0].relu(passes, x)
        for conv in self.convs[1:-1]:
            # Not with cuDNN's rectifier: it may make 0 of the NaN that an overflow before it becomes.
            y = passes.affine_(*conv.raw(passes, y))
        y, norm = self.convs[-1].raw(passes, y)
        if self.shortcut is None:
            return passes.affine_(y, norm, x)
        return passes.affine_(y, norm, *self.shortcut.raw(passes, x))


class PreparedEncoder:
    """An encoder of either network, for one choice of frames of a cell at a time.

    Args:
        encoder: RAFT's or SEA-RAFT's.
        reads: for every variant, the frames that its input consists of: ``((0,), (1,))`` for features of either.
    """

    def __init__(self, form: Form, passes: Passes, encoder: nn.Module, reads: tuple[tuple[int, ...], ...]) -> None:
        self.passes = passes
        module: Any = encoder
        norm = _norms(module)[0]
        first = _convolution(form, module.conv1, norm)
        weight, _ = folded(module.conv1, None if first.epsilon is not None else norm)
        self.stems = [
            _Convolution(form.filters(stem(weight, frames)), first.bias, first.shift, 1, (0, 0), first.epsilon)
            for frames in reads
        ]
        layers = (module.layer1, module.layer2, module.layer3)
        self.blocks = [_Block(form, block) for layer in layers for block in layer]
        last = module.conv2 if hasattr(module, "conv2") else module.final_conv
        weight, bias = folded(last, None)
        self.weight, self.bias = form.rows(weight.flatten(1)), form.small(bias)
        convs = [conv for block in self.blocks for conv in block.convs]
        self.channels = [*(c.weight.shape[0] for c in convs), *self.weight.shape]

    def __call__(self, cells: Tensor, variant: int) -> Tensor:
        """[B, H/2 + 3, W/2 + 3, 32] -> [B, H/8, W/8, C]."""
        x = self.stems[variant].relu(self.passes, cells)
        for block in self.blocks:
            x = block(self.passes, x)
        return torch.addmm(self.bias, x.flatten(0, 2), self.weight).view(*x.shape[:3], -1)
