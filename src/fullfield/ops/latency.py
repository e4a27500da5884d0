"""How long something took that was done again and again: median, 99th percentile, extremes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    """Of a number of times, in their unit."""

    number: int
    low: float
    median: float
    p99: float
    """By the nearest rank: a time that was measured."""
    high: float


def spread(times: Iterable[float]) -> Spread:
    """Raises ValueError for no times at all."""
    ordered = sorted(times)
    if not ordered:
        raise ValueError("expected at least one time, got none")
    rank = -(-99 * len(ordered) // 100) - 1
    return Spread(len(ordered), ordered[0], statistics.median(ordered), ordered[rank], ordered[-1])
