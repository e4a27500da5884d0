"""A U-Net on native points: a feature for every input point."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fullfield.models.pointcnnpp.blocks import ConvNorm, LinearNorm, Residual
from fullfield.models.pointcnnpp.config import PointUNetConfig
from fullfield.models.pointcnnpp.pyramid import PointPyramid, check_input


class PointUNet(nn.Module):
    """Down to coarser clouds and up again, fully convolutional."""

    def __init__(self, config: PointUNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PointUNetConfig()
        channels, norm = config.channels, config.norm
        self.stem = ConvNorm(config.in_channels, channels[0], (0, 0, config.stem_kernel), norm)
        self.down, self.up, self.join, self.encoder, self.decoder = (nn.ModuleList() for _ in range(5))
        for level, (wide, blocks) in enumerate(zip(channels, config.blocks, strict=True)):
            if level:
                self.down.append(ConvNorm(channels[level - 1], wide, (level - 1, level, 3), norm))
                self.up.append(ConvNorm(wide, channels[level - 1], (level, level - 1, 3), norm))
                self.join.append(LinearNorm(2 * channels[level - 1], channels[level - 1], level - 1, norm))
                self.decoder.append(Residual(channels[level - 1], channels[level - 1], level - 1, level - 1, norm))
            self.encoder.append(nn.ModuleList(Residual(wide, wide, level, level, norm) for _ in range(blocks)))
        self.head = nn.Linear(channels[0], config.out_channels)

    def prepare(self, points: Tensor, offsets: Tensor | None = None, *, gradient: bool = True) -> PointPyramid:
        """What :meth:`forward` needs to know of points [N, 3]; ``gradient``: whether a backward will follow."""
        c = self.config
        return PointPyramid.prepare(points, c.grid, c.levels(), c.steps(), offsets=offsets, gradient=gradient)

    def forward(self, features: Tensor, pyramid: PointPyramid) -> Tensor:
        """Features [N, in_channels] → [N, out_channels].

        Raises:
            InputError: for features that do not fit, or a pyramid prepared for another network.
        """
        check_input(features, pyramid, self.config.in_channels, self.config.steps())
        out: Tensor = self.stem(features, pyramid, relu=True)
        beside = []
        for level, blocks in enumerate(self.encoder):
            if level:
                beside.append(out)
                out = self.down[level - 1](out, pyramid, relu=True)
            for block in blocks:  # type: ignore[attr-defined]
                out = block(out, pyramid)
        for level in reversed(range(len(self.up))):
            out = self.up[level](out, pyramid, relu=True)
            out = self.join[level](torch.cat([out, beside[level]], 1), pyramid, relu=True)
            out = self.decoder[level](out, pyramid)
        out = self.head(out)
        return nn.functional.normalize(out, dim=1) if self.config.unit_length else out
