"""Point clouds in and out."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError, describe
from fullfield._check import values as held
from fullfield.io.files import PathLike, atomic_path
from fullfield.io.names import POINT_SUFFIXES, POINT_WRITE_SUFFIXES
from fullfield.io.point_formats import PointCloud, as_coordinates
from fullfield.io.point_formats.plain import check_nameless, from_array

if TYPE_CHECKING:
    from torch import Tensor

_READERS = {
    ".ply": ("ply", "read"),
    ".pcd": ("pcd", "read"),
    ".npy": ("plain", "read_array"),
    ".npz": ("plain", "read_archive"),
    ".bin": ("plain", "read_kitti"),
    ".las": ("las", "read"),
    ".laz": ("las", "read"),
}
_WRITERS = {".ply": ("ply", "write"), ".npy": ("plain", "write_array"), ".npz": ("plain", "write_archive")}
_FINE_ENOUGH = 1e4  # float32 steps below this are under a thousandth


def read_point_cloud(path: PathLike) -> PointCloud:
    """Read a cloud; the suffix picks the format (docs/formats.md). Points that are not finite stay in it.

    Raises:
        InputError: for an unknown suffix, or a file that is not what it says.
        OSError: if it cannot be opened.
    """
    file = Path(path)
    found: PointCloud = _function(_READERS, file, POINT_SUFFIXES)(file)
    return found


def check_kept(path: PathLike, cloud: PointCloud) -> None:
    """Raise InputError where a file of this name would lose something of the cloud."""
    if Path(path).suffix.lower() == ".npy":
        check_nameless(Path(path), cloud)


def write_point_cloud(path: PathLike, cloud: PointCloud | NDArray[Any] | Tensor) -> None:
    """Write a cloud: ``.ply`` and ``.npz`` keep everything it has, ``.npy`` is for columns without names.

    ``cloud`` may be anything that :func:`as_point_cloud` takes but a file's name; parts of a cloud may be tensors.

    Raises:
        InputError: for an unknown suffix, what is no cloud, or what the format cannot hold.
        OSError: if it cannot be written.
    """
    write = _function(_WRITERS, Path(path), POINT_WRITE_SUFFIXES)
    if isinstance(cloud, (str, os.PathLike)):
        raise InputError(f"cloud: expected an array or a point cloud, got {describe(cloud)}")
    whole = _arrays(cloud) if isinstance(cloud, PointCloud) else as_point_cloud(cloud)
    check_kept(path, whole)
    with atomic_path(path) as temporary:
        write(temporary, whole)


def _arrays(cloud: PointCloud) -> PointCloud:
    """Return the cloud with every part as an array; InputError where lengths differ."""
    points = from_array(_array(cloud.points, "cloud.points"), "cloud.points")
    if points.attributes:
        raise InputError(f"cloud.points: expected [N, 3], got {list(cloud.points.shape)}")
    colors, normals = (_beside(cloud, part, len(points), "cloud") for part in ("colors", "normals"))
    attributes = {name: _array(values, f"cloud.attributes[{name!r}]") for name, values in cloud.attributes.items()}
    for name, values in attributes.items():
        if values.shape != (len(points),) or values.dtype.kind not in "fiub":
            raise InputError(
                f"cloud.attributes[{name!r}]: expected real numbers [{len(points)}], got {describe(values)}"
            )
    return PointCloud(points.points, colors, normals, attributes)


def _function(table: dict[str, tuple[str, str]], path: Path, suffixes: tuple[str, ...]) -> Callable[..., Any]:
    suffix = path.suffix.lower()
    if suffix not in table:
        raise InputError(f"{path}: unknown format {suffix!r} of a point cloud; known are {', '.join(suffixes)}")
    module, name = table[suffix]
    found: Callable[..., Any] = getattr(import_module(f"fullfield.io.point_formats.{module}"), name)
    return found


def as_point_cloud(value: Any, name: str = "cloud") -> PointCloud:
    """Return a cloud from a file's name, an array or tensor [N, 3] or wider, or an object with ``points`` as in Open3D.

    Raises:
        InputError: for anything else.
    """
    if isinstance(value, PointCloud):
        return value
    if isinstance(value, (str, os.PathLike)):
        return read_point_cloud(value)
    if hasattr(value, "points"):
        points = from_array(_array(value.points, f"{name}.points"), f"{name}.points")
        colors, normals = (_beside(value, part, len(points), name) for part in ("colors", "normals"))
        return PointCloud(points.points, colors, normals, points.attributes)
    return from_array(_array(value, name), name)


def _array(value: Any, name: str) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = held(value, name).detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected a file, an array or a point cloud, got {describe(value)}") from None


def _beside(value: Any, part: str, count: int, name: str) -> NDArray[Any] | None:
    held = getattr(value, part, None)
    if held is None:
        return None
    array = _array(held, f"{name}.{part}")
    if not len(array):
        return None
    if array.shape != (count, 3):
        raise InputError(f"{name}.{part}: expected [{count}, 3], got {list(array.shape)}")
    return array


def transformed(cloud: PointCloud, transform: NDArray[np.float64]) -> PointCloud:
    """Move the cloud by ``transform`` [4, 4]; normals turn with it, everything else stays.

    Coordinates stay float32 where they were and float32 still resolves them to a thousandth, else they become float64.
    """
    moved = cloud.points.astype(np.float64) @ transform[:3, :3].T + transform[:3, 3]
    largest = np.abs(moved[np.isfinite(moved)]).max(initial=0.0)
    points = moved.astype(np.float32) if cloud.points.dtype == np.float32 and largest < _FINE_ENOUGH else moved
    normals = cloud.normals
    if normals is not None:
        normals = (normals @ transform[:3, :3].T).astype(normals.dtype)
    return PointCloud(as_coordinates(points), cloud.colors, normals, cloud.attributes)
