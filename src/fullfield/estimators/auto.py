"""Default method: the network in the package, refined to sub-pixel accuracy."""

from __future__ import annotations

import torch

from fullfield.estimators.network import NetworkEstimator
from fullfield.estimators.network_config import NetworkConfig
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import AUTO_NETWORK
from fullfield.ops.tvl1 import RefinementConfig


class AutoEstimator(RefinedEstimator):
    """Network in the package, refined (:class:`RefinedEstimator`) in three passes of one round.

    Only changes that reduce the image mismatch are kept. With ``precision`` "fast" or "bfloat16" the refinement is one
    pass of two rounds, and on the CPU the network runs alone.

    ``method`` is the network's, so that results name what computed them; ``parameters`` describe the refinement.

    Args:
        config: configuration of the network.
        backend: backend of the correlation lookup.
    """

    def __init__(self, config: NetworkConfig | None = None, *, backend: str | None = None) -> None:
        self._is_fast = config is not None and config.precision not in ("auto", "exact")
        refinement = RefinementConfig() if self._is_fast else RefinementConfig(passes=3, rounds=1)
        super().__init__(NetworkEstimator(AUTO_NETWORK, config, backend=backend), refinement)

    def refines(self, device: torch.device) -> bool:
        """Return whether frames on the device are refined."""
        return not (self._is_fast and device.type == "cpu")
