"""Residual networks on native points, from clouds to classes."""

from __future__ import annotations

from torch import Tensor, nn

from fullfield.models.pointcnnpp.blocks import ConvNorm, Residual
from fullfield.models.pointcnnpp.config import PointResNetConfig
from fullfield.models.pointcnnpp.pyramid import PointPyramid, check_input
from fullfield.nn.points import CloudPool, PointPool


class PointResNet(nn.Module):
    """A residual network: stem, max-pooling, stages, the mean over each cloud, a linear classifier."""

    def __init__(self, config: PointResNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PointResNetConfig()
        wider = 4 if config.block == "bottleneck" else 1
        self.stem = ConvNorm(config.in_channels, config.channels[0], (0, 1, config.stem_kernel), config.norm)
        self.pool = PointPool("max")
        self.stages = nn.ModuleList()
        inputs = config.channels[0]
        for number, (blocks, channels) in enumerate(zip(config.blocks, config.channels, strict=True)):
            stage = nn.ModuleList()
            for block in range(blocks):
                level = 2 + number
                source = level - 1 if block == 0 and number > 0 else level
                stage.append(Residual(inputs, channels * wider, source, level, config.norm, config.block))
                inputs = channels * wider
            self.stages.append(stage)
        self.mean = CloudPool("mean")
        self.classifier = nn.Linear(inputs, config.classes)

    def prepare(self, points: Tensor, offsets: Tensor | None = None, *, gradient: bool = True) -> PointPyramid:
        """What :meth:`forward` needs to know of points [N, 3]; ``gradient``: whether a backward will follow."""
        c = self.config
        return PointPyramid.prepare(points, c.grid, c.levels(), c.steps(), offsets=offsets, gradient=gradient)

    def stage_features(self, features: Tensor, pyramid: PointPyramid) -> list[Tensor]:
        """[N_l, C] of every stage; the first is on level 2."""
        check_input(features, pyramid, self.config.in_channels, self.config.steps())
        out: Tensor = self.stem(features, pyramid, relu=True)
        out = self.pool(out, pyramid.geometries[1, 2, 3])
        found = []
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                out = block(out, pyramid)
            found.append(out)
        return found

    def forward(self, features: Tensor, pyramid: PointPyramid) -> Tensor:
        """Features [N, in_channels] of B clouds → logits [B, classes].

        Raises:
            InputError: for features that do not fit, or a pyramid prepared for another network.
        """
        last = self.stage_features(features, pyramid)[-1]
        out: Tensor = self.classifier(self.mean(last, pyramid.sizes[-1]))
        return out
