"""Point clouds and poses: reading, writing, and the formats of NumPy and KITTI."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError, check_not_meta, convert_path_to_text, describe_value
from fullfield.io.arrays import open_npz_and_list_arrays, read_npy, read_npz_array, read_npz_shape, write_npy
from fullfield.io.files import (
    PathLike,
    join_to_one_line,
    raise_as_input_errors,
    require_nonempty_file_and_get_bytes,
    write_atomically,
)
from fullfield.io.names import POINT_SUFFIXES, POINT_WRITE_SUFFIXES
from fullfield.io.point_formats import PointCloud, convert_to_float_coordinates, las, pcd, ply, scale_colors_to_uint8
from fullfield.io.point_formats.coordinate_system import CoordinateSystem

_FINE_ENOUGH = 1e4  # float32 steps below this are under a thousandth


def read_point_cloud(path: PathLike, *, columns: int | None = None) -> PointCloud:
    """Read a cloud; the suffix picks the format (docs/formats.md). Points that are not finite stay in it.

    ``columns`` is the number of values of a point in a ``.bin``, by default the one that fits its numbers: 4 (KITTI),
    5 (nuScenes) or 6 (Waymo).

    InputError for an unknown suffix, or a file that is not what it says.
    """
    file = Path(convert_path_to_text(path))
    suffix = _get_checked_suffix(file, POINT_SUFFIXES)
    if suffix == ".bin":
        return read_bin_cloud(file, columns)
    if columns is not None:
        raise InputError(f"{file}: only .bin has columns to name, got columns={columns!r}")
    return _READERS[suffix](file)


def read_coordinate_system_or_none(path: PathLike) -> CoordinateSystem | None:
    """Return the coordinate system that the file of a cloud names; None where its format names none."""
    file = Path(convert_path_to_text(path))
    return las.read_coordinate_system_or_none(file) if file.suffix.lower() in (".las", ".laz") else None


def check_lossless(path: PathLike, cloud: PointCloud) -> None:
    """Raise InputError where a file of this name would lose part of the cloud, as ``.npy`` names no columns."""
    suffix = Path(path).suffix.lower()
    if suffix in (".las", ".laz") and not np.isfinite(cloud.points).all():
        raise InputError(f"{path}: LAS holds finite points only, and the cloud has others; take .ply")
    if suffix in (".ply", ".npy"):
        rounded = [name for name, values in cloud.attributes.items() if _exceeds_exact_doubles(values)]
        if rounded:
            names = ", ".join(rounded)
            raise InputError(f"{path}: floats of {suffix} round the integers beyond 2**53 in {names}; take .npz")
    if suffix != ".npy":
        return
    extra = [name for name in cloud.attributes if not name.startswith("column_")]
    lost = [
        name for name, values in (("colors", cloud.colors), ("normals", cloud.normals)) if values is not None
    ] + extra
    if lost:
        raise InputError(
            f"{path}: .npy holds columns without names, and the cloud has {', '.join(lost)}; take .npz or .ply"
        )


def _exceeds_exact_doubles(values: NDArray[Any]) -> bool:
    if values.dtype.kind not in "iu":
        return False
    return max(-int(values.min(initial=0)), int(values.max(initial=0))) > 2**53


def check_writer_installed(path: PathLike) -> None:
    """Raise SetupError where a file of this name needs a package that is not installed."""
    suffix = Path(path).suffix.lower()
    if suffix in (".las", ".laz"):
        las.import_laspy_for_writing(Path(path), compress=suffix == ".laz")


def write_point_cloud(path: PathLike, cloud: PointCloud | NDArray[Any] | Tensor) -> None:
    """Write a cloud, by the suffix; docs/formats.md lists what each format keeps.

    ``cloud`` may be anything that :func:`read_or_convert_point_cloud` takes but a file's name; parts of a cloud may be
    tensors.
    InputError for an unknown suffix, anything that is no cloud, or data that the format cannot hold.
    """
    write = _WRITERS[_get_checked_suffix(Path(convert_path_to_text(path)), POINT_WRITE_SUFFIXES)]
    if isinstance(cloud, (str, os.PathLike)):
        raise InputError(f"cloud: expected an array or a point cloud, got {describe_value(cloud)}")
    full_cloud = (
        _check_and_convert_fields_to_arrays(cloud)
        if isinstance(cloud, PointCloud)
        else read_or_convert_point_cloud(cloud)
    )
    check_lossless(path, full_cloud)
    with write_atomically(path) as temporary:
        write(temporary, full_cloud)


def _check_and_convert_fields_to_arrays(cloud: PointCloud) -> PointCloud:
    """Return the cloud with arrays throughout, each of the right length."""
    points = build_cloud_from_array(_convert_to_array(cloud.points, "cloud.points"), "cloud.points")
    if points.attributes:
        raise InputError(f"cloud.points: expected [N, 3], got {list(cloud.points.shape)}")
    colors, normals = (
        _check_and_get_colors_or_normals(cloud, field, len(points), "cloud") for field in ("colors", "normals")
    )
    attributes = {}
    for key, values_ in cloud.attributes.items():
        name = f"cloud.attributes[{key!r}]"
        values = attributes[key] = _convert_to_array(values_, name)
        is_valid = values.shape == (len(points),) and values.dtype.kind in "fiub"
        _check.require(is_valid, name, f"real numbers [{len(points)}]", values)
    return PointCloud(points.points, colors, normals, attributes, cloud.coordinate_system)


def _get_checked_suffix(path: Path, suffixes: tuple[str, ...]) -> str:
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise InputError(f"{path}: unknown format {suffix!r} of a point cloud; known are {', '.join(suffixes)}")
    return suffix


def read_or_convert_point_cloud(cloud_like: Any, argument_name: str = "cloud") -> PointCloud:
    """Convert a file's name, an array or tensor [N, 3] or wider, or an object with ``points`` such as Open3D's."""
    if isinstance(cloud_like, PointCloud):
        return cloud_like
    if isinstance(cloud_like, (str, os.PathLike)):
        return read_point_cloud(cloud_like)
    if hasattr(cloud_like, "points"):
        points = build_cloud_from_array(
            _convert_to_array(cloud_like.points, f"{argument_name}.points"), f"{argument_name}.points"
        )
        colors, normals = (
            _check_and_get_colors_or_normals(cloud_like, field, len(points), argument_name)
            for field in ("colors", "normals")
        )
        return PointCloud(points.points, colors, normals, points.attributes)
    return build_cloud_from_array(_convert_to_array(cloud_like, argument_name), argument_name)


def _convert_to_array(value: Any, name: str) -> NDArray[Any]:
    """Return ``value`` as a NumPy array."""
    if hasattr(value, "detach"):
        value = check_not_meta(value, name).detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise InputError(f"{name}: expected a file, an array or a point cloud, got {describe_value(value)}") from None


def _check_and_get_colors_or_normals(value: Any, field: str, point_count: int, name: str) -> NDArray[Any] | None:
    """Return the colours or normals of a cloud-like object as an array [count, 3]; None where it has none."""
    values = getattr(value, field, None)
    array = None if values is None else _convert_to_array(values, f"{name}.{field}")
    if array is None or not len(array):
        return None
    if array.shape != (point_count, 3):
        raise InputError(f"{name}.{field}: expected [{point_count}, 3], got {list(array.shape)}")
    return array


def transform_cloud(cloud: PointCloud, transform: NDArray[np.float64]) -> PointCloud:
    """Return the cloud moved by ``transform`` [4, 4]; normals turn with it, everything else stays.

    Coordinates stay float32 where they were and float32 still resolves them to a thousandth, else they become float64.
    """
    coordinates = cloud.points.astype(np.float64) @ transform[:3, :3].T + transform[:3, 3]
    largest = np.abs(coordinates[np.isfinite(coordinates)]).max(initial=0.0)
    points = (
        coordinates.astype(np.float32) if cloud.points.dtype == np.float32 and largest < _FINE_ENOUGH else coordinates
    )
    normals = cloud.normals
    if normals is not None:
        normals = (normals @ transform[:3, :3].T).astype(normals.dtype)
    points = convert_to_float_coordinates(points)
    return PointCloud(points, cloud.colors, normals, cloud.attributes, cloud.coordinate_system)


def select_common_fields_and_list_dropped(clouds: Sequence[PointCloud]) -> tuple[list[PointCloud], list[str]]:
    """Return the clouds with the fields that all of them have, and the names of the other fields."""
    fields: list[dict[str, Any]] = [
        {"colors": cloud.colors, "normals": cloud.normals, **cloud.attributes} for cloud in clouds
    ]
    names = dict.fromkeys(name for own in fields for name, values in own.items() if values is not None)
    common = [name for name in names if all(own.get(name) is not None for own in fields)]
    selected = []
    for cloud, own in zip(clouds, fields, strict=True):
        attributes = {name: own[name] for name in common if name not in _TRIPLES}
        colors, normals = (own[name] if name in common else None for name in _TRIPLES)
        selected.append(PointCloud(cloud.points, colors, normals, attributes))
    return selected, [name for name in names if name not in common]


def merge_clouds_and_list_dropped_fields(clouds: Sequence[PointCloud]) -> tuple[PointCloud, list[str]]:
    """Return one cloud of all points, and the names of what only some of the clouds have, which it leaves out.

    It has no coordinate system, for only the caller knows in whose frame the clouds are.
    """
    selected, dropped = select_common_fields_and_list_dropped(clouds)
    colors = [cloud.colors for cloud in selected if cloud.colors is not None]
    if len({str(values.dtype) for values in colors}) > 1:
        colors = [scale_colors_to_uint8(values) for values in colors]
    normals = [cloud.normals for cloud in selected if cloud.normals is not None]
    names = selected[0].attributes if selected else ()
    merged = PointCloud(
        np.concatenate([cloud.points.astype(np.float64) for cloud in selected]),
        np.concatenate(colors) if colors else None,
        np.concatenate(normals) if normals else None,
        {name: np.concatenate([cloud.attributes[name] for cloud in selected]) for name in names},
    )
    return merged, dropped


_POINTS = ("points", "xyz", "pos", "arr_0")
_TRIPLES = ("colors", "normals")
_MAX_COLUMNS = 256


def read_npy_cloud(path: Path) -> PointCloud:
    """Read ``.npy``: [N, 3] or wider; further columns become the attributes ``column_3`` and so on."""
    return build_cloud_from_array(read_npy(path), str(path))


def build_cloud_from_array(values: NDArray[Any], name: str) -> PointCloud:
    """Make a cloud from an array [N, 3] or wider."""
    if values.ndim != 2 or not 3 <= values.shape[1] <= _MAX_COLUMNS or values.dtype.kind not in "fiu":
        raise InputError(f"{name}: expected points [N, 3] or wider, got {values.dtype} {list(values.shape)}")
    extra = {f"column_{i}": np.ascontiguousarray(values[:, i]) for i in range(3, values.shape[1])}
    return PointCloud(convert_to_float_coordinates(values[:, :3]), attributes=extra)


def read_npz_cloud(path: Path) -> PointCloud:
    """Read ``.npz``: ``points``, ``xyz``, ``pos`` or the only array; ``colors``, ``normals`` and attributes [N]."""
    with open_npz_and_list_arrays(path) as (archive, names):
        selected = next((n for n in _POINTS if n in names), names[0] if len(names) == 1 else None)
        if selected is None:
            listed = ", ".join(join_to_one_line(n, 20) for n in names[:20]) or "nothing"
            raise InputError(f"{path}: expected an array called {' or '.join(_POINTS[:3])}, got {listed}")
        shapes = {name: read_npz_shape(path, archive, name) for name in names}
        _check_array_shapes(path, selected, shapes)
        arrays = {name: read_npz_array(path, archive, name) for name in names}
    cloud = build_cloud_from_array(arrays.pop(selected), f"{path}: array {selected}")
    colors, normals = (arrays.pop(name, None) for name in _TRIPLES)
    return PointCloud(cloud.points, colors, normals, {**cloud.attributes, **arrays})


def _check_array_shapes(path: Path, points: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse arrays that do not belong to the array ``points``, before any is unpacked."""
    count = shapes[points][0]
    for name, shape in shapes.items():
        expected: tuple[int, ...] = (count, 3) if name in _TRIPLES else (count,)
        if name != points and shape != expected:
            raise InputError(
                f"{path}: array {join_to_one_line(name, 40)}: expected {list(expected)}, got {list(shape)}"
            )


