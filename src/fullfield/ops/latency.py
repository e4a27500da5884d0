"""Summary of repeated timings: median, 99th percentile and extremes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    """Summary of a list of times, in their unit."""

    number: int
    low: float
    median: float
    p99: float
    """99th percentile by the nearest rank, which is one of the measured times."""
    high: float


def spread(times: Iterable[float]) -> Spread:
    """Return the summary of ``times``; ValueError if there are none."""
    ordered = sorted(times)
    if not ordered:
        raise ValueError("expected at least one time, got none")
    rank = -(-99 * len(ordered) // 100) - 1
    return Spread(len(ordered), ordered[0], statistics.median(ordered), ordered[rank], ordered[-1])
