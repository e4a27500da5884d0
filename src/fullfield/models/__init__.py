"""Networks that estimate optical flow: RAFT and SEA-RAFT, their weights, and what is built around them.

Names are loaded on first use: the configurations need no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullfield.models.cascade import Cascade as Cascade
    from fullfield.models.prepared.runner import PreparedFlow as PreparedFlow
    from fullfield.models.prepared.runner import PreparedSizes as PreparedSizes
    from fullfield.models.raft.config import RAFTConfig as RAFTConfig
    from fullfield.models.raft.model import RAFT as RAFT
    from fullfield.models.sea_raft.config import SEARAFTConfig as SEARAFTConfig
    from fullfield.models.sea_raft.model import SEARAFT as SEARAFT
    from fullfield.models.weights import WEIGHTS as WEIGHTS
    from fullfield.models.weights import WeightsEntry as WeightsEntry
    from fullfield.models.weights import fetch_weights as fetch_weights
    from fullfield.models.weights import load_weights as load_weights

_HOME = {
    "Cascade": "fullfield.models.cascade",
    "PreparedFlow": "fullfield.models.prepared.runner",
    "PreparedSizes": "fullfield.models.prepared.runner",
    "RAFT": "fullfield.models.raft.model",
    "RAFTConfig": "fullfield.models.raft.config",
    "SEARAFT": "fullfield.models.sea_raft.model",
    "SEARAFTConfig": "fullfield.models.sea_raft.config",
    "WEIGHTS": "fullfield.models.weights",
    "WeightsEntry": "fullfield.models.weights",
    "fetch_weights": "fullfield.models.weights",
    "load_weights": "fullfield.models.weights",
}

__all__ = [
    "RAFT",
    "SEARAFT",
    "WEIGHTS",
    "Cascade",
    "PreparedFlow",
    "PreparedSizes",
    "RAFTConfig",
    "SEARAFTConfig",
    "WeightsEntry",
    "fetch_weights",
    "load_weights",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
