"""Configuration of RAFT's shape. Light: imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fullfield._check import check_choice, check_number, require
from fullfield.models.shape import NetworkArchitecture

# How frames are padded to multiples of eight: evenly, or (KITTI) rows only below.
PADDINGS = ("sintel", "kitti")


@dataclass(frozen=True)
class RAFTConfig(NetworkArchitecture):
    """Shape of RAFT; the defaults are the large model. See :meth:`large` and :meth:`small`.

    Sizes are channels. ``updates`` is the number of flow updates unless a call sets it.

    >>> RAFTConfig.small(updates=8).updates
    8
    """

    network: ClassVar[str] = "fullfield.models.raft.model:RAFT"
    prepared: ClassVar[str] = "fullfield.models.raft.prepared:PreparedRAFT"

    name: str = "raft"
    bottleneck: bool = False  # the encoders' blocks: two 3×3 convolutions, or 1×1, 3×3, 1×1
    encoder_channels: tuple[int, int, int] = (64, 96, 128)  # at 1/2, 1/4 and 1/8
    context_norm: str = "batch"  # of the context encoder; the feature encoder's is "instance"
    feature_channels: int = 256
    hidden_channels: int = 128
    context_channels: int = 128
    correlation_channels: tuple[int, ...] = (256, 192)  # of the motion encoder: a 1×1 and perhaps a 3×3 convolution
    flow_channels: tuple[int, int] = (128, 64)
    motion_channels: int = 128  # with the flow itself
    separable_gru: bool = True  # 1×5 then 5×1, or one 3×3
    head_channels: int = 256
    learned_upsampling: bool = True  # convex combinations, or bilinear
    levels: int = 4
    radius: int = 4
    dropout: float = 0.0
    updates: int = 32
    padding: str = "sintel"

    def __post_init__(self) -> None:
        for name in ("feature_channels", "hidden_channels", "context_channels", "head_channels"):
            check_number(getattr(self, name), name, integer=True, low=1)
        check_number(self.motion_channels, "motion_channels", integer=True, low=3)
        for name, lengths in (("encoder_channels", (3,)), ("correlation_channels", (1, 2)), ("flow_channels", (2,))):
            sizes = tuple(getattr(self, name))
            object.__setattr__(self, name, sizes)
            require(len(sizes) in lengths, name, f"{' or '.join(map(str, lengths))} sizes", repr(sizes))
            for size in sizes:
                check_number(size, name, integer=True, low=1)
        check_choice(self.context_norm, "context_norm", ("batch", "none"))
        check_number(self.levels, "levels", integer=True, low=1, high=8)
        check_number(self.radius, "radius", integer=True, low=1, high=8)
        check_number(self.dropout, "dropout", low=0, below=1)
        check_number(self.updates, "updates", integer=True, low=1)
        check_choice(self.padding, "padding", PADDINGS)

    @property
    def matched_channels(self) -> int:
        """Channels of the features that the correlation compares."""
        return self.feature_channels

    @classmethod
    def large(cls, **changes: Any) -> RAFTConfig:
        """Return RAFT as published, 5.3 million parameters, with ``changes`` to its fields."""
        return cls(**changes)

    @classmethod
    def small(cls, **changes: Any) -> RAFTConfig:
        """Return the small model as published, 1 million parameters, with ``changes`` to its fields."""
        small = cls(
            name="raft-small",
            bottleneck=True,
            encoder_channels=(32, 64, 96),
            context_norm="none",
            feature_channels=128,
            hidden_channels=96,
            context_channels=64,
            correlation_channels=(96,),
            flow_channels=(64, 32),
            motion_channels=82,
            separable_gru=False,
            head_channels=128,
            learned_upsampling=False,
            radius=3,
        )
        return small.replace(**changes)
