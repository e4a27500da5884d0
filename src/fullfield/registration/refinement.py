"""Refinement of poses by GICP (Segal, Haehnel, Thrun, RSS 2009), through small_gicp, and overlap in the true pose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield import _check
from fullfield.io.pointcloud import check_and_orthonormalize_pose
from fullfield.registration.descriptors import Floats, find_nearest, is_close_to_any
from fullfield.registration.packages import import_module_of_extra
from fullfield.registration.ransac import apply_transform
from fullfield.registration.scan import compute_median_point, select_one_index_per_cell, take_finite_points

_NEIGHBORS = 20
_MIN_POINTS = 3
_SLACK = 1.5
"""Voxels within which a point's neighbours lie, for its covariance. The steps may bring it closer by another reach."""


class Refiner:
    """Source and prepared target, lengths in voxels; runs on one thread, so that results repeat."""

    def __init__(self, source: Floats, target: Floats) -> None:
        self._gicp = import_module_of_extra("small_gicp")
        self._points, self._goal = source, target
        self._target, self._tree = self._build_cloud_with_covariances_and_tree(target)
        self._is_candidate: NDArray[np.bool_] | None = None  # of the last step, whose candidates are prepared
        self._candidates: Any = None

    def _build_cloud_with_covariances_and_tree(self, points: Floats) -> tuple[Any, Any]:
        cloud = self._gicp.PointCloud(points)
        tree = self._gicp.KdTree(cloud)
        self._gicp.estimate_covariances(cloud, tree, min(_NEIGHBORS, len(points)))
        return cloud, tree

    def __call__(self, transform: Floats, max_distances: Sequence[float], *, iterations: int = 30) -> Floats:
        """Refine ``transform`` with partners up to each of ``max_distances`` away, in turn."""
        for max_distance in max_distances:
            # The points that may find a partner: a search for the others would take most of the time.
            is_candidate = is_close_to_any(
                self._goal, apply_transform(transform, self._points), 2 * max_distance + _SLACK
            )
            if np.count_nonzero(is_candidate) < _MIN_POINTS:
                break
            if self._is_candidate is None or not np.array_equal(is_candidate, self._is_candidate):
                self._is_candidate = is_candidate
                self._candidates, _ = self._build_cloud_with_covariances_and_tree(self._points[is_candidate])
            result = self._gicp.align(
                self._target,
                self._candidates,
                self._tree,
                transform,
                registration_type="GICP",
                max_correspondence_distance=max_distance,
                max_iterations=iterations,
            )
            if result.num_inliers < _MIN_POINTS or not np.isfinite(result.T_target_source).all():
                break
            transform = np.asarray(result.T_target_source, np.float64)
        return transform


_REACHES = (8.0, 4.0, 2.0, 1.0)
_MAX_TURN, _MAX_SHIFT = 5.0, 2.0  # largest change by a refinement: degrees, units of the clouds
_MIN_CELLS = 20


class Overlap(NamedTuple):
    """Part of the source that the target shows too."""

    pose: Floats  # [4, 4] source into target
    points: Floats  # [N, 3] of the source, one a cell of ``reach``, with a point of the target within ``reach``
    fraction: float  # of the source's points, one a cell


def measure_true_overlap(
    source: Any, target: Any, transform: Any, *, max_distance: float, refine: bool = False
) -> Overlap:
    """Return the overlap of two clouds in their true pose.

    Args:
        source: as for :func:`fullfield.registration.register`.
        target: as ``source``.
        transform: [4, 4], source into target.
        max_distance: distance within which two points are the same place, in the clouds' units.
        refine: whether ``transform`` is only near the truth and is refined by GICP first. A refinement that moves it
            by more than 5° or 2 units is dropped.
    """
    _check.check_number(max_distance, "max_distance", above=0.0)
    pose = check_and_orthonormalize_pose(transform, "transform")
    clouds = [take_finite_points(value, name) for value, name in ((source, "source"), (target, "target"))]
    middle = compute_median_point(clouds[1])
    transformed, goal = (
        apply_transform(pose, clouds[0]) - middle,
        clouds[1] - middle,
    )  # small numbers for any coordinates
    thinned = transformed[select_one_index_per_cell(transformed, max_distance)]
    if refine and min(len(thinned), len(goal)) >= _MIN_CELLS:
        thinned_goal = goal[select_one_index_per_cell(goal, max_distance)]
        correction = Refiner(thinned / max_distance, thinned_goal / max_distance)(np.eye(4), _REACHES)
        correction[:3, 3] *= max_distance
        if _is_small_correction(correction):
            thinned = apply_transform(correction, thinned)
            from_center, to_center = np.eye(4), np.eye(4)
            from_center[:3, 3], to_center[:3, 3] = middle, -middle
            pose = from_center @ correction @ to_center @ pose
    touching = np.zeros(len(thinned), bool)
    if len(thinned) and len(goal):
        touching = find_nearest(goal, thinned)[0][:, 0] <= max_distance
    points = (thinned[touching] + middle - pose[:3, 3]) @ pose[:3, :3]
    return Overlap(pose, points, float(touching.mean()) if len(thinned) else 0.0)


def _is_small_correction(correction: Floats) -> bool:
    cosine = (np.trace(correction[:3, :3]) - 1) / 2
    turn = np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))
    return bool(turn <= _MAX_TURN and np.linalg.norm(correction[:3, 3]) <= _MAX_SHIFT)
