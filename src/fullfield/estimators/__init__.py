"""From two frames to a flow: :func:`estimate`, the result type :class:`Flow`, and the protocol of estimators.

Names are loaded on first use: the configurations and the list of methods need no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fullfield.estimators.network_config import NetworkConfig, RAFTEstimatorConfig
from fullfield.estimators.ptlflow_config import PtlflowConfig
from fullfield.estimators.registry import METHODS

if TYPE_CHECKING:
    from fullfield.estimators.cascaded import CascadedEstimator as CascadedEstimator
    from fullfield.estimators.estimation import estimate as estimate
    from fullfield.estimators.flow import Flow as Flow
    from fullfield.estimators.frames import as_frame as as_frame
    from fullfield.estimators.network import NetworkEstimator as NetworkEstimator
    from fullfield.estimators.protocol import Estimator as Estimator
    from fullfield.estimators.ptlflow import PtlflowEstimator as PtlflowEstimator
    from fullfield.estimators.refined import RefinedEstimator as RefinedEstimator
    from fullfield.estimators.tvl1 import TVL1Estimator as TVL1Estimator

_HOME = {
    "CascadedEstimator": "fullfield.estimators.cascaded",
    "Estimator": "fullfield.estimators.protocol",
    "Flow": "fullfield.estimators.flow",
    "NetworkEstimator": "fullfield.estimators.network",
    "PtlflowEstimator": "fullfield.estimators.ptlflow",
    "RefinedEstimator": "fullfield.estimators.refined",
    "TVL1Estimator": "fullfield.estimators.tvl1",
    "as_frame": "fullfield.estimators.frames",
    "estimate": "fullfield.estimators.estimation",
}

__all__ = [
    "METHODS",
    "CascadedEstimator",
    "Estimator",
    "Flow",
    "NetworkConfig",
    "NetworkEstimator",
    "PtlflowConfig",
    "PtlflowEstimator",
    "RAFTEstimatorConfig",
    "RefinedEstimator",
    "TVL1Estimator",
    "as_frame",
    "estimate",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield.estimators' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
