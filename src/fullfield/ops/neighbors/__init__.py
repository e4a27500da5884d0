"""Neighbours in continuous space: exact radius and kNN search, and the grid downsampling that keeps real points."""

from fullfield.ops.neighbors.api import BACKENDS, backends, knn_search, radius_search
from fullfield.ops.neighbors.downsampling import Downsampled, grid_downsample
from fullfield.ops.neighbors.ordering import spatial_order
from fullfield.ops.neighbors.ragged import Neighbors

__all__ = [
    "BACKENDS",
    "Downsampled",
    "Neighbors",
    "backends",
    "grid_downsample",
    "knn_search",
    "radius_search",
    "spatial_order",
]
