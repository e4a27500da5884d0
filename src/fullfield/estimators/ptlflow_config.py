"""How a model of ptlflow estimates. Light: imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fullfield._check import number, require
from fullfield._config import Config, parameter

PREFIX = "ptlflow:"
"""Before the name of one of ptlflow's models: ``ptlflow:dpflow`` is a method."""

RANDOM = "random"


@dataclass(frozen=True)
class PtlflowConfig(Config):
    """The weights and updates of a model of ptlflow, and on whose correlation lookups it runs."""

    weights: str | None = parameter(
        None,
        "file, or name of one of the model's checkpoints at ptlflow, or random (seeded, for timing); 'auto' is its "
        "checkpoint sintel, else things, else its first",
        metavar="PATH|NAME",
    )
    updates: int | None = parameter(None, "flow updates; 'auto': the model's own")
    patched: bool = parameter(
        True, "run a model that has RAFT's correlation block on our lookups; others run as they are"
    )
    alt_cuda_corr: str | None = parameter(
        None,
        "instead: the model's own lookup on demand, with RAFT's CUDA extension compiled from this folder of a checkout "
        "of RAFT, about a minute; 'auto': none, a model that is not patched stores its volume",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", str(self.weights))
            require(self.weights != "", "weights", "a file or the name of a checkpoint", "nothing")
        if self.updates is not None:
            number(self.updates, "updates", integer=True, low=1)
            object.__setattr__(self, "updates", int(self.updates))
        require(isinstance(self.patched, bool), "patched", "True or False", self.patched)
        if self.alt_cuda_corr is not None:
            object.__setattr__(self, "alt_cuda_corr", str(self.alt_cuda_corr))


PRESETS: Mapping[str, PtlflowConfig] = {"default": PtlflowConfig()}
