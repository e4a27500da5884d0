"""Products of each pixel's features with those of a fixed window around it."""

from fullfield.ops.spatial_correlation.api import explain_backends, spatial_correlation

__all__ = ["explain_backends", "spatial_correlation"]
