"""Exact radius and kNN search in point clouds, and grid downsampling that keeps original points."""

from fullfield.ops.neighbors.api import explain_backends, knn_search, radius_search, spatial_order
from fullfield.ops.neighbors.downsampling import grid_downsample

__all__ = [
    "explain_backends",
    "grid_downsample",
    "knn_search",
    "radius_search",
    "spatial_order",
]
