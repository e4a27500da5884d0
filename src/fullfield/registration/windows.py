"""Windows of two scans in a pose: where they end, and which points form patches. Lengths are voxels."""

from __future__ import annotations

import numpy as np
import torch

from fullfield.ops.neighbors import radius_search
from fullfield.registration.contacts import Flags, find_nearest_in_tree, measure_significance
from fullfield.registration.descriptors import Floats
from fullfield.registration.packages import import_module_of_extra
from fullfield.registration.ransac import apply_transform
from fullfield.registration.scan import Scan

_END, _BORDER = 2.0, 1.0  # beyond the surface, and from the hull inwards, where a window ends
_PATCH_RADIUS, _MIN_IN_PATCH = 2.5, 6  # of a patch, and its points: noise contradicts at single points


class Windows:
    """Points of both clouds in the best pose, and where their windows end."""

    def __init__(self, transform: Floats, source: Scan, target: Scan) -> None:
        tree, hull = import_module_of_extra("small_gicp").KdTree, import_module_of_extra("scipy.spatial").ConvexHull
        self.points = apply_transform(transform, source.points), target.points
        self._inverse = np.asarray(np.linalg.inv(transform), np.float64)
        self._trees = [tree(points) for points in self.points]
        self._hulls = [hull(points).equations for points in self.points]
        sides = zip(self.points, self._hulls[::-1], strict=True)
        self.is_outside_hull = np.concatenate([_find_points_outside_hull(points, planes) for points, planes in sides])

    def find_points_beyond_ends(self, transform: Floats) -> Flags:
        """Return the points [N + M] that meet an end of the other cloud's window in a pose, if it is a symmetry.

        Stairs that are shifted by a step hang over the last step of the other scan, whose window ends there: its next
        step is not in its own cloud either. A wall just outside the other scan's window hangs behind what stands before
        it. That contradicts nothing.
        """
        motion, flags = transform @ self._inverse, list[Flags]()
        for own, other, forward in ((0, 1, motion), (1, 0, np.asarray(np.linalg.inv(motion), np.float64))):
            moved, tree = apply_transform(forward, self.points[own]), self._trees[other]
            is_end = find_nearest_in_tree(tree, apply_transform(forward, self.points[other]))[0] > _END
            flags.append(
                is_end[find_nearest_in_tree(tree, moved)[1]] | _find_points_outside_hull(moved, self._hulls[other])
            )
        return np.concatenate(flags)

    def measure_patch_significance(self, is_against: Flags, is_in_favor: Flags) -> float:
        """Return the significance of the patches of points [N + M], in the cloud where it is smaller."""
        count, significance = len(self.points[0]), list[float]()
        for points, own in zip(self.points, (slice(count), slice(count, None)), strict=True):
            against, favor = (_select_points_in_patches(points, flags[own]) for flags in (is_against, is_in_favor))
            significance.append(measure_significance(against, favor))
        return min(significance)


def _find_points_outside_hull(points: Floats, planes: Floats) -> Flags:
    """Return which ``points`` [N, 3] lie outside the planes of a convex hull, or inside but close to it."""
    return np.asarray((points @ planes[:, :3].T + planes[:, 3] > -_BORDER).any(1))


def _select_points_in_patches(points: Floats, flags: Flags) -> Flags:
    """Return those of the flagged ``points`` [N, 3] that have other flagged ones around them."""
    flagged = torch.from_numpy(points[flags])
    counts = np.diff(radius_search(flagged, _PATCH_RADIUS, flagged, sort_indices=False).offsets.numpy())
    is_in_patch = np.zeros_like(flags)
    is_in_patch[flags] = counts >= _MIN_IN_PATCH
    return is_in_patch
