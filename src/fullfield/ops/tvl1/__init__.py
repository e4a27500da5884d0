"""TV-L1 optical flow. README.md in this folder has the scheme and its numerics."""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.ops.tvl1.api import TVL1Solver as TVL1Solver
    from fullfield.ops.tvl1.api import explain_backends as explain_backends
    from fullfield.ops.tvl1.api import tvl1 as tvl1
    from fullfield.ops.tvl1.config import TVL1Config as TVL1Config
    from fullfield.ops.tvl1.guided import FlowRefiner as FlowRefiner
    from fullfield.ops.tvl1.guided import refine_flow as refine_flow
    from fullfield.ops.tvl1.persistent import PersistentSolver as PersistentSolver

_HOMES = {
    "api": "TVL1Solver explain_backends tvl1",
    "config": "TVL1Config",
    "guided": "FlowRefiner refine_flow",
    "persistent": "PersistentSolver",
}
__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(__name__, _HOMES)
