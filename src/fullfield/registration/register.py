"""Registration of two clouds: from their points to the pose of one in the other, or the reason of a refusal."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fullfield import _check
from fullfield.io.pointcloud import as_point_cloud, rigid
from fullfield.registration.descriptors import Floats, Ints, around, mutual_matches, nearest
from fullfield.registration.learned import LearnedDescriptor
from fullfield.registration.ransac import apply, hypotheses
from fullfield.registration.refinement import Refiner
from fullfield.registration.scan import Scan, choose_voxel, finite_points, middle_of, prepare, thin
from fullfield.registration.verdict import (
    FPFH_LIMITS,
    LEARNED_LIMITS,
    REACH,
    Evidence,
    Limits,
    contact,
    matches_needed,
    weigh,
)

Progress = Callable[[float, str], None]

ITERATIONS = 50_000
SAMPLES = 5000
_INLIER = 1.5  # RANSAC's threshold, voxels
_REACHES: tuple[float, ...] = (2.0, 1.0)
_FROM_INIT = (8.0, 4.0, 2.0, 1.0)
_FEWEST_POINTS = 20
_FLAT = 0.25
_CANDIDATES = 3
_SCALES = (1.0, 0.75)
"""Multiples of the automatic voxel, tried in turn until a pose is accepted."""
_WORTH = 0.5  # share of the best hypothesis' inliers that another needs to be refined
_ROUGHLY, _FINELY = 5, 30  # iterations: a right pose needs 2 to 7, a wrong one keeps moving
_PROMISING, _LIKELY = 0.25, 0.67  # share of the needed score: refine on all points, and until it stops moving
_SAME = 0.5  # voxels, RMS, below which two poses are equal
_RIVAL = 0.9
_MIRRORED = 1.5
"""A reflection with this many times the inliers of a pose refuses it; docs/registration.md has the measurements."""
_MIRROR = "one cloud looks like a mirror image of the other"


@dataclass(frozen=True)
class Registration:
    """Outcome of a registration.

    ``transform`` is None unless ``success``; then ``reason`` says why. :func:`register` returns one of the two
    subclasses, so that type checkers know after ``if found.success:`` that there is a transform.
    """

    transform: Floats | None  # [4, 4] float64, source into target: target ≈ R source + t
    success: bool
    reason: str | None
    confidence: float  # 0 to 1; at least 0.5 means success
    matches: int  # mutual nearest descriptors
    inliers: int  # matches within two voxels in this pose
    fitness: float  # share of the source's points with a point of the target within a voxel
    rmse: float  # of these points, in the clouds' units; NaN without any
    voxel: float  # edge, in the clouds' units
    matched: Floats | None = None  # [matches, 2, 3]: the points of each match, of source and target; None without any
    untried: tuple[str, ...] = ()  # arguments of register that may help where it failed, the most promising first
    candidate: Floats | None = None  # [4, 4], the best pose where it was refused; None where there is none

    def __repr__(self) -> str:
        found = f"{self.inliers} of {self.matches} matches agree, voxel {self.voxel:.4g}"
        if self.success:
            return f"Registration(confidence {self.confidence:.3f}, {found}, RMSE {self.rmse:.4g}; see .transform)"
        more = f"; untried: {', '.join(self.untried)}" if self.untried else ""
        return f"Registration(refused: {self.reason}; {found}{more})"


@dataclass(frozen=True, repr=False)
class AcceptedRegistration(Registration):
    """Registration whose pose was accepted."""

    transform: Floats
    success: Literal[True]
    reason: None


@dataclass(frozen=True, repr=False)
class RefusedRegistration(Registration):
    """Registration without an accepted pose, and the reason."""

    transform: None
    success: Literal[False]
    reason: str


def register(
    source: Any,
    target: Any,
    *,
    voxel: float | None = None,
    init: Any = None,
    seed: int = 0,
    iterations: int = ITERATIONS,
    samples: int = SAMPLES,
    descriptor: LearnedDescriptor | str | os.PathLike[str] | None = None,
) -> AcceptedRegistration | RefusedRegistration:
    """Find the rigid transform that brings ``source`` onto ``target``, or the reason why none is accepted.

    Args:
        source: a file, a :class:`~fullfield.io.PointCloud`, an array or tensor [N, 3], or an object with ``points``
            such as Open3D's. Points that are not finite are left out.
        target: as ``source``.
        voxel: edge of a voxel in the clouds' units; None chooses it from their extent and spacing.
        init: [4, 4] source into target to start from instead of searching; the verdict stays the same.
        seed: seed of RANSAC's draws. The same seed gives the same result.
        iterations: number of triples that RANSAC draws.
        samples: largest number of matches for RANSAC, drawn at random from all.
        descriptor: a learned one, its file of weights, or "learned" for the one in the package; "fpfh" or None for
            FPFH.

    Raises:
        InputError: if an argument is no cloud, pose or descriptor, a cloud has no finite point, or small_gicp is not
            installed.
    """
    return registered(source, target, Settings(voxel, init, seed, iterations, samples, descriptor))


def register_by_ransac(
    source: Any,
    target: Any,
    *,
    voxel: float | None = None,
    seed: int = 0,
    iterations: int = ITERATIONS,
    samples: int = SAMPLES,
    descriptor: LearnedDescriptor | str | os.PathLike[str] | None = None,
) -> AcceptedRegistration | RefusedRegistration:
    """Estimate the pose by RANSAC on mutual matches alone, as papers compare descriptors.

    The pose that most matches agree on is fitted to those matches (Fischler and Bolles, 1981) and returned. It is
    neither refined on the points nor judged, and no second voxel size is tried, so ``success`` only means that there
    is a pose, and ``confidence``, ``fitness`` and ``rmse`` are NaN. Arguments and errors as in :func:`register`.
    """
    settings = Settings(voxel, None, seed, iterations, samples, descriptor, plain=True)
    return registered(source, target, settings)


class Settings(NamedTuple):
    """Arguments of :func:`register`; ``plain`` stops after RANSAC."""

    voxel: float | None = None
    init: Any = None
    seed: int = 0
    iterations: int = ITERATIONS
    samples: int = SAMPLES
    descriptor: LearnedDescriptor | str | os.PathLike[str] | None = None
    plain: bool = False

    def check(self) -> None:
        """Raise InputError naming the number that makes no sense."""
        if self.voxel is not None:
            _check.number(self.voxel, "voxel", above=0.0)
        _check.number(self.seed, "seed", integer=True, low=0)
        _check.number(self.iterations, "iterations", integer=True, low=1, high=10_000_000)
        _check.number(self.samples, "samples", integer=True, low=3)


def registered(
    source: Any, target: Any, settings: Settings, progress: Progress | None = None
) -> AcceptedRegistration | RefusedRegistration:
    """Run :func:`register`; ``progress`` receives the fraction done and the next step."""
    settings.check()
    voxel, init, seed, iterations, samples, descriptor, plain = settings
    if descriptor == "fpfh":
        descriptor = None
    elif descriptor is not None and not isinstance(descriptor, LearnedDescriptor):
        shipped = descriptor == "learned"
        descriptor = LearnedDescriptor.shipped() if shipped else LearnedDescriptor.load(descriptor)
    clouds = [finite_points(value, name, 1) for value, name in ((source, "source"), (target, "target"))]
    start = None if init is None else rigid(init)
    middles = [middle_of(points) for points in clouds]
    centred = [points - middle for points, middle in zip(clouds, middles, strict=True)]
    edge = float(voxel) if voxel is not None else choose_voxel(*centred)
    if edge <= 0.0:
        single = [
            n for n, points in zip(("source", "target"), centred, strict=True) if not np.ptp(points, axis=0).any()
        ]
        which = f"the {' and the '.join(single)}" if single else "a cloud"  # its sample, at the least
        return _finished(_failure(f"all the points of {which} are at the same place", edge), middles)
    start = None if start is None else _shifted(start, *middles)
    search = _Search(seed, iterations, samples, start, descriptor, plain)
    outcomes = []
    scales = _SCALES if voxel is None and not plain else (1.0,)
    for number, scale in enumerate(scales):
        steps = _Steps(progress, number / len(scales), 1 / len(scales), edge * scale)
        outcomes.append(_at_voxel(centred, edge * scale, search, steps))
        if outcomes[-1].success:
            break
    best = max(outcomes, key=lambda outcome: (outcome.success, outcome.confidence))
    if not best.success and not plain and not (best.reason or "").startswith(_MIRROR):
        left = {"descriptor": descriptor is None, "voxel": voxel is None, "init": init is None}
        best = replace(best, untried=tuple(name for name, open_ in left.items() if open_))
    return _finished(best, middles)


def _finished(found: Registration, middles: list[Floats]) -> AcceptedRegistration | RefusedRegistration:
    """Return the outcome in the clouds' own coordinates, as the subclass that type checkers tell apart."""
    entries = dict(vars(found))
    if found.matched is not None:
        entries["matched"] = found.matched + np.stack(middles)
    for name, pose in (("transform", found.transform), ("candidate", found.candidate)):
        entries[name] = None if pose is None else _shifted(pose, -middles[0], -middles[1])
    return AcceptedRegistration(**entries) if found.success else RefusedRegistration(**entries)


