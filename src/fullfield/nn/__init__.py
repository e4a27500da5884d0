"""Modules and functions on top of the operators."""

from fullfield.nn.corr_blocks import (
    DroidCorrBlock,
    RAFTCorrBlock,
    SEARAFTCorrBlock,
    StereoCorrBlock,
    TorchvisionCorrBlock,
    local_correlation_with_flow,
)
from fullfield.nn.correlation import CorrelationPyramid
from fullfield.nn.points import CloudPool, PointConv, PointNorm, PointPool
from fullfield.nn.windows import FlowPropagation, SpatialCorrelationSampler

__all__ = [
    "CloudPool",
    "CorrelationPyramid",
    "DroidCorrBlock",
    "FlowPropagation",
    "PointConv",
    "PointNorm",
    "PointPool",
    "RAFTCorrBlock",
    "SEARAFTCorrBlock",
    "SpatialCorrelationSampler",
    "StereoCorrBlock",
    "TorchvisionCorrBlock",
    "local_correlation_with_flow",
]
