"""What a training run is made of, in one place."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from fullfield import _check
from fullfield.registration import DescriptorConfig
from fullfield.registration.resolution import CELLS

_WARM = 0.02  # share of the steps in which the rate rises
_LAST = 0.01  # share of the rate that is left at the end


@dataclass(frozen=True)
class DescriptorTraining:
    """How :func:`train_descriptor` trains. Lengths are voxels."""

    descriptor: DescriptorConfig = field(default_factory=DescriptorConfig)
    steps: int = 20_000
    pairs: int = 4
    """A step."""
    anchors: int = 512
    """Matches of a pair that count, at most."""
    cells: int = CELLS
    """Voxels of the larger cloud of a pair, about."""
    synthetic: float = 0.5
    """Share of pairs that come from made-up scenes; without clouds all do."""
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    temperature: float = 0.07
    reach: float = 2.0
    """Points this near to the true place are neither right nor wrong."""
    seed: int = 0

    def __post_init__(self) -> None:
        fits = isinstance(self.descriptor, DescriptorConfig)
        _check.require(fits, "descriptor", "a DescriptorConfig", self.descriptor)
        for name in ("steps", "pairs", "anchors"):
            _check.number(getattr(self, name), name, integer=True, low=1, high=2**31)
        _check.number(self.cells, "cells", integer=True, low=100, high=1_000_000)
        _check.number(self.seed, "seed", integer=True, low=0)
        _check.number(self.synthetic, "synthetic", low=0.0, high=1.0)
        _check.number(self.weight_decay, "weight_decay", low=0.0)
        for name in ("learning_rate", "temperature", "reach"):
            _check.number(getattr(self, name), name, above=0.0)

    def as_dict(self) -> dict[str, Any]:
        """Field names and values."""
        return asdict(self)

    def rate(self, step: int) -> float:
        """Of the step with this number, from 0: a short rise, then half a cosine."""
        warm = max(1, round(_WARM * self.steps))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        along = (step - warm) / max(1, self.steps - warm)
        return self.learning_rate * (_LAST + (1 - _LAST) * (1 + math.cos(math.pi * along)) / 2)
