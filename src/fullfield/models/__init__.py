"""Networks that estimate optical flow: RAFT and SEA-RAFT, their weights, and what is built around them.

Names are loaded on first use: the configurations need no PyTorch.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.models.cascade import Cascade as Cascade
    from fullfield.models.prepared.runner import PreparedFlow as PreparedFlow
    from fullfield.models.raft.config import RAFTConfig as RAFTConfig
    from fullfield.models.raft.model import RAFT as RAFT
    from fullfield.models.sea_raft.config import SEARAFTConfig as SEARAFTConfig
    from fullfield.models.sea_raft.model import SEARAFT as SEARAFT
    from fullfield.models.weights import WEIGHTS as WEIGHTS
    from fullfield.models.weights import fetch_weights as fetch_weights
    from fullfield.models.weights import load_weights as load_weights

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "cascade": "Cascade",
        "prepared.runner": "PreparedFlow",
        "raft.config": "RAFTConfig",
        "raft.model": "RAFT",
        "sea_raft.config": "SEARAFTConfig",
        "sea_raft.model": "SEARAFT",
        "weights": "WEIGHTS fetch_weights load_weights",
    },
)
