"""The residual network that turns frames into features at 1/8 of their size."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fullfield.models.sea_raft.config import BACKBONES, SEARAFTConfig


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside an identity, or beside a 1×1 convolution where the shape changes."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = functional.relu(self.bn2(self.conv2(y)), inplace=True)
        if self.downsample is not None:
            x = self.downsample(x)
        return functional.relu(x + y, inplace=True)


class Encoder(nn.Module):
    """The first three stages of a ResNet, and a 1×1 convolution."""

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

    def forward(self, frames: Tensor) -> Tensor:  # [B, in, H, W] -> [B, 2·channels, H/8, W/8]
        x = functional.relu(self.bn1(self.conv1(frames)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        features: Tensor = self.final_conv(x)
        return features


def _stage(inner: int, outer: int, stride: int, depth: int) -> nn.Sequential:
    rest = (ResidualBlock(outer, outer, 1) for _ in range(depth - 1))
    return nn.Sequential(ResidualBlock(inner, outer, stride), *rest)
