"""PCD of the Point Cloud Library: ascii, binary, binary_compressed (LZF). The viewpoint is not applied."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import join_to_one_line, open_nonempty_file_with_size, refuse_implausible_inflated_size
from fullfield.io.point_formats import (
    PointCloud,
    build_cloud_by_popping_columns,
    read_binary_columns,
    read_text_columns,
    scale_colors_to_uint8,
)

_LONGEST_HEADER = 1 << 16
_LZF_RATIO = 88  # three bytes can stand for 264
_MAX_VALUES = 4096  # of a point, over all fields
_KINDS = {"F": "f", "I": "i", "U": "u"}
_PADDING = "_"
_PACKED = ("rgb", "rgba")
_NAN = 0x7FC00000  # a float's bits where there is no colour; as a colour it would be half transparent


def read_pcd(path: Path) -> PointCloud:
    """Read a PCD file."""
    with open_nonempty_file_with_size(path) as (file, size):
        header = _read_pcd_header(path, file)
        fields = _parse_and_check_fields(path, header)
        count = _parse_point_count(path, header)
        data_kind = " ".join(header["DATA"])
        left = size - file.tell()
        if data_kind == "ascii":
            columns = _read_typed_text_columns(path, file, _list_value_names_and_types(fields), count, left)
        elif data_kind == "binary":
            columns = read_binary_columns(path, file, _build_row_dtype(path, fields), count, left)
        elif data_kind == "binary_compressed":
            columns = _read_compressed_columns(path, file.read(), fields, count)
        else:
            raise InputError(f"{path}: corrupt PCD header: DATA {join_to_one_line(data_kind, 40)!r} is unknown")
    return build_cloud_by_popping_columns(path, _drop_padding_and_unpack_rgb(columns))


def write_pcd(path: Path, cloud: PointCloud) -> None:
    """Write a binary PCD file; colours are packed into ``rgb`` as PCL does, with 8 bits each."""
    columns = dict(zip("xyz", cloud.points.T, strict=True))
    if cloud.normals is not None:
        columns.update(zip(("normal_x", "normal_y", "normal_z"), cloud.normals.T, strict=True))
    if cloud.colors is not None:
        red, green, blue = scale_colors_to_uint8(cloud.colors).astype(np.uint32).T
        columns["rgb"] = red << 16 | green << 8 | blue
    for name, values in cloud.attributes.items():
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name) or "attribute"
        narrow = values.dtype.kind not in "fiu" or values.dtype.itemsize > 8 or values.dtype == np.float16
        columns[plain] = values.astype(np.uint8 if values.dtype == bool else np.float32) if narrow else values
    rows = np.empty(len(cloud), [(name, values.dtype.newbyteorder("<")) for name, values in columns.items()])
    for name, values in columns.items():
        rows[name] = values
    types = {name: values.dtype for name, values in columns.items()}
    lines = (
        "# .PCD v0.7",
        "VERSION 0.7",
        f"FIELDS {' '.join(types)}",
        f"SIZE {' '.join(str(one.itemsize) for one in types.values())}",
        f"TYPE {' '.join(one.kind.upper() for one in types.values())}",
        f"COUNT {' '.join('1' for _ in types)}",
        f"WIDTH {len(cloud)}",
        "HEIGHT 1",
        "VIEWPOINT 0 0 0 1 0 0 0",
        f"POINTS {len(cloud)}",
        "DATA binary",
    )
    with path.open("wb") as file:
        file.write("".join(f"{line}\n" for line in lines).encode("ascii"))
        file.write(rows.data)


def _read_pcd_header(path: Path, file: IO[bytes]) -> dict[str, list[str]]:
    header_lines: dict[str, list[str]] = {}
    while "DATA" not in header_lines:
        line = file.readline(1 << 14)
        words = line.decode("ascii", "replace").split()
        if not line.endswith(b"\n") or file.tell() > _LONGEST_HEADER:
            raise InputError(f"{path}: is no PCD file, or its header does not end")
        if words and not words[0].startswith("#"):
            header_lines[words[0]] = words[1:]
    return header_lines


def _parse_point_count(path: Path, header: dict[str, list[str]]) -> int:
    """Return the number of points; files of the first versions have it as width and height alone."""
    if "POINTS" in header:
        return _parse_header_integer(path, header, "POINTS")
    return _parse_header_integer(path, header, "WIDTH") * (
        _parse_header_integer(path, header, "HEIGHT") if "HEIGHT" in header else 1
    )


def _parse_header_integer(path: Path, header: dict[str, list[str]], name: str) -> int:
    match header.get(name):
        case [text] if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text)
    raise InputError(
        f"{path}: corrupt PCD header: {name} is {join_to_one_line(' '.join(header.get(name, [])), 40) or 'absent'}"
    )


def _parse_and_check_fields(path: Path, header: dict[str, list[str]]) -> list[tuple[str, str, int]]:
    """Return name, NumPy type and number of values of every field."""
    names = header.get("FIELDS", header.get("COLUMNS", []))
    counts = header.get("COUNT", ["1"] * len(names))
    # Files of the first versions have floats throughout, and do not say so.
    types, sizes = (header.get(key, [default] * len(names)) for key, default in (("TYPE", "F"), ("SIZE", "4")))
    columns_by_key = (names, types, sizes, counts)
    if not names or len({len(words) for words in columns_by_key}) != 1:
        raise InputError(f"{path}: corrupt PCD header: FIELDS, TYPE, SIZE and COUNT do not match")
    fields: list[tuple[str, str, int]] = []
    for name, kind, size, count_text in zip(*columns_by_key, strict=True):
        is_count = count_text.isascii() and count_text.isdigit() and 1 <= int(count_text[:9]) <= _MAX_VALUES
        right = kind in _KINDS and size in ("1", "2", "4", "8") and (kind != "F" or size in ("4", "8"))
        if not (right and is_count):
            raise InputError(
                f"{path}: corrupt PCD header: field {join_to_one_line(f'{name} {kind} {size} {count_text}', 60)}"
            )
        fields.append((name, f"<{_KINDS[kind]}{size}", int(count_text)))
    values = sum(count for _, _, count in fields)
    if values > _MAX_VALUES:
        raise InputError(f"{path}: its fields have {values} values a point; at most {_MAX_VALUES} are read")
    used = [name for name, _, _ in fields if name != _PADDING]
    if len(set(used)) < len(used):
        raise InputError(f"{path}: corrupt PCD header: a field stands in it twice")
    return fields


def _list_value_names_and_types(fields: list[tuple[str, str, int]]) -> list[tuple[str, str]]:
    """Return a name and a type for each value; padding gets numbers, which no field's name can be."""
    flat: list[tuple[str, str]] = []
    for name, kind, count in fields:
        for i in range(count):
            flat.append((f"{_PADDING}{len(flat)}" if name == _PADDING else name if count == 1 else f"{name}_{i}", kind))
    return flat


