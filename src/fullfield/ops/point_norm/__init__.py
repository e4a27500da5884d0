"""Normalisation of points' features with the residual and the ReLU after it."""

from fullfield.ops.point_norm.api import KINDS, point_norm
from fullfield.ops.point_norm.reference import Running

__all__ = ["KINDS", "Running", "point_norm"]