class _Steps:
    """Callback that reports the steps at one voxel size."""

    def __init__(self, progress: Progress | None, begin: float, share: float, edge: float) -> None:
        self._progress, self._begin, self._share, self._edge = progress, begin, share, edge

    def __call__(self, fraction: float, what: str) -> None:
        if self._progress is not None:
            self._progress(self._begin + self._share * fraction, f"{what}, voxel {self._edge:.4g}")


class _Search(NamedTuple):
    seed: int
    iterations: int
    samples: int
    start: Floats | None  # between centred clouds
    descriptor: LearnedDescriptor | None
    plain: bool


def _at_voxel(clouds: list[Floats], edge: float, search: _Search, report: _Steps) -> Registration:
    """Register centred clouds at one voxel size."""
    report(0.0, "describing the source")
    describe = None if search.descriptor is None else search.descriptor.described
    first = prepare(clouds[0] / edge, describe)
    report(0.3, "describing the target")
    second = prepare(clouds[1] / edge, describe)
    report(0.6, "matching")
    for scan, name in ((first, "source"), (second, "target")):
        complaint = _hopeless(scan, name, edge)
        if complaint is not None:
            return _failure(complaint, edge)
    matches = mutual_matches(first.features, second.features)
    if len(matches) > search.samples:
        chosen = np.random.default_rng(search.seed).choice(len(matches), search.samples, replace=False)
        matches = matches[np.sort(chosen)]
    ends = np.stack((first.points[matches[:, 0]], second.points[matches[:, 1]]), 1)
    report(0.7, "searching")
    if search.plain:
        return replace(_by_ransac(ends, search, edge), matched=ends * edge)
    if search.start is None:
        poses, reaches = _hypotheses(first, second, matches, search), _REACHES
    else:
        start = search.start.copy()
        start[:3, 3] /= edge
        poses, reaches = [start], _FROM_INIT
    if not poses:
        count, needed = len(matches), matches_needed(len(matches))
        few = f"the clouds have {count} matches at a voxel of {edge:.4g}, {needed} are needed"
        complaint = few if count < needed else f"no pose was found that {needed} of {count} matches agree on"
        failure = _failure(complaint, edge, count)
        return replace(failure, matched=ends * edge)

    report(0.8, "refining")
    roughly = Refiner(first.points, second.points)
    refined = [roughly(pose, reaches[:-1], iterations=_ROUGHLY) for pose in poses]
    limits = FPFH_LIMITS if search.descriptor is None else LEARNED_LIMITS
    weighed = _weighed(refined, first, second, matches, limits)
    finely = None
    for share, near, most in (
        (_PROMISING, reaches[-2:-1], _ROUGHLY),
        (_LIKELY, reaches[-2:-1], 2 * _ROUGHLY),
        (_LIKELY, reaches[-2:], _FINELY),
    ):
        worth = _different([pose for found, pose in weighed if found.score >= share * limits.score], first.points)
        if not worth:
            break
        finely = finely or Refiner(first.fine, second.fine)
        refined = [finely(pose, near, iterations=most) for pose in worth]
        weighed = _weighed(refined, first, second, matches, limits)
    report(0.95, "judging")
    found = replace(_judged(weighed, first.points, edge), matched=ends * edge)
    reflected = _reflected(ends, search) if found.success else 0
    if reflected < _MIRRORED * found.inliers or not found.success:
        return found
    complaint = (
        f"{_MIRROR}: a reflection brings {reflected} of {found.matches} matches together, the best pose {found.inliers}"
    )
    less = found.confidence * found.inliers / (found.inliers + reflected)
    return replace(found, transform=None, success=False, reason=complaint, confidence=less, candidate=found.transform)