def _build_row_dtype(path: Path, fields: list[tuple[str, str, int]]) -> np.dtype[Any]:
    try:
        return np.dtype(_list_value_names_and_types(fields))
    except ValueError as error:
        raise InputError(f"{path}: corrupt PCD header: two fields have one name") from error


def _read_typed_text_columns(
    path: Path, file: IO[bytes], names_and_types: Sequence[tuple[str, str]], row_count: int, remaining_bytes: int
) -> dict[str, NDArray[Any]]:
    """Read rows of text; packed colours become uint32, whether they are written as whole numbers or as floats."""
    columns = read_text_columns(path, file, [(name, "<f8") for name, _ in names_and_types], row_count, remaining_bytes)
    for name, kind in names_and_types:
        values = columns[name]
        if name in _PACKED and kind[-1] == "4":
            columns[name] = _convert_numbers_to_packed_colors(values)
            continue
        if kind[1] in "iu":
            limits = np.iinfo(kind)
            is_wrong = ~((values >= limits.min) & (values <= limits.max))
            if is_wrong.any():
                came = values[is_wrong][0]
                raise InputError(
                    f"{path}: field {join_to_one_line(name, 40)} holds whole numbers of type {kind[1:]}, got {came:g}"
                )
        with np.errstate(over="ignore"):
            columns[name] = values.astype(kind)
    return columns


