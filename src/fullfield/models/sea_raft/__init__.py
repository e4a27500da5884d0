"""SEA-RAFT (Wang, Lipson and Deng, 2024), S, M and L, on the correlation lookup in linear memory."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullfield.models.sea_raft.config import SEARAFTConfig as SEARAFTConfig
    from fullfield.models.sea_raft.model import SEARAFT as SEARAFT
    from fullfield.models.sea_raft.model import expected_log_scale as expected_log_scale

_HOME = {
    "SEARAFT": "fullfield.models.sea_raft.model",
    "SEARAFTConfig": "fullfield.models.sea_raft.config",
    "expected_log_scale": "fullfield.models.sea_raft.model",
}

__all__ = ["SEARAFT", "SEARAFTConfig", "expected_log_scale"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield.models.sea_raft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
