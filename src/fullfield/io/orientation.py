"""Pictures turned and mirrored as their EXIF orientation says."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.generic)
SIDEWAYS = (5, 6, 7, 8)
"""Orientations that swap width and height."""


def apply_exif_orientation(planes: NDArray[_Value], orientation: int) -> NDArray[_Value]:
    """Turn ``[..., H, W]`` by its EXIF orientation, 1 to 8; other values count as 1."""
    if orientation not in range(2, 9):
        return planes
    if orientation in SIDEWAYS:
        planes = planes.swapaxes(-1, -2)
    if orientation in (2, 3, 6, 7):
        planes = planes[..., ::-1]
    if orientation in (3, 4, 7, 8):
        planes = planes[..., ::-1, :]
    return np.array(planes, order="C")
