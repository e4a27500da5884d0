"""Thin modules on top of the operators."""

from fullfield.nn.corr_blocks import (
    DroidCorrBlock,
    MMFlowCorrelationPyramid,
    MMFlowCorrLookup,
    RAFTCorrBlock,
    SEARAFTCorrBlock,
    TorchvisionCorrBlock,
    local_correlation_with_flow,
)
from fullfield.nn.correlation import CorrelationPyramid
from fullfield.nn.rows import StereoCorrBlock
from fullfield.nn.upsampling import convex_upsample

__all__ = [
    "CorrelationPyramid",
    "DroidCorrBlock",
    "MMFlowCorrLookup",
    "MMFlowCorrelationPyramid",
    "RAFTCorrBlock",
    "SEARAFTCorrBlock",
    "StereoCorrBlock",
    "TorchvisionCorrBlock",
    "convex_upsample",
    "local_correlation_with_flow",
]
