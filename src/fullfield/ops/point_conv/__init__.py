"""Convolution on native points: neighbours in continuous space, kernel cells quantised around each centre."""

from fullfield.ops.point_conv.api import explain_backends, point_conv
from fullfield.ops.point_conv.geometry import (
    PointGeometry,
    knn_geometry,
    radius_geometry,
    triplet_geometry,
    voxel_geometry,
)
from fullfield.ops.point_conv.pooling import point_pool

__all__ = [
    "PointGeometry",
    "explain_backends",
    "knn_geometry",
    "point_conv",
    "point_pool",
    "radius_geometry",
    "triplet_geometry",
    "voxel_geometry",
]
