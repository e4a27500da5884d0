"""RAFT's encoders: a frame at full size to features at 1/8."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fullfield.models.raft.config import RAFTConfig


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "instance":
        return nn.InstanceNorm2d(channels)
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.Identity()


def _shortcut(inputs: int, outputs: int, norm: str, stride: int) -> nn.Module:
    """What the sum of a block adds to its convolutions; the parameters are called ``downsample.0`` and ``.1``."""
    if stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), _norm(norm, outputs))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, norm: str, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = _norm(norm, outputs)
        self.downsample = _shortcut(inputs, outputs, norm, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, outputs, H / stride, W / stride]."""
        y = torch.relu_(self.norm1(self.conv1(x)))
        y = torch.relu_(self.norm2(self.conv2(y)))
        return torch.relu_(self.downsample(x) + y)


class BottleneckBlock(nn.Module):
    """A 3×3 convolution on a quarter of the channels, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, norm: str, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.conv1 = nn.Conv2d(inputs, inner, 1)
        self.norm1 = _norm(norm, inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1)
        self.norm2 = _norm(norm, inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1)
        self.norm3 = _norm(norm, outputs)
        self.downsample = _shortcut(inputs, outputs, norm, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, outputs, H / stride, W / stride]."""
        y = torch.relu_(self.norm1(self.conv1(x)))
        y = torch.relu_(self.norm2(self.conv2(y)))
        y = torch.relu_(self.norm3(self.conv3(y)))
        return torch.relu_(self.downsample(x) + y)


class Encoder(nn.Module):
    """A 7×7 stem and three pairs of blocks at 1/2, 1/4 and 1/8 of the frame."""

    def __init__(self, config: RAFTConfig, outputs: int, norm: str) -> None:
        super().__init__()
        half, quarter, eighth = config.encoder_channels
        block = BottleneckBlock if config.bottleneck else ResidualBlock
        self.conv1 = nn.Conv2d(3, half, 7, 2, padding=3)
        self.norm1 = _norm(norm, half)
        self.layer1 = nn.Sequential(block(half, half, norm, 1), block(half, half, norm, 1))
        self.layer2 = nn.Sequential(block(half, quarter, norm, 2), block(quarter, quarter, norm, 1))
        self.layer3 = nn.Sequential(block(quarter, eighth, norm, 2), block(eighth, eighth, norm, 1))
        self.conv2 = nn.Conv2d(eighth, outputs, 1)
        self.dropout = nn.Dropout2d(config.dropout)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, frames: Tensor) -> Tensor:
        """[B, 3, H, W] in −1 … 1, sides multiples of eight -> [B, outputs, H / 8, W / 8]."""
        x = torch.relu_(self.norm1(self.conv1(frames)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.dropout(self.conv2(x))
        return out
