"""Configurations of the networks on points. Light: imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fullfield._check import check_choice, check_number, require
from fullfield._config import Config

BLOCKS = ("basic", "bottleneck")
NORMS = ("layer", "batch", "instance")
# Convolution or pooling: source level, target level, kernel side. Level l has cells of side grid · 2^l.
Step = tuple[int, int, int]


def _check_fields_and_freeze_lists(config: Any, list_fields: tuple[str, ...], count_fields: tuple[str, ...]) -> None:
    check_number(config.grid, "grid", above=0.0)
    check_choice(config.norm, "norm", NORMS)
    for name in list_fields:
        values = tuple(getattr(config, name))
        object.__setattr__(config, name, values)
        require(len(values) > 0, name, "at least one", repr(values))
        for value in values:
            check_number(value, name, integer=True, low=1)
    same = len({len(getattr(config, name)) for name in list_fields}) == 1
    require(
        same,
        list_fields[0],
        f"as many numbers as {' and '.join(list_fields[1:])}",
        repr(getattr(config, list_fields[0])),
    )
    for name in count_fields:
        check_number(getattr(config, name), name, integer=True, low=1)
    check_number(config.stem_kernel, "stem_kernel", integer=True, low=1, high=8)


@dataclass(frozen=True)
class PointResNetConfig(Config):
    """Configuration of a residual network; see :meth:`resnet18`, :meth:`resnet34` and :meth:`resnet50`.

    The network has a strided stem, strided max-pooling, one stage for each number in ``blocks`` (all but the first
    strided), the mean over each cloud and a linear classifier. Sizes are channels.
    """

    name: str = "pointcnnpp-resnet18"
    in_channels: int = 3
    classes: int = 1000
    grid: float = 0.02
    """Side of a kernel cell at full density, in the unit of the coordinates."""
    block: str = "basic"
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    channels: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of the stages; a bottleneck outputs four times as many."""
    stem_kernel: int = 7
    norm: str = "layer"

    def __post_init__(self) -> None:
        check_choice(self.block, "block", BLOCKS)
        _check_fields_and_freeze_lists(self, ("blocks", "channels"), ("in_channels", "classes"))

    @classmethod
    def resnet18(cls, **changes: Any) -> PointResNetConfig:
        """Return the configuration with eight blocks of two convolutions."""
        return cls(**changes)

    @classmethod
    def resnet34(cls, **changes: Any) -> PointResNetConfig:
        """Return the network with sixteen blocks of two convolutions."""
        return cls(name="pointcnnpp-resnet34", blocks=(3, 4, 6, 3)).replace(**changes)

    @classmethod
    def resnet50(cls, **changes: Any) -> PointResNetConfig:
        """Return the network with sixteen bottlenecks of kernels 1, 3³ and 1."""
        return cls(name="pointcnnpp-resnet50", block="bottleneck", blocks=(3, 4, 6, 3)).replace(**changes)

    def count_levels(self) -> int:
        """Return the number of densities, including the input's."""
        return 2 + len(self.blocks)

    def list_geometry_steps(self) -> tuple[Step, ...]:
        """Return the steps whose geometries the network reads."""
        within = [(level, level, 3) for level in range(2, self.count_levels())]
        return ((0, 1, self.stem_kernel), *((level - 1, level, 3) for level in range(2, self.count_levels())), *within)


@dataclass(frozen=True)
class PointUNetConfig(Config):
    """Configuration of the network of dense features.

    The network has a stem and residual blocks at the input's density, strided convolutions to coarser clouds,
    up-sampling convolutions with skip connections, and a linear head. Sizes are channels, the input's density first.

    >>> network = PointUNet(PointUNetConfig(in_channels=3, out_channels=20, grid=0.05))  # doctest: +SKIP
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
    """True if features are scaled to length 1, as for descriptors."""

    def __post_init__(self) -> None:
        _check_fields_and_freeze_lists(self, ("blocks", "channels"), ("in_channels", "out_channels"))
        require(isinstance(self.unit_length, bool), "unit_length", "True or False", self.unit_length)

    def count_levels(self) -> int:
        """Return the number of densities, including the input's."""
        return len(self.channels)

    def list_geometry_steps(self) -> tuple[Step, ...]:
        """Return the steps whose geometries the network reads."""
        within = [(level, level, 3) for level in range(self.count_levels())]
        down = [(level - 1, level, 3) for level in range(1, self.count_levels())]
        up = [(level, level - 1, 3) for level in range(1, self.count_levels())]
        stem = [] if self.stem_kernel == 3 else [(0, 0, self.stem_kernel)]
        return (*stem, *within, *down, *up)
