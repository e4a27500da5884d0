"""Batch of clouds prepared for a network: its densities and the geometries of all steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.neighbors.downsampling import thinned
from fullfield.ops.neighbors.ragged import check_cloud, check_length, check_shape
from fullfield.ops.point_conv import PointGeometry, kernel_radius
from fullfield.ops.point_conv.arguments import kernel_sides
from fullfield.ops.point_conv.geometry import RadiusRequest, radius_geometries


@dataclass(frozen=True, eq=False)
class PointPyramid:
    """Data of a batch of clouds that does not depend on features; computed once and read by every layer."""

    points: tuple[Tensor, ...]
    """Points [N, 3] of every level, the input first. Level l + 1 keeps one point per cell of side grid · 2^(l + 1)."""
    kept: tuple[Tensor, ...]
    """Indices of the points that the next level keeps, int64 and ascending, for every level but the last."""
    sizes: tuple[tuple[int, ...], ...]
    """Number of points of each cloud, for every level."""
    geometries: dict[tuple[int, int, int], PointGeometry]
    """Geometry of every step (source level, target level, kernel side)."""

    @classmethod
    def prepare(
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
        check_length(grid, "grid")
        _check.number(levels, "levels", integer=True, low=1, high=16)
        _check.tensor(points, "points", ("N", 3), dtypes=(torch.float32, torch.float64))
        cells = [float(grid) * 2**level for level in range(1, levels)]
        if cells:
            first, fewer = thinned(check_shape(points, offsets), cells)
        else:
            first, fewer = check_cloud(points, offsets), []
        clouds = [first, *(one.cloud for one in fewer)]
        requests = {}
        for source, target, kernel in steps:
            sides, side = kernel_sides(kernel), grid * 2**source
            requests[source, target, kernel] = RadiusRequest(
                clouds[source], clouds[target], side, sides, kernel_radius(side, sides), gradient
            )
        geometries = dict(zip(requests, radius_geometries(list(requests.values())), strict=True))
        sizes = tuple(tuple(end - begin for begin, end in pairwise(cloud.offsets.tolist())) for cloud in clouds)
        return cls(tuple(cloud.points for cloud in clouds), tuple(one.kept for one in fewer), sizes, geometries)

    def to(self, device: str | torch.device) -> PointPyramid:
        """Return the pyramid on ``device``."""
        place = _check.device(device)
        return replace(
            self,
            points=tuple(p.to(place) for p in self.points),
            kept=tuple(k.to(place) for k in self.kept),
            geometries={step: geometry.to(place) for step, geometry in self.geometries.items()},
        )


def check_input(features: Tensor, pyramid: PointPyramid, channels: int, steps: Iterable[tuple[int, int, int]]) -> None:
    """Check that a pyramid and features belong to a network and to each other.

    Raises:
        InputError: if the pyramid was prepared for another network, or the features do not fit its points.
    """
    _check.require(isinstance(pyramid, PointPyramid), "pyramid", "a PointPyramid", pyramid)
    missing = [step for step in steps if step not in pyramid.geometries]
    _check.require(not missing, "pyramid", "one prepared by this network", f"one without the steps {missing}")
    _check.tensor(features, "features", (pyramid.points[0].shape[0], channels), device=pyramid.points[0].device)
