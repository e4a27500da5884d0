"""Exact radius and kNN search in point clouds, and grid downsampling that keeps original points."""

from fullfield.ops.neighbors.api import backends, knn_search, radius_search, spatial_order
from fullfield.ops.neighbors.downsampling import Downsampled, grid_downsample
from fullfield.ops.neighbors.ragged import Neighbors

__all__ = [
    "Downsampled",
    "Neighbors",
    "backends",
    "grid_downsample",
    "knn_search",
    "radius_search",
    "spatial_order",
]
