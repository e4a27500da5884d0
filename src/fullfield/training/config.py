"""Configuration of the training of a descriptor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fullfield import _check
from fullfield._config import Config
from fullfield.registration.learned_network import DescriptorConfig
from fullfield.registration.scan import CELLS

_HIGHEST_RATE = 1e30  # PyTorch's optimizers overflow on larger ones
_WARM = 0.02  # share of the training in which the rate rises
_START = 0.001  # share at which it is taken to have begun, so that no step is without a rate
_LAST = 0.01  # share of the rate that is left at the end


@dataclass(frozen=True)
class DescriptorTraining(Config):
    """Configuration of :func:`train_descriptor`. Lengths are voxels.

    >>> trained = train_descriptor("runs/short", DescriptorTraining(steps=2000), clouds=["a.ply"])  # doctest: +SKIP
    """

    descriptor: DescriptorConfig = field(default_factory=DescriptorConfig)
    start: str | None = None
    """File of weights to begin with, or "learned" for the package's. Additional scales begin without influence."""
    steps: int = 20_000
    seconds: float | None = None
    """Training ends after that time, without stops, with the learning rate of its end."""
    pairs: int = 4
    """Pairs a step."""
    block: int = 256
    """Pairs that are shown ``reuse`` times before the next block; a multiple of ``pairs``."""
    reuse: int = 4
    anchors: int = 512
    """Highest number of matches of a pair that count."""
    cells: int = CELLS
    """Approximate number of voxels of the larger cloud of a pair."""
    synthetic: float = 0.5
    """Share of pairs from synthetic scenes; without clouds all are."""
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    temperature: float = 0.03
    reach: float = 2.0
    """Points this near to the true place are neither right nor wrong."""
    seed: int = 0

    def __post_init__(self) -> None:
        is_valid = isinstance(self.descriptor, DescriptorConfig)
        _check.require(is_valid, "descriptor", "a DescriptorConfig", self.descriptor)
        named = self.start is None or isinstance(self.start, str)
        _check.require(named, "start", "the name of a file, or learned", self.start)
        for name in ("steps", "pairs", "block", "reuse", "anchors"):
            _check.check_number(getattr(self, name), name, integer=True, low=1, high=2**31)
        _check.require(self.block % self.pairs == 0, "block", f"a multiple of {self.pairs} pairs", self.block)
        if self.seconds is not None:
            _check.check_number(self.seconds, "seconds", above=0.0)
        _check.check_number(self.cells, "cells", integer=True, low=100, high=1_000_000)
        _check.check_number(self.seed, "seed", integer=True, low=0)
        _check.check_number(self.synthetic, "synthetic", low=0.0, high=1.0)
        _check.check_number(self.weight_decay, "weight_decay", low=0.0)
        _check.check_number(self.learning_rate, "learning_rate", above=0.0, high=_HIGHEST_RATE)
        for name in ("temperature", "reach"):
            _check.check_number(getattr(self, name), name, above=0.0)

    def compute_completed_fraction(self, step: int, seconds: float) -> float:
        """Return the share of the training, 0 to 1, that is done after ``step`` steps and ``seconds``."""
        by_time = 0.0 if self.seconds is None else seconds / self.seconds
        return min(1.0, max(step / self.steps, by_time))

    def compute_learning_rate(self, completed_fraction: float) -> float:
        """Return the learning rate after this share of the training: a short rise, then half a cosine."""
        rise = min(1.0, (completed_fraction + _START) / _WARM)
        along = min(1.0, max(0.0, (completed_fraction - _WARM) / (1 - _WARM)))
        return self.learning_rate * rise * (_LAST + (1 - _LAST) * (1 + math.cos(math.pi * along)) / 2)
