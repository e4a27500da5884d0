"""Residual networks on native points, a U-Net, and the prepared clouds that they read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield.models.pointcnnpp.config import PointResNetConfig, PointUNetConfig
from fullfield.nn.points import CloudPool, PointConv, PointNorm, PointPool
from fullfield.ops.neighbors.downsampling import check_and_downsample_repeatedly
from fullfield.ops.neighbors.ragged import check_and_build_cloud, check_distance, check_shape_and_build_cloud
from fullfield.ops.point_conv import PointGeometry
from fullfield.ops.point_conv.geometry import RadiusRequest, build_radius_geometries, compute_equal_volume_radius
from fullfield.ops.point_conv.protocol import check_and_expand_kernel_size


@dataclass(frozen=True, eq=False)
class PointPyramid:
    """Data of a batch of clouds that does not depend on features; computed once and read by every layer."""

    points: tuple[Tensor, ...]
    """Points [N, 3] of every level, the input first. Level l + 1 keeps one point per cell of side grid · 2^(l + 1)."""
    kept_indices: tuple[Tensor, ...]
    """Indices of the points that the next level keeps, int64 and ascending, for every level but the last."""
    sizes: tuple[tuple[int, ...], ...]
    """Number of points of each cloud, for every level."""
    geometries: dict[tuple[int, int, int], PointGeometry]
    """Geometry of every step (source level, target level, kernel side)."""

    @classmethod
    def build(
        cls,
        points: Tensor,  # [N, 3] float32 or float64
        grid: float,
        levels: int,
        steps: Iterable[tuple[int, int, int]],
        *,
        offsets: Tensor | None = None,  # [B + 1]; None: one cloud
        gradient: bool = True,
    ) -> PointPyramid:
        """Compute the levels and geometries of a batch of clouds.

        Cells double from level to level. A step to a denser level uses the coarser cells, any other step the cells of
        its source. Points that are sorted along a space-filling curve are read faster.

        Args:
            points: coordinates of all clouds.
            grid: side of a cell at the input's density, from 1e-18 to 1e18.
            levels: number of densities.
            steps: steps whose geometries are computed.
            offsets: index of the first point of each cloud, and the number of all points.
            gradient: whether a backward pass follows.

        Raises:
            InputError: if a coordinate is not finite, or the grid or the offsets do not fit.
        """
        check_distance(grid, "grid")
        _check.check_number(levels, "levels", integer=True, low=1, high=16)
        _check.check_tensor(points, "points", ("N", 3), dtypes=(torch.float32, torch.float64))
        cells = [float(grid) * 2**level for level in range(1, levels)]
        if cells:
            first, fewer = check_and_downsample_repeatedly(check_shape_and_build_cloud(points, offsets), cells)
        else:
            first, fewer = check_and_build_cloud(points, offsets), []
        clouds = [first, *(one.cloud for one in fewer)]
        requests = {}
        for source, target, kernel in steps:
            sides, side = check_and_expand_kernel_size(kernel), grid * 2**source
            requests[source, target, kernel] = RadiusRequest(
                clouds[source], clouds[target], side, sides, compute_equal_volume_radius(side, sides), gradient
            )
        geometries = dict(zip(requests, build_radius_geometries(list(requests.values())), strict=True))
        sizes = tuple(tuple(end - start for start, end in pairwise(cloud.offsets.tolist())) for cloud in clouds)
        return cls(tuple(cloud.points for cloud in clouds), tuple(one.kept for one in fewer), sizes, geometries)

    def to(self, device: str | torch.device) -> PointPyramid:
        """Return the pyramid on ``device``."""
        target = _check.resolve_available_device(device)
        return replace(
            self,
            points=tuple(p.to(target) for p in self.points),
            kept_indices=tuple(indices.to(target) for indices in self.kept_indices),
            geometries={step: geometry.to(target) for step, geometry in self.geometries.items()},
        )


def check_features_fit_pyramid(
    features: Tensor, pyramid: PointPyramid, channels: int, steps: Iterable[tuple[int, int, int]]
) -> None:
    """Check that a pyramid and features belong to a network and to each other.

    Raises:
        InputError: if the pyramid was prepared for another network, or the features do not fit its points.
    """
    _check.require(isinstance(pyramid, PointPyramid), "pyramid", "a PointPyramid", pyramid)
    missing = [step for step in steps if step not in pyramid.geometries]
    _check.require(not missing, "pyramid", "one prepared by this network", f"one without the steps {missing}")
    _check.check_tensor(features, "features", (pyramid.points[0].shape[0], channels), device=pyramid.points[0].device)


class ConvNorm(nn.Module):
    """Convolution between levels, then normalisation, an optional residual and an optional ReLU."""

    def __init__(self, inputs: int, outputs: int, geometry_step: tuple[int, int, int], norm: str) -> None:
        super().__init__()
        self.step = geometry_step
        self.conv = PointConv(inputs, outputs, geometry_step[2], bias=False)
        self.norm = PointNorm(outputs, norm)

    def forward(
        self, features: Tensor, pyramid: PointPyramid, residual: Tensor | None = None, *, relu: bool = False
    ) -> Tensor:
        """Convolve features [N, inputs] and normalise the result, [N', outputs]."""
        geometry, sizes = pyramid.geometries[self.step], pyramid.sizes[self.step[1]]
        return self.norm.convolve_and_normalize(self.conv, features, geometry, sizes, residual, relu=relu)


class LinearNorm(nn.Module):
    """Linear layer on every point, with the same steps after it as :class:`ConvNorm`."""

    def __init__(self, inputs: int, outputs: int, level: int, norm: str) -> None:
        super().__init__()
        self.level = level
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.norm = PointNorm(outputs, norm)

    def forward(
        self, features: Tensor, pyramid: PointPyramid, residual: Tensor | None = None, *, relu: bool = False
    ) -> Tensor:
        """Apply the layer to features [N, inputs]; the result is [N, outputs]."""
        out: Tensor = self.norm(self.linear(features), pyramid.sizes[self.level], residual, relu=relu)
        return out


class ResidualPointBlock(nn.Module):
    """Residual block x + f(x) with a ReLU after it.

    f is two 3³ convolutions ("basic"), or 1, 3³ and 1 with a quarter of the output channels inside ("bottleneck"). The
    first 3³ convolution makes a step to the next level; the shortcut then selects the points that are kept.
    """

    def __init__(
        self, inputs: int, outputs: int, source_level: int, target_level: int, norm: str, kind: str = "basic"
    ) -> None:
        super().__init__()
        self.source, self.target = source_level, target_level
        inner = outputs if kind == "basic" else outputs // 4
        step = (source_level, target_level, 3)
        self.first = (
            ConvNorm(inputs, inner, step, norm) if kind == "basic" else LinearNorm(inputs, inner, source_level, norm)
        )
        self.middle = None if kind == "basic" else ConvNorm(inner, inner, step, norm)
        within = (target_level, target_level, 3)
        self.last = (
            ConvNorm(inner, outputs, within, norm)
            if kind == "basic"
            else LinearNorm(inner, outputs, target_level, norm)
        )
        changes = inputs != outputs or source_level != target_level
        self.shortcut = LinearNorm(inputs, outputs, target_level, norm) if changes else None

    def forward(self, features: Tensor, pyramid: PointPyramid) -> Tensor:
        """Apply the block to features [N, inputs]; the result is [N', outputs]."""
        inner = self.first(features, pyramid, relu=True)
        if self.middle is not None:
            inner = self.middle(inner, pyramid, relu=True)
        own = features if self.source == self.target else features.index_select(0, pyramid.kept_indices[self.source])
        own = own if self.shortcut is None else self.shortcut(own, pyramid)
        out: Tensor = self.last(inner, pyramid, own, relu=True)
        return out


class _Network(nn.Module):
    config: PointResNetConfig | PointUNetConfig

    def build_pyramid(self, points: Tensor, offsets: Tensor | None = None, *, gradient: bool = True) -> PointPyramid:
        """Return the pyramid of points [N, 3] for :meth:`forward`; ``gradient``: a backward pass follows."""
        c = self.config
        return PointPyramid.build(
            points, c.grid, c.count_levels(), c.list_geometry_steps(), offsets=offsets, gradient=gradient
        )


class PointResNet(_Network):
    """Residual network: stem, max-pooling, stages, the mean over each cloud and a linear classifier."""

    config: PointResNetConfig

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
                stage.append(ResidualPointBlock(inputs, channels * wider, source, level, config.norm, config.block))
                inputs = channels * wider
            self.stages.append(stage)
        self.mean = CloudPool("mean")
        self.classifier = nn.Linear(inputs, config.classes)

    def compute_stage_features(self, features: Tensor, pyramid: PointPyramid) -> list[Tensor]:
        """Return the features [N_l, C] of every stage; the first stage is on level 2."""
        check_features_fit_pyramid(features, pyramid, self.config.in_channels, self.config.list_geometry_steps())
        out: Tensor = self.stem(features, pyramid, relu=True)
        out = self.pool(out, pyramid.geometries[1, 2, 3])
        outputs = []
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                out = block(out, pyramid)
            outputs.append(out)
        return outputs

    def forward(self, features: Tensor, pyramid: PointPyramid) -> Tensor:
        """Classify features [N, in_channels] of B clouds; return the logits [B, classes].

        Raises:
            InputError: for features that do not fit, or a pyramid prepared for another network.
        """
        last = self.compute_stage_features(features, pyramid)[-1]
        out: Tensor = self.classifier(self.mean(last, pyramid.sizes[-1]))
        return out


class PointUNet(_Network):
    """Fully convolutional U-Net: to coarser clouds and back."""

    config: PointUNetConfig

    def __init__(self, config: PointUNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PointUNetConfig()
        channels, norm = config.channels, config.norm
        self.stem = ConvNorm(config.in_channels, channels[0], (0, 0, config.stem_kernel), norm)
        self.down, self.up, self.join, self.encoder, self.decoder = (nn.ModuleList() for _ in range(5))
        for level, (width, blocks) in enumerate(zip(channels, config.blocks, strict=True)):
            if level:
                self.down.append(ConvNorm(channels[level - 1], width, (level - 1, level, 3), norm))
                self.up.append(ConvNorm(width, channels[level - 1], (level, level - 1, 3), norm))
                self.join.append(LinearNorm(2 * channels[level - 1], channels[level - 1], level - 1, norm))
                self.decoder.append(
                    ResidualPointBlock(channels[level - 1], channels[level - 1], level - 1, level - 1, norm)
                )
            self.encoder.append(
                nn.ModuleList(ResidualPointBlock(width, width, level, level, norm) for _ in range(blocks))
            )
        self.head = nn.Linear(channels[0], config.out_channels)

    def forward(self, features: Tensor, pyramid: PointPyramid) -> Tensor:
        """Compute features [N, out_channels] from [N, in_channels].

        Raises:
            InputError: for features that do not fit, or a pyramid prepared for another network.
        """
        check_features_fit_pyramid(features, pyramid, self.config.in_channels, self.config.list_geometry_steps())
        out: Tensor = self.stem(features, pyramid, relu=True)
        skipped = []
        for level, blocks in enumerate(self.encoder):
            if level:
                skipped.append(out)
                out = self.down[level - 1](out, pyramid, relu=True)
            for block in blocks:  # type: ignore[attr-defined]
                out = block(out, pyramid)
        for level in reversed(range(len(self.up))):
            out = self.up[level](out, pyramid, relu=True)
            out = self.join[level](torch.cat([out, skipped[level]], 1), pyramid, relu=True)
            out = self.decoder[level](out, pyramid)
        out = self.head(out)
        return nn.functional.normalize(out, dim=1) if self.config.unit_length else out
