"""The backbones' shapes in one place. Light: imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fullfield._check import choice, number, require
from fullfield._config import Config

BLOCKS = ("basic", "bottleneck")
NORMS = ("layer", "batch", "instance")
# A convolution or pooling: from level, to level, kernel side. Level l has the grid · 2^l.
Step = tuple[int, int, int]


def _checked(config: Any, lists: tuple[str, ...], numbers: tuple[str, ...]) -> None:
    number(config.grid, "grid", above=0.0)
    choice(config.norm, "norm", NORMS)
    for name in lists:
        values = tuple(getattr(config, name))
        object.__setattr__(config, name, values)
        require(len(values) > 0, name, "at least one", repr(values))
        for value in values:
            number(value, name, integer=True, low=1)
    same = len({len(getattr(config, name)) for name in lists}) == 1
    require(same, lists[0], f"as many numbers as {' and '.join(lists[1:])}", repr(getattr(config, lists[0])))
    for name in numbers:
        number(getattr(config, name), name, integer=True, low=1)
    number(config.stem_kernel, "stem_kernel", integer=True, low=1, high=8)


@dataclass(frozen=True)
class PointResNetConfig(Config):
    """What a residual network is made of; see :meth:`resnet18`, :meth:`resnet34` and :meth:`resnet50`.

    A strided stem, strided max-pooling, then one stage for each number of ``blocks``, every stage but the first
    strided; the mean over each cloud and a linear classifier. Sizes are channels.
    """

    name: str = "pointcnnpp-resnet18"
    in_channels: int = 3
    classes: int = 1000
    grid: float = 0.02
    """Side of a kernel cell at full density, in the unit of the coordinates."""
    block: str = "basic"
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    channels: tuple[int, ...] = (64, 128, 256, 512)
    """Of the stages; a bottleneck puts out four times as many."""
    stem_kernel: int = 7
    norm: str = "layer"

    def __post_init__(self) -> None:
        choice(self.block, "block", BLOCKS)
        _checked(self, ("blocks", "channels"), ("in_channels", "classes"))

    @classmethod
    def resnet18(cls, **changes: Any) -> PointResNetConfig:
        """Eight blocks of two convolutions."""
        return cls(**changes)

    @classmethod
    def resnet34(cls, **changes: Any) -> PointResNetConfig:
        """Sixteen blocks of two convolutions."""
        return cls(name="pointcnnpp-resnet34", blocks=(3, 4, 6, 3)).replace(**changes)

    @classmethod
    def resnet50(cls, **changes: Any) -> PointResNetConfig:
        """Sixteen bottlenecks: 1, 3³, 1."""
        return cls(name="pointcnnpp-resnet50", block="bottleneck", blocks=(3, 4, 6, 3)).replace(**changes)

    def levels(self) -> int:
        """How many densities the network works on, the input's included."""
        return 2 + len(self.blocks)

    def steps(self) -> tuple[Step, ...]:
        """The geometries that the network reads."""
        within = [(level, level, 3) for level in range(2, self.levels())]
        return ((0, 1, self.stem_kernel), *((level - 1, level, 3) for level in range(2, self.levels())), *within)


@dataclass(frozen=True)
class PointUNetConfig(Config):
    """What the network of dense features is made of.

    A stem and residual blocks on the input's density, strided convolutions down, up-sampling convolutions up with the
    features of the same density beside them, and a linear head. Sizes are channels, the input's density first.
    """

    name: str = "pointcnnpp-unet"
    in_channels: int = 1
    out_channels: int = 32
    grid: float = 0.025
    """Side of a kernel cell at full density, in the unit of the coordinates."""
    blocks: tuple[int, ...] = (1, 1, 1, 1)
    channels: tuple[int, ...] = (32, 64, 128, 256)
    stem_kernel: int = 5
    norm: str = "layer"
    unit_length: bool = True
    """Whether the features have length 1, as descriptors do."""

    def __post_init__(self) -> None:
        _checked(self, ("blocks", "channels"), ("in_channels", "out_channels"))
        require(isinstance(self.unit_length, bool), "unit_length", "True or False", self.unit_length)

    def levels(self) -> int:
        """How many densities the network works on, the input's included."""
        return len(self.channels)

    def steps(self) -> tuple[Step, ...]:
        """The geometries that the network reads."""
        within = [(level, level, 3) for level in range(self.levels())]
        down = [(level - 1, level, 3) for level in range(1, self.levels())]
        up = [(level, level - 1, 3) for level in range(1, self.levels())]
        stem = [] if self.stem_kernel == 3 else [(0, 0, self.stem_kernel)]
        return (*stem, *within, *down, *up)
