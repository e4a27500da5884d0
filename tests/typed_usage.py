"""Code of a user that mypy's strict mode accepts without a cast; the step `types` checks it, nothing runs it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fullfield.io import PointCloud
from fullfield.registration import register


def moved(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64] | str:
    """Move ``source`` onto ``target``, or return why that cannot be done."""
    found = register(source, target)
    if found.success:
        return source @ found.transform[:3, :3].T + found.transform[:3, 3]
    return found.reason


def coordinates(cloud: PointCloud) -> NDArray[np.float32]:
    """Return the points as an array."""
    return np.asarray(cloud, np.float32)
