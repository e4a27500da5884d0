"""Code of a user that mypy's strict mode accepts without a cast; the step `types` checks it, nothing runs it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fullfield.io import PointCloud
from fullfield.registration import register


def register_and_move(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64] | str:
    """Move ``source`` onto ``target``, or return why that cannot be done."""
    result = register(source, target)
    if result.success:
        return source @ result.transform[:3, :3].T + result.transform[:3, 3]
    return result.reason


def coordinates(cloud: PointCloud) -> NDArray[np.float32]:
    """Return the points as an array."""
    return np.asarray(cloud, np.float32)
