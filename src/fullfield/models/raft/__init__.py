"""RAFT (Teed and Deng, 2020), large and small, on the correlation lookup in linear memory."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullfield.models.raft.config import RAFTConfig as RAFTConfig
    from fullfield.models.raft.model import RAFT as RAFT

_HOME = {"RAFT": "fullfield.models.raft.model", "RAFTConfig": "fullfield.models.raft.config"}

__all__ = ["RAFT", "RAFTConfig"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield.models.raft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
