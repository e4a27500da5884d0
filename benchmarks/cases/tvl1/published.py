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
# Table 2, averages: milliseconds a frame -> (end-point error float32, float16, angular error float32, float16).
TABLE2 = {
    "middlebury": {2.5: (2.83, 2.25, 26.77, 16.91), 5.0: (1.87, 1.65, 12.04, 9.72), 10.0: (1.50, 1.42, 8.30, 7.80)},
    "sintel": {
        2.5: (14.99, 13.91, 37.38, 31.85),
        5.0: (12.33, 11.47, 22.74, 19.37),
        10.0: (10.65, 10.35, 16.38, 15.99),
    },
}
# Table 3: milliseconds -> side of the largest square frame and watts; three scales, one warp, ten iterations.
TABLE3 = {
    "opencv cuda": {5: (320, 23.8), 10: (616, 24.9), 20: (1000, 26.2), 40: (1484, 27.8)},
    "float32": {5: (644, 23.2), 10: (962, 25.7), 20: (1416, 28.1), 40: (2050, 29.7)},
    "float16": {5: (896, 24.9), 10: (1314, 28.0), 20: (1984, 31.6), 40: (2848, 34.2)},
}
