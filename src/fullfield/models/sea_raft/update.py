"""One flow update: motion features, ConvNeXt blocks, and the heads that read the state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield.models.sea_raft.config import SEARAFTConfig

# What the flow head gives: flow (2), weights of the two Laplacians (2), logarithms of their scales (2).
HEAD_CHANNELS = 6
# Every pixel of the 1/8 grid is enlarged to 8×8, each a mixture of 3×3 neighbours.
MASK_CHANNELS = 8 * 8 * 9


class MotionEncoder(nn.Module):
    """Correlation and flow to motion features; the flow itself is their last two channels."""

    def __init__(self, correlation_channels: int, channels: int) -> None:
        super().__init__()
        self.convc1 = nn.Conv2d(correlation_channels, 2 * channels, 1)
        self.convc2 = nn.Conv2d(2 * channels, channels + channels // 2, 3, padding=1)
        self.convf1 = nn.Conv2d(2, channels, 7, padding=3)
        self.convf2 = nn.Conv2d(channels, channels // 2, 3, padding=1)
        self.conv = nn.Conv2d(2 * channels, channels - 2, 3, padding=1)

    def forward(self, flow: Tensor, correlation: Tensor) -> Tensor:
        from_correlation = functional.relu(self.convc1(correlation), inplace=True)
        from_correlation = functional.relu(self.convc2(from_correlation), inplace=True)
        from_flow = functional.relu(self.convf1(flow.to(self.convf1.weight.dtype)), inplace=True)
        from_flow = functional.relu(self.convf2(from_flow), inplace=True)
        joined = functional.relu(self.conv(torch.cat((from_correlation, from_flow), 1)), inplace=True)
        return torch.cat((joined, flow.to(joined.dtype)), 1)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, then a two-layer perceptron per pixel, scaled and added; a 1×1 convolution ends it."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(inner, inner, 7, padding=3, groups=inner)
        self.norm = nn.LayerNorm(inner, eps=1e-6)
        self.pwconv1 = nn.Linear(inner, 4 * outer)
        self.pwconv2 = nn.Linear(4 * outer, inner)
        self.gamma = nn.Parameter(torch.full((inner,), 1e-6))
        self.final = nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(functional.gelu(self.pwconv1(y)))
        out: Tensor = self.final(x + y.permute(0, 3, 1, 2))
        return out


class UpdateBlock(nn.Module):
    """The state after one update, from the state before, the context, the correlation and the flow."""

    def __init__(self, config: SEARAFTConfig) -> None:
        super().__init__()
        width = config.channels
        self.encoder = MotionEncoder(config.levels * (2 * config.radius + 1) ** 2, width)
        self.refine = nn.ModuleList(ConvNeXtBlock(3 * width, width) for _ in range(config.refinements))

    def forward(self, net: Tensor, context: Tensor, correlation: Tensor, flow: Tensor) -> Tensor:
        inputs = torch.cat((context, self.encoder(flow, correlation)), 1)
        for block in self.refine:
            net = block(torch.cat((net, inputs), 1))
        return net


def head(config: SEARAFTConfig, out_channels: int, last_kernel: int) -> nn.Sequential:
    """Two convolutions on the state; indices 0 and 2 carry weights, as in the published files."""
    width = config.channels
    return nn.Sequential(
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(2 * width, out_channels, last_kernel, padding=last_kernel // 2),
    )