_BIN_COLUMNS = {
    3: (),
    4: ("intensity",),
    5: ("intensity", "ring"),
    6: ("intensity", "elongation", "time"),
}
"""Attributes behind x, y and z, by the number of float32 of a point: KITTI has 4, nuScenes 5, Waymo's exports 6."""
_GUESSED_COLUMNS = (4, 5, 6)
_MAX_INTENSITY = 65535.0


def read_bin_cloud(path: Path, columns: int | None = None) -> PointCloud:
    """Read a ``.bin``: rows of float32 x, y, z and attributes, without a header that says how many."""
    if columns is not None:
        _check.check_number(columns, "columns", integer=True, low=3, high=_MAX_COLUMNS)
    size = require_nonempty_file_and_get_bytes(path)
    if size % (4 * (columns or 1)):
        kind = f"{columns} float32, {4 * columns} bytes" if columns else "float32, 4 bytes each"
        raise InputError(f"{path}: expected rows of {kind}; {size} bytes are no multiple of that")
    values = np.fromfile(path, "<f4")
    count = columns or _infer_column_count_or_raise(path, values)
    rows = values.reshape(-1, count)
    names = _BIN_COLUMNS.get(count, tuple(f"column_{i}" for i in range(3, count)))
    extra = {name: np.ascontiguousarray(rows[:, 3 + i]) for i, name in enumerate(names)}
    return PointCloud(convert_to_float_coordinates(rows[:, :3]), attributes=extra)


