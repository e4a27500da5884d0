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
import torch

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
from fullfield.registration.observability import Observability, measure_observability
from fullfield.registration.ransac import apply_transform, search_pose_hypotheses
from fullfield.registration.scan import Scan
from fullfield.registration.windows import Windows

_SIGNIFICANT, _UNLIKE = 4.5, 0.16
"""Significance, or share of points that look alike in one pose only, that decides between two; they are added."""
_EQUAL, _NEARLY_EQUAL = 1.0, 2.0  # margins below which the clouds do not decide, and below which a doubt remains
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
_SHIFTS_WITHOUT_TURN, _HALF_TURN_SHIFTS = 4, 8  # that are looked at; two of those of a half turn are compared
_MAX_HALF_TURN_TRACE = -0.99
_AXIS_STEPS = 5  # until the main axes settle
_ANGLES = np.radians((60, 72, 90, 120, 144, 180, 216, 240, 270, 288, 300))
_SAMPLED, _SCREENED = 800, 300  # points for a fit, and for a look whether it is worth one
_MAX_DISTANCE, _MIN_CLOSE_FRACTION = 3.0, 0.2  # voxels to a point that is near, share of points that are
_MIN_COSINE = 0.8  # of normals that agree
_MIN_AGREEING_FRACTION = 0.65  # of the near points, whose normals agree
_WIDE_REACHES, _REACHES = (4.0, 4.0, 3.5, 3.0), (3.0, 2.5, 2.0, 2.0, 2.0)  # of a fit to few points, and to more
_MIN_TOUCHING, _MIN_CONSTRAINT, _MOST = 20, 0.1, 0.6
"""Points whose constraints are measured, the weakest one over that of the best pose, and confirmed share without it."""
_WEAK = 0.2  # of the best pose's weakest constraint: directions in which a fit to planes may slip
_SLIDES = (1.0, 8), (0.5, 1)  # voxels of a step, and the most of such steps, along a direction
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
    def margin_against(self) -> float:
        """Return how clearly the clouds decide against this pose: 1 where they hardly do, below 0 where they do not."""
        return self.significance / _SIGNIFICANT + self.unlike_fraction / _UNLIKE

    @property
    def is_refuted_by_surfaces(self) -> bool:
        """Return whether surfaces decide against this pose.

        Something without an image contradicts in both clouds: where it stands, and where its image is missing. What the
        border of a window cuts contradicts in one cloud only.
        """
        has_patches = self.patch_significance >= _DECISIVE_IN_EACH
        return self.significance >= (_DECISIVE if has_patches else _DECISIVE_ALONE)

    @property
    def is_equal(self) -> bool:
        """Return whether the clouds do not decide between the two."""
        return (
            self.confirmed_ratio >= _MIN_CONFIRMED and self.margin_against < _EQUAL and not self.is_refuted_by_surfaces
        )

    @property
    def is_equal_or_nearly(self) -> bool:
        """Return whether the clouds do not decide clearly against this pose; an equal one counts too."""
        return self.confirmed_ratio >= _MIN_CONFIRMED and self.margin_against < _NEARLY_EQUAL

    @property
    def is_opposed_only_by_descriptors(self) -> bool:
        """Return whether only descriptors speak against this pose, and not clearly."""
        return self.confirmed_ratio >= _MIN_CONFIRMED and self.margin_against < _CLOSE and self.significance < _SILENT

    @property
    def is_better(self) -> bool:
        """Return whether the clouds decide for this one."""
        return self.margin_against < -1 and self.unlike_fraction < 0 and self.confirmed_ratio > _AS_LARGE


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
    best_observability = _measure_observability_if_possible(
        best_transform, source, target, best_agreement, best_agreement.confirmed & best_agreement.is_surrounded
    )
    best_constraint = _get_lowest_significance_or_zero(best_observability)
    contest = _Contest(
        best_transform, source, target, comparison, best_agreement, sampled_agreement, windows, best_constraint
    )
    rivals, compared, unsettled = list[Rival](), list[Floats](), list[tuple[Rival, Observability]]()
    for candidate in (*known_poses, *(motion @ best_transform for motion in motions)):
        if not _is_surface_close_and_parallel(planes, points[:_SCREENED], normals[:_SCREENED], candidate):
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
        contradicted_fraction, previewed = contest.measure_contradiction_and_compare_on_sample(refined)
        is_clearly_refuted = contradicted_fraction > _NOT_SYMMETRIC and previewed.margin_against > _CLEAR
        if is_clearly_refuted or previewed.confirmed_ratio < _MIN_PREVIEWED:
            continue
        rival, observability = contest.compare_pose_and_measure_observability(refined)
        if contest.is_determined_enough(rival, observability):
            rivals.append(rival)
        if rival.margin_against < _CLEAR and observability is not None and contest.may_have_slipped(observability):
            unsettled.append((rival, observability))
    if select_undecided_rivals(rivals) or any(rival.is_better for rival in rivals):
        return rivals
    for rival, observability in sorted(unsettled, key=lambda entry: entry[0].margin_against):
        trial_rival = contest.slide_rival_to_equal_if_possible(rival, observability)
        if trial_rival is not None:
            return [*rivals, trial_rival]
    return rivals


