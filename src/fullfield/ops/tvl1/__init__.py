"""TV-L1 optical flow. See README.md beside this file for the scheme and its numerics."""

from importlib import import_module
from typing import TYPE_CHECKING

from fullfield.ops.tvl1.config import PRESETS, TVL1Config

if TYPE_CHECKING:
    from fullfield.ops.tvl1.api import BACKENDS as BACKENDS
    from fullfield.ops.tvl1.api import TVL1Solver as TVL1Solver
    from fullfield.ops.tvl1.api import backends as backends
    from fullfield.ops.tvl1.api import tvl1 as tvl1
    from fullfield.ops.tvl1.persistent import Latency as Latency
    from fullfield.ops.tvl1.persistent import PersistentSolver as PersistentSolver

__all__ = ["BACKENDS", "PRESETS", "Latency", "PersistentSolver", "TVL1Config", "TVL1Solver", "backends", "tvl1"]


def __getattr__(name: str) -> object:
    if name in __all__:
        module = "persistent" if name in ("Latency", "PersistentSolver") else "api"
        return getattr(import_module(f"fullfield.ops.tvl1.{module}"), name)
    raise AttributeError(f"module 'fullfield.ops.tvl1' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
