"""LAS, where laspy is installed; LAZ, where one of its decompressors is too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fullfield._check import InputError
from fullfield.io.files import check_readable, reason
from fullfield.io.point_formats import PointCloud


def read(path: Path) -> PointCloud:
    size = check_readable(path)
    try:
        import laspy
    except ImportError as error:
        raise InputError(f"{path}: reading LAS needs laspy ({error}); pip install laspy, or convert to .ply") from None
    try:
        with laspy.open(path) as file:
            header: Any = file.header
            wanted = header.point_count * header.point_format.size
            if not header.are_points_compressed and wanted > size:
                raise InputError(
                    f"{path}: the header says {header.point_count} points, {wanted} bytes; {size} are stored"
                )
            rows = file.read()
    except (laspy.errors.LaspyException, ValueError, OSError, RuntimeError, IndexError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as LAS: {reason(error)}") from error
    if len(rows.points) != header.point_count:
        raise InputError(f"{path}: truncated LAS file: {len(rows.points)} of {header.point_count} points")
    names = set(rows.point_format.dimension_names)
    colors = None
    if {"red", "green", "blue"} <= names:
        colors = np.stack([np.asarray(rows[name]) for name in ("red", "green", "blue")], axis=1)
    skipped = {"X", "Y", "Z", "red", "green", "blue"}
    kept = {n: np.asarray(rows[n]) for n in rows.point_format.dimension_names if n not in skipped}
    columns = {name: values for name, values in kept.items() if values.ndim == 1}
    return PointCloud(np.asarray(rows.xyz, np.float64), colors, attributes=columns)
