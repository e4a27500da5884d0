"""Estimation of optical flow: :func:`estimate`, the result type :class:`Flow`, and the protocol of estimators.

Names are loaded on first use: the configurations and the list of methods need no PyTorch.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.estimators.cascaded import CascadedEstimator as CascadedEstimator
    from fullfield.estimators.estimation import release_memory as release_memory
    from fullfield.estimators.network import NetworkEstimator as NetworkEstimator
    from fullfield.estimators.network_config import NetworkSettings as NetworkSettings
    from fullfield.estimators.opencv import OpenCVFlow as OpenCVFlow
    from fullfield.estimators.protocol import Estimator as Estimator
    from fullfield.estimators.refined import RefinedEstimator as RefinedEstimator
    from fullfield.estimators.registry import METHODS as METHODS
    from fullfield.estimators.tvl1 import TVL1Estimator as TVL1Estimator

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "cascaded": "CascadedEstimator",
        "estimation": "release_memory",
        "network": "NetworkEstimator",
        "network_config": "NetworkSettings",
        "opencv": "OpenCVFlow",
        "protocol": "Estimator",
        "refined": "RefinedEstimator",
        "registry": "METHODS",
        "tvl1": "TVL1Estimator",
    },
)
