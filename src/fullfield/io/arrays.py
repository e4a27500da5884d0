"""Headers of NumPy's files, believed only as far as the file's size vouches for them. Pickles are never opened."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import check_inflated, one_line, reason

BROKEN_ZIP = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, UnicodeError, struct.error, OverflowError,
)  # fmt: skip

_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BROKEN_HEADER = (
    ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError, OSError, EOFError,
    zlib.error, zipfile.BadZipFile,
)  # fmt: skip


def read_header(path: Path, what: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the order is Fortran's, and dtype of an array of real numbers that is not empty."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _READERS:
            raise ValueError(f"format version {version}")
        shape, fortran, dtype = _READERS[version](stream)
    except _BROKEN_HEADER as error:
        raise InputError(f"{path}: {what} is not in NumPy's format: {reason(error)}") from error
    if dtype.kind not in "fiu":
        raise InputError(f"{path}: expected {what} to hold real numbers, got {one_line(str(dtype), 60)}")
    if not all(isinstance(n, int) and n > 0 for n in shape):
        came = one_line(str(list(shape)), 60)
        raise InputError(f"{path}: expected {what} to hold at least one number, got shape {came}")
    return shape, fortran, dtype


def read_npy(path: Path, size: int) -> NDArray[Any]:
    """The array of a ``.npy`` file of ``size`` bytes."""
    with path.open("rb") as file:
        shape, fortran, dtype = read_header(path, "the array", file)
        count = math.prod(shape)
        if count * dtype.itemsize != size - file.tell():
            raise InputError(
                f"{path}: corrupt .npy file: the header says {dtype} {list(shape)}, "
                f"{count * dtype.itemsize} bytes; the file holds {size - file.tell()}"
            )
        values: NDArray[Any] = np.fromfile(file, dtype, count).reshape(shape, order="F" if fortran else "C")
    return values


def member_names(archive: zipfile.ZipFile) -> list[str]:
    """Names of the arrays in a ``.npz`` file."""
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def read_member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of a ``.npz`` file that holds it."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{path}: array {name} is packed by a method that NumPy does not use")
    with archive.open(info) as stream:
        shape, fortran, dtype = read_header(path, f"array {name}", stream)
        wanted = math.prod(shape) * dtype.itemsize
        check_inflated(path, f"array {name} {list(shape)}", wanted, info.compress_size)
        data = stream.read(wanted)
    if len(data) != wanted:
        raise InputError(f"{path}: truncated .npz file: array {name} has {len(data)} of {wanted} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
