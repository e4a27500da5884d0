"""NumPy's ``.npy`` and ``.npz``, and KITTI's ``.bin``.

``.npy``: [N, 3] or wider; further columns become the attributes ``column_3`` and so on. ``.npz``: the array ``points``
(or ``xyz``, ``pos``, or the only one), with ``colors``, ``normals`` and attributes [N] beside it.
``.bin``: float32 x, y, z, reflectance.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.arrays import member_shape, opened_archive, read_member, read_npy, write_npy
from fullfield.io.files import check_readable, one_line
from fullfield.io.point_formats import PointCloud, as_coordinates

_POINTS = ("points", "xyz", "pos", "arr_0")
_TRIPLES = ("colors", "normals")
_MOST_COLUMNS = 256


def read_array(path: Path) -> PointCloud:
    """Read a cloud from a .npy file [N, 3] or wider."""
    return from_array(read_npy(path, check_readable(path)), str(path))


def from_array(values: NDArray[Any], name: str) -> PointCloud:
    """Return a cloud of [N, 3] or wider; further columns become attributes."""
    if values.ndim != 2 or not 3 <= values.shape[1] <= _MOST_COLUMNS or values.dtype.kind not in "fiu":
        raise InputError(f"{name}: expected points [N, 3] or wider, got {values.dtype} {list(values.shape)}")
    extra = {f"column_{i}": np.ascontiguousarray(values[:, i]) for i in range(3, values.shape[1])}
    return PointCloud(as_coordinates(values[:, :3]), attributes=extra)


def read_archive(path: Path) -> PointCloud:
    """Read a cloud from a .npz file."""
    with opened_archive(path) as (archive, names):
        chosen = next((n for n in _POINTS if n in names), names[0] if len(names) == 1 else None)
        if chosen is None:
            listed = ", ".join(one_line(n, 20) for n in names[:20]) or "nothing"
            raise InputError(f"{path}: expected an array called {' or '.join(_POINTS[:3])}, got {listed}")
        shapes = {name: member_shape(path, archive, name) for name in names}
        _check_shapes(path, chosen, shapes)
        arrays = {name: read_member(path, archive, name) for name in names}
    cloud = from_array(arrays.pop(chosen), f"{path}: array {chosen}")
    triples = {name: arrays.pop(name, None) for name in _TRIPLES}
    return PointCloud(cloud.points, **triples, attributes={**cloud.attributes, **arrays})


def _check_shapes(path: Path, points: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse arrays that do not belong to the array ``points``, before any is unpacked."""
    count = shapes[points][0]
    for name, shape in shapes.items():
        wanted: tuple[int, ...] = (count, 3) if name in _TRIPLES else (count,)
        if name != points and shape != wanted:
            raise InputError(f"{path}: array {one_line(name, 40)}: expected {list(wanted)}, got {list(shape)}")


def read_kitti(path: Path) -> PointCloud:
    """Read a cloud from KITTI's .bin file of x, y, z and intensity."""
    size = check_readable(path)
    if size % 16:
        raise InputError(
            f"{path}: expected KITTI's rows of four float32, 16 bytes; {size} bytes are no multiple of that"
        )
    rows = np.fromfile(path, "<f4").reshape(-1, 4)
    return PointCloud(as_coordinates(rows[:, :3]), attributes={"intensity": np.ascontiguousarray(rows[:, 3])})


def check_nameless(path: Path, cloud: PointCloud) -> None:
    """Refuse a cloud whose columns have names, which ``.npy`` would lose."""
    extra = [name for name in cloud.attributes if not name.startswith("column_")]
    lost = [name for name, held in (("colors", cloud.colors), ("normals", cloud.normals)) if held is not None] + extra
    if lost:
        raise InputError(
            f"{path}: .npy holds columns without names, and the cloud has {', '.join(lost)}; take .npz or .ply"
        )


def write_array(path: Path, cloud: PointCloud) -> None:
    """Write a cloud as a .npy file."""
    columns = [cloud.points, *(values[:, None] for values in cloud.attributes.values())]
    write_npy(path, np.ascontiguousarray(np.concatenate(columns, axis=1), cloud.points.dtype))


def write_archive(path: Path, cloud: PointCloud) -> None:
    """Write a cloud as a .npz file."""
    named = {"points": cloud.points, "colors": cloud.colors, "normals": cloud.normals, **cloud.attributes}
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in named.items():
            if values is not None:
                with archive.open(f"{name}.npy", "w") as stream:
                    np.lib.format.write_array(stream, values, allow_pickle=False)
