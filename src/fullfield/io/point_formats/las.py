"""LAS, if laspy is installed; LAZ, if one of its decompressors is installed too.

laspy trusts every count in a file, so the header is read here first and held to the file's size (ASPRS LAS 1.4 R15,
tables 3, 7 and 24; the fields up to byte 227 are those of every version before).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError, SetupError
from fullfield.io.files import (
    describe_error,
    join_to_one_line,
    refuse_implausible_inflated_size,
    require_nonempty_file_and_get_bytes,
)
from fullfield.io.point_formats import PointCloud, scale_colors_to_uint16
from fullfield.io.point_formats.coordinate_system import RECORD_IDS, CoordinateSystem, SystemRecord

_STEP = 1e-4
_SHORTEST = 227
_LONGEST = 375
_RECORD_HEADER, _EXTENDED_HEADER = 54, 60
_COMPRESSED = 0xC0  # the bits of the point format's number that LAZ sets
_LAZ_RATIO = 4096
_PROJECTION = "LASF_Projection"  # user of the records of a coordinate system
_MAX_RECORD_BYTES = 65535
_LAYERS = {6: 9, 7: 10, 8: 11, 9: 10, 10: 12}  # of LAZ, by the point format
_ROWS = {6: 30, 7: 36, 8: 38, 9: 59, 10: 67}


def read_las(path: Path) -> PointCloud:
    """Read a LAS or LAZ file."""
    with _check_and_open_las(path) as stream:
        rows = stream.read()
        if len(rows.points) != rows.header.point_count:
            raise InputError(f"{path}: truncated LAS file: {len(rows.points)} of {rows.header.point_count} points")
        return _build_cloud_from_rows(rows)


def read_coordinate_system_or_none(path: Path) -> CoordinateSystem | None:
    """Return the coordinate system that a LAS or LAZ file names, without reading its points."""
    with _check_and_open_las(path) as stream:
        stream.read_evlrs()
        return _get_coordinate_system_or_none(stream.header)


@contextmanager
def _check_and_open_las(path: Path) -> Iterator[Any]:
    """Open a checked file with laspy, and raise what fails as InputError."""
    size = require_nonempty_file_and_get_bytes(path)
    with path.open("rb") as file:
        _check_header_counts(path, file, size)
    try:
        import laspy
    except ImportError as error:
        raise SetupError(f"{path}: reading LAS needs laspy ({error}); pip install laspy, or convert to .ply") from None
    # Not lazrs' parallel form: it makes room for what a table of chunks claims.
    backends = [backend for backend in laspy.LazBackend.detect_available() if backend.name != "LazrsParallel"]
    try:
        with laspy.open(path, laz_backend=backends) as stream:
            yield stream
    except InputError:
        raise
    except (
        laspy.errors.LaspyException, ValueError, OSError, RuntimeError, LookupError, TypeError, AttributeError,
        ArithmeticError, EOFError, struct.error,
    ) as error:  # fmt: skip
        raise InputError(f"{path}: cannot be read as LAS: {describe_error(error)}") from error
    except BaseException as error:  # a panic of Rust is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{path}: cannot be read as LAZ: {join_to_one_line(str(error))}") from error


def import_laspy_for_writing(path: Path, *, compress: bool = False) -> Any:
    """Return the module laspy; SetupError where it, or what compresses LAZ, is not installed."""
    try:
        import laspy
    except ImportError as error:
        raise SetupError(f"{path}: writing LAS needs laspy ({error}); pip install laspy, or take .ply") from None
    if compress and not laspy.LazBackend.detect_available():
        raise SetupError(f"{path}: writing LAZ needs lazrs; pip install lazrs, or take .las")
    return laspy


def write_las(path: Path, cloud: PointCloud, *, compress: bool = False) -> None:
    """Write a LAS file, or with ``compress`` a LAZ file: version 1.4, steps of 1e-4 or what 32 bits allow.

    Attributes that the format does not know, and normals, become extra bytes.
    """
    laspy = import_laspy_for_writing(path, compress=compress)
    points = cloud.points.astype(np.float64)
    header = laspy.LasHeader(version="1.4", point_format=6 if cloud.colors is None else 7)
    if len(points):
        header.offsets = np.floor(points.min(0))
        largest = float((points - header.offsets).max())
        header.scales = np.full(3, max(_STEP, 10.0 ** np.ceil(np.log10(max(largest, 1e-300) / 2**31))))
    columns = dict(cloud.attributes)
    if cloud.normals is not None:
        columns.update(zip(("nx", "ny", "nz"), cloud.normals.T, strict=True))
    standard = set(header.point_format.dimension_names)
    for name, values in columns.items():
        if name not in standard:
            header.add_extra_dim(laspy.ExtraBytesParams(name=name[:32], type=_choose_extra_bytes_type(values)))
    rows = laspy.LasData(header)
    if cloud.coordinate_system is not None:
        _add_coordinate_system_to_rows(laspy, rows, cloud.coordinate_system)
    rows.x, rows.y, rows.z = points.T
    if cloud.colors is not None:
        rows.red, rows.green, rows.blue = scale_colors_to_uint16(cloud.colors).T
    try:
        for name, values in columns.items():
            rows[name if name in standard else name[:32]] = values.astype(_choose_extra_bytes_type(values))
        rows.write(str(path), do_compress=compress)
    except (laspy.errors.LaspyException, ValueError, OverflowError) as error:
        raise InputError(f"{path}: cannot be written as LAS: {describe_error(error)}") from error


def _choose_extra_bytes_type(values: NDArray[Any]) -> np.dtype[Any]:
    """Return a type that LAS has for extra bytes: it has no half floats or truth values."""
    if values.dtype.kind == "f" and values.dtype.itemsize < 4:
        return np.dtype(np.float32)
    return np.dtype(np.uint8) if values.dtype == bool else values.dtype.newbyteorder("=")


def _get_coordinate_system_or_none(header: Any) -> CoordinateSystem | None:
    records = tuple(
        SystemRecord(record.record_id, _decode_description(record.description), bytes(record.record_data_bytes()))
        for record in (*header.vlrs, *(header.evlrs or ()))
        if record.user_id == _PROJECTION and record.record_id in RECORD_IDS
    )
    return CoordinateSystem(records, bool(header.global_encoding.wkt)) if records else None


def _decode_description(description: str | bytes) -> str:
    text = description.decode("ascii", "replace") if isinstance(description, bytes) else description
    return text.partition("\0")[0]


def _add_coordinate_system_to_rows(laspy: Any, rows: Any, system: CoordinateSystem) -> None:
    """Put the records of a coordinate system into rows that will be written; long ones behind the points."""
    rows.header.global_encoding.wkt = system.is_wkt
    extended = laspy.vlrs.vlrlist.VLRList()
    for record in system.records:
        records = rows.header.vlrs if len(record.content) <= _MAX_RECORD_BYTES else extended
        records.append(laspy.VLR(_PROJECTION, record.record_id, record.description, record.content))
    if extended:
        rows.evlrs = extended


def _build_cloud_from_rows(rows: Any) -> PointCloud:
    names = list(rows.point_format.dimension_names)
    colors = None
    if {"red", "green", "blue"} <= set(names):
        colors = np.stack([np.asarray(rows[name]) for name in ("red", "green", "blue")], axis=1)
    skipped = {"X", "Y", "Z", "red", "green", "blue"}
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        values = None if name in skipped else np.asarray(rows[name])
        if values is not None and values.ndim == 1:
            columns[name] = values
        elif values is not None:  # extra bytes that are arrays
            columns.update({f"{name}_{i}": column for i, column in enumerate(values.reshape(len(values), -1).T)})
    with np.errstate(over="ignore", invalid="ignore"):  # scales that make no sense
        points = np.asarray(rows.xyz, np.float64)
    return PointCloud(points, colors, attributes=columns, coordinate_system=_get_coordinate_system_or_none(rows.header))


def _check_header_counts(path: Path, file: IO[bytes], size: int) -> None:
    """Refuse counts of records and points that the file is too short for."""
    head = file.read(_LONGEST)
    if head[:4] != b"LASF":
        raise InputError(f"{path}: is no LAS file, it does not begin with 'LASF'")
    if len(head) < _SHORTEST:
        raise InputError(f"{path}: truncated LAS file: it ends inside its header, after {size} bytes")
    header_size, points_at, records = struct.unpack_from("<HII", head, 94)
    point_format, row, points = struct.unpack_from("<BHI", head, 104)
    if not _SHORTEST <= header_size <= points_at <= size:
        raise InputError(
            f"{path}: corrupt LAS file: a header of {header_size} bytes and points from byte {points_at} on, "
            f"in a file of {size}"
        )
    _check_variable_length_records(path, file, (header_size, points_at), records, _RECORD_HEADER, ("<H", 20))
    if head[25] >= 4:  # the minor version, which is what laspy goes by
        if header_size < _LONGEST:
            raise InputError(f"{path}: corrupt LAS file: version 1.{head[25]} with a header of {header_size} bytes")
        extended_at, extended, points = struct.unpack_from("<QIQ", head, 235)
        _check_variable_length_records(path, file, (extended_at, size), extended, _EXTENDED_HEADER, ("<Q", 20))
    expected_bytes, stored = points * row, size - points_at
    if point_format & _COMPRESSED:
        refuse_implausible_inflated_size(path, f"the header ({points} points)", expected_bytes, stored, _LAZ_RATIO)
        if points:
            _check_laz_chunk_table(path, file, points_at, size, point_format & 0x3F, row)
    elif expected_bytes > stored:
        raise InputError(f"{path}: the header says {points} points, {expected_bytes} bytes; {stored} are stored")


def _check_laz_chunk_table(
    path: Path, file: IO[bytes], points_offset: int, file_bytes: int, point_format: int, row_bytes: int
) -> None:
    """Refuse a table with more chunks than bytes of points, and chunks that are longer than the rest.

    lazrs allocates what the table announces.
    """
    file.seek(points_offset)
    start_bytes = file.read(8)
    if start_bytes == b"\xff" * 8:  # a writer that could not go back wrote it at the end
        file.seek(file_bytes - 8)
        start_bytes = file.read(8)
    at = int.from_bytes(start_bytes, "little", signed=True)
    if not points_offset + 8 <= at <= file_bytes - 8:
        raise InputError(f"{path}: corrupt LAZ file: its table of chunks is at byte {at} of {file_bytes}")
    file.seek(at + 4)
    chunks = int.from_bytes(file.read(4), "little")
    if chunks > at - points_offset:
        raise InputError(f"{path}: corrupt LAZ file: {chunks} chunks of points in {at - points_offset} bytes")
    if point_format not in _LAYERS or row_bytes < _ROWS[point_format]:
        return
    # From format 6 on a chunk is its first point, its number of points, and the lengths of its layers before them.
    layers = _LAYERS[point_format] + row_bytes - _ROWS[point_format]  # each extra byte has its own
    position, end = points_offset + 8, at
    while position < end:
        file.seek(position + row_bytes + 4)
        lengths = file.read(4 * layers)
        position += (
            row_bytes
            + 4
            + len(lengths)
            + sum(struct.unpack(f"<{len(lengths) // 4}I", lengths[: len(lengths) // 4 * 4]))
        )
        if position > end:
            raise InputError(f"{path}: corrupt LAZ file: a chunk ends {position - end} bytes behind the last point")


def _check_variable_length_records(
    path: Path,
    file: IO[bytes],
    byte_range: tuple[int, int],
    record_count: int,
    header_bytes: int,
    length_field: tuple[str, int],
) -> None:
    """Go through ``record_count`` variable-length records, which must end within ``byte_range``."""
    at, end = byte_range
    if record_count * header_bytes > end - at:
        raise InputError(
            f"{path}: the header says {record_count} variable-length records, and {max(end - at, 0)} bytes hold them"
        )
    layout, offset = length_field
    for number in range(1, record_count + 1):
        file.seek(at)
        head = file.read(header_bytes)
        if len(head) == header_bytes:
            at += header_bytes + int(struct.unpack_from(layout, head, offset)[0])
        if len(head) < header_bytes or at > end:
            raise InputError(
                f"{path}: variable-length record {number} of {record_count} goes beyond its place in the file"
            )
