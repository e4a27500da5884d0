"""Layers of SEA-RAFT: the encoder, a residual network to features at 1/8, and the flow update."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield.models.raft.layers import MotionEncoder, ResidualBlock
from fullfield.models.sea_raft.config import BACKBONES, SEARAFTConfig


class Encoder(nn.Module):
    """Encoder of the first three stages of a ResNet and a 1×1 convolution."""

    def __init__(self, config: SEARAFTConfig, in_channels: int) -> None:
        super().__init__()
        depths = BACKBONES[config.backbone]
        first, second, third = config.stage_channels
        self.conv1 = nn.Conv2d(in_channels, config.stem_channels, 7, 2, padding=3)
        self.bn1 = nn.BatchNorm2d(config.stem_channels)
        self.layer1 = _stage(config.stem_channels, first, 1, depths[0])
        self.layer2 = _stage(first, second, 2, depths[1])
        self.layer3 = _stage(second, third, 2, depths[2])
        self.final_conv = nn.Conv2d(third, 2 * config.channels, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, frames: Tensor) -> Tensor:
        """Encode [B, in_channels, H, W] to [B, 2·channels, H / 8, W / 8]."""
        x = functional.relu(self.bn1(self.conv1(frames)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        features: Tensor = self.final_conv(x)
        return features


def _stage(inner: int, outer: int, stride: int, depth: int) -> nn.Sequential:
    rest = (_block(outer, outer, 1) for _ in range(depth - 1))
    return nn.Sequential(_block(inner, outer, stride), *rest)


def _block(inner: int, outer: int, stride: int) -> ResidualBlock:
    return ResidualBlock(((inner, outer, 3, stride), (outer, outer, 3, 1)), nn.BatchNorm2d, "bn")


# Outputs of the flow head: flow (2), weights of the two Laplacians (2), logarithms of their scales (2).
HEAD_CHANNELS = 6
# Every cell of the 1/8 grid becomes 8×8 pixels, each a mixture of 3×3 neighbours.
MASK_CHANNELS = 8 * 8 * 9


class ConvNeXtBlock(nn.Module):
    """ConvNeXt block: depthwise 7×7, a scaled two-layer perceptron per pixel, a shortcut and a 1×1 convolution."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(inner, inner, 7, padding=3, groups=inner)
        self.norm = nn.LayerNorm(inner, eps=1e-6)
        self.pwconv1 = nn.Linear(inner, 4 * outer)
        self.pwconv2 = nn.Linear(4 * outer, inner)
        self.gamma = nn.Parameter(torch.full((inner,), 1e-6))
        self.final = nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to [B, inner, H, W]; the result is [B, outer, H, W]."""
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(functional.gelu(self.pwconv1(y)))
        out: Tensor = self.final(x + y.permute(0, 3, 1, 2))
        return out


class UpdateBlock(nn.Module):
    """Update of the state from the previous state, the context, the correlation and the flow."""

    def __init__(self, config: SEARAFTConfig) -> None:
        super().__init__()
        width = config.channels
        self.encoder = MotionEncoder(
            config.levels * (2 * config.radius + 1) ** 2, (2 * width, width + width // 2), (width, width // 2), width
        )
        self.refine = nn.ModuleList(ConvNeXtBlock(3 * width, width) for _ in range(config.refinements))

    def forward(self, net: Tensor, context: Tensor, correlation: Tensor, flow: Tensor) -> Tensor:
        """Return the next state."""
        inputs = torch.cat((context, self.encoder(flow.to(correlation.dtype), correlation)), 1)
        for block in self.refine:
            net = block(torch.cat((net, inputs), 1))
        return net
