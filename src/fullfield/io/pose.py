"""Poses that users hand in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield import _check
from fullfield._check import InputError
from fullfield.io.arrays import read_npy
from fullfield.io.files import PathLike, check_readable, complaining

Floats = NDArray[np.float64]

_MOST_BYTES = 1 << 16


def read_pose(path: PathLike) -> Floats:
    """[4, 4] from a text file or ``.npy`` of 4×4 or 3×4 numbers, or of those in one row as KITTI writes them.

    Raises:
        InputError: for anything else, or numbers that are no rotation and translation.
        OSError: if it cannot be opened.
    """
    file = Path(path)
    size = check_readable(file)
    if size > _MOST_BYTES:
        raise InputError(f"{file}: expected a pose, 12 or 16 numbers, got a file of {size} bytes")
    with complaining(file, "expected a pose, 12 or 16 numbers", ValueError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no numbers at all: said below
        text = file.suffix.lower() != ".npy"
        values = np.loadtxt(file, np.float64, ndmin=2) if text else read_npy(file, size)
    if values.size == 12 and values.dtype.kind in "fiu":
        values = np.concatenate([values.reshape(3, 4), [[0.0, 0.0, 0.0, 1.0]]])
    return rigid(values.reshape(4, 4) if values.size == 16 else values, str(file))


def rigid(value: Any, name: str = "init") -> Floats:
    """``value`` as a float64 [4, 4] rotation and translation.

    Raises:
        InputError: for another shape, a last row other than 0 0 0 1, or a block that is no rotation to 1e-3.
    """
    try:
        pose = np.array(value, np.float64)
    except (TypeError, ValueError):
        pose = np.empty(0)
    _check.require(pose.shape == (4, 4) and bool(np.isfinite(pose).all()), name, "a finite 4×4 matrix", value)
    turn = pose[:3, :3]
    with np.errstate(over="ignore", invalid="ignore"):
        fits = np.allclose(turn @ turn.T, np.eye(3), atol=1e-3) and np.linalg.det(turn) > 0
        fits = fits and np.allclose(pose[3], (0, 0, 0, 1), atol=1e-6)
        shown = str(pose.round(4).tolist())
    _check.require(bool(fits), name, "a rotation and a translation, the last row 0 0 0 1", shown)
    left, _, right = np.linalg.svd(turn)
    pose[:3, :3] = left @ right
    return pose
