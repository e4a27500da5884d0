"""The method that chooses: the network that comes with fullfield, made exact."""

from __future__ import annotations

import torch

from fullfield.estimators.network import NetworkEstimator
from fullfield.estimators.network_config import NetworkConfig
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import AUTO_NETWORK
from fullfield.ops.tvl1 import RefinementConfig


class AutoEstimator(RefinedEstimator):
    """The network in the package, refined (:class:`RefinedEstimator`) in three passes of one round.

    With ``precision`` other than exact it is one pass of two rounds, and on the CPU the network alone, once, for
    speed.

    ``method`` is the network's: results say what made them; ``parameters`` tell of the refinement.

    Args:
        config: the network's.
        backend: of the correlation lookup.
    """

    def __init__(self, config: NetworkConfig | None = None, *, backend: str | None = None) -> None:
        self._hurries = config is not None and config.precision != "exact"
        refinement = RefinementConfig() if self._hurries else RefinementConfig(passes=3, rounds=1)
        super().__init__(NetworkEstimator(AUTO_NETWORK, config, backend=backend), refinement)

    def refines(self, device: torch.device) -> bool:
        """Whether frames on the device are refined."""
        return not (self._hurries and device.type == "cpu")