def _by_ransac(ends: Floats, search: _Search, edge: float) -> Registration:
    """Return RANSAC's best pose of the matches [M, 2, 3], in voxels, without judging it."""
    found = _most_agreed(ends, search)
    if found is None:
        return _failure(f"no pose was found that 3 of {len(ends)} matches agree on", edge, len(ends))
    pose, inliers = found
    nan = float("nan")
    return Registration(_scaled(pose, edge), True, None, nan, len(ends), inliers, nan, nan, edge)


def _most_agreed(ends: Floats, search: _Search) -> tuple[Floats, int] | None:
    """Return the pose that most matches [M, 2, 3] agree on, and how many it brings within :data:`REACH`."""
    found = hypotheses(ends[:, 0], ends[:, 1], _INLIER, iterations=search.iterations, seed=search.seed, most=1)
    if not found:
        return None
    away = np.linalg.norm(apply(found[0].transform, ends[:, 0]) - ends[:, 1], axis=1)
    return found[0].transform, int((away <= REACH).sum())


def _scaled(transform: Floats, edge: float) -> Floats:
    """Return ``transform`` with its translation in the clouds' units instead of voxels."""
    scaled = transform.copy()
    scaled[:3, 3] *= edge
    return scaled


def _reflected(ends: Floats, search: _Search) -> int:
    """Return how many matches [M, 2, 3] the best reflection brings within :data:`REACH`.

    FPFH cannot tell left from right, so a mirrored scan matches, and its walls and floor alone make a rigid pose that
    looks right. But then the reflection agrees with far more.
    """
    mirrored = np.stack((ends[:, 0] * (-1.0, 1.0, 1.0), ends[:, 1]), 1)
    found = _most_agreed(mirrored, search)
    return 0 if found is None else found[1]


