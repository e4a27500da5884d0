"""Thin modules on top of the operators."""

from fullfield.nn.correlation import CorrelationPyramid

__all__ = ["CorrelationPyramid"]
