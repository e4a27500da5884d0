"""Refinement of poses by GICP (Segal, Haehnel, Thrun, RSS 2009), through small_gicp, and overlap in the true pose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fullfield import _check
from fullfield._check import InputError
from fullfield.io.pointcloud import rigid
from fullfield.registration.descriptors import Floats, around, nearest
from fullfield.registration.ransac import apply
from fullfield.registration.scan import finite_points, kept, middle_of

_NEIGHBORS = 20
_FEWEST = 3
_SLACK = 1.5
"""Voxels within which a point's neighbours lie, for its covariance. The steps may bring it closer by another reach."""


def library() -> Any:
    """Return the module small_gicp.

    Raises:
        InputError: where it is not installed.
    """
    try:
        import small_gicp
    except ImportError as error:
        raise InputError(f"registration needs small_gicp ({error}); pip install 'fullfield[register]'") from None
    return small_gicp


class Refiner:
    """Source and prepared target, lengths in voxels; runs on one thread, so that results repeat."""

    def __init__(self, source: Floats, target: Floats) -> None:
        self._gicp = library()
        self._points, self._goal = source, target
        self._target, self._tree = self._prepared(target)

    def _prepared(self, points: Floats) -> tuple[Any, Any]:
        cloud = self._gicp.PointCloud(points)
        tree = self._gicp.KdTree(cloud)
        self._gicp.estimate_covariances(cloud, tree, min(_NEIGHBORS, len(points)))
        return cloud, tree

    def __call__(self, transform: Floats, reaches: Sequence[float], *, iterations: int = 30) -> Floats:
        """Refine ``transform`` with partners up to each of ``reaches`` away, in turn."""
        for reach in reaches:
            # The points that may find a partner: a search for the others would take most of the time.
            near = self._points[around(self._goal, apply(transform, self._points), 2 * reach + _SLACK)]
            if len(near) < _FEWEST:
                break
            found = self._gicp.align(
                self._target,
                self._prepared(near)[0],
                self._tree,
                transform,
                registration_type="GICP",
                max_correspondence_distance=reach,
                max_iterations=iterations,
            )
            if found.num_inliers < _FEWEST or not np.isfinite(found.T_target_source).all():
                break
            transform = np.asarray(found.T_target_source, np.float64)
        return transform


_REACHES = (8.0, 4.0, 2.0, 1.0)
_MOST_TURN, _MOST_SHIFT = 5.0, 2.0  # largest change by a refinement: degrees, units of the clouds
_FEWEST_CELLS = 20


class Overlap(NamedTuple):
    """Part of the source that the target shows too."""

    pose: Floats  # [4, 4] source into target
    points: Floats  # [N, 3] of the source, one a cell of ``reach``, with a point of the target within ``reach``
    share: float  # of the source's points, one a cell


def true_overlap(source: Any, target: Any, transform: Any, *, reach: float, refine: bool = False) -> Overlap:
    """Return the overlap of two clouds in their true pose.

    Args:
        source: as for :func:`fullfield.registration.register`.
        target: as ``source``.
        transform: [4, 4], source into target.
        reach: distance within which two points are the same place, in the clouds' units.
        refine: whether ``transform`` is only near the truth and is refined by GICP first. A refinement that moves it
            by more than 5° or 2 units is dropped.
    """
    _check.number(reach, "reach", above=0.0)
    pose = rigid(transform, "transform")
    clouds = [finite_points(value, name) for value, name in ((source, "source"), (target, "target"))]
    middle = middle_of(clouds[1])
    moved, goal = apply(pose, clouds[0]) - middle, clouds[1] - middle  # small numbers for any coordinates
    few = moved[kept(moved, reach)]
    if refine and min(len(few), len(goal)) >= _FEWEST_CELLS:
        correction = Refiner(few / reach, goal[kept(goal, reach)] / reach)(np.eye(4), _REACHES)
        correction[:3, 3] *= reach
        if _is_small(correction):
            few = apply(correction, few)
            there, back = np.eye(4), np.eye(4)
            there[:3, 3], back[:3, 3] = middle, -middle
            pose = there @ correction @ back @ pose
    touching = nearest(goal, few)[0][:, 0] <= reach if len(few) and len(goal) else np.zeros(len(few), bool)
    points = (few[touching] + middle - pose[:3, 3]) @ pose[:3, :3]
    return Overlap(pose, points, float(touching.mean()) if len(few) else 0.0)


def _is_small(correction: Floats) -> bool:
    cosine = (np.trace(correction[:3, :3]) - 1) / 2
    turn = np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))
    return bool(turn <= _MOST_TURN and np.linalg.norm(correction[:3, 3]) <= _MOST_SHIFT)
