"""How a network estimates. Light: imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fullfield._check import choice, number, require
from fullfield._config import Config, parameter
from fullfield.models.raft.config import PADDINGS

RANDOM = "random"
"""As weights: seeded random numbers, for timing."""

PRECISIONS = ("exact", "fast", "bfloat16")


@dataclass(frozen=True)
class NetworkConfig(Config):
    """How SEA-RAFT, or any network of the family, estimates: its weights, its updates, and whether it cascades.

    See :class:`fullfield.models.cascade.Cascade` for the cascade.
    """

    weights: str | None = parameter(
        None,
        "file, or name of published weights ('fullfield weights list'; for ptlflow's models ptlflow's names), or "
        "random (seeded, for timing); 'auto' is the method's own choice",
        metavar="PATH|NAME",
    )
    updates: int | None = parameter(None, "flow updates; 'auto': 32 of RAFT, 4 of SEA-RAFT, 12 of its L, ptlflow's own")
    cascade: bool = parameter(
        False, "estimate frames whose smaller side exceeds 800 pixels at a quarter of their size first, recursively"
    )
    coarse_updates: int | None = parameter(
        None, "updates of every level of a cascade but the finest; 'auto': as many as of the finest"
    )

    precision: str = parameter(
        "exact",
        "exact: float32, convolutions too; fast: half precision (on a CPU if it has AVX-512 BF16), prepared once per "
        "size; bfloat16: as fast with more range and less precision",
        PRECISIONS,
    )

    def __post_init__(self) -> None:
        choice(self.precision, "precision", PRECISIONS)
        if self.weights is not None:
            object.__setattr__(self, "weights", str(self.weights))
            require(self.weights != "", "weights", "a file or the name of an entry", "nothing")
        for name in ("updates", "coarse_updates"):
            value = getattr(self, name)
            if value is not None:
                number(value, name, integer=True, low=0)
                object.__setattr__(self, name, int(value))
        require(isinstance(self.cascade, bool), "cascade", "True or False", self.cascade)
        beside = self.cascade or self.coarse_updates is None
        require(beside, "coarse_updates", "None without a cascade", repr(self.coarse_updates))


@dataclass(frozen=True)
class RAFTEstimatorConfig(NetworkConfig):
    """How RAFT estimates."""

    padding: str = parameter(
        "sintel", "how frames reach multiples of 8: sintel on all sides, kitti only below and left and right", PADDINGS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.padding, "padding", PADDINGS)


RAFT_PRESETS: Mapping[str, RAFTEstimatorConfig] = {
    "default": RAFTEstimatorConfig(),
    "fast": RAFTEstimatorConfig(precision="fast"),
}
PRESETS: Mapping[str, NetworkConfig] = {"default": NetworkConfig(), "fast": NetworkConfig(precision="fast")}
