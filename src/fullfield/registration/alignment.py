"""How well two clouds lie on each other in a given pose."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fullfield import _check
from fullfield.io.pointcloud import check_and_orthonormalize_pose, read_or_convert_point_cloud
from fullfield.registration.descriptors import Floats, find_nearest, is_close_to_any
from fullfield.registration.ransac import apply_transform
from fullfield.registration.scan import (
    compute_median_point,
    express_relative_to_origins,
    take_finite_points,
    thin_points_and_list_voxel_rows,
)
from fullfield.registration.verdict import find_touching_points


def compute_alignment_errors(
    source: Any, target: Any, transform: Any = None, *, max_distance: float | None = None
) -> Floats:
    """Return the distances [N] from the points of ``source``, moved by ``transform``, to the nearest of ``target``.

    They are in the clouds' units, NaN for points that are not finite, and infinite beyond ``max_distance``, which saves
    the long search where the clouds are far apart. ``source`` and ``target`` as in :func:`register`.
    """
    if max_distance is not None:
        _check.check_number(max_distance, "max_distance", above=0.0)
    points = read_or_convert_point_cloud(source, "source").points
    goal = take_finite_points(target, "target", 1)
    pose = np.eye(4) if transform is None else check_and_orthonormalize_pose(transform, "transform")
    middle = compute_median_point(goal)
    is_finite = np.isfinite(points).all(1)
    errors = np.full(len(points), np.nan)
    transformed = apply_transform(pose, points[is_finite]) - middle
    goal = goal - middle
    is_within = (
        np.ones(len(transformed), bool) if max_distance is None else is_close_to_any(goal, transformed, max_distance)
    )
    distances = np.full(len(transformed), np.inf)
    if is_within.any():
        distances[is_within] = find_nearest(goal, transformed[is_within])[0][:, 0]
    errors[is_finite] = np.where(distances <= (max_distance or np.inf), distances, np.inf)
    return errors


class Alignment(NamedTuple):
    """Fitness and RMSE of one cloud on another, as :class:`Registration` reports them."""

    fitness: float  # share of the source's points, one a voxel, with a point of the target within a voxel
    rmse: float  # of these points' distances, in the clouds' units; NaN without any


def measure_alignment(source: Any, target: Any, transform: Any = None, *, voxel: float) -> Alignment:
    """Measure ``source``, moved by ``transform``, against ``target`` as :func:`register` does at this voxel size.

    ``source`` and ``target`` as in :func:`register`; ``transform`` is [4, 4], None for none.
    """
    _check.check_number(voxel, "voxel", above=0.0)
    clouds = [take_finite_points(value, name, 1) for value, name in ((source, "source"), (target, "target"))]
    middles = [compute_median_point(points) for points in clouds]
    pose = express_relative_to_origins(
        np.eye(4) if transform is None else check_and_orthonormalize_pose(transform, "transform"), *middles
    )
    pose[:3, 3] /= voxel
    thinned = [(points - middle) / voxel for points, middle in zip(clouds, middles, strict=True)]
    for number, points in enumerate(thinned):
        fine, rows = thin_points_and_list_voxel_rows(points)
        thinned[number] = fine[rows]
    touching = find_touching_points(apply_transform(pose, thinned[0]), thinned[1])
    return Alignment(touching.fitness, touching.rmse * voxel)
