"""TV-L1 optical flow. See README.md beside this file for the scheme and its numerics."""

from importlib import import_module
from typing import TYPE_CHECKING

from fullfield.ops.tvl1.config import PRESETS, TVL1Config
from fullfield.ops.tvl1.guided_config import RefinementConfig

if TYPE_CHECKING:
    from fullfield.ops.tvl1.api import BACKENDS as BACKENDS
    from fullfield.ops.tvl1.api import TVL1Solver as TVL1Solver
    from fullfield.ops.tvl1.api import backends as backends
    from fullfield.ops.tvl1.guided import FlowRefiner as FlowRefiner
    from fullfield.ops.tvl1.guided import refine_flow as refine_flow
    from fullfield.ops.tvl1.guided import refinement_backends as refinement_backends
    from fullfield.ops.tvl1.op import tvl1 as tvl1
    from fullfield.ops.tvl1.persistent import Latency as Latency
    from fullfield.ops.tvl1.persistent import PersistentSolver as PersistentSolver

_HOME = {
    "BACKENDS": "api",
    "TVL1Solver": "api",
    "backends": "api",
    "FlowRefiner": "guided",
    "refine_flow": "guided",
    "refinement_backends": "guided",
    "tvl1": "op",
    "Latency": "persistent",
    "PersistentSolver": "persistent",
}

__all__ = [
    "BACKENDS",
    "PRESETS",
    "FlowRefiner",
    "Latency",
    "PersistentSolver",
    "RefinementConfig",
    "TVL1Config",
    "TVL1Solver",
    "backends",
    "refine_flow",
    "refinement_backends",
    "tvl1",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"fullfield.ops.tvl1.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fullfield.ops.tvl1' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
