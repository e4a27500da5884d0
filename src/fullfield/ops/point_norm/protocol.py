"""What the forms of the normalisation share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Running(NamedTuple):
    """A batch norm's running statistics."""

    mean: Tensor  # [C]
    var: Tensor  # [C]
    momentum: float
    update: bool
    """Whether they move to those of the present rows, which are normalised by their own then; else they are used."""
