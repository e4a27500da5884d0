"""PLY: ascii and binary of either byte order, properties in any order. Faces and other elements are not read.

Written is binary little-endian; coordinates as float or double, as the cloud has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import join_to_one_line, open_nonempty_file_with_size
from fullfield.io.point_formats import (
    PointCloud,
    build_cloud_by_popping_columns,
    build_missing_axes_error,
    read_binary_columns,
    read_text_columns,
    scale_colors_to_uint8,
)

_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8",
}  # fmt: skip
_NAMES = {code: name for name, code in reversed(_TYPES.items())}  # the first of two
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_LONGEST_HEADER = 1 << 16


class _Element(NamedTuple):
    name: str
    rows: int
    properties: list[tuple[str, str]]  # name, NumPy's type
    lists: bool


def read_ply(path: Path) -> PointCloud:
    """Read a PLY file."""
    with open_nonempty_file_with_size(path) as (file, size):
        encoding, elements = _read_format_and_elements(path, file)
        left = size - file.tell()
        vertex = next((e for e in elements if e.name == "vertex"), None)
        if vertex is None:
            raise InputError(f"{path}: has no element vertex, so there are no points in it")
        before = elements[: elements.index(vertex)]
        if vertex.lists or any(e.lists for e in before):
            raise InputError(f"{path}: lists of values in or before the element vertex are not supported")
        if not {"x", "y", "z"} <= {name for name, _ in vertex.properties}:
            raise build_missing_axes_error(path, (name for name, _ in vertex.properties))
        if encoding == "ascii":
            skipped = sum(e.rows for e in before)
            return build_cloud_by_popping_columns(
                path, read_text_columns(path, file, vertex.properties, vertex.rows, left, skipped)
            )
        skipped = sum(e.rows * _build_row_dtype(e, encoding).itemsize for e in before)
        return build_cloud_by_popping_columns(
            path, read_binary_columns(path, file, _build_row_dtype(vertex, encoding), vertex.rows, left, skipped)
        )


def _build_row_dtype(element: _Element, encoding: str) -> np.dtype[Any]:
    return np.dtype([(name, _ORDERS[encoding] + kind) for name, kind in element.properties])


def _read_format_and_elements(path: Path, file: IO[bytes]) -> tuple[str, list[_Element]]:
    def build_error(reason: str) -> InputError:
        return InputError(f"{path}: corrupt PLY header: {join_to_one_line(reason, 80)}")

    if file.readline(16).strip() != b"ply":
        raise InputError(f"{path}: is no PLY file, it does not begin with 'ply'")
    encoding, elements = "", list[_Element]()
    while True:
        line = file.readline(1024)
        words = line.decode("ascii", "replace").split()
        if not line.endswith(b"\n") or file.tell() > _LONGEST_HEADER:
            raise build_error("it does not end")
        if words == ["end_header"]:
            break
        match words:
            case [] | ["comment" | "obj_info", *_]:
                continue
            case ["format", name, "1.0"] if name in _ORDERS:
                encoding = name
            case ["element", name, count] if count.isascii() and count.isdigit() and len(count) <= 18:
                elements.append(_Element(name, int(count), [], lists=False))
            case ["property", "list", _, _, _] if elements:
                elements[-1] = elements[-1]._replace(lists=True)
            case ["property", kind, name] if elements and kind in _TYPES:
                elements[-1].properties.append((name, _TYPES[kind]))
            case _:
                raise build_error(f"cannot read {' '.join(words)!r}")
    if not encoding:
        raise build_error("it names no format")
    for element in elements:
        names = [name for name, _ in element.properties]
        if len(set(names)) < len(names):
            raise build_error(f"element {element.name} has a property twice")
    return encoding, elements


def write_ply(path: Path, cloud: PointCloud) -> None:
    """Write a binary PLY file, with colours as bytes, as other programs expect them."""
    columns: list[tuple[str, NDArray[Any]]] = []
    colors = None if cloud.colors is None else scale_colors_to_uint8(cloud.colors)
    for names, values in (("x y z", cloud.points), ("nx ny nz", cloud.normals), ("red green blue", colors)):
        if values is not None:
            columns.extend((name, values[:, i]) for i, name in enumerate(names.split()))
    columns.extend(
        (_convert_to_ascii_word(name), _cast_unsupported_to_float64_or_uint8(values))
        for name, values in cloud.attributes.items()
    )
    rows = np.empty(len(cloud), [(name, values.dtype.newbyteorder("<")) for name, values in columns])
    for name, values in columns:
        rows[name] = values
    lines = ["ply", "format binary_little_endian 1.0", "comment fullfield", f"element vertex {len(cloud)}"]
    lines += [f"property {_NAMES[values.dtype.str[1:]]} {name}" for name, values in columns]
    with path.open("wb") as file:
        file.write("\n".join([*lines, "end_header", ""]).encode("ascii"))
        # Not through NumPy, which does not notice a full disk.
        file.write(rows.data)


def _convert_to_ascii_word(name: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() and not c.isspace() else "_" for c in name) or "_"


def _cast_unsupported_to_float64_or_uint8(values: NDArray[Any]) -> NDArray[Any]:
    """Convert to a type that PLY has: it has no 64-bit integers, half floats or truth values."""
    return values if values.dtype.str[1:] in _NAMES else values.astype(np.uint8 if values.dtype == bool else np.float64)
