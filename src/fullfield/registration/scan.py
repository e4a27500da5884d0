"""Cloud prepared for matching, in voxels around its own middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from fullfield import _check
from fullfield.io.pointcloud import as_point_cloud
from fullfield.ops.neighbors import grid_downsample
from fullfield.registration.arrays import Floats, Ints
from fullfield.registration.descriptors import BINS, histograms, plane_normals

Describe = Callable[[Floats, Ints, Floats], Floats]

NORMAL_RADIUS = 3.0
FEATURE_RADIUS = 8.0


class Scan(NamedTuple):
    """Points, normals and features of one cloud; all lengths are voxels."""

    fine: Floats  # [F, 3], one point per half voxel, for refinement
    points: Floats  # [N, 3], one point per voxel, for matching
    normals: Floats  # [N, 3], of either sign
    features: Floats  # [N, C], alike where their Euclidean distance is small

    @property
    def thickness(self) -> float:
        """Standard deviation of the points across the plane that fits them best."""
        if len(self.points) < 3:
            return 0.0
        return float(np.sqrt(max(np.linalg.eigvalsh(np.cov(self.points.T))[0], 0.0)))


def finite_points(value: Any, name: str, least: int = 0) -> Floats:
    """Return the finite points [N, 3] of anything that is a cloud.

    Raises:
        InputError: if ``value`` is no cloud, or has fewer than ``least`` finite points.
    """
    points = as_point_cloud(value, name).points.astype(np.float64)
    finite: Floats = points[np.isfinite(points).all(1)]
    few = f"{len(finite)} of {len(points)}"
    _check.require(len(finite) >= least, name, f"at least {least} finite point{'s' * (least != 1)}", few)
    return finite


def prepare(points: Floats, describe: Describe | None = None) -> Scan:
    """Thin out, and describe, finite ``points`` [N, 3] in voxels.

    ``describe`` computes features [N, C] of ``fine[rows]`` from ``fine`` [F, 3], ``rows`` [N] and the normals there;
    None is :func:`fpfh`.
    """
    fine, rows = thin(points)
    coarse = fine[rows]
    if not len(coarse):
        return Scan(fine, coarse, coarse, np.empty((0, 3 * BINS)))
    normals = plane_normals(fine, coarse, NORMAL_RADIUS)
    return Scan(fine, coarse, normals, fpfh(coarse, normals) if describe is None else describe(fine, rows, normals))


def thin(points: Floats) -> tuple[Floats, Ints]:
    """Keep one of ``points`` per half voxel [F, 3]; also return the rows [N] that remain at one per voxel."""
    fine = points[kept(points, 0.5)]
    return fine, kept(fine, 1.0)


def fpfh(points: Floats, normals: Floats) -> Floats:
    """Return the square roots of the histograms [N, 33]; so their distances give rare angles more weight."""
    return np.sqrt(histograms(points, normals, FEATURE_RADIUS))


def kept(points: Floats, cell: float) -> Ints:
    """Return the indices of ``points`` that remain when each cell keeps one."""
    indices: Ints = grid_downsample(torch.from_numpy(np.ascontiguousarray(points)), cell).indices.numpy()
    return indices
