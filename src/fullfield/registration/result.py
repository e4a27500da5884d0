"""Outcome of a registration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fullfield.registration.descriptors import Floats
from fullfield.registration.observability import FreeDirection

Cause = Literal[
    "place", "points", "plane", "scale", "shape", "mirror", "free", "contradiction", "repetition", "overlap", "init"
]
"""Kind of a refusal: what the clouds lack, how they differ, or "init" for an initial pose that is too far off."""


@dataclass(frozen=True)
class Registration:
    """Outcome of a registration.

    ``transform`` is None unless ``success``; then ``reason`` says why. :func:`register` returns one of the two
    subclasses, so that type checkers know after ``if result.success:`` that there is a transform.
    """

    transform: Floats | None  # [4, 4] float64, source into target: target ≈ R source + t
    success: bool
    reason: str | None
    confidence: float  # probability that the pose is right, below 1; at least 0.5 means success
    matches: int  # mutual nearest descriptors
    inliers: int  # matches within two voxels in this pose
    fitness: float  # share of the source's points with a point of the target within a voxel
    rmse: float  # of these points, in the clouds' units; NaN without any
    voxel: float  # edge, in the clouds' units
    matched: Floats | None = None  # [matches, 2, 3]: the points of each match, of source and target; None without any
    untried: tuple[str, ...] = ()  # arguments of register that may help where it failed, the most promising first
    candidate: Floats | None = None  # [4, 4], the best pose where it was refused; None where there is none
    free_directions: tuple[FreeDirection, ...] = ()  # motions that ``candidate`` leaves free
    alternatives: tuple[Floats, ...] = ()  # [4, 4], poses that fit as well as ``candidate``
    cause: Cause | None = None  # kind of the reason; None where the pose was accepted
    doubt: str | None = None  # why the confidence of an accepted pose is 0.89 at most; None where it is not limited

    def __repr__(self) -> str:
        counts = f"{self.inliers} of {self.matches} matches agree, voxel {self.voxel:.4g}"
        if self.success:
            return f"Registration(confidence {self.confidence:.3f}, {counts}, RMSE {self.rmse:.4g}; see .transform)"
        may_help = self.untried if self.cause in ("overlap", "contradiction") else ()
        hint = f"; untried: {', '.join(may_help)}" if may_help else ""
        return f"Registration(refused: {self.reason}; {counts}{hint})"


@dataclass(frozen=True, repr=False)
class AcceptedRegistration(Registration):
    """Registration whose pose was accepted.

    >>> result = register("scan_02.ply", "scan_01.ply")  # doctest: +SKIP
    >>> if result.success:  # an AcceptedRegistration  # doctest: +SKIP
    ...     print(result.transform)
    """

    transform: Floats
    success: Literal[True]
    reason: None


@dataclass(frozen=True, repr=False)
class RefusedRegistration(Registration):
    """Registration without an accepted pose, and the reason.

    >>> result = register("scan_02.ply", "elsewhere.ply")  # doctest: +SKIP
    >>> if not result.success:  # a RefusedRegistration  # doctest: +SKIP
    ...     print(result.reason)
    """

    transform: None
    success: Literal[False]
    reason: str


def build_refusal(reason: str, cause: Cause, voxel: float, matches: int = 0) -> Registration:
    """Return the outcome without any pose."""
    return Registration(None, False, reason, 0.0, matches, 0, 0.0, float("nan"), voxel, cause=cause)
