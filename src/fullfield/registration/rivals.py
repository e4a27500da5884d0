"""Other poses that fit as well as the best one: scenes that repeat themselves, or look the same after a turn.

Rivals are looked for on purpose: besides other hypotheses, the target is matched with itself, also after turns about
the main directions of its surfaces. Only what both clouds show in both poses decides between them, away from the ends
of their surfaces and within the hulls of both; how much they share does not, for that depends on the windows. Lengths
are voxels.
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
    convert_to_rotation_matrix,
    find_nearest_in_tree,
    find_nearest_points,
    measure_significance,
    refine_pose_on_planes,
)
from fullfield.registration.descriptors import Floats, Ints
from fullfield.registration.observability import measure_observability
from fullfield.registration.ransac import apply_transform, search_pose_hypotheses
from fullfield.registration.scan import Scan
from fullfield.registration.windows import Windows

_SIGNIFICANT, _UNLIKE = 4.5, 0.16
"""Significance, or share of points that look alike in one pose only, that decides between two; they are added."""
_EQUAL = 1.0  # margin below which the clouds do not decide
_SILENT, _CLOSE, _STEPS = 1.0, 1.5, 2  # significance and margin of poses of which several make a scene of equal steps
_DECISIVE, _DECISIVE_IN_EACH = 2.0, 1.2  # significance, and that of patches in each cloud, with which surfaces decide
_DECISIVE_ALONE = 2.5  # significance without such patches
_STEP, _NOT_SYMMETRIC, _CLEAR = 4, 0.16, 4.0  # of points that show, by such a contradiction and margin, that it is none
_MIN_PREVIEWED = 0.3  # confirmed share of these points, over that of the best pose
_MIN_COMPARED = 100  # points away from ends, with which ends are left out
_MIN_CONFIRMED, _AS_LARGE = 0.35, 0.7  # of the best pose's confirmed points, for a rival and for a better pose
_FACTOR, _DIFFERENCE = 1.5, 0.05  # between descriptors that are alike and those that are not
_ELSEWHERE = 6.0  # distance from a point from which its copies are looked for
_COPIED, _TRIPLES, _MOTIONS = 600, 10_000, 6  # points, RANSAC's triples and results of the match with itself
_THRESHOLD = 1.5  # of RANSAC
_SIMILAR, _VOTING_CELL, _VOTER_CELL = 10, 3.0, 5.0  # partners of a point, edges of cells of shifts and of their voters
_SHIFTS_WITHOUT_TURN = 4  # that are looked at; one for each turn
_AXIS_STEPS = 5  # until the main normals settle
_ANGLES = np.radians((60, 72, 90, 120, 144, 180, 216, 240, 270, 288, 300))
_SAMPLED, _SCREENED = 800, 300  # points for a fit, and for a look whether it is worth one
_MAX_DISTANCE, _MIN_CLOSE_FRACTION = 3.0, 0.2  # voxels to a point that is near, share of points that are
_MIN_COSINE = 0.8  # of normals that agree
_MIN_AGREEING_FRACTION = 0.65  # of the near points, whose normals agree
_WIDE_REACHES, _REACHES = (4.0, 4.0, 3.5, 3.0), (3.0, 2.5, 2.0, 2.0, 2.0)  # of a fit to few points, and to more
_MIN_TOUCHING, _MIN_CONSTRAINT, _MOST = 20, 0.1, 0.6
"""Points whose constraints are measured, the weakest one over that of the best pose, and confirmed share without it."""
_DETERMINED, _PER_MARGIN = 4.0, 30.0
"""Significance of a weakest constraint that is no noise, and over the margin of a rival that counts by itself."""
_MIN_DISTANCE, _SAME, _SAME_BASIN = 4.0, 2.0, 1.0
"""RMS between where the best pose and a rival bring the points, two equal rivals, and two that a fit would unite."""


class Rival(NamedTuple):
    """Pose beside the best one, and what speaks for either."""

    transform: Floats  # [4, 4]
    confirmed_ratio: float  # confirmed points, over those of the best pose
    significance: float  # of the points that contradict this pose and confirm the best one, less the reverse
    unlike_fraction: float  # of points confirmed in both: those alike in the best pose only, less the reverse
    patch_significance: float  # significance of the patches of such points, in the cloud where it is smaller

    @property
    def margin(self) -> float:
        """Return how clearly the clouds decide against this pose: 1 where they hardly do, below 0 where they do not."""
        return self.significance / _SIGNIFICANT + self.unlike_fraction / _UNLIKE

    @property
    def is_refuted(self) -> bool:
        """Return whether surfaces decide against this pose.

        Something without an image contradicts in both clouds: where it stands, and where its image is missing. What the
        border of a window cuts contradicts in one cloud only.
        """
        has_patches = self.patch_significance >= _DECISIVE_IN_EACH
        return self.significance >= (_DECISIVE if has_patches else _DECISIVE_ALONE)

    @property
    def is_equal(self) -> bool:
        """Return whether the clouds do not decide between the two."""
        return self.confirmed_ratio >= _MIN_CONFIRMED and self.margin < _EQUAL and not self.is_refuted

    @property
    def is_close(self) -> bool:
        """Return whether only descriptors speak against this pose, and not clearly."""
        return self.confirmed_ratio >= _MIN_CONFIRMED and self.margin < _CLOSE and self.significance < _SILENT

    @property
    def is_better(self) -> bool:
        """Return whether the clouds decide for this one."""
        return self.margin < -1 and self.unlike_fraction < 0 and self.confirmed_ratio > _AS_LARGE


def find_rivals(
    best_transform: Floats,
    source: Scan,
    target: Scan,
    comparison: SurfaceComparison,
    best_agreement: Agreement,
    windows: Windows,
    known_poses: Sequence[Floats],
    seed: int,
) -> list[Rival]:
    """Return poses that differ from ``best_transform`` and that the clouds may not decide against.

    ``best_agreement`` and ``windows`` are those of ``best_transform``; ``known_poses`` may be rivals.
    """
    sampled = np.random.default_rng(seed).permutation(len(source.points))[:_SAMPLED]
    points, normals = source.points[sampled], source.normals[sampled]
    planes, sampled_rows = Planes.from_scan(target), comparison.list_sampled_indices(_STEP)
    sampled_agreement = best_agreement.select_points(sampled_rows)
    motions = _find_motions_onto_copies(windows.points[0], target, seed)
    best_constraint = _measure_weakest_constraint(
        best_transform, source, target, best_agreement.confirmed & best_agreement.is_surrounded
    )
    rivals, compared = list[Rival](), list[Floats]()
    for candidate in (*known_poses, *(motion @ best_transform for motion in motions)):
        if not _is_plausible_pose(planes, points[:_SCREENED], normals[:_SCREENED], candidate):
            continue
        roughly = refine_pose_on_planes(planes, points[:_SCREENED], normals[:_SCREENED], candidate, _WIDE_REACHES)
        if _is_near_any(roughly, (best_transform, *compared), points, _SAME_BASIN):
            continue
        refined = refine_pose_on_planes(planes, points, normals, roughly, _REACHES)
        if _is_near_any(refined, [best_transform], points, _MIN_DISTANCE) or _is_near_any(
            refined, compared, points, _SAME
        ):
            continue
        compared.append(refined)
        preview = comparison(refined, _STEP)
        previewed = _compare_rival_with_best(refined, preview, sampled_agreement, points_per_flag=_STEP)
        is_refuted = preview.contradicted_fraction > _NOT_SYMMETRIC and previewed.margin > _CLEAR
        if is_refuted or previewed.confirmed_ratio < _MIN_PREVIEWED:
            continue
        agreement = comparison(refined)
        rival = _compare_rival_with_best(refined, agreement, best_agreement)
        if rival.margin < _CLEAR:
            rival = _compare_rival_with_best(refined, agreement, best_agreement, windows)
        if rival.confirmed_ratio < _MOST:
            constraint = _measure_weakest_constraint(refined, source, target, agreement.confirmed)
            is_determined = constraint >= max(_DETERMINED, _PER_MARGIN * rival.margin)
            if constraint < _MIN_CONSTRAINT * best_constraint and not is_determined:
                continue
        rivals.append(rival)
    return rivals


def select_equal_rivals(rivals: Sequence[Rival]) -> list[Rival]:
    """Return the rivals between which and the best pose the clouds do not decide.

    Where a scene repeats itself in steps, as stairs do, windows' ends change the descriptors near them, so these speak
    for the pose in which the ends coincide, while the surfaces decide nothing.
    """
    close = [rival for rival in rivals if rival.is_close]
    return [rival for rival in rivals if rival.is_equal] or (close if len(close) >= _STEPS else [])


def compute_rms_distance_between_poses(first: Floats, second: Floats, points: Floats) -> float:
    """Return the RMS distance between where two poses bring ``points`` [N, 3]."""
    return float(np.sqrt(((apply_transform(first, points) - apply_transform(second, points)) ** 2).sum(1).mean()))


def _is_near_any(pose: Floats, others: Sequence[Floats], points: Floats, distance: float) -> bool:
    return any(compute_rms_distance_between_poses(pose, other, points) < distance for other in others)


def _compare_rival_with_best(
    transform: Floats,
    agreement: Agreement,
    best_agreement: Agreement,
    windows: Windows | None = None,
    points_per_flag: int = 1,
) -> Rival:
    """Compare a pose with the best one; each point stands for ``points_per_flag`` points."""
    shared = best_agreement.confirmed & agreement.confirmed
    is_against, is_in_favor = (
        best_agreement.confirmed & agreement.contradicted,
        best_agreement.contradicted & agreement.confirmed,
    )
    surrounded, patches = shared & best_agreement.is_surrounded & agreement.is_surrounded, 0.0
    if points_per_flag * np.count_nonzero(surrounded) >= _MIN_COMPARED:  # of a small overlap nearly all is near ends
        shared = surrounded
        is_against, is_in_favor = is_against & ~agreement.is_at_end, is_in_favor & ~best_agreement.is_at_end
        if windows is not None:
            is_against = is_against & ~windows.find_points_beyond_ends(transform)
            is_in_favor = is_in_favor & ~windows.is_outside_hull
            patches = windows.measure_patch_significance(is_against, is_in_favor)
    significance = measure_significance(is_against, is_in_favor, points_per_flag)
    first, second = best_agreement.unlikeness[shared], agreement.unlikeness[shared]
    only_best = np.count_nonzero(second > _FACTOR * first + _DIFFERENCE)
    only_rival = np.count_nonzero(first > _FACTOR * second + _DIFFERENCE)
    confirmed = int(agreement.confirmed.sum()) / max(int(best_agreement.confirmed.sum()), 1)
    unlike = (only_best - only_rival) / max(len(first), 1)
    return Rival(transform, confirmed, significance, unlike, patches)


def _measure_weakest_constraint(transform: Floats, source: Scan, target: Scan, is_confirmed: Flags) -> float:
    """Return the significance of the direction that confirmed points [N + M] determine least in a pose."""
    rows = np.flatnonzero(is_confirmed[: len(source.points)])
    if len(rows) < _MIN_TOUCHING:
        return 0.0
    points = apply_transform(transform, source.points[rows])
    partner = find_nearest_points(target.points, points)[1]
    normals = source.normals[rows] @ transform[:3, :3].T
    return float(measure_observability(points, normals, target.normals[partner]).significance.min())


def _is_plausible_pose(planes: Planes, points: Floats, normals: Floats, transform: Floats) -> bool:
    """Return whether surfaces come near each other, most of them along each other, before any fit."""
    distance, partner = find_nearest_in_tree(planes.tree, apply_transform(transform, points))
    is_close = distance <= _MAX_DISTANCE
    cosine = np.abs((normals @ transform[:3, :3].T * planes.normals[partner]).sum(1))
    close_count = int(is_close.sum())
    return (
        close_count >= _MIN_CLOSE_FRACTION * len(points)
        and int((is_close & (cosine >= _MIN_COSINE)).sum()) >= _MIN_AGREEING_FRACTION * close_count
    )


def _find_motions_onto_copies(source_points: Floats, target: Scan, seed: int) -> list[Floats]:
    """Return the motions that bring what both clouds show to similar surfaces elsewhere in the target."""
    distance, _ = find_nearest_points(source_points, target.points)
    rows = np.flatnonzero(distance <= _THRESHOLD)
    features = target.features.astype(np.float32)
    unusual = np.linalg.norm(features[rows] - np.median(features, axis=0), axis=1)
    rows = rows[np.argsort(-unusual, kind="stable")[: len(rows) // 2]]
    if len(rows) > _COPIED:
        rows = np.random.default_rng(seed).choice(rows, _COPIED, replace=False)
    if len(rows) < 3 or len(features) <= _SIMILAR:
        return []
    unlikeness = (features**2).sum(1) - 2 * features[rows] @ features.T
    unlikeness[_compute_squared_distances(target.points[rows], target.points) < _ELSEWHERE**2] = np.inf
    ends = target.points[rows], target.points[unlikeness.argmin(1)]
    hypotheses = search_pose_hypotheses(*ends, _THRESHOLD, iterations=_TRIPLES, seed=seed, max_count=_MOTIONS)
    partners = np.argpartition(unlikeness, _SIMILAR, axis=1)[:, :_SIMILAR]
    voted = _find_motions_by_votes(target, rows, partners)
    return [hypothesis.transform for hypothesis in hypotheses] + voted


def _find_motions_by_votes(target: Scan, rows: Ints, partners: Ints) -> list[Floats]:
    """Return the shifts, and the turns each with a shift, that bring most parts of the target to their partners.

    Points along an edge all look alike, so a triple hardly ever holds three true partners; a shift needs only one.
    Points of one small cell have one vote, or two edges of one box would outvote the rest of a room.
    """
    places, _ = _compute_cell_numbers_and_grid_shape(target.points[rows].T, _VOTER_CELL)
    voters = np.repeat(np.unique(places, return_inverse=True)[1], partners.shape[1])
    points, partner_points = target.points[rows].T, np.moveaxis(target.points[partners], 2, 0).copy()
    motions = list[Floats]()
    for number, rotation in enumerate((np.eye(3), *_list_rotations_about_main_normals(target))):
        shifts = (partner_points - (rotation @ points)[:, :, None]).reshape(3, -1)
        cells, shape = _compute_cell_numbers_and_grid_shape(shifts, _VOTING_CELL)
        ballots = np.sort(cells * len(rows) + voters)  # np.unique takes many times as long
        ballots = ballots[np.diff(ballots, prepend=-1) > 0] // len(rows)
        starts = np.flatnonzero(np.diff(ballots, prepend=-1))
        votes = np.diff(starts, append=len(ballots))
        for start in starts[np.argsort(-votes, kind="stable")[: 1 if number else _SHIFTS_WITHOUT_TURN]]:
            cell = np.array(np.unravel_index(ballots[start], shape))
            x, y, z = shifts - (shifts.min(1) + (cell + 0.5) * _VOTING_CELL)[:, None]
            is_near = x * x + y * y + z * z <= _VOTING_CELL**2
            motion = np.eye(4)
            motion[:3, :3], motion[:3, 3] = rotation, np.median(shifts[:, is_near], axis=1)
            motions.append(motion)
    return motions


def _compute_cell_numbers_and_grid_shape(coordinates: Floats, cell_size: float) -> tuple[Ints, tuple[int, ...]]:
    """Return the numbers [N] of the cubic cells of points [3, N], and the numbers of cells along x, y and z."""
    x, y, z = (((values - values.min()) / cell_size).astype(np.int64) for values in coordinates)
    shape = int(x.max()) + 1, int(y.max()) + 1, int(z.max()) + 1
    return (x * shape[1] + y) * shape[2] + z, shape


def _compute_squared_distances(first: Floats, second: Floats) -> Floats:
    a, b = first.astype(np.float32), second.astype(np.float32)
    squares: Floats = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return squares


def _list_rotations_about_main_normals(target: Scan) -> list[Floats]:
    return [convert_to_rotation_matrix(angle * axis) for axis in find_main_normals(target.normals) for angle in _ANGLES]


def find_main_normals(normals: Floats) -> Floats:
    """Return the three directions [3, 3], at right angles, along which most of the ``normals`` [N, 3] lie.

    Principal directions alone are wrong where a room's floor has the area of its walls, because every direction between
    the two is as good. So they are turned until normals lie along them as closely as they can (quartimax).
    """
    axes = np.linalg.eigh(normals.T @ normals)[1]
    for _ in range(_AXIS_STEPS):
        left, _, right = np.linalg.svd(normals.T @ (normals @ axes) ** 3)
        axes = left @ right
    directions: Floats = axes.T
    return directions
