"""Choice of the voxel size at which two clouds are matched."""

from __future__ import annotations

import numpy as np

from fullfield.registration.arrays import Floats
from fullfield.registration.descriptors import nearest

CELLS = 5000
"""Occupied voxels of the larger cloud: enough for distinctive descriptors, few enough to take seconds."""
SPACINGS = 1.5
"""Smallest width of a voxel, in typical spacings of the sparser cloud."""
_SAMPLE = 100_000
_ROUNDS = 8


def choose_voxel(source: Floats, target: Floats) -> float:
    """Return the edge of a voxel, in the clouds' units; 0 where all the points of a cloud are one.

    ``source`` and ``target`` are finite, [N, 3] and [M, 3]. The larger cloud then has about :data:`CELLS` occupied
    voxels, or as many as its spacing allows.
    """
    clouds = [_sample(points) for points in (source, target)]
    widths = [float(np.ptp(points, axis=0).max()) if len(points) else 0.0 for points in clouds]
    if min(widths) <= 0.0:
        return 0.0
    voxel = max(widths) / 64
    for _ in range(_ROUNDS):
        occupied = max(_occupied(points, voxel) for points in clouds)
        step = float(np.sqrt(occupied / CELLS))
        voxel *= step
        if abs(step - 1.0) < 0.03:
            break
    return max(voxel, SPACINGS * max(_spacing(source), _spacing(target)))


def _occupied(points: Floats, voxel: float) -> int:
    cells = np.floor((points - points.min(0)) / voxel).astype(np.int64)
    wide = cells.max(0) + 1
    return len(np.unique((cells[:, 0] * wide[1] + cells[:, 1]) * wide[2] + cells[:, 2]))


def _sample(points: Floats, most: int = _SAMPLE) -> Floats:
    if len(points) <= most:
        return points
    return points[np.sort(np.random.default_rng(0).choice(len(points), most, replace=False))]


def _spacing(points: Floats) -> float:
    """Return the median distance from a point to the nearest other one."""
    sampled = _sample(points, 2000)
    apart, _ = nearest(points, sampled, min(len(points), 8))
    apart[apart <= 0.0] = np.inf
    least = apart.min(1)
    return float(np.median(least[np.isfinite(least)])) if np.isfinite(least).any() else 0.0