def _convert_numbers_to_packed_colors(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Return the words of colours from numbers of a text: whole numbers are the word itself, others a float's bits.

    The float of a colour without alpha is below 1e-37, so that it is no whole number but 0. A colour that is NaN is
    unknown, and becomes 0.
    """
    is_integer = (values == np.floor(values)) & (values >= -(2**31)) & (values < 2**32)
    with np.errstate(over="ignore", invalid="ignore"):
        words = values.astype("<f4").view("<u4")
        words[is_integer] = (values[is_integer].astype(np.int64) & 0xFFFFFFFF).astype("<u4")
    words[np.isnan(values)] = 0
    return words


def _read_compressed_columns(
    path: Path, data: bytes, fields: list[tuple[str, str, int]], point_count: int
) -> dict[str, NDArray[Any]]:
    dtype = _build_row_dtype(path, fields)
    expected_bytes = point_count * dtype.itemsize
    if len(data) < 8:
        raise InputError(f"{path}: truncated PCD file: the sizes of the packed data are missing")
    packed, unpacked = struct.unpack_from("<II", data)
    if packed > len(data) - 8 or unpacked != expected_bytes:
        raise InputError(
            f"{path}: the header says {point_count} points, {expected_bytes} bytes; "
            f"{unpacked} packed into {packed} follow, "
            f"{len(data) - 8} are stored"
        )
    refuse_implausible_inflated_size(path, "the packed data", unpacked, packed, _LZF_RATIO)
    values = _decompress_lzf(path, data[8 : 8 + packed], unpacked)
    columns, start = {}, 0
    for name, kind in _list_value_names_and_types(fields):  # one field after the other
        columns[name] = np.frombuffer(values, kind, point_count, start)
        start += columns[name].nbytes
    return columns


def _decompress_lzf(path: Path, data: bytes, expected_bytes: int) -> bytes:
    """Decompress Marc Lehmann's LZF: runs of literals, and copies of 3 to 264 bytes from at most 8192 before."""
    out = bytearray()
    at, end = 0, len(data)
    try:
        while at < end:
            control = data[at]
            at += 1
            if control < 32:
                out += data[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += data[at]
                at += 1
            distance = ((control & 31) << 8) + data[at] + 1
            at += 1
            start, length = len(out) - distance, length + 2
            if start < 0:
                raise IndexError
            copied = out[start : start + length]
            if distance < length:  # a copy that reaches into itself repeats what it begins with
                copied = (copied * (length // distance + 1))[:length]
            out += copied
            if len(out) > expected_bytes:
                break
    except IndexError:
        raise InputError(f"{path}: corrupt PCD file: the packed data cannot be unpacked") from None
    if len(out) != expected_bytes:
        raise InputError(f"{path}: corrupt PCD file: the packed data hold {len(out)} bytes, not {expected_bytes}")
    return bytes(out)


def _drop_padding_and_unpack_rgb(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Leave out padding, and split a packed rgb into red, green and blue."""
    named_columns = {name: column for name, column in columns.items() if not name.startswith(_PADDING)}
    for name in _PACKED:
        if name in named_columns and named_columns[name].dtype.itemsize == 4:
            words = np.ascontiguousarray(named_columns.pop(name)).view("<u4")
            words = np.where(words == _NAN, np.uint32(0), words)
            shifts = {"red": 16, "green": 8, "blue": 0, **({"alpha": 24} if name == "rgba" else {})}
            named_columns |= {color: (words >> shift).astype(np.uint8) for color, shift in shifts.items()}
    return named_columns