def _infer_column_count_or_raise(path: Path, values: NDArray[np.float32]) -> int:
    """Return the number of values of a point that fits the numbers of a ``.bin``; InputError in doubt."""
    possible = [count for count in _GUESSED_COLUMNS if len(values) % count == 0]
    plausible = [count for count in possible if _has_plausible_columns(values.reshape(-1, count))]
    named = 5 if path.name.lower().endswith(".pcd.bin") else 4
    if named in plausible:
        others = [count for count in plausible if count != named]
        if not others or named == 5 or not np.ptp(values):
            return named
    elif len(plausible) == 1:
        return plausible[0]
    elif not plausible and possible == [4] and named == 4:
        return 4
    listed = " or ".join(map(str, plausible or possible)) or "none of 4, 5 and 6"
    raise InputError(
        f"{path}: expected rows of 4 float32 (KITTI) or 5 (nuScenes), and its {len(values)} numbers fit {listed}; "
        "name the number with columns= (register --columns), or convert it to .ply or .npy"
    )


def _has_plausible_columns(rows: NDArray[np.float32]) -> bool:
    """Return whether intensities are no negative numbers, and a fifth column holds numbers of rings."""
    with np.errstate(invalid="ignore"):
        intensity = bool(((rows[:, 3] >= 0) & (rows[:, 3] <= _MAX_INTENSITY)).all())
        if rows.shape[1] != 5:
            return intensity
        ring = rows[:, 4]
        return intensity and bool(((ring == np.floor(ring)) & (ring >= 0) & (ring < 1024)).all())


