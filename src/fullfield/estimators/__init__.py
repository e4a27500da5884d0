"""Estimation of optical flow: :func:`estimate`, the result type :class:`Flow`, and the protocol of estimators.

Names are loaded on first use: the configurations and the list of methods need no PyTorch.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import lazy

if TYPE_CHECKING:
    from fullfield.estimators._frames import as_frame as as_frame
    from fullfield.estimators.cascaded import CascadedEstimator as CascadedEstimator
    from fullfield.estimators.estimation import estimate as estimate
    from fullfield.estimators.estimation import estimate_batch as estimate_batch
    from fullfield.estimators.estimation import release_memory as release_memory
    from fullfield.estimators.flow import Flow as Flow
    from fullfield.estimators.network import NetworkEstimator as NetworkEstimator
    from fullfield.estimators.network_config import NetworkSettings as NetworkSettings
    from fullfield.estimators.network_config import PtlflowSettings as PtlflowSettings
    from fullfield.estimators.network_config import RAFTSettings as RAFTSettings
    from fullfield.estimators.opencv import OpenCVFlow as OpenCVFlow
    from fullfield.estimators.protocol import Estimator as Estimator
    from fullfield.estimators.ptlflow import PtlflowEstimator as PtlflowEstimator
    from fullfield.estimators.refined import RefinedEstimator as RefinedEstimator
    from fullfield.estimators.registry import METHODS as METHODS
    from fullfield.estimators.tvl1 import TVL1Estimator as TVL1Estimator

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "cascaded": "CascadedEstimator",
        "estimation": "estimate estimate_batch release_memory",
        "flow": "Flow",
        "_frames": "as_frame",
        "network": "NetworkEstimator",
        "network_config": "NetworkSettings PtlflowSettings RAFTSettings",
        "opencv": "OpenCVFlow",
        "protocol": "Estimator",
        "ptlflow": "PtlflowEstimator",
        "refined": "RefinedEstimator",
        "registry": "METHODS",
        "tvl1": "TVL1Estimator",
    },
)
