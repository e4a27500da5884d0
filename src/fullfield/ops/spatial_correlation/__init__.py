"""Products of each pixel's features with those of a fixed window around it."""

from fullfield.ops.spatial_correlation.api import backends, spatial_correlation

__all__ = ["backends", "spatial_correlation"]
