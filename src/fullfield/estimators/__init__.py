"""From two frames to a flow: :func:`estimate`, the result type :class:`Flow`, and the protocol of estimators."""

from fullfield.estimators.estimation import METHODS, estimate
from fullfield.estimators.flow import Flow
from fullfield.estimators.frames import as_frame
from fullfield.estimators.protocol import Estimator
from fullfield.estimators.tvl1 import TVL1Estimator

__all__ = ["METHODS", "Estimator", "Flow", "TVL1Estimator", "as_frame", "estimate"]