def write_npy_cloud(path: Path, cloud: PointCloud) -> None:
    """Write an ``.npy`` file."""
    columns = [cloud.points, *(values[:, None] for values in cloud.attributes.values())]
    write_npy(path, np.ascontiguousarray(np.concatenate(columns, axis=1)))


def write_npz_cloud(path: Path, cloud: PointCloud) -> None:
    """Write an ``.npz`` file."""
    named = {"points": cloud.points, "colors": cloud.colors, "normals": cloud.normals, **cloud.attributes}
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in named.items():
            if values is not None:
                numbers = values.astype(np.uint8) if values.dtype == bool else values  # readers refuse bool
                with archive.open(f"{name}.npy", "w") as stream:
                    np.lib.format.write_array(stream, numbers, allow_pickle=False)


_READERS = {
    ".ply": ply.read_ply, ".pcd": pcd.read_pcd, ".npy": read_npy_cloud, ".npz": read_npz_cloud,
    ".las": las.read_las, ".laz": las.read_las,
}  # fmt: skip
_WRITERS: dict[str, Callable[[Path, PointCloud], None]] = {
    ".ply": ply.write_ply, ".pcd": pcd.write_pcd, ".npy": write_npy_cloud, ".npz": write_npz_cloud,
    ".las": las.write_las, ".laz": partial(las.write_las, compress=True),
}  # fmt: skip
_MAX_BYTES = 1 << 16  # of a pose


