"""Formats of point clouds. ``las``, ``pcd`` and ``ply`` read and write one each.

:mod:`fullfield.io.pointcloud` chooses between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fullfield._check import InputError
from fullfield.io.files import join_to_one_line, raise_as_input_errors
from fullfield.io.point_formats.coordinate_system import CoordinateSystem

_COLORS = (("red", "green", "blue"), ("diffuse_red", "diffuse_green", "diffuse_blue"))
_NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))


@dataclass(frozen=True)
class PointCloud:
    """Points, and the colours, normals and attributes of each. Points that are not finite stay in it."""

    points: NDArray[Any]  # [N, 3] float32 or float64, as stored; integers become float64
    colors: NDArray[Any] | None = None  # [N, 3] uint8, uint16 or float (0 to 1), as stored
    normals: NDArray[Any] | None = None  # [N, 3] float
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # name -> [N], all other columns
    coordinate_system: CoordinateSystem | None = None  # of a LAS file that names one; other formats do not store it

    def __len__(self) -> int:
        return len(self.points)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the points [N, 3]; ``np.asarray(cloud)`` shares their memory where ``dtype`` allows it.

        As NumPy 2 has it, ``copy`` True always copies, None only where the type changes, and False never.

        Raises:
            ValueError: ``copy`` is False and the type changes.
        """
        array = np.asarray(self.points)
        dtype_ = dtype is None or array.dtype == np.dtype(dtype)
        if copy is False and not dtype_:
            raise ValueError(f"copy: points of type {array.dtype} become {np.dtype(dtype)} only by a copy, got False")
        return array if dtype_ and not copy else np.array(array, dtype)


def convert_to_float_coordinates(values: NDArray[Any]) -> NDArray[Any]:
    """Return float32 and float64 as they are, anything else as float64."""
    dtype_ = values.dtype.newbyteorder("=") if values.dtype in (np.float32, np.float64) else np.float64
    return np.ascontiguousarray(values, dtype_)


def scale_colors_to_uint8(colors: NDArray[Any]) -> NDArray[Any]:
    """Return colours of 16 bits or floats of 0 to 1 as bytes."""
    scaled: NDArray[Any] = colors  # bytes, also those that a format stores in a wider type
    if colors.dtype.kind == "f":
        scaled = np.round(np.clip(np.nan_to_num(colors), 0.0, 1.0) * 255)
    elif colors.size and colors.max() > 255:
        scaled = colors.astype(np.int64) >> 8
    return scaled.clip(0, 255).astype(np.uint8)


def scale_colors_to_uint16(colors: NDArray[Any]) -> NDArray[Any]:
    """Return colours of 8 bits or floats of 0 to 1 as words of 16 bits."""
    scaled: NDArray[Any] = colors
    if colors.dtype.kind == "f":
        scaled = np.round(np.clip(np.nan_to_num(colors), 0.0, 1.0) * 65535)
    elif colors.dtype == np.uint8:
        scaled = colors.astype(np.uint16) * np.uint16(257)
    return scaled.clip(0, 65535).astype(np.uint16)


def build_cloud_by_popping_columns(path: Path, columns: dict[str, NDArray[Any]]) -> PointCloud:
    """Make a cloud from named columns [N], and remove them from ``columns``."""
    if not {"x", "y", "z"} <= columns.keys():
        raise build_missing_axes_error(path, columns)
    points = convert_to_float_coordinates(np.stack([columns.pop(axis) for axis in "xyz"], axis=1))
    colors, normals = (_pop_complete_column_group_if_any(columns, names) for names in (_COLORS, _NORMALS))
    native = {name: column.astype(column.dtype.newbyteorder("="), copy=False) for name, column in columns.items()}
    return PointCloud(points, colors, normals, native)


def read_text_columns(
    path: Path,
    file: IO[bytes],
    names_and_types: Sequence[tuple[str, str]],
    row_count: int,
    max_bytes: int,
    skipped_lines: int = 0,
) -> dict[str, NDArray[Any]]:
    """Read ``row_count`` rows of text as columns of these names and types.

    They lie behind ``skipped_lines`` lines, in ``max_bytes`` bytes.
    """
    width = len(names_and_types)
    if row_count * 2 * max(width, 1) > max_bytes + 1 or skipped_lines > max_bytes:
        raise InputError(f"{path}: the header says {row_count} points, which {max_bytes} bytes of text cannot hold")
    for _ in range(skipped_lines):
        file.readline()
    values = np.empty((0, width))
    if row_count:
        lines = (line.decode("ascii", "replace") for _, line in zip(range(row_count), file, strict=False))
        with raise_as_input_errors(path, f"a point that is no row of {width} numbers", ValueError):
            values = np.loadtxt(lines, np.float64, comments=None, ndmin=2)
    if values.shape != (row_count, width):
        raise InputError(
            f"{path}: expected {row_count} points of {width} numbers, got {len(values)} of {values.shape[1]}"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        return {name: values[:, i].astype(kind) for i, (name, kind) in enumerate(names_and_types)}


def read_binary_columns(
    path: Path, file: IO[bytes], dtype: np.dtype[Any], row_count: int, max_bytes: int, skipped_bytes: int = 0
) -> dict[str, NDArray[Any]]:
    """Read ``row_count`` rows of ``dtype`` as columns, behind ``skipped_bytes`` bytes, in ``max_bytes`` bytes."""
    expected_bytes = row_count * dtype.itemsize
    if skipped_bytes + expected_bytes > max_bytes:
        raise InputError(
            f"{path}: the header says {row_count} points, {expected_bytes} bytes; "
            f"{max_bytes - skipped_bytes} are stored"
        )
    file.seek(skipped_bytes, 1)
    rows = np.frombuffer(file.read(expected_bytes), dtype)
    return {name: rows[name] for name in dtype.names or ()}


def build_missing_axes_error(path: Path, names: Iterable[str]) -> InputError:
    """Return the error for points whose columns ``names`` have no x, y or z."""
    listed = ", ".join(join_to_one_line(name, 20) for name in itertools.islice(names, 20)) or "nothing"
    return InputError(f"{path}: expected points with x, y and z, got {listed}")


def _pop_complete_column_group_if_any(
    columns: dict[str, NDArray[Any]], groups: tuple[tuple[str, ...], ...]
) -> NDArray[Any] | None:
    for names in groups:
        if columns.keys() >= set(names):
            stacked = np.stack([columns.pop(name) for name in names], axis=1)
            return np.ascontiguousarray(stacked, stacked.dtype.newbyteorder("="))
    return None
