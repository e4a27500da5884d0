"""RAFT (Teed and Deng, 2020), large and small, on the correlation lookup in linear memory."""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.models.raft.config import RAFTConfig as RAFTConfig
    from fullfield.models.raft.model import RAFT as RAFT

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(__name__, {"config": "RAFTConfig", "model": "RAFT"})