def _hypotheses(first: Scan, second: Scan, matches: Ints, search: _Search) -> list[Floats]:
    ends = first.points[matches[:, 0]], second.points[matches[:, 1]]
    found = hypotheses(*ends, _INLIER, iterations=search.iterations, seed=search.seed, most=_CANDIDATES)
    least = max(matches_needed(len(matches)), _WORTH * found[0].inliers) if found else 0
    return [h.transform for h in found if h.inliers >= least]


def _weighed(
    poses: list[Floats], first: Scan, second: Scan, matches: Ints, limits: Limits
) -> list[tuple[Evidence, Floats]]:
    """Return each pose with its evidence, the best first."""
    found = ((weigh(pose, first, second, matches, limits), pose) for pose in poses)
    return sorted(found, key=lambda entry: -entry[0].score)


def _different(poses: list[Floats], points: Floats) -> list[Floats]:
    """Leave out poses that are nearly equal to a better one."""
    found: list[Floats] = []
    for pose in poses:
        if all(_apart(pose, other, points) > _SAME for other in found):
            found.append(pose)
    return found


def _apart(first: Floats, second: Floats, points: Floats) -> float:
    return float(np.sqrt(((apply(first, points) - apply(second, points)) ** 2).sum(1).mean()))


def _judged(weighed: list[tuple[Evidence, Floats]], points: Floats, edge: float) -> Registration:
    """Return the best pose, its translation in the clouds' units, or the reason why it is not accepted."""
    evidence, pose = weighed[0]
    complaint = evidence.complaint
    near = _RIVAL * evidence.score
    rivals = [elsewhere for other, elsewhere in weighed[1:] if other.accepted and other.score >= near]
    if complaint is None and any(_apart(pose, elsewhere, points) > 2.0 for elsewhere in rivals):
        complaint = "two poses fit equally well: the scene repeats itself"
    scaled = _scaled(pose, edge)
    return Registration(
        transform=scaled if complaint is None else None,
        success=complaint is None,
        reason=complaint,
        confidence=evidence.confidence if evidence.complaint == complaint else evidence.confidence / 2,  # rivals
        matches=evidence.matches,
        inliers=evidence.inliers,
        fitness=evidence.fitness,
        rmse=evidence.rmse * edge,
        voxel=edge,
        candidate=None if complaint is None else scaled,
    )


