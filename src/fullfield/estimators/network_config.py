"""Configurations of networks, ours and ptlflow's models. Light: imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fullfield._check import check_choice, check_number, require
from fullfield._config import Config, create_field
from fullfield.models.raft.config import PADDINGS
from fullfield.models.shape import NetworkArchitecture
from fullfield.models.weights import RANDOM as RANDOM

PREFIX = "ptlflow:"
"""Prefix of the names of ptlflow's models: ``ptlflow:dpflow`` is a method."""

PRECISIONS = ("auto", "exact", "fast", "bfloat16")


@dataclass(frozen=True)
class NetworkSettings(Config):
    """Configuration of SEA-RAFT or any network of the family: weights, updates, cascade and precision.

    The method chooses fields that are None.

    :mod:`fullfield.models.cascade` describes the cascade, enlarged frames and twice the size.

    >>> NetworkSettings(updates=8, cascade=False).updates
    8
    """

    weights: str | None = create_field(
        None,
        "file, published name (fullfield weights list), or random (for timing); auto: the method's own",
        metavar="PATH|NAME",
    )
    updates: int | None = create_field(
        None,
        "flow updates; auto: 32 for RAFT, 4 for SEA-RAFT, 12 for its L, 4 to 12 for fullfield-s, 4 to 8 for auto and "
        "fullfield-m, whose number from the flow of a smaller size is 4 or 3",
    )
    cascade: bool | None = create_field(
        None,
        "start frames whose smaller side exceeds 800 pixels at a quarter of their size or less; the package's "
        "networks do, and enlarge other frames up to 786,432 pixels, coarsest levels to 440,000",
    )
    coarse_updates: int | None = create_field(None, "updates at the coarser levels of a cascade; auto: as --updates")
    double: bool | None = create_field(
        None,
        "average the flows of upright, upside-down and mirrored frames, correct them at twice the size where that is "
        "more confident: seven times the work; auto: no",
    )
    precision: str = create_field(
        "auto",
        "exact: float32; fast: half precision (float32 on a CPU without AVX-512 BF16); bfloat16: fast with more range; "
        "auto: fast on a GPU with the kernels, for method auto on a CPU with AVX-512 BF16, else exact",
        PRECISIONS,
    )

    def __post_init__(self) -> None:
        check_choice(self.precision, "precision", PRECISIONS)
        if self.weights is not None:
            object.__setattr__(self, "weights", str(self.weights))
            require(self.weights != "", "weights", "a file or the name of an entry", "nothing")
        for name in ("updates", "coarse_updates"):
            value = getattr(self, name)
            if value is not None:
                check_number(value, name, integer=True, low=0)
                object.__setattr__(self, name, int(value))
        require(isinstance(self.cascade, bool | None), "cascade", "True, False or None", self.cascade)
        is_valid = self.cascade is not False or self.coarse_updates is None
        require(is_valid, "coarse_updates", "None without a cascade", repr(self.coarse_updates))
        require(isinstance(self.double, bool | None), "double", "True, False or None", self.double)

    def configure_architecture(self, architecture: NetworkArchitecture) -> NetworkArchitecture:
        """Return the network's architecture with the settings that belong to it."""
        return architecture


@dataclass(frozen=True)
class RAFTSettings(NetworkSettings):
    """Configuration of RAFT."""

    padding: str = create_field(
        "sintel",
        "padding of frames to multiples of 8: on all sides (sintel), or not above (kitti)",
        PADDINGS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.padding, "padding", PADDINGS)
        require(not self.double, "double", "False for RAFT, which does not estimate its uncertainty", "True")

    def configure_architecture(self, architecture: NetworkArchitecture) -> NetworkArchitecture:
        """Return the network's architecture with the padding."""
        return architecture.replace(padding=self.padding)


@dataclass(frozen=True)
class PtlflowSettings(Config):
    """Configuration of a model of ptlflow: weights, updates and whether it is patched."""

    weights: str | None = create_field(
        None,
        "file, name of a checkpoint at ptlflow, or random (for timing); auto: sintel, else things, else the first",
        metavar="PATH|NAME",
    )
    updates: int | None = create_field(None, "flow updates; auto: the model's own")
    patched: bool = create_field(True, "patch a model whose correlation block is known; others run as they are")

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", str(self.weights))
            require(self.weights != "", "weights", "a file or the name of a checkpoint", "nothing")
        if self.updates is not None:
            check_number(self.updates, "updates", integer=True, low=1)
            object.__setattr__(self, "updates", int(self.updates))
        require(isinstance(self.patched, bool), "patched", "True or False", self.patched)


@dataclass(frozen=True)
class CustomSettings(Config):
    """Configuration of a class of the user's, which has no parameters here."""


RAFT_PRESETS: Mapping[str, RAFTSettings] = {
    "default": RAFTSettings(),
    "fast": RAFTSettings(precision="fast"),
}
PRESETS: Mapping[str, NetworkSettings] = {
    "default": NetworkSettings(),
    "fast": NetworkSettings(precision="fast"),
    "accurate": NetworkSettings(double=True),
}
CUSTOM_PRESETS: Mapping[str, CustomSettings] = {"default": CustomSettings()}
PTLFLOW_PRESETS: Mapping[str, PtlflowSettings] = {"default": PtlflowSettings()}
