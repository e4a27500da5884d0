"""The last step from a good pose to the best one: GICP (Segal, Haehnel, Thrun, RSS 2009), by small_gicp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fullfield._check import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NEIGHBORS = 20


def library() -> Any:
    """The module small_gicp.

    Raises:
        InputError: where it is not installed.
    """
    try:
        import small_gicp
    except ImportError as error:
        raise InputError(f"registration needs small_gicp ({error}); pip install 'fullfield[register]'") from None
    return small_gicp


class Refiner:
    """Two clouds prepared once. Lengths are voxels; one thread, so that the result is the same each time."""

    def __init__(self, source: Floats, target: Floats) -> None:
        self._gicp = library()
        (self._source, _), (self._target, self._tree) = (self._prepared(points) for points in (source, target))

    def _prepared(self, points: Floats) -> tuple[Any, Any]:
        cloud = self._gicp.PointCloud(points)
        tree = self._gicp.KdTree(cloud)
        self._gicp.estimate_covariances(cloud, tree, min(_NEIGHBORS, len(points)))
        return cloud, tree

    def __call__(self, transform: Floats, reaches: Sequence[float], *, iterations: int = 30) -> Floats:
        """``transform`` refined with partners at most each of ``reaches`` away, in turn."""
        for reach in reaches:
            found = self._gicp.align(
                self._target,
                self._source,
                self._tree,
                transform,
                registration_type="GICP",
                max_correspondence_distance=reach,
                max_iterations=iterations,
            )
            if found.num_inliers < 3 or not np.isfinite(found.T_target_source).all():
                break
            transform = np.asarray(found.T_target_source, np.float64)
        return transform
