"""SEA-RAFT (Wang, Lipson and Deng, 2024), S, M and L, on the correlation lookup in linear memory."""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.models.sea_raft.config import SEARAFTConfig as SEARAFTConfig
    from fullfield.models.sea_raft.model import SEARAFT as SEARAFT
    from fullfield.models.sea_raft.model import compute_expected_log_scale as compute_expected_log_scale

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__, {"config": "SEARAFTConfig", "model": "SEARAFT compute_expected_log_scale"}
)
