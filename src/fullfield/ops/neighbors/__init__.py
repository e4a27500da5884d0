"""Exact radius and kNN search in point clouds, and grid downsampling that keeps original points."""

from fullfield.ops.neighbors.api import knn_search, list_backends, radius_search, spatial_order
from fullfield.ops.neighbors.downsampling import grid_downsample

__all__ = [
    "grid_downsample",
    "knn_search",
    "list_backends",
    "radius_search",
    "spatial_order",
]
