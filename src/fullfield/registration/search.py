"""Registration of two centred clouds at one voxel size: match, search, refine, judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fullfield.registration.contacts import Agreement, SurfaceComparison, measure_unusual_contradicted_fraction
from fullfield.registration.deformation import Deformation, explain_matches_by_shape_change, measure_deformation
from fullfield.registration.descriptors import Floats, Ints, find_mutual_matches
from fullfield.registration.learned import LearnedDescriptor
from fullfield.registration.observability import measure_observability
from fullfield.registration.ransac import Hypothesis, apply_transform, search_pose_hypotheses
from fullfield.registration.refinement import Refiner
from fullfield.registration.result import Cause, Registration, build_refusal
from fullfield.registration.rivals import compute_rms_distance_between_poses, find_rivals, select_undecided_rivals
from fullfield.registration.scan import Scan, thin_and_describe_scan
from fullfield.registration.verdict import (
    BELOW_HALF,
    FPFH_LIMITS,
    LEARNED_LIMITS,
    MAX_CONTRADICTION,
    MAX_INLIER_DISTANCE,
    Doubts,
    Evidence,
    Limits,
    Objection,
    compute_min_inliers,
    estimate_confidence,
    find_touching_points,
    measure_evidence,
)
from fullfield.registration.windows import Windows

Report = Callable[[float, str], None]

_INLIER = 1.5  # RANSAC's threshold, voxels
_REACHES: tuple[float, ...] = (2.0, 1.0)
_REACHES_FROM_INIT = (8.0, 4.0, 2.0, 1.0)
_MIN_POINTS = 20
_MIN_THICKNESS = 0.25
_REFINED, _CANDIDATES = 3, 10  # hypotheses that are refined, and that may be rivals
_MIN_REFINED, _MIN_CANDIDATE = 0.5, 0.12  # share of the best hypothesis' inliers
_FEW_ITERATIONS, _MAX_ITERATIONS = 5, 30  # iterations: a right pose needs 2 to 7, a wrong one keeps moving
_PROMISING, _LIKELY = 0.25, 0.67  # share of the needed score: refine on all points, and until it stops moving
_SAME, _DIFFERENT = 0.5, 6.0  # voxels, RMS, below which two poses are equal, and above which they are different
_MIN_CONFIDENCE = 0.5  # of an accepted pose
_MIRRORED = 1.5
"""A reflection with this many times the inliers of a pose refuses it; docs/registration.md has the measurements."""
_MIN_REFLECTED, _MIN_REFLECTED_FRACTION = 30, 0.15  # matches, where the pose has too little evidence by itself
_MAX_SWITCHES = 2
_DEFORMED, _CLOSE_RIVAL = "the clouds differ slightly in shape", "another pose is nearly as good"  # doubts
_CHANGED = 2.0  # significance of contradicted patches in each cloud, from which the scene may have changed
_MIN_COMPARABLE, _MIN_AGREEING = 50, 0.3  # matches between surfaces that agree, away from ends; share that is right
_ALIGNED_OVERLAP, _ALIGNED_NORMALS = 0.5, 0.9  # from which surfaces that lie on each other are evidence by themselves


class Search(NamedTuple):
    """Arguments of a search."""

    seed: int
    iterations: int
    samples: int
    start: Floats | None  # between centred clouds
    descriptor: LearnedDescriptor | None
    ransac_only: bool
    min_inliers: float = 0.0  # of a hypothesis that is worth a refinement


class _Pair(NamedTuple):
    """What a pose is judged by. Lengths are voxels."""

    source: Scan
    target: Scan
    matches: Ints  # [M, 2]
    limits: Limits
    compare: SurfaceComparison

    @property
    def matched_points(self) -> Floats:
        """Return the points [M, 2, 3] of the matches."""
        return np.stack((self.source.points[self.matches[:, 0]], self.target.points[self.matches[:, 1]]), 1)

    def rank_poses_by_evidence(self, poses: list[Floats]) -> list[tuple[Evidence, Floats]]:
        """Return each pose with its evidence, the best first."""
        weighed = (
            (measure_evidence(pose, self.source, self.target, self.matches, self.limits), pose) for pose in poses
        )
        return sorted(weighed, key=lambda entry: -entry[0].score)


def register_at_voxel_size_and_check_retry(
    clouds: list[Floats], voxel: float, search: Search, report: Report
) -> tuple[Registration, bool]:
    """Register centred clouds at one voxel size; also return whether another one may come to another result."""
    report(0.0, "describing the source")
    describe = None if search.descriptor is None else search.descriptor.compute_normals_and_features
    source = thin_and_describe_scan(clouds[0] / voxel, describe)
    report(0.3, "describing the target")
    target = thin_and_describe_scan(clouds[1] / voxel, describe)
    report(0.6, "matching")
    for scan, name in ((source, "source"), (target, "target")):
        problem = _explain_unusable_scan(scan, name, voxel)
        if problem is not None:
            return build_refusal(*problem, voxel), True
    matches = find_mutual_matches(source.features, target.features)
    if len(matches) > search.samples:
        rows = np.random.default_rng(search.seed).choice(len(matches), search.samples, replace=False)
        matches = matches[np.sort(rows)]
    limits = FPFH_LIMITS if search.descriptor is None else LEARNED_LIMITS
    pair = _Pair(source, target, matches, limits, SurfaceComparison(source, target))
    report(0.7, "searching")
    if search.ransac_only:
        return replace(
            _register_by_ransac(pair.matched_points, search, voxel), matched=pair.matched_points * voxel
        ), False
    result, may_change = _search_pose_and_check_retry(pair, voxel, search, report)
    return replace(result, matched=pair.matched_points * voxel), may_change


def _explain_unusable_scan(scan: Scan, name: str, voxel: float) -> tuple[str, Cause] | None:
    if len(scan.points) < _MIN_POINTS:
        reason = f"{name}: {len(scan.points)} points are left at a voxel of {voxel:.4g}, {_MIN_POINTS} are needed"
        return reason, "points"
    if scan.thickness < _MIN_THICKNESS:
        reason = (
            f"{name}: all points lie in a plane at a voxel of {voxel:.4g}, where sliding and turning change nothing"
        )
        return reason, "plane"
    return None


def _search_pose_and_check_retry(
    pair: _Pair, voxel: float, search: Search, report: Report
) -> tuple[Registration, bool]:
    if search.start is None:
        hypotheses = _search_poses_that_matches_support(pair.matched_points, search)
        poses, max_distances = (
            _select_poses_worth_refining(hypotheses, len(pair.matches), search.min_inliers)[:_REFINED],
            _REACHES,
        )
        other_poses = [h.transform for h in hypotheses if h.inliers >= _MIN_CANDIDATE * hypotheses[0].inliers]
    else:
        start = search.start.copy()
        start[:3, 3] /= voxel
        poses, max_distances, other_poses = [start], _REACHES_FROM_INIT, []
    if not poses:
        return _build_refusal_without_pose(pair, voxel, hypotheses), True
    report(0.8, "refining")
    weighed = _refine_and_rank_poses(pair, poses, max_distances)
    report(0.95, "judging")
    evidence, pose = weighed[0]
    other_poses += [other for _, other in weighed[1:]]
    objection, pose, doubt = _judge_pose_or_better_rival(pair, evidence, pose, other_poses, search)
    if pose is not weighed[0][1]:
        evidence = pair.rank_poses_by_evidence([pose])[0][0]
    confidence = estimate_confidence(
        evidence, _measure_doubts(pair, evidence, pose, other_poses, is_doubtful=doubt is not None)
    )
    if objection is None and confidence < _MIN_CONFIDENCE:
        reason = f"the best pose is uncertain: {_describe_uncertainty(evidence)}"
        objection = Objection(reason, "overlap", is_certain=False)
    confidence = confidence if objection is None else min(confidence, objection.max_confidence)
    scaled = _convert_voxels_to_units(pose, voxel)
    result = Registration(
        transform=scaled if objection is None else None,
        success=objection is None,
        reason=None if objection is None else objection.reason,
        confidence=confidence,
        matches=evidence.matches,
        inliers=evidence.inliers,
        fitness=evidence.fitness,
        rmse=evidence.rmse * voxel,
        voxel=voxel,
        candidate=None if objection is None else scaled,
        cause=None if objection is None else objection.cause,
        doubt=doubt if objection is None else None,
    )
    if objection is None:
        return result, False
    free = tuple(direction._replace(point=direction.point * voxel) for direction in objection.free_directions)
    alternatives = tuple(_convert_voxels_to_units(other, voxel) for other in objection.alternatives)
    return replace(result, free_directions=free, alternatives=alternatives), not objection.is_certain


def _measure_doubts(
    pair: _Pair, evidence: Evidence, pose: Floats, other_poses: list[Floats], *, is_doubtful: bool
) -> Doubts:
    agreement = pair.compare(pose)
    matched_points = pair.matched_points
    inliers = [
        int(
            (
                np.linalg.norm(apply_transform(other, matched_points[:, 0]) - matched_points[:, 1], axis=1)
                <= MAX_INLIER_DISTANCE
            ).sum()
        )
        for other in other_poses
        if compute_rms_distance_between_poses(pose, other, pair.source.points) > _DIFFERENT
    ]
    return Doubts(
        measure_unusual_contradicted_fraction(agreement, pair.source, pair.target),
        max(inliers, default=0) / max(evidence.inliers, 1),
        is_doubtful,
    )


def _describe_uncertainty(evidence: Evidence) -> str:
    return (
        f"{evidence.inliers} of {evidence.matches} matches agree, {evidence.agreeing_fraction:.0%} of those between "
        "touching surfaces"
    )


def _search_poses_that_matches_support(matched_points: Floats, search: Search) -> list[Hypothesis]:
    return search_pose_hypotheses(
        matched_points[:, 0],
        matched_points[:, 1],
        _INLIER,
        iterations=search.iterations,
        seed=search.seed,
        max_count=_CANDIDATES,
    )


def _select_poses_worth_refining(hypotheses: list[Hypothesis], match_count: int, min_inliers: float) -> list[Floats]:
    """Return the poses that are worth a refinement."""
    if hypotheses:
        min_inliers = max(min_inliers, compute_min_inliers(match_count), _MIN_REFINED * hypotheses[0].inliers)
    return [h.transform for h in hypotheses if h.inliers >= min_inliers]


def _build_refusal_without_pose(pair: _Pair, voxel: float, hypotheses: list[Hypothesis]) -> Registration:
    count, needed = len(pair.matches), compute_min_inliers(len(pair.matches))
    if count < needed:
        reason = f"the clouds have {count} matches at a voxel of {voxel:.4g}, {needed} are needed"
        return build_refusal(reason, "overlap", voxel, count)
    matched_points = pair.matched_points
    if hypotheses:
        explanation = explain_matches_by_shape_change(
            hypotheses[0].transform, matched_points[:, 0], matched_points[:, 1], MAX_INLIER_DISTANCE
        )
        if explanation is not None:
            return build_refusal(*explanation, voxel, count)
    reason = f"perhaps they do not overlap: no pose was found that {needed} of {count} matches agree on"
    return build_refusal(reason, "overlap", voxel, count)


def _refine_and_rank_poses(
    pair: _Pair, poses: list[Floats], max_distances: tuple[float, ...]
) -> list[tuple[Evidence, Floats]]:
    """Refine the poses, the promising ones on all points and the likely ones until they stop moving."""
    source, target, limits = pair.source, pair.target, pair.limits
    coarse = Refiner(source.points, target.points)
    weighed = pair.rank_poses_by_evidence(
        [coarse(pose, max_distances[:-1], iterations=_FEW_ITERATIONS) for pose in poses]
    )
    fine = None
    for fraction, radii, iterations in (
        (_PROMISING, max_distances[-2:-1], _FEW_ITERATIONS),
        (_LIKELY, max_distances[-2:-1], 2 * _FEW_ITERATIONS),
        (_LIKELY, max_distances[-2:], _MAX_ITERATIONS),
    ):
        promising = _select_distinct_poses(
            [pose for e, pose in weighed if e.score >= fraction * limits.score], source.points
        )
        if not promising:
            break
        fine = fine or Refiner(source.fine, target.fine)
        weighed = pair.rank_poses_by_evidence([fine(pose, radii, iterations=iterations) for pose in promising])
    return weighed


def _select_distinct_poses(poses: list[Floats], points: Floats) -> list[Floats]:
    """Leave out poses that are nearly equal to a better one."""
    different: list[Floats] = []
    for pose in poses:
        if all(compute_rms_distance_between_poses(pose, other, points) > _SAME for other in different):
            different.append(pose)
    return different


class _Judgement(NamedTuple):
    """What speaks against a pose."""

    objection: Objection | None
    pose: Floats  # the pose, or a rival that is better
    doubt: str | None = None  # what limits the confidence, where nothing speaks against the pose


def _judge_pose_or_better_rival(
    pair: _Pair, evidence: Evidence, pose: Floats, other_poses: list[Floats], search: Search
) -> _Judgement:
    """Return what speaks against the pose, None if nothing does, and the pose, or a rival that is better."""
    distant = _find_distant_start_objection(pair, evidence, search)
    if distant is not None:
        return _Judgement(distant, pose)
    for switches in range(_MAX_SWITCHES + 1):
        mirrored = _find_reflection_objection(pair, evidence, search)
        if mirrored is not None:
            return _Judgement(mirrored, pose)
        if not evidence.is_accepted:
            return _Judgement(_build_weakness_objection(pair, evidence, pose), pose)
        free = _find_free_motion_objection(pair, pose)
        if free is not None:
            return _Judgement(free, pose)
        agreement = pair.compare(pose)
        if agreement.contradicted_fraction > MAX_CONTRADICTION:
            reason = f"{agreement.contradicted_fraction:.0%} of what both clouds show contradicts the best pose"
            explanation = _measure_deformation_or_explain_by_matches(pair, pose, agreement).explanation
            if explanation is not None:
                return _Judgement(Objection(*explanation), pose)
            return _Judgement(Objection(reason, "contradiction", is_certain=False), pose)
        windows = Windows(pose, pair.source, pair.target)
        rivals = find_rivals(pose, pair.source, pair.target, pair.compare, agreement, windows, other_poses, search.seed)
        better = [rival.transform for rival in rivals if rival.is_better]
        weighed = (
            pair.rank_poses_by_evidence([Refiner(pair.source.fine, pair.target.fine)(better[0], _REACHES)])
            if better
            else []
        )
        if not weighed or not weighed[0][0].is_accepted:
            break
        if switches == _MAX_SWITCHES:
            reason = f"no pose holds: after {switches} better poses another one fits better still"
            alternatives = (weighed[0][1],)
            objection = Objection(reason, "repetition", max_confidence=BELOW_HALF, alternatives=alternatives)
            return _Judgement(objection, pose)
        evidence, pose = weighed[0]
    deformation = _measure_deformation_or_explain_by_matches(pair, pose, agreement)
    if deformation.explanation is not None:
        return _Judgement(Objection(*deformation.explanation), pose)
    changed = _find_change_objection(pair, pose, agreement, windows)
    if changed is not None:
        return _Judgement(changed, pose)
    equal = tuple(rival.transform for rival in select_undecided_rivals(rivals))
    if equal:
        reason = "two poses fit equally well: the scene repeats itself"
        chance = min(1 / (1 + len(equal)), BELOW_HALF)
        return _Judgement(Objection(reason, "repetition", max_confidence=chance, alternatives=equal), pose)
    has_nearly_equal_rival = any(rival.is_equal_or_nearly for rival in rivals)
    doubt = _DEFORMED if deformation.is_deformed else _CLOSE_RIVAL if has_nearly_equal_rival else None
    return _Judgement(None, pose, doubt)


def _find_change_objection(pair: _Pair, pose: Floats, agreement: Agreement, windows: Windows) -> Objection | None:
    """Return an objection where walls agree, but not what stands between them, as in two storeys of one plan.

    Each cloud then has patches where the other has nothing, and descriptors of the surfaces that agree differ.
    """
    is_inside = agreement.contradicted & ~agreement.is_at_end & ~windows.is_outside_hull
    if windows.measure_patch_significance(is_inside, np.zeros_like(is_inside)) < _CHANGED:
        return None
    is_comparable = agreement.confirmed & agreement.is_surrounded
    rows = is_comparable[pair.matches[:, 0]] & is_comparable[len(pair.source.points) + pair.matches[:, 1]]
    moved, goals = np.moveaxis(pair.matched_points[rows], 1, 0)
    if len(goals) < _MIN_COMPARABLE:
        return None
    agreeing = float((np.linalg.norm(apply_transform(pose, moved) - goals, axis=1) <= MAX_INLIER_DISTANCE).mean())
    if agreeing >= _MIN_AGREEING:
        return None
    reason = f"{agreement.contradicted_fraction:.0%} of what both clouds show contradicts the best pose"
    return Objection(f"{reason}, and only {agreeing:.0%} of the matches elsewhere agree", "contradiction")


def _build_weakness_objection(pair: _Pair, evidence: Evidence, pose: Floats) -> Objection:
    """Return the reason for a pose with too little evidence."""
    if evidence.overlap >= _ALIGNED_OVERLAP and evidence.aligned_fraction >= _ALIGNED_NORMALS:
        free = _find_free_motion_objection(pair, pose, is_refused=True)
        if free is not None:
            return free._replace(is_certain=False)
    matched_points = pair.matched_points
    explanation = explain_matches_by_shape_change(pose, matched_points[:, 0], matched_points[:, 1], MAX_INLIER_DISTANCE)
    if explanation is not None:
        return Objection(*explanation, is_certain=False)
    return Objection(evidence.reason or "", "overlap", is_certain=False, max_confidence=BELOW_HALF)


def _measure_deformation_or_explain_by_matches(pair: _Pair, pose: Floats, agreement: Agreement) -> Deformation:
    matched_points = pair.matched_points
    deformation = measure_deformation(pose, pair.source, pair.target, matched_points, pair.compare, agreement)
    if deformation.explanation is not None:
        return deformation
    explanation = explain_matches_by_shape_change(pose, matched_points[:, 0], matched_points[:, 1], MAX_INLIER_DISTANCE)
    return deformation._replace(explanation=explanation)


def _find_free_motion_objection(pair: _Pair, pose: Floats, *, is_refused: bool = False) -> Objection | None:
    """Return an objection where sliding or turning changes nothing, or little in a pose that is refused anyway."""
    source, target = pair.source, pair.target
    transformed = apply_transform(pose, source.points)
    touching = find_touching_points(transformed, target.points).partner
    rows = np.flatnonzero(touching >= 0)
    normals, goal_normals = source.normals[rows] @ pose[:3, :3].T, target.normals[touching[rows]]
    is_aligned = np.abs((normals * goal_normals).sum(1)) >= 0.9
    if is_aligned.sum() < _MIN_POINTS:
        return None
    observability = measure_observability(transformed[rows[is_aligned]], normals[is_aligned], goal_normals[is_aligned])
    free = observability.free_directions
    if not free and is_refused:
        free = observability.nearly_free_directions
    if not free:
        return None
    return Objection(f"{' and '.join(map(str, free))} changes nothing", "free", free_directions=free)


def _find_distant_start_objection(pair: _Pair, evidence: Evidence, search: Search) -> Objection | None:
    """Return an objection where refinement from the initial pose misses a pose that a search finds."""
    if evidence.is_accepted or search.start is None:
        return None
    best = _find_best_pose_and_inlier_count(pair.matched_points, search)
    searched = None if best is None else _refine_and_rank_poses(pair, [best[0]], _REACHES)[0][0]
    if searched is None or not searched.is_accepted:
        return None
    return Objection(
        f"the initial pose is too far off: it leads to a pose in which {evidence.inliers} of {evidence.matches} "
        f"matches agree, a search to one in which {searched.inliers} do",
        "init",
    )


def _find_reflection_objection(pair: _Pair, evidence: Evidence, search: Search) -> Objection | None:
    """Return an objection where a reflection brings far more matches together than any pose.

    FPFH cannot tell left from right, so a mirrored scan matches, and its walls and floor alone make a rigid pose that
    looks right. But then the reflection agrees with far more. An initial pose may have led to a pose that is not the
    best one, so then the reflection is compared with the pose of a search as well.
    """
    mirrored = pair.matched_points
    mirrored[:, 0] *= (-1.0, 1.0, 1.0)
    best = _find_best_pose_and_inlier_count(mirrored, search)
    reflected = 0 if best is None else best[1]
    min_reflected = 0.0 if evidence.is_accepted else max(_MIN_REFLECTED, _MIN_REFLECTED_FRACTION * evidence.matches)
    if reflected < max(_MIRRORED * evidence.inliers, min_reflected):
        return None
    inliers = evidence.inliers
    if search.start is not None:
        searched = _find_best_pose_and_inlier_count(pair.matched_points, search)
        inliers = max(inliers, 0 if searched is None else searched[1])
    if reflected < _MIRRORED * inliers:
        return None
    return Objection(
        f"one cloud looks like a mirror image of the other: a reflection brings {reflected} of {evidence.matches} "
        f"matches together, the best pose {inliers}",
        "mirror",
        is_certain=evidence.is_accepted,
    )


def _register_by_ransac(matched_points: Floats, search: Search, voxel: float) -> Registration:
    """Return RANSAC's best pose of the matches [M, 2, 3], in voxels, without judging it."""
    best = _find_best_pose_and_inlier_count(matched_points, search)
    if best is None:
        return build_refusal(
            f"no pose was found that 3 of {len(matched_points)} matches agree on", "overlap", voxel, len(matched_points)
        )
    pose, inliers = best
    nan = float("nan")
    return Registration(
        _convert_voxels_to_units(pose, voxel), True, None, nan, len(matched_points), inliers, nan, nan, voxel
    )


def _find_best_pose_and_inlier_count(matched_points: Floats, search: Search) -> tuple[Floats, int] | None:
    """Return the pose that most matches [M, 2, 3] agree on, and its inliers (:data:`MAX_INLIER_DISTANCE`)."""
    best = search_pose_hypotheses(
        matched_points[:, 0], matched_points[:, 1], _INLIER, iterations=search.iterations, seed=search.seed, max_count=1
    )
    if not best:
        return None
    distances = np.linalg.norm(apply_transform(best[0].transform, matched_points[:, 0]) - matched_points[:, 1], axis=1)
    return best[0].transform, int((distances <= MAX_INLIER_DISTANCE).sum())


def _convert_voxels_to_units(transform: Floats, voxel: float) -> Floats:
    """Return ``transform`` with its translation in the clouds' units instead of voxels."""
    scaled = transform.copy()
    scaled[:3, 3] *= voxel
    return scaled
