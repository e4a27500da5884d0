"""Medians and percentiles of times are times that were measured, or halfway between two."""

from __future__ import annotations

import pytest

from fullfield.ops.latency import spread


def test_the_nearest_rank() -> None:
    assert spread(range(1, 101)) == (100, 1, 50.5, 99, 100)
    assert spread(range(1, 102)) == (101, 1, 51, 100, 101)
    assert spread([3.0, 1.0, 2.0]) == (3, 1.0, 2.0, 3.0, 3.0)
    assert spread([0.5]) == (1, 0.5, 0.5, 0.5, 0.5)


def test_of_nothing_there_is_none() -> None:
    with pytest.raises(ValueError, match="at least one time"):
        spread([])
