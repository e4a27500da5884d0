"""Normalisation of points' features with what follows it, in one pass."""

from fullfield.ops.point_norm.op import KINDS, point_norm
from fullfield.ops.point_norm.protocol import Running

__all__ = ["KINDS", "Running", "point_norm"]
