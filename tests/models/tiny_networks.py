"""Networks that are small enough for tests, with weights under which every branch matters, and pairs for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig

# The fast form needs multiples of eight channels, in a bottleneck too.
CONFIGS: dict[str, RAFTConfig | SEARAFTConfig] = {
    "raft": RAFTConfig.large(
        encoder_channels=(8, 16, 24),
        feature_channels=32,
        hidden_channels=16,
        context_channels=24,
        correlation_channels=(32, 24),
        flow_channels=(16, 8),
        motion_channels=30,
        head_channels=32,
    ),
    "raft-small": RAFTConfig.small(encoder_channels=(32, 64, 96), feature_channels=32),
    "sea-raft": SEARAFTConfig.small(stem_channels=16, stage_channels=(8, 16, 24), channels=16, updates=2),
}


def built(config: RAFTConfig | SEARAFTConfig, **more: Any) -> RAFT | SEARAFT:
    return SEARAFT(config, **more) if isinstance(config, SEARAFTConfig) else RAFT(config, **more)


def tiny(name: str, **changes: Any) -> RAFT | SEARAFT:
    """A network in evaluation mode, with the same weights at every call."""
    torch.manual_seed(0)
    model = built(CONFIGS[name].replace(**changes)).eval()
    if isinstance(model, SEARAFT):
        randomise(model)
    return model


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Weights under which every branch matters: the published layer scale of 1e-6 would hide the ConvNeXt blocks."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("gamma"):
            value.data.copy_(0.3 + 0.1 * noise)
        elif name.endswith("running_var"):
            value.copy_(1 + 0.2 * noise.abs())
        elif name.endswith(("bias", "running_mean")):
            value.data.copy_(0.05 * noise)
        elif value.ndim == 1:
            value.data.copy_(0.7 + 0.1 * noise)
        elif value.ndim > 1:
            value.data.copy_(noise / value[0].numel() ** 0.5)


def pair(height: int, width: int, batch: int = 1, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Smooth texture, moved a little and changed a little."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, height // 4 + 1, width // 4 + 1, generator=random)
    first = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    noise = torch.rand(first.shape, generator=random)
    return first, 0.9 * torch.roll(first, (2, 3), (2, 3)) + 0.1 * noise
