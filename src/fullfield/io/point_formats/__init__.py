"""Formats of point clouds. Each module reads one; :mod:`fullfield.io.pointcloud` chooses."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import complaining, one_line

_COLORS = (("red", "green", "blue"), ("diffuse_red", "diffuse_green", "diffuse_blue"))
_NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))


@dataclass(frozen=True)
class PointCloud:
    """Points with their colours, normals and attributes. Points that are not finite are kept."""

    points: NDArray[Any]  # [N, 3] float32 or float64, as stored; integers become float64
    colors: NDArray[Any] | None = None  # [N, 3] uint8, uint16 or float (0 to 1), as stored
    normals: NDArray[Any] | None = None  # [N, 3] float
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # name -> [N], whatever else there is

    def __len__(self) -> int:
        return len(self.points)


def as_coordinates(values: NDArray[Any]) -> NDArray[Any]:
    """Return float32 and float64 as they are, any other type as float64."""
    kept = values.dtype.newbyteorder("=") if values.dtype in (np.float32, np.float64) else np.float64
    return np.ascontiguousarray(values, kept)


def from_columns(path: Path, columns: dict[str, NDArray[Any]]) -> PointCloud:
    """Return a cloud of named columns [N]; the mapping is emptied."""
    if not {"x", "y", "z"} <= columns.keys():
        raise without_axes(path, columns)
    points = as_coordinates(np.stack([columns.pop(axis) for axis in "xyz"], axis=1))
    colors, normals = (_group(columns, names) for names in (_COLORS, _NORMALS))
    native = {name: column.astype(column.dtype.newbyteorder("="), copy=False) for name, column in columns.items()}
    return PointCloud(points, colors, normals, native)


def text_columns(
    path: Path, file: IO[bytes], named: Sequence[tuple[str, str]], count: int, left: int, skipped: int = 0
) -> dict[str, NDArray[Any]]:
    """Read ``count`` rows of text as named columns, after ``skipped`` lines and within ``left`` bytes."""
    width = len(named)
    if count * 2 * max(width, 1) > left + 1 or skipped > left:
        raise InputError(f"{path}: the header says {count} points, which {left} bytes of text cannot hold")
    for _ in range(skipped):
        file.readline()
    values = np.empty((0, width))
    if count:
        lines = (line.decode("ascii", "replace") for _, line in zip(range(count), file, strict=False))
        with complaining(path, f"a point that is no row of {width} numbers", ValueError):
            values = np.loadtxt(lines, np.float64, comments=None, ndmin=2)
    if values.shape != (count, width):
        raise InputError(f"{path}: expected {count} points of {width} numbers, got {len(values)} of {values.shape[1]}")
    with np.errstate(invalid="ignore", over="ignore"):
        return {name: values[:, i].astype(kind) for i, (name, kind) in enumerate(named)}


def binary_columns(
    path: Path, file: IO[bytes], dtype: np.dtype[Any], count: int, left: int, skipped: int = 0
) -> dict[str, NDArray[Any]]:
    """Read ``count`` rows of ``dtype``, after ``skipped`` bytes and within ``left`` bytes, as columns."""
    wanted = count * dtype.itemsize
    if skipped + wanted > left:
        raise InputError(f"{path}: the header says {count} points, {wanted} bytes; {left - skipped} are stored")
    file.seek(skipped, 1)
    rows = np.frombuffer(file.read(wanted), dtype)
    return {name: rows[name] for name in dtype.names or ()}


def without_axes(path: Path, names: Iterable[str]) -> InputError:
    """Return the error for points without x, y or z among their columns ``names``."""
    listed = ", ".join(one_line(name, 20) for name in itertools.islice(names, 20)) or "nothing"
    return InputError(f"{path}: expected points with x, y and z, got {listed}")


def _group(columns: dict[str, NDArray[Any]], groups: tuple[tuple[str, ...], ...]) -> NDArray[Any] | None:
    for names in groups:
        if columns.keys() >= set(names):
            stacked = np.stack([columns.pop(name) for name in names], axis=1)
            return np.ascontiguousarray(stacked, stacked.dtype.newbyteorder("="))
    return None
