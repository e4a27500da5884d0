"""Evidence for a pose, and the limits that it must reach. Lengths are voxels."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fullfield.registration.contacts import find_nearest_points
from fullfield.registration.descriptors import Floats, Ints
from fullfield.registration.observability import FreeDirection
from fullfield.registration.ransac import apply_transform
from fullfield.registration.result import Cause
from fullfield.registration.scan import Scan

MAX_INLIER_DISTANCE = 2.0
"""Largest distance, in voxels, between the points of a match that is an inlier."""
TOUCH = 1.0
"""Largest distance, in voxels, of a point that touches the other cloud."""
_MIN_INLIERS, _MIN_INLIER_FRACTION = 6, 0.02
_MIN_OVERLAP = 0.08
_LARGE_OVERLAP = 0.5  # of clouds that lie on each other, so that another reason is likelier
_UPRIGHT = 0.9
BELOW_HALF, WRONG = 0.499, 0.05  # largest confidence of a refused pose, and of one that is refused for good
_MIN_SIGN, _MAX_SIGN = 0.05, 20.0  # ratios to the limits beyond which nothing changes
_MAX_RIVAL = 1.2
_WEIGHTS = np.array([2.42, 1.90, -0.59, -0.36, 0.0])
_MAX_CONFIDENCE = 0.99
_MAX_DOUBTFUL_CONFIDENCE = 0.89
MAX_CONTRADICTION = 0.25
"""Largest share of points that the other cloud contradicts, among those that it confirms or contradicts."""


class Limits(NamedTuple):
    """Limits that a pose must reach to be accepted; docs/registration.md has the measurements."""

    score: float
    fraction: float  # of the matches that would agree if all were right; alike corners of unlike rooms give less


FPFH_LIMITS, LEARNED_LIMITS = Limits(3.0, 0.15), Limits(6.0, 0.25)
"""A learned descriptor gives more matches, right and wrong, so more of them agree by chance."""


def compute_min_inliers(match_count: int) -> int:
    """Return the number of inliers that every accepted pose has at least."""
    return max(_MIN_INLIERS, math.ceil(_MIN_INLIER_FRACTION * match_count))


class Evidence(NamedTuple):
    """Measurements that support a pose."""

    matches: int
    inliers: int  # matches brought within MAX_INLIER_DISTANCE
    overlap: float  # share of the points of the source that touch the target, or the other way round, the larger one
    fitness: float  # share of the points of the source that touch the target
    aligned_fraction: float  # share of those whose normals agree
    agreeing_fraction: float  # share of the matches between points that touch the other cloud, which are inliers
    rmse: float  # of those, voxels; NaN without any
    limits: Limits

    @property
    def score(self) -> float:
        """Product of inliers, overlap and agreeing normals; chance or a wall can raise each of them alone."""
        return self.inliers * self.overlap * self.aligned_fraction

    @property
    def is_accepted(self) -> bool:
        """Return whether the pose reaches every limit."""
        return (
            self.inliers >= self.required_inliers and self.overlap >= _MIN_OVERLAP and self.score >= self.limits.score
        )

    @property
    def required_inliers(self) -> float:
        """Number of inliers without which the pose is not accepted."""
        return max(compute_min_inliers(self.matches), self.limits.fraction * self.overlap * self.matches)

    @property
    def reason(self) -> str | None:
        """Reason why the pose is not accepted; None where it is."""
        if self.is_accepted:
            return None
        cause = "the scenes differ or repeat themselves" if self.overlap >= _LARGE_OVERLAP else "they do not overlap"
        missing = []
        if self.inliers < self.required_inliers:
            needed = math.ceil(self.required_inliers)
            missing.append(
                f"{self.inliers} of {self.matches} matches agree in the best pose (at least {needed} needed)"
            )
        if self.overlap < _MIN_OVERLAP:
            missing.append(f"{self.overlap:.0%} of a cloud touches the other (at least {_MIN_OVERLAP:.0%})")
        if self.score < self.limits.score:
            missing.append(
                f"agreeing matches × overlap × agreeing normals is {self.inliers} × {self.overlap:.0%} × "
                f"{self.aligned_fraction:.0%} = {self.score:.2g} (at least {self.limits.score:g})"
            )
        return f"perhaps {cause}: {'; '.join(missing)}"


class Doubts(NamedTuple):
    """Measurements that speak against a pose, without deciding by themselves."""

    distinctive_contradiction: float  # share of contradicted points, among those that look least like the others
    rival: float  # inliers of the best different hypothesis, over the pose's
    is_doubtful: bool  # whether the clouds differ in shape, as changed copies do, or another pose is nearly as good


def list_confidence_features(evidence: Evidence, doubts: Doubts) -> Floats:
    """Return the numbers [5] that the confidence is a function of; the last is 1."""
    ratios = evidence.inliers / evidence.required_inliers, evidence.agreeing_fraction / evidence.limits.fraction
    logarithms = np.log(np.clip(ratios, _MIN_SIGN, _MAX_SIGN))
    return np.array([*logarithms, 10 * doubts.distinctive_contradiction, min(doubts.rival, _MAX_RIVAL), 1.0])


def estimate_confidence(evidence: Evidence, doubts: Doubts) -> float:
    """Return the probability that a pose is right, by a logistic model of :func:`list_confidence_features`.

    benchmarks/cases/registration/calibration.py fits it; docs/registration.md has its data and errors.
    """
    logit = float(list_confidence_features(evidence, doubts) @ _WEIGHTS)
    max_confidence = _MAX_DOUBTFUL_CONFIDENCE if doubts.is_doubtful else _MAX_CONFIDENCE
    return float(np.clip(1 / (1 + np.exp(-logit)), 0.0, max_confidence))


class Objection(NamedTuple):
    """What speaks against the best pose."""

    reason: str
    cause: Cause
    is_certain: bool = True  # whether another voxel size would not change it
    max_confidence: float = WRONG
    free_directions: tuple[FreeDirection, ...] = ()
    alternatives: tuple[Floats, ...] = ()  # [4, 4], poses that fit as well


class TouchingPoints(NamedTuple):
    """Nearest points of a cloud within :data:`TOUCH`."""

    distance: Floats  # [N], infinite where there is none
    partner: Ints  # [N], -1 where there is none

    @property
    def fitness(self) -> float:
        """Share of the points that touch."""
        return float((self.partner >= 0).mean())

    @property
    def rmse(self) -> float:
        """Root mean square distance of the points that touch; NaN without any."""
        touching = self.partner >= 0
        return float(np.sqrt((self.distance[touching] ** 2).mean())) if touching.any() else float("nan")


def find_touching_points(points: Floats, target: Floats) -> TouchingPoints:
    """Find the points of ``target`` [M, 3] that ``points`` [N, 3] touch."""
    distance, partner = find_nearest_points(target, points)
    touching = distance <= TOUCH
    return TouchingPoints(np.where(touching, distance, np.inf), np.where(touching, partner, -1))


def measure_evidence(
    transform: Floats, source: Scan, target: Scan, matches: Ints, limits: Limits = FPFH_LIMITS
) -> Evidence:
    """Measure the evidence for ``transform``, in voxels, given the rows of ``matches`` [M, 2]."""
    transformed = apply_transform(transform, source.points)
    distances = np.linalg.norm(transformed[matches[:, 0]] - target.points[matches[:, 1]], axis=1)
    touch = find_touching_points(transformed, target.points)
    touching = touch.partner >= 0
    covered = find_touching_points(target.points, transformed)
    both = touching[matches[:, 0]] & (covered.partner >= 0)[matches[:, 1]]
    turned = source.normals[touching] @ transform[:3, :3].T
    agree = np.abs((turned * target.normals[touch.partner[touching]]).sum(1)) >= _UPRIGHT
    return Evidence(
        matches=len(matches),
        inliers=int((distances <= MAX_INLIER_DISTANCE).sum()),
        overlap=max(touch.fitness, covered.fitness),
        fitness=touch.fitness,
        aligned_fraction=float(agree.mean()) if touching.any() else 0.0,
        agreeing_fraction=float((distances[both] <= MAX_INLIER_DISTANCE).mean()) if both.any() else 0.0,
        rmse=touch.rmse,
        limits=limits,
    )
