"""Configuration of SEA-RAFT's shape. Light: imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fullfield._check import InputError, check_choice, check_number, require
from fullfield.models.shape import NetworkArchitecture

# Residual blocks in the three stages of the encoders.
BACKBONES = {"resnet18": (2, 2, 2), "resnet34": (3, 4, 6)}
# Names in the authors' settings files, and ours.
_OFFICIAL = {
    "pretrain": "backbone",
    "initial_dim": "stem_channels",
    "block_dims": "stage_channels",
    "dim": "channels",
    "num_blocks": "refinements",
    "radius": "radius",
    "iters": "updates",
}


@dataclass(frozen=True)
class SEARAFTConfig(NetworkArchitecture):
    """Shape of SEA-RAFT; the defaults are M.

    See :meth:`small`, :meth:`medium` and :meth:`large` for the published ones, :meth:`fullfield_s` and
    :meth:`fullfield_m` for those in the package.

    ``updates`` is the number of flow updates unless a call sets it; 0 returns the regressed initial flow. With
    ``max_updates``, a call that sets no number goes on to that many at most while a pair's flow still moves
    (:func:`fullfield.models.framing.mark_unconverged_pairs`). The limits of the Laplacians' log scales affect
    losses and uncertainties, never the flow. ``loss_log_scale_max`` is a lower limit for losses alone: a pixel that is
    far off moves the weights by at least 1 / its scale, so a low limit makes long motion count in training.

    Source: Wang, Lipson and Deng, SEA-RAFT, 2024 (arXiv 2405.14793), and the settings published with its weights.
    """

    network: ClassVar[str] = "fullfield.models.sea_raft.model:SEARAFT"
    prepared: ClassVar[str] = "fullfield.models.sea_raft.prepared:PreparedSEARAFT"
    has_learned_start: ClassVar[bool] = True
    has_mixture: ClassVar[bool] = True

    name: str = "sea-raft-m"
    backbone: str = "resnet34"  # of the encoders, which stop at 1/8
    stem_channels: int = 64  # at 1/2, after the first convolution
    stage_channels: tuple[int, int, int] = (64, 128, 256)  # at 1/2, 1/4 and 1/8
    channels: int = 128  # of the state, and of the context; the matched features have twice as many
    refinements: int = 2  # ConvNeXt blocks per update
    levels: int = 4
    radius: int = 4
    updates: int = 4
    max_updates: int | None = None  # unless a call sets its updates; None: ``updates``
    adapts_coarse_starts: bool = True  # False: estimators take ``updates`` or one fewer from a coarser size
    log_scale_min: float = 0.0
    log_scale_max: float = 10.0
    loss_log_scale_max: float | None = None  # None: ``log_scale_max``
    padding: ClassVar[str] = "sintel"  # type: ignore[misc]  # of frames, see :func:`fullfield.models.framing.choose_padding`

    def __post_init__(self) -> None:
        check_choice(self.backbone, "backbone", BACKBONES)
        stages = tuple(self.stage_channels)
        object.__setattr__(self, "stage_channels", stages)
        require(len(stages) == 3, "stage_channels", "3 sizes", repr(stages))
        for size in stages:
            check_number(size, "stage_channels", integer=True, low=1)
        for name in ("stem_channels", "refinements"):
            check_number(getattr(self, name), name, integer=True, low=1)
        check_number(self.channels, "channels", integer=True, low=4)
        require(self.channels % 2 == 0, "channels", "an even integer", self.channels)
        check_number(self.levels, "levels", integer=True, low=1, high=8)
        check_number(self.radius, "radius", integer=True, low=1, high=8)
        check_number(self.updates, "updates", integer=True, low=0)
        if self.max_updates is not None:
            check_number(self.max_updates, "max_updates", integer=True, low=max(1, self.updates))
        check_number(self.log_scale_min, "log_scale_min", high=0)
        check_number(self.log_scale_max, "log_scale_max", low=0)
        if self.loss_log_scale_max is not None:
            check_number(self.loss_log_scale_max, "loss_log_scale_max", low=0, high=self.log_scale_max)

    @property
    def matched_channels(self) -> int:
        """Channels of the features that the correlation compares."""
        return 2 * self.channels

    @classmethod
    def fullfield_s(cls, **changes: Any) -> SEARAFTConfig:
        """Return the smaller network in the package, 2.3 million parameters, with ``changes`` to its fields."""
        widths: dict[str, Any] = {"stem_channels": 32, "stage_channels": (32, 64, 128), "channels": 64}
        shape = cls(name="fullfield-s", backbone="resnet18", max_updates=12, loss_log_scale_max=1.5, **widths)
        return shape.replace(**changes)

    @classmethod
    def fullfield_m(cls, **changes: Any) -> SEARAFTConfig:
        """Return the larger network in the package, 8.9 million parameters, with ``changes`` to its fields.

        It has the layers of :meth:`small`, takes 4 to 8 updates, 4 or 3 from a flow of a coarser size, and has the
        loss's limit of :meth:`fullfield_s`.
        """
        limits: dict[str, Any] = {"max_updates": 8, "adapts_coarse_starts": False, "loss_log_scale_max": 1.5}
        return cls(name="fullfield-m", backbone="resnet18", **limits).replace(**changes)

    @classmethod
    def small(cls, **changes: Any) -> SEARAFTConfig:
        """Return SEA-RAFT (S) as published, 8.9 million parameters, 4 updates, with ``changes`` to its fields."""
        return cls(name="sea-raft-s", backbone="resnet18").replace(**changes)

    @classmethod
    def medium(cls, **changes: Any) -> SEARAFTConfig:
        """Return SEA-RAFT (M) as published, 19.7 million parameters, 4 updates, with ``changes`` to its fields."""
        return cls(**changes)

    @classmethod
    def large(cls, **changes: Any) -> SEARAFTConfig:
        """Return SEA-RAFT (L) as published: M and its weights with 12 updates, with ``changes`` to its fields."""
        return cls(name="sea-raft-l", updates=12).replace(**changes)

    @classmethod
    def from_official(cls, settings: Mapping[str, Any]) -> SEARAFTConfig:
        """Return the shape that one of the authors' settings files describes (``config/eval/spring-M.json``).

        Settings of data sets and training are ignored, and so is ``scale``: at −1, as for Spring, the authors halve
        the frames before the network and enlarge the flow behind it.

        Raises:
            InputError: naming a setting that is missing or does not fit.
        """
        missing = [name for name in _OFFICIAL if name not in settings]
        if missing:
            raise InputError(f"settings: expected those of a SEA-RAFT network, {missing[0]!r} is missing")
        chosen = {ours: settings[theirs] for theirs, ours in _OFFICIAL.items()}
        limits = (settings.get("var_min", 0), settings.get("var_max", 10)) if settings.get("use_var", True) else (0, 0)
        name = str(settings.get("name", "sea-raft"))
        return cls(name=name, **chosen, log_scale_min=limits[0], log_scale_max=limits[1])
