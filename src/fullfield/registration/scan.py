"""A cloud made ready for matching, in units of voxels around its own middle."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from fullfield.ops.neighbors import grid_downsample
from fullfield.registration.descriptors import histograms, plane_normals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NORMAL_RADIUS = 3.0
FEATURE_RADIUS = 8.0


class Scan(NamedTuple):
    """All lengths in voxels."""

    fine: Floats  # [F, 3], one point per half voxel: what is refined
    points: Floats  # [N, 3], one point per voxel: what is matched
    normals: Floats  # [N, 3], of either sign
    features: Floats  # [N, 33], roots of the histograms: their distances weigh rare angles more

    @property
    def thickness(self) -> float:
        """The standard deviation of the points across the plane that fits them best."""
        if len(self.points) < 3:
            return 0.0
        return float(np.sqrt(max(np.linalg.eigvalsh(np.cov(self.points.T))[0], 0.0)))


def prepare(points: Floats) -> Scan:
    """``points`` [N, 3] are finite, in voxels."""
    fine = _thinned(points, 0.5)
    coarse = _thinned(fine, 1.0)
    if not len(coarse):
        return Scan(fine, coarse, coarse, np.empty((0, 33)))
    normals = plane_normals(fine, coarse, NORMAL_RADIUS)
    return Scan(fine, coarse, normals, np.sqrt(histograms(coarse, normals, FEATURE_RADIUS)))


def _thinned(points: Floats, cell: float) -> Floats:
    kept = grid_downsample(torch.from_numpy(np.ascontiguousarray(points)), cell).indices
    thinned: Floats = points[kept.numpy()]
    return thinned