def _hopeless(scan: Scan, name: str, edge: float) -> str | None:
    if len(scan.points) < _FEWEST_POINTS:
        return f"{name}: {len(scan.points)} points are left at a voxel of {edge:.4g}, {_FEWEST_POINTS} are needed"
    if scan.thickness < _FLAT:
        return f"{name}: all points lie in a plane at a voxel of {edge:.4g}, where sliding and turning change nothing"
    return None


def _failure(reason: str, edge: float, matches: int = 0) -> Registration:
    return Registration(None, False, reason, 0.0, matches, 0, 0.0, float("nan"), edge)


def _shifted(transform: Floats, source: Floats, target: Floats) -> Floats:
    """Express ``transform`` in coordinates relative to these origins."""
    shifted = transform.copy()
    shifted[:3, 3] += transform[:3, :3] @ source - target
    return shifted


def alignment_errors(source: Any, target: Any, transform: Any = None, *, most: float | None = None) -> Floats:
    """Return the distances [N] from the points of ``source``, moved by ``transform``, to the nearest of ``target``.

    They are in the clouds' units, NaN for points that are not finite, and infinite beyond ``most``, which saves the
    long search where the clouds are far apart. ``source`` and ``target`` as in :func:`register`.
    """
    if most is not None:
        _check.number(most, "most", above=0.0)
    points = as_point_cloud(source, "source").points
    goal = finite_points(target, "target", 1)
    pose = np.eye(4) if transform is None else rigid(transform, "transform")
    middle = middle_of(goal)
    known = np.isfinite(points).all(1)
    errors = np.full(len(points), np.nan)
    moved = apply(pose, points[known]) - middle
    goal = goal - middle
    near = np.ones(len(moved), bool) if most is None else around(goal, moved, most)
    apart = np.full(len(moved), np.inf)
    if near.any():
        apart[near] = nearest(goal, moved[near])[0][:, 0]
    errors[known] = np.where(apart <= (most or np.inf), apart, np.inf)
    return errors


class Alignment(NamedTuple):
    """Fitness and RMSE of one cloud on another, as :class:`Registration` reports them."""

    fitness: float  # share of the source's points, one a voxel, with a point of the target within a voxel
    rmse: float  # of these points' distances, in the clouds' units; NaN without any


def alignment(source: Any, target: Any, transform: Any = None, *, voxel: float) -> Alignment:
    """Measure ``source``, moved by ``transform``, against ``target`` as :func:`register` does at this voxel size.

    ``source`` and ``target`` as in :func:`register`; ``transform`` is [4, 4], None for none.
    """
    _check.number(voxel, "voxel", above=0.0)
    clouds = [finite_points(value, name, 1) for value, name in ((source, "source"), (target, "target"))]
    middles = [middle_of(points) for points in clouds]
    pose = _shifted(np.eye(4) if transform is None else rigid(transform, "transform"), *middles)
    pose[:3, 3] /= voxel
    thinned = [(points - middle) / voxel for points, middle in zip(clouds, middles, strict=True)]
    for at, points in enumerate(thinned):
        fine, rows = thin(points)
        thinned[at] = fine[rows]
    found = contact(apply(pose, thinned[0]), thinned[1])
    return Alignment(found.fitness, found.rmse * voxel)
