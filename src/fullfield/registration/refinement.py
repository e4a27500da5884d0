"""Refinement of a rough pose: GICP (Segal, Haehnel, Thrun, RSS 2009), by small_gicp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fullfield._check import InputError
from fullfield.registration.arrays import Floats
from fullfield.registration.descriptors import around
from fullfield.registration.ransac import apply

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
