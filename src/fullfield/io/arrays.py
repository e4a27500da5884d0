"""Readers and a writer of NumPy's files. Every header is checked against the file's size; pickles are never opened."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import (
    join_to_one_line,
    open_nonempty_file_with_size,
    raise_as_input_errors,
    refuse_implausible_inflated_size,
    require_nonempty_file_and_get_bytes,
)

_BROKEN = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, UnicodeError, struct.error, OverflowError,
    ValueError,
)  # fmt: skip

_PARSING = (  # of a header, which is a Python literal
    IndexError, KeyError, TypeError, AttributeError, RecursionError, MemoryError, SyntaxError, tokenize.TokenError,
)  # fmt: skip
_LOCAL_HEADER = 30  # of a member of an archive, without its name
_READERS = {
    (1, 0): ("<H", np.lib.format.read_array_header_1_0),
    (2, 0): ("<I", np.lib.format.read_array_header_2_0),
}
_LONGEST_HEADER = 10_000  # bytes; NumPy reads as many as a header says before it looks at the number


def read_and_check_array_header(
    path: Path, description: str, stream: IO[bytes], *, allow_empty: bool = False, dtype_kinds: str = "fiu"
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape of an array of real numbers, whether its order is Fortran's, and its dtype.

    ``allow_empty`` permits an array without elements; ``dtype_kinds`` are NumPy's letters of the accepted types.
    """
    with raise_as_input_errors(path, f"{description} is not in NumPy's format", *_BROKEN, *_PARSING):
        version = np.lib.format.read_magic(stream)
        if version not in _READERS:
            raise ValueError(f"format version {version}")
        length_format, parse = _READERS[version]
        said = stream.read(struct.calcsize(length_format))
        (length,) = struct.unpack(length_format, said)
        if length > _LONGEST_HEADER:
            raise ValueError(f"a header of {length} bytes")
        shape, fortran, dtype = parse(io.BytesIO(said + stream.read(length)))
        if bool in map(type, shape):
            raise ValueError(f"shape {shape}")
    if dtype.kind not in dtype_kinds or dtype.itemsize > 8 or dtype.shape:
        raise InputError(f"{path}: expected {description} to hold real numbers, got {join_to_one_line(str(dtype), 60)}")
    if not all((0 if allow_empty else 1) <= n < 1 << 60 for n in shape):
        came = join_to_one_line(str(list(shape)), 60)
        raise InputError(f"{path}: expected {description} to hold at least one number, got shape {came}")
    return shape, fortran, dtype


def read_npy(path: Path, *, allow_empty: bool = False, dtype_kinds: str = "fiu") -> NDArray[Any]:
    """Return the array of a ``.npy`` file; one without elements only with ``allow_empty``."""
    with open_nonempty_file_with_size(path) as (file, size):
        shape, fortran, dtype = read_and_check_array_header(
            path, "the array", file, allow_empty=allow_empty, dtype_kinds=dtype_kinds
        )
        count = math.prod(shape)
        if count * dtype.itemsize != size - file.tell():
            raise InputError(
                f"{path}: corrupt .npy file: the header says {dtype} {list(shape)}, "
                f"{count * dtype.itemsize} bytes; the file holds {size - file.tell()}"
            )
        values: NDArray[Any] = np.fromfile(file, dtype, count).reshape(shape, order="F" if fortran else "C")
    return values


def write_npy(path: Path, values: NDArray[Any]) -> None:
    """Write an array whose memory is contiguous, without NumPy, which does not notice a full disk."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        file.write(values.data)


@contextmanager
def open_npz_and_list_arrays(path: Path) -> Iterator[tuple[zipfile.ZipFile, list[str]]]:
    """Open a ``.npz`` file and yield it with the names of its arrays; errors here and inside become InputError."""
    require_nonempty_file_and_get_bytes(path)
    with raise_as_input_errors(path, "truncated or corrupt .npz file", *_BROKEN), zipfile.ZipFile(path) as archive:
        yield archive, _list_npz_array_names_or_raise(path, archive)


def _list_npz_array_names_or_raise(path: Path, archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the arrays; raise InputError where two share a name or bytes."""
    end, names = 0, set[str]()
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset < end or info.filename in names:
            raise InputError(
                f"{path}: corrupt .npz file: {join_to_one_line(info.filename, 40)} shares its bytes or its name"
            )
        names.add(info.filename)
        end = info.header_offset + _LOCAL_HEADER + len(info.orig_filename.encode("utf-8")) + info.compress_size
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def read_npz_shape(path: Path, archive: zipfile.ZipFile, array_name: str) -> tuple[int, ...]:
    """Return the shape of an array of a ``.npz`` file; only its header is unpacked."""
    with archive.open(_find_npz_member_or_raise(path, archive, array_name)) as stream:
        return read_and_check_array_header(path, f"array {array_name}", stream)[0]


def read_npz_array(path: Path, archive: zipfile.ZipFile, array_name: str, dtype_kinds: str = "fiu") -> NDArray[Any]:
    """Return an array of a ``.npz`` file."""
    info = _find_npz_member_or_raise(path, archive, array_name)
    with archive.open(info) as stream:
        shape, fortran, dtype = read_and_check_array_header(
            path, f"array {array_name}", stream, dtype_kinds=dtype_kinds
        )
        expected_bytes = math.prod(shape) * dtype.itemsize
        refuse_implausible_inflated_size(path, f"array {array_name} {list(shape)}", expected_bytes, info.compress_size)
        data = stream.read(expected_bytes)
    if len(data) != expected_bytes:
        raise InputError(f"{path}: truncated .npz file: array {array_name} has {len(data)} of {expected_bytes} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _find_npz_member_or_raise(path: Path, archive: zipfile.ZipFile, array_name: str) -> zipfile.ZipInfo:
    info = archive.getinfo(f"{array_name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{path}: array {join_to_one_line(array_name, 40)} is packed by a method that NumPy does not use"
        )
    return info