class _Contest(NamedTuple):
    """Best pose, with which rivals are compared."""

    best_transform: Floats
    source: Scan
    target: Scan
    comparison: SurfaceComparison
    best_agreement: Agreement
    sampled_agreement: Agreement  # of every _STEP-th point
    windows: Windows
    best_constraint: float

    def measure_contradiction_and_compare_on_sample(self, transform: Floats) -> tuple[float, Rival]:
        """Compare every :data:`_STEP`-th point; also return the share of contradicted ones."""
        agreement = self.comparison(transform, _STEP)
        rival = _compare_rival_with_best(transform, agreement, self.sampled_agreement, points_per_flag=_STEP)
        return agreement.contradicted_fraction, rival

    def compare_pose_and_measure_observability(self, transform: Floats) -> tuple[Rival, Observability | None]:
        """Compare all points; also return how they determine a rival that is not clearly refuted."""
        agreement = self.comparison(transform)
        rival = _compare_rival_with_best(transform, agreement, self.best_agreement)
        if rival.margin_against < _CLEAR:
            rival = _compare_rival_with_best(transform, agreement, self.best_agreement, self.windows)
        if rival.margin_against >= _CLEAR and rival.confirmed_ratio >= _MOST:
            return rival, None
        return rival, _measure_observability_if_possible(
            transform, self.source, self.target, agreement, agreement.confirmed
        )

    def is_determined_enough(self, rival: Rival, observability: Observability | None) -> bool:
        """Return whether confirmed points determine a rival; if they are many, one free motion may be left.

        Walls of two rooms, back to back, confirm many points, but leave several motions free.
        """
        if observability is not None and (observability.significance < _DETERMINED).sum() > 1:
            return False
        return (
            rival.confirmed_ratio >= _MOST
            or _get_lowest_significance_or_zero(observability) >= _MIN_CONSTRAINT * self.best_constraint
            or self.is_clearly_determined(rival, observability)
        )

    def is_clearly_determined(self, rival: Rival, observability: Observability | None) -> bool:
        """Return whether confirmed points determine a rival clearly, however many they are."""
        return _get_lowest_significance_or_zero(observability) >= max(_DETERMINED, _PER_MARGIN * rival.margin_against)

    def may_have_slipped(self, observability: Observability) -> bool:
        """Return whether a single direction is hardly determined: a fit to planes may have slipped along it."""
        return bool((observability.significance < _WEAK * self.best_constraint).sum() == 1)

    def slide_rival_to_equal_if_possible(self, rival: Rival, observability: Observability) -> Rival | None:
        """Move a rival along the direction that touching surfaces determine least; None unless it becomes equal.

        A fit to planes slips there: few points hold it, and some of them touch another surface than their own. But what
        it confirms and contradicts shows where it belongs.
        """
        direction = observability.directions[observability.significance.argmin()]
        transform, margin = (
            rival.transform,
            self.measure_contradiction_and_compare_on_sample(rival.transform)[1].margin_against,
        )
        for step, max_count in _SLIDES:
            for displacement in (step, -step):
                motion, count = observability.build_motion_transform(displacement * direction), 0
                while count < max_count:
                    trial = motion @ transform
                    trial_margin = self.measure_contradiction_and_compare_on_sample(trial)[1].margin_against
                    if trial_margin >= margin:
                        break
                    transform, margin, count = trial, trial_margin, count + 1
                if count:
                    break
        distance = compute_rms_distance_between_poses(transform, self.best_transform, self.source.points)
        if margin >= _CLOSE or distance < _MIN_DISTANCE or transform is rival.transform:
            return None
        trial_rival, trial_observability = self.compare_pose_and_measure_observability(transform)
        is_equal = trial_rival.is_equal and self.is_clearly_determined(trial_rival, trial_observability)
        return trial_rival if is_equal else None


def select_undecided_rivals(rivals: Sequence[Rival]) -> list[Rival]:
    """Return the rivals between which and the best pose the clouds do not decide.

    Where a scene repeats itself in steps, as stairs do, windows' ends change the descriptors near them, so these speak
    for the pose in which the ends coincide, while the surfaces decide nothing.
    """
    close = [rival for rival in rivals if rival.is_opposed_only_by_descriptors]
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