def read_pose(path: PathLike) -> NDArray[np.float64]:
    """Read a pose [4, 4] from text or ``.npy``: 4×4 or 3×4 numbers, or those in one row as KITTI writes them.

    InputError for anything else, or numbers that are no rotation and translation.

    >>> pose = read_pose("pose.txt")  # [4, 4]  # doctest: +SKIP
    """
    file = Path(convert_path_to_text(path))
    size = require_nonempty_file_and_get_bytes(file)
    if size > _MAX_BYTES:
        raise InputError(f"{file}: expected a pose, 12 or 16 numbers, got a file of {size} bytes")
    with (
        raise_as_input_errors(file, "expected a pose, 12 or 16 numbers", ValueError, OSError),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # no numbers at all: said below
        text = file.suffix.lower() != ".npy"
        values = np.loadtxt(file, np.float64, ndmin=2) if text else read_npy(file)
    if values.size == 12 and values.dtype.kind in "fiu":
        values = np.concatenate([values.reshape(3, 4), [[0.0, 0.0, 0.0, 1.0]]])
    return check_and_orthonormalize_pose(values.reshape(4, 4) if values.size == 16 else values, str(file))


def check_and_orthonormalize_pose(pose_like: Any, argument_name: str = "init") -> NDArray[np.float64]:
    """Return ``pose_like`` as float64 [4, 4] with the nearest rotation; errors as of :func:`check_and_convert_pose`."""
    pose = check_and_convert_pose(pose_like, argument_name)
    left, _, right = np.linalg.svd(pose[:3, :3])
    pose[:3, :3] = left @ right
    return pose


def check_and_convert_pose(pose_like: Any, argument_name: str, tolerance: float = 1e-3) -> NDArray[np.float64]:
    """Return ``pose_like`` as a float64 [4, 4] matrix.

    InputError for another shape, a last row other than 0 0 0 1, or a block that is no rotation to ``tolerance``.
    """
    try:
        pose = np.array(pose_like, np.float64)
    except (TypeError, ValueError):
        pose = np.empty(0)
    _check.require(
        pose.shape == (4, 4) and bool(np.isfinite(pose).all()), argument_name, "a finite 4×4 matrix", pose_like
    )
    turn = pose[:3, :3]
    with np.errstate(over="ignore", invalid="ignore"):
        is_valid = np.allclose(turn @ turn.T, np.eye(3), atol=tolerance) and np.linalg.det(turn) > 0
        is_valid = is_valid and np.allclose(pose[3], (0, 0, 0, 1), atol=1e-6)
        pose_text = str(pose.round(4).tolist())
    _check.require(bool(is_valid), argument_name, "a rotation and a translation, the last row 0 0 0 1", pose_text)
    return pose
