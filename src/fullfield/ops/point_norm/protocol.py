"""Types that the implementations of the normalisation share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Running(NamedTuple):
    """Running statistics of a batch norm."""

    mean: Tensor  # [C]
    var: Tensor  # [C]
    momentum: float
    update: bool
    """True if the rows are normalised by their own statistics, which update the running ones; else those are used."""