def _measure_observability_if_possible(
    transform: Floats, source: Scan, target: Scan, agreement: Agreement, is_used: Flags
) -> Observability | None:
    """Return how those points of the source that are used [N + M] determine a pose; None with too few."""
    rows = np.flatnonzero(is_used[: len(source.points)])
    if len(rows) < _MIN_TOUCHING:
        return None
    points, normals = apply_transform(transform, source.points[rows]), source.normals[rows] @ transform[:3, :3].T
    return measure_observability(points, normals, target.normals[agreement.partner[rows]])


def _get_lowest_significance_or_zero(observability: Observability | None) -> float:
    return 0.0 if observability is None else float(observability.significance.min())


def _is_surface_close_and_parallel(planes: Planes, points: Floats, normals: Floats, transform: Floats) -> bool:
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
    partners = torch.topk(torch.from_numpy(unlikeness), _SIMILAR, largest=False, sorted=False).indices.numpy()
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
    for number, rotation in enumerate((np.eye(3), *_list_rotations_about_main_axes(target))):
        shifts = (partner_points - (rotation @ points)[:, :, None]).reshape(3, -1)
        cells, shape = _compute_cell_numbers_and_grid_shape(shifts, _VOTING_CELL)
        ballots = np.sort(cells * len(rows) + voters)  # np.unique takes many times as long
        ballots = ballots[np.diff(ballots, prepend=-1) > 0] // len(rows)
        starts = np.flatnonzero(np.diff(ballots, prepend=-1))
        votes = np.diff(starts, append=len(ballots))
        is_half_turn = np.trace(rotation) < _MAX_HALF_TURN_TRACE
        count = _HALF_TURN_SHIFTS if is_half_turn else 1 if number else _SHIFTS_WITHOUT_TURN
        middles = [
            shifts.min(1) + (np.array(np.unravel_index(ballots[start], shape)) + 0.5) * _VOTING_CELL
            for start in starts[np.argsort(-votes, kind="stable")[:count]]
        ]
        for middle in _recenter_and_select_two_shifts(middles, shifts, voters) if is_half_turn else middles:
            motion = np.eye(4)
            motion[:3, :3], motion[:3, 3] = rotation, np.median(shifts[:, _find_nearby_shifts(shifts, middle)], axis=1)
            motions.append(motion)
    return motions


def _recenter_and_select_two_shifts(middles: list[Floats], shifts: Floats, voters: Ints) -> list[Floats]:
    """Return the two of some ``middles`` [3], moved to the mean of the ``shifts`` [3, N] around, with most voters.

    Cells cut a cluster of shifts in two, but not the sphere around its mean.
    """
    candidates = list[tuple[int, Floats]]()
    for middle in middles:
        mean = shifts[:, _find_nearby_shifts(shifts, middle)].mean(1)
        is_nearby = _find_nearby_shifts(shifts, mean)
        candidates.append((int(np.count_nonzero(np.bincount(voters[is_nearby]))), mean))
    selected = list[Floats]()
    for _, mean in sorted(candidates, key=lambda entry: -entry[0]):
        if all(np.linalg.norm(mean - other) > 2 * _VOTING_CELL for other in selected):
            selected.append(mean)
    return selected[:2]


def _find_nearby_shifts(shifts: Floats, middle: Floats) -> Flags:
    """Return which ``shifts`` [3, N] lie in the sphere of a cell around a middle."""
    x, y, z = shifts - middle[:, None]
    return np.asarray(x * x + y * y + z * z <= _VOTING_CELL**2)


def _compute_cell_numbers_and_grid_shape(coordinates: Floats, cell_size: float) -> tuple[Ints, tuple[int, ...]]:
    """Return the numbers [N] of the cubic cells of points [3, N], and the numbers of cells along x, y and z."""
    x, y, z = (((values - values.min()) / cell_size).astype(np.int64) for values in coordinates)
    shape = int(x.max()) + 1, int(y.max()) + 1, int(z.max()) + 1
    return (x * shape[1] + y) * shape[2] + z, shape


def _compute_squared_distances(first: Floats, second: Floats) -> Floats:
    a, b = first.astype(np.float32), second.astype(np.float32)
    squares: Floats = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return squares


def _list_rotations_about_main_axes(target: Scan) -> list[Floats]:
    return [
        convert_to_rotation_matrix(angle * axis) for axis in find_three_main_axes(target.normals) for angle in _ANGLES
    ]


def find_three_main_axes(normals: Floats) -> Floats:
    """Return the three axes [3, 3], at right angles, along which most of the ``normals`` [N, 3] lie.

    Principal directions alone are wrong where a room's floor has the area of its walls, because every direction between
    the two is as good. So they are turned until normals lie along them as closely as they can (quartimax).
    """
    axes = np.linalg.eigh(normals.T @ normals)[1]
    for _ in range(_AXIS_STEPS):
        left, _, right = np.linalg.svd(normals.T @ (normals @ axes) ** 3)
        axes = left @ right
    directions: Floats = axes.T
    return directions
