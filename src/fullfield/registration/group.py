"""Registration of several clouds: pairs first, then one pose each by a pose graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np

from fullfield import _check
from fullfield.registration.contacts import convert_to_rotation_matrix
from fullfield.registration.descriptors import Floats
from fullfield.registration.packages import import_module_of_extra
from fullfield.registration.ransac import apply_transform
from fullfield.registration.register import Progress, Settings, register_clouds
from fullfield.registration.result import Registration
from fullfield.registration.scan import take_finite_points

_MAX_CLOUDS_IN_PAIRS = 8  # above, each cloud is registered with the next ones only
_NEXT = 3
_CONTRADICTS = 2.0  # voxels, RMS, that an edge of the graph may be off


class PairResult(NamedTuple):
    """Registration of one pair of a group."""

    source: int
    target: int
    registration: Registration
    residual: float  # RMS distance, in the clouds' units, between this pose and the group's; NaN where there is none


class GroupRegistration(NamedTuple):
    """Poses of the clouds that accepted pairs connect, in the frame of the first of them.

    Where there are several such groups, it is the largest one, of equal ones the one with the earliest cloud.
    """

    poses: tuple[Floats | None, ...]  # [4, 4] each, cloud into frame; None where no accepted pair leads to the group
    pairs: tuple[PairResult, ...]
    contradictions: tuple[PairResult, ...]  # accepted pairs that the others do not confirm; they were left out
    frame: int  # number of the cloud whose frame the poses lead to; 0 where the group contains the first cloud

    @property
    def is_complete(self) -> bool:
        """Return whether every cloud has a pose, and no two pairs contradict each other."""
        return all(pose is not None for pose in self.poses) and not self.contradictions


def register_group(
    clouds: Sequence[Any], settings: Settings | None = None, progress: Progress | None = None
) -> GroupRegistration:
    """Register all pairs of up to eight clouds, of more each with the next three, and fit one pose to each cloud.

    With more than eight clouds their order matters: neighbours should overlap. The result has ``poses`` (one [4, 4]
    for each cloud, None where it is not connected), the number ``frame`` of the cloud in whose frame they are, and
    ``pairs`` and ``contradictions`` with the registration of each pair.

    Args:
        clouds: at least two, each as for :func:`fullfield.registration.register`.
        settings: arguments of each pair's registration.
        progress: receives the fraction done and the next step.

    Raises:
        InputError: as :func:`fullfield.registration.register`.
        SetupError: if small_gicp or SciPy is not installed.
    """
    _check.require(len(clouds) >= 2, "clouds", "at least 2", len(clouds))
    points = [take_finite_points(cloud, f"clouds[{position}]", 1) for position, cloud in enumerate(clouds)]
    numbers = list(combinations(range(len(clouds)), 2))
    if len(clouds) > _MAX_CLOUDS_IN_PAIRS:
        numbers = [(first, second) for first, second in numbers if second - first <= _NEXT]
    registrations = {}
    for number, (target, source) in enumerate(numbers):
        if progress is not None:
            progress(number / len(numbers), f"registering cloud {source + 1} with cloud {target + 1}")
        registrations[source, target] = register_clouds(points[source], points[target], settings or Settings())
    return fit_group_poses_dropping_contradictions(points, registrations)


def fit_group_poses_dropping_contradictions(
    points: Sequence[Floats], registrations: Mapping[tuple[int, int], Registration]
) -> GroupRegistration:
    """Fit one pose to each cloud, given the registrations of pairs (source, target).

    While an accepted pair is off, the least certain one among the clearly worst is left out and named.
    """
    corners = [_compute_core_box_corners(cloud) for cloud in points]
    edges = {pair: registration for pair, registration in registrations.items() if registration.success}
    dropped = dict[tuple[int, int], Registration]()
    while True:
        frame = _find_largest_connected_group(len(points), edges)[0]
        poses = _fit_group_poses(corners, edges, frame)
        residuals = {
            pair: _compute_registration_residual(corners, poses, pair, registration) / registration.voxel
            for pair, registration in edges.items()
        }
        off = {pair: value for pair, value in residuals.items() if not math.isnan(value)}  # NaN: in another group
        worst = max(off.values(), default=0.0)
        if worst <= _CONTRADICTS:
            break
        candidates = [pair for pair, value in off.items() if value >= 0.7 * worst]
        pair = min(candidates, key=lambda pair: edges[pair].confidence)
        dropped[pair] = edges.pop(pair)
    results = {
        pair: PairResult(*pair, registration, _compute_registration_residual(corners, poses, pair, registration))
        for pair, registration in registrations.items()
    }
    return GroupRegistration(tuple(poses), tuple(results.values()), tuple(results[pair] for pair in dropped), frame)


def _find_largest_connected_group(cloud_count: int, pairs: Collection[tuple[int, int]]) -> list[int]:
    """Return the numbers of the clouds in the largest group that ``pairs`` connect, the earliest of equal ones."""
    groups = [[number] for number in range(cloud_count)]
    for pair in pairs:
        connected = [group for group in groups if not set(group).isdisjoint(pair)]
        groups = [group for group in groups if group not in connected] + [sorted(chain.from_iterable(connected))]
    return max(sorted(groups), key=len)


def _compute_core_box_corners(points: Floats) -> Floats:
    """Return the corners [8, 3] of the box around most of the points."""
    low, high = np.quantile(points, (0.05, 0.95), axis=0)
    grid = np.stack(np.meshgrid(*zip(low, high, strict=True), indexing="ij"), -1)
    return np.asarray(grid.reshape(8, 3), np.float64)


def _compute_registration_residual(
    corners: Sequence[Floats], poses: Sequence[Floats | None], pair: tuple[int, int], registration: Registration
) -> float:
    source, target = (poses[number] for number in pair)
    pose = registration.transform if registration.success else None
    if source is None or target is None or pose is None:
        return float("nan")
    difference = apply_transform(source, corners[pair[0]]) - apply_transform(
        target, apply_transform(pose, corners[pair[0]])
    )
    return float(np.sqrt((difference**2).sum(1).mean()))


def _fit_group_poses(
    corners: Sequence[Floats], edges: Mapping[tuple[int, int], Registration], frame: int
) -> list[Floats | None]:
    """Return the poses that fit the edges best, in the frame of the cloud ``frame``; None where none leads to it."""
    poses: list[Floats | None] = [None] * len(corners)
    poses[frame] = np.eye(4)
    for _ in corners:  # the most certain edges first, as a spanning tree
        for (source, target), registration in sorted(edges.items(), key=lambda edge: -edge[1].confidence):
            first, second = poses[source], poses[target]
            if first is None and second is not None and registration.transform is not None:
                poses[source] = second @ registration.transform
                break
            if second is None and first is not None and registration.transform is not None:
                poses[target] = first @ np.linalg.inv(registration.transform)
                break
    free = [number for number, pose in enumerate(poses) if number != frame and pose is not None]
    used = [
        (pair, registration.transform, registration.voxel)
        for pair, registration in edges.items()
        if poses[pair[0]] is not None and registration.transform is not None
    ]
    if len(used) <= len(free):
        return poses  # a tree: every edge is met
    least_squares = import_module_of_extra("scipy.optimize", "several clouds need").least_squares
    initial = {number: pose for number, pose in enumerate(poses) if pose is not None}
    centers = {number: apply_transform(initial[number], corners[number]).mean(0) for number in free}
    sizes = {number: max(float(np.linalg.norm(np.ptp(corners[number], axis=0))), 1e-12) for number in free}

    def move_clouds(parameters: Floats) -> dict[int, Floats]:
        current_poses = dict(initial)
        for number, (turn, shift) in zip(free, parameters.reshape(-1, 2, 3), strict=True):
            change = np.eye(4)
            change[:3, :3] = convert_to_rotation_matrix(turn)
            change[:3, 3] = centers[number] - change[:3, :3] @ centers[number] + shift * sizes[number]
            current_poses[number] = change @ initial[number]
        return current_poses

    def compute_residuals(parameters: Floats) -> Floats:
        current_poses, rows = move_clouds(parameters), []
        for (source, target), transform, voxel in used:
            goal = apply_transform(current_poses[target] @ transform, corners[source])
            rows.append((apply_transform(current_poses[source], corners[source]) - goal).ravel() / voxel)
        return np.concatenate(rows)

    solution = least_squares(compute_residuals, np.zeros(6 * len(free)), loss="soft_l1", x_scale="jac")
    current_poses = move_clouds(solution.x)
    return [current_poses.get(number) for number in range(len(poses))]
