"""Products of each pixel's features with those of a fixed window around it."""

from fullfield.ops.spatial_correlation.api import list_backends, spatial_correlation

__all__ = ["list_backends", "spatial_correlation"]
