"""A batch of clouds prepared for a network: its densities, and what reads what."""

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
    """Everything about a batch of clouds that does not depend on features; made once, read by every layer and pass."""

    points: tuple[Tensor, ...]
    """Of every level, [N, 3], the input first. Level l + 1 keeps one of level l per cell of side grid · 2^(l + 1)."""
    kept: tuple[Tensor, ...]
    """Of every level but the last: which of its points the next keeps, int64, rising."""
    sizes: tuple[tuple[int, ...], ...]
    """Of every level: the points of each cloud."""
    geometries: dict[tuple[int, int, int], PointGeometry]
    """(from level, to level, kernel side): centres of the one see points of the other."""

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
        """Grids double from level to level. A step up in density sees with the coarse grid, every other with the grid
        it comes from.

        Points that are neighbours in space should be near in the tensor: sorted along a curve they are read faster.

        Raises:
            InputError: for anything but finite coordinates, a grid from 1e-18 to 1e18, offsets that fit.
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
        """The same on a device."""
        place = _check.device(device)
        return replace(
            self,
            points=tuple(p.to(place) for p in self.points),
            kept=tuple(k.to(place) for k in self.kept),
            geometries={step: geometry.to(place) for step, geometry in self.geometries.items()},
        )


def check_input(features: Tensor, pyramid: PointPyramid, channels: int, steps: Iterable[tuple[int, int, int]]) -> None:
    """
    Raises:
        InputError: if the pyramid was prepared for another network, or the features do not fit its points.
    """
    _check.require(isinstance(pyramid, PointPyramid), "pyramid", "a PointPyramid", pyramid)
    missing = [step for step in steps if step not in pyramid.geometries]
    _check.require(not missing, "pyramid", "one prepared by this network", f"one without the steps {missing}")
    _check.tensor(features, "features", (pyramid.points[0].shape[0], channels), device=pyramid.points[0].device)
