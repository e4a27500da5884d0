"""Metrics of optical flow: errors of pixels, means over an image, totals over a data set.

The definitions, and what they do with invalid pixels, are on the conventions page.
"""

from fullfield.metrics.accumulator import FlowMetrics
from fullfield.metrics.pixels import (
    aae,
    end_point_error,
    epe,
    fl_all,
    outliers,
    split_four_values,
    wauc,
)
from fullfield.metrics.registration import (
    feature_matching_recall,
    inlier_ratio,
    registration_recall,
    registration_rmse,
    relative_rotation_error,
    relative_translation_error,
    rmse_by_information,
)

__all__ = [
    "FlowMetrics",
    "aae",
    "end_point_error",
    "epe",
    "feature_matching_recall",
    "fl_all",
    "inlier_ratio",
    "outliers",
    "registration_recall",
    "registration_rmse",
    "relative_rotation_error",
    "relative_translation_error",
    "rmse_by_information",
    "split_four_values",
    "wauc",
]
