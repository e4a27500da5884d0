"""Published measurements of Romera et al., Journal of Real-Time Image Processing 20:32, 2023.

They ran on an NVIDIA Jetson AGX Xavier unless said.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "Romera et al. 2023, Jetson AGX Xavier"


class Published(NamedTuple):
    """A row of table 1: 2048×2048, one scale, one warp, ten iterations; counts per pixel."""

    operations: int
    accesses: int
    ns_per_pixel: float
    gflops: int
    gbytes_per_s: int


TABLE1 = {
    ("global", "float32"): Published(640, 181, 8.17, 78, 165),
    ("global", "float16"): Published(508, 181, 4.36, 117, 155),
    ("shared_fusion", "float32"): Published(640, 251, 8.13, 79, 230),
    ("shared_fusion", "float16"): Published(488, 261, 4.31, 113, 226),
    ("global_pipeline", "float32"): Published(640, 181, 6.65, 96, 203),
    ("global_pipeline", "float16"): Published(508, 181, 4.02, 126, 168),
    ("shared_pipeline", "float32"): Published(660, 219, 5.10, 129, 320),
    ("shared_pipeline", "float16"): Published(553, 219, 2.86, 193, 285),
}
# Table 2: milliseconds a frame -> (end-point error float32, float16, angular error float32, float16), averages of all.
TABLE2 = {
    "middlebury": {2.5: (2.83, 2.25, 26.77, 16.91), 5.0: (1.87, 1.65, 12.04, 9.72), 10.0: (1.50, 1.42, 8.30, 7.80)},
    "sintel": {
        2.5: (14.99, 13.91, 37.38, 31.85),
        5.0: (12.33, 11.47, 22.74, 19.37),
        10.0: (10.65, 10.35, 16.38, 15.99),
    },
}
# Table 2, Middlebury by scene: the same four values at 2.5, 5 and 10 ms.
TABLE2_SCENES = {
    "Dimetrodon": (0.91, 0.55, 19.60, 10.74, 0.29, 0.25, 5.47, 4.52, 0.20, 0.19, 3.43, 3.36),
    "Grove2": (1.52, 0.74, 24.54, 10.28, 0.40, 0.26, 5.74, 3.78, 0.22, 0.24, 3.33, 3.45),
    "Grove3": (2.47, 1.71, 27.15, 15.99, 1.34, 1.10, 11.71, 9.73, 1.01, 0.98, 8.88, 8.74),
    "Hydrangea": (1.69, 0.93, 17.88, 7.78, 0.37, 0.33, 3.52, 3.35, 0.30, 0.32, 2.92, 3.13),
    "RubberWhale": (0.42, 0.34, 13.39, 10.84, 0.28, 0.27, 9.05, 8.82, 0.24, 0.25, 7.74, 7.87),
    "Urban2": (7.44, 6.77, 40.04, 28.32, 6.38, 5.92, 22.36, 17.23, 5.59, 5.30, 14.12, 12.08),
    "Urban3": (6.34, 5.58, 50.08, 35.48, 5.03, 4.33, 27.70, 20.65, 3.95, 3.53, 17.89, 15.62),
    "Venus": (1.86, 1.42, 21.51, 15.88, 0.89, 0.72, 10.77, 9.68, 0.52, 0.52, 8.05, 8.12),
}
# Table 3: milliseconds -> side of the largest square frame and watts; three scales, one warp, ten iterations.
TABLE3 = {
    "opencv cuda": {5: (320, 23.8), 10: (616, 24.9), 20: (1000, 26.2), 40: (1484, 27.8)},
    "float32": {5: (644, 23.2), 10: (962, 25.7), 20: (1416, 28.1), 40: (2050, 29.7)},
    "float16": {5: (896, 24.9), 10: (1314, 28.0), 20: (1984, 31.6), 40: (2848, 34.2)},
}
