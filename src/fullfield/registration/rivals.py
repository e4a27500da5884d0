"""Other poses that fit as well as the best one: scenes that repeat themselves, or look the same after a turn.

Rivals are looked for on purpose: besides other hypotheses, the target is matched with itself and turned about the main
directions of its surfaces. Only what both clouds show in both poses decides between them; how much they share does not,
for that depends on the windows. Lengths are voxels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fullfield.registration.contacts import (
    Agreement,
    Flags,
    Planes,
    SurfaceComparison,
    find_nearest_in_tree,
    find_nearest_points,
    fit_planes,
    rotation_matrix,
)
from fullfield.registration.descriptors import Floats
from fullfield.registration.ransac import apply_transform, search_hypotheses
from fullfield.registration.scan import Scan

_SIGNIFICANT, _UNLIKE = 4.5, 0.16
"""Significance, or share of points that look alike in one pose only, that decides between two; they are added."""
_NEARLY_SYMMETRIC, _END = 0.12, 2.0  # contradicted share of a rival by which its motion is a symmetry; voxels
_CLOSE, _STEPS = 2.3, 3  # margin of poses that come close to the best, and how many make a scene that repeats itself
_SURFACES_DECIDE, _DESCRIPTORS_DECIDE = 1.5, 1.5  # significance, and without it the margin that descriptors need
_UNDECIDED, _UNDECIDED_MARGIN, _SHIFTS = 2.2, 2.0, 2  # significance, margin and number of poses that only ends decide
_STEP, _NOT_SYMMETRIC, _CLEAR = 4, 0.16, 4.0  # of points that show, by such a contradiction and margin, that it is none
_CORRELATED = 8.0  # points that contradict a pose together, as those of one surface do
_MIN_CONFIRMED, _AS_LARGE = 0.25, 0.7  # of the best pose's confirmed points, for a rival and for a better pose
_FACTOR, _DIFFERENCE = 1.5, 0.05  # between descriptors that are alike and those that are not
_ELSEWHERE = 6.0  # distance from a point from which its copies are looked for
_COPIED, _TRIPLES, _MOTIONS = 600, 10_000, 6  # points, RANSAC's triples and results of the match with itself
_THRESHOLD = 1.5  # of RANSAC
_ANGLES = np.radians((60, 72, 90, 120, 144, 180, 216, 240, 270, 288, 300))
_SAMPLED, _SCREENED = 800, 300  # points for a fit, and for a look whether it is worth one
_MAX_DISTANCE, _MIN_CLOSE_FRACTION = 3.0, 0.2  # voxels to a point that is near, share of points that are
_MIN_COSINE = 0.8  # of normals that agree
_MIN_AGREEING_FRACTION = 0.65  # of the near points, whose normals agree
_REACHES = (3.0, 3.0, 2.5, 2.0, 2.0, 2.0)
_MIN_DISTANCE = 3.0  # RMS between where two poses bring the points


class Rival(NamedTuple):
    """Pose beside the best one, and what speaks for either."""

    transform: Floats  # [4, 4]
    confirmed: float  # confirmed points, over those of the best pose
    significance: float  # of the points that contradict this pose and confirm the best one, less the reverse
    unlike: float  # share of the points confirmed in both that look alike in the best pose only, less the reverse

    @property
    def margin(self) -> float:
        """Return how clearly the clouds decide against this pose: 1 where they hardly do, below 0 where they do not."""
        return self.significance / _SIGNIFICANT + self.unlike / _UNLIKE

    @property
    def is_equal(self) -> bool:
        """Return whether the clouds do not decide between the two."""
        limit = 1.0 if self.significance >= _SURFACES_DECIDE else _DESCRIPTORS_DECIDE
        return self.confirmed >= _MIN_CONFIRMED and self.margin < limit

    @property
    def is_better(self) -> bool:
        """Return whether the clouds decide for this one."""
        return self.margin < -1 and self.unlike < 0 and self.confirmed > _AS_LARGE


def find_rivals(
    transform: Floats,
    source: Scan,
    target: Scan,
    compare: SurfaceComparison,
    best: Agreement,
    others: Sequence[Floats],
    seed: int,
) -> list[Rival]:
    """Return poses that differ from ``transform`` and that the clouds may not decide against.

    ``best`` is the agreement in ``transform``; ``others`` are known poses that may be rivals.
    """
    sampled = np.random.default_rng(seed).permutation(len(source.points))[:_SAMPLED]
    points, normals = source.points[sampled], source.normals[sampled]
    planes, rows = Planes.from_scan(target), compare.list_rows(_STEP)
    few = best.select(rows)
    motions = _find_copies(apply_transform(transform, source.points), target, seed) + _list_turns(target)
    rivals, compared = list[Rival](), [transform]
    for candidate in (*others, *(motion @ transform for motion in motions)):
        if not _is_plausible(planes, points[:_SCREENED], normals[:_SCREENED], candidate):
            continue
        refined = fit_planes(planes, points, normals, candidate, _REACHES)
        if all(rms_distance_between_poses(refined, other, points) >= _MIN_DISTANCE for other in compared):
            compared.append(refined)
            preview = compare(refined, _STEP)
            if (
                preview.contradiction > _NOT_SYMMETRIC
                and _judge_rival(refined, preview, few, None, _STEP).margin > _CLEAR
            ):
                continue
            agreement = compare(refined)
            motion = refined @ np.linalg.inv(transform)
            ends = None
            if agreement.contradiction <= _NEARLY_SYMMETRIC:
                ends = _find_window_ends(motion, apply_transform(transform, source.points), target.points)
            rivals.append(_judge_rival(refined, agreement, best, ends))
    return rivals


def select_undecided(rivals: Sequence[Rival]) -> list[Rival]:
    """Return the rivals between which and the best pose the clouds do not decide.

    Where a scene repeats itself in steps, as stairs and shelves do, windows' ends change the descriptors near them, so
    these speak for the pose in which the ends coincide, while the surfaces decide nothing. Or several poses come close.
    """
    equal = [rival for rival in rivals if rival.is_equal]
    close = [rival for rival in rivals if rival.confirmed >= _MIN_CONFIRMED and rival.margin < _CLOSE]
    if equal or len(close) >= _STEPS:
        return equal or close
    undecided = [rival for rival in close if rival.significance < _UNDECIDED and rival.margin < _UNDECIDED_MARGIN]
    return undecided if len(undecided) >= _SHIFTS else []


def rms_distance_between_poses(first: Floats, second: Floats, points: Floats) -> float:
    """Return the RMS distance between where two poses bring ``points`` [N, 3]."""
    return float(np.sqrt(((apply_transform(first, points) - apply_transform(second, points)) ** 2).sum(1).mean()))


def _find_window_ends(motion: Floats, source: Floats, target: Floats) -> Flags:
    """Return the points [N + M] that meet an end of the other cloud's window after ``motion``, if it is a symmetry.

    ``source`` is in the best pose. Stairs that are shifted by a step hang over the last step of the other scan, whose
    window ends there: its next step is not in its own cloud either. That contradicts nothing.
    """
    inverse = np.asarray(np.linalg.inv(motion), np.float64)
    beyond_target = find_nearest_points(target, apply_transform(motion, target))[0] > _END
    beyond_source = find_nearest_points(source, apply_transform(inverse, source))[0] > _END
    target_partner = find_nearest_points(target, apply_transform(motion, source))[1]
    source_partner = find_nearest_points(source, apply_transform(inverse, target))[1]
    return np.concatenate((beyond_target[target_partner], beyond_source[source_partner]))


def _judge_rival(
    transform: Floats, agreement: Agreement, best: Agreement, ends: Flags | None, represented: int = 1
) -> Rival:
    """Compare a pose with the best one; each point stands for ``represented`` points."""
    is_against = best.confirmed & agreement.contradicted
    against = represented * np.count_nonzero(is_against if ends is None else is_against & ~ends)
    favor = represented * np.count_nonzero(best.contradicted & agreement.confirmed)
    significance = (against - favor) / np.sqrt(_CORRELATED * (against + favor + _CORRELATED))
    shared = best.confirmed & agreement.confirmed
    first, second = best.unlikeness[shared], agreement.unlikeness[shared]
    only_best = np.count_nonzero(second > _FACTOR * first + _DIFFERENCE)
    only_rival = np.count_nonzero(first > _FACTOR * second + _DIFFERENCE)
    confirmed = int(agreement.confirmed.sum()) / max(int(best.confirmed.sum()), 1)
    return Rival(transform, confirmed, float(significance), (only_best - only_rival) / max(len(first), 1))


def _is_plausible(planes: Planes, points: Floats, normals: Floats, transform: Floats) -> bool:
    """Return whether surfaces come near each other, most of them along each other, before any fit."""
    distance, partner = find_nearest_in_tree(planes.tree, apply_transform(transform, points))
    is_close = distance <= _MAX_DISTANCE
    cosine = np.abs((normals @ transform[:3, :3].T * planes.normals[partner]).sum(1))
    close_count = int(is_close.sum())
    return (
        close_count >= _MIN_CLOSE_FRACTION * len(points)
        and int((is_close & (cosine >= _MIN_COSINE)).sum()) >= _MIN_AGREEING_FRACTION * close_count
    )


def _find_copies(transformed: Floats, target: Scan, seed: int) -> list[Floats]:
    """Return the motions that bring what both clouds show to similar surfaces elsewhere in the target."""
    distance, _ = find_nearest_points(transformed, target.points)
    rows = np.flatnonzero(distance <= _THRESHOLD)
    features = target.features.astype(np.float32)
    unusual = np.linalg.norm(features[rows] - np.median(features, axis=0), axis=1)
    rows = rows[np.argsort(-unusual, kind="stable")[: len(rows) // 2]]
    if len(rows) > _COPIED:
        rows = np.random.default_rng(seed).choice(rows, _COPIED, replace=False)
    if len(rows) < 3:
        return []
    unlikeness = (features**2).sum(1) - 2 * features[rows] @ features.T
    unlikeness[_squared_distances(target.points[rows], target.points) < _ELSEWHERE**2] = np.inf
    ends = target.points[rows], target.points[unlikeness.argmin(1)]
    motions = search_hypotheses(*ends, _THRESHOLD, iterations=_TRIPLES, seed=seed, max_count=_MOTIONS)
    return [motion.transform for motion in motions]


def _squared_distances(first: Floats, second: Floats) -> Floats:
    a, b = first.astype(np.float32), second.astype(np.float32)
    squares: Floats = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return squares


def _list_turns(target: Scan) -> list[Floats]:
    """Return turns about the main directions of the normals, through the middle of the target."""
    center, motions = target.points.mean(0), []
    for axis in np.linalg.eigh(target.normals.T @ target.normals)[1].T:
        for angle in _ANGLES:
            motion = np.eye(4)
            motion[:3, :3] = rotation_matrix(angle * axis)
            motion[:3, 3] = center - motion[:3, :3] @ center
            motions.append(motion)
    return motions
