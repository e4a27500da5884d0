"""Motions that a pose leaves free: sliding, turning, or both at once. Lengths are voxels.

A scan of a staircase can slide along its steps, a vase can turn about its axis. Each pair of touching points constrains
the pose along the normal of its surface. Noise tilts normals, so every direction seems to be constrained a little. But
the normals of two scans err independently: the product of a constraint by the source's normal with the same one by the
target's has no contribution of noise on average, while the usual matrix of squares has. Windows' ends have no touching
surfaces and constrain nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fullfield.registration.contacts import convert_to_rotation_matrix
from fullfield.registration.descriptors import Floats

CORRELATED = 28.0
"""Points whose normals come from nearly the same neighbours: those of a disc of the radius of the normals."""
_MIN_RELATIVE = 0.01  # of the median significance
_MIN_SIGNIFICANCE, _MIN_CORRELATION = 6.0, 0.5
_TURNING, _RISING = 0.3, 0.3  # shares of turn in a motion that is no slide, and of slide in one that is a screw


class FreeDirection(NamedTuple):
    """Motion of the source that changes nothing, in the target's coordinates."""

    motion: str  # "sliding", "turning" or "screwing"
    axis: Floats  # [3], of length 1
    point: Floats  # [3], on the axis

    def __str__(self) -> str:
        axis = ", ".join(f"{value + 0.0:.2g}" for value in np.round(self.axis, 2))
        return f"sliding along ({axis})" if self.motion == "sliding" else f"{self.motion} about the axis ({axis})"


class Observability(NamedTuple):
    """How well touching surfaces determine a pose, by direction, the least determined first."""

    directions: Floats  # [6, 6], rows: turn about x, y, z through ``center`` times ``radius``, then shift along x, y, z
    center: Floats  # [3]
    radius: float
    significance: Floats  # [6]: constraint over its standard error where there is none
    correlation: Floats  # [6]: share of the constraint that both clouds have

    @property
    def free_directions(self) -> tuple[FreeDirection, ...]:
        """Return the motions that are not determined."""
        is_free = (self.significance < _MIN_SIGNIFICANCE) | (self.correlation < _MIN_CORRELATION)
        return self._separate_and_classify_motions(self.directions[is_free])

    @property
    def nearly_free_directions(self) -> tuple[FreeDirection, ...]:
        """Return the motions that are far less determined than most: the likely reason of a pose that is refused."""
        is_weak = self.significance < _MIN_RELATIVE * np.median(self.significance)
        return self._separate_and_classify_motions(self.directions[is_weak])

    def build_motion_transform(self, motion: Floats) -> Floats:
        """Return the rigid transform [4, 4] of a motion [6] in the coordinates of :attr:`directions`."""
        transform = np.eye(4)
        transform[:3, :3] = rotation = convert_to_rotation_matrix(motion[:3] / self.radius)
        transform[:3, 3] = self.center - rotation @ self.center + motion[3:]
        return transform

    def _separate_and_classify_motions(self, motions: Floats) -> tuple[FreeDirection, ...]:
        if not len(motions):
            return ()
        left, turns, _ = np.linalg.svd(motions[:, :3])
        motions = left.T @ motions  # any slides among them apart from the turns
        turns = np.pad(turns, (0, max(0, len(motions) - len(turns))))
        return tuple(self._classify_motion(motion, turn) for motion, turn in zip(motions, turns, strict=False))

    def _classify_motion(self, motion: Floats, rotation_norm: float) -> FreeDirection:
        shift = motion[3:]
        if rotation_norm < _TURNING:
            return FreeDirection("sliding", _normalize_axis_and_sign(shift), self.center)
        axis = motion[:3] / rotation_norm
        point = self.center + np.cross(axis, shift) * self.radius / rotation_norm
        rise = abs(float(axis @ shift))
        return FreeDirection(
            "screwing" if rise > _RISING * rotation_norm else "turning", _normalize_axis_and_sign(axis), point
        )


def _normalize_axis_and_sign(axis: Floats) -> Floats:
    """Return the unit vector with its largest component positive."""
    unit: Floats = axis / np.linalg.norm(axis)
    return -unit if unit[np.abs(unit).argmax()] < 0 else unit


def measure_observability(points: Floats, source_normals: Floats, target_normals: Floats) -> Observability:
    """Measure touching ``points`` [N, 3] with the normals [N, 3] of both clouds, all in the target's frame."""
    center = points.mean(0)
    arm = points - center
    radius = max(float(np.sqrt((arm**2).sum(1).mean())), 1e-9)
    side = np.sign((source_normals * target_normals).sum(1))[:, None]
    rows = [np.hstack((np.cross(arm / radius, n), n)) for n in (source_normals, target_normals * side)]
    product = rows[0].T @ rows[1] / len(points)
    constraint, directions = np.linalg.eigh((product + product.T) / 2)
    directions = directions.T
    squares = [((row @ directions.T) ** 2).mean(0) for row in rows]
    noise = np.maximum((squares[0] + squares[1]) / 2 - constraint, 1e-12)
    significance = constraint / (noise * np.sqrt(CORRELATED / len(points)))
    correlation = constraint / np.maximum(np.sqrt(squares[0] * squares[1]), 1e-12)
    return Observability(directions, center, radius, significance, correlation)
