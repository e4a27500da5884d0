"""NumPy's ``.npy``, ``[H, W, 2]`` (what we write) or ``[2, H, W]``; VIPER's ``.npz``, u and v ``[H, W]``.

The last axis decides: two long means ``[H, W, 2]``. NaN and infinity mark invalid pixels. Pickles are never
opened.
"""

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
from fullfield.io.files import check_inflated, check_readable, one_line, reason
from fullfield.io.flow_formats import Mask, Planes, finite, or_nan

_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BROKEN_HEADER = (
    ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError, OSError, EOFError,
    zlib.error, zipfile.BadZipFile,
)  # fmt: skip
_BROKEN_ZIP = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, UnicodeError, struct.error, OverflowError,
)  # fmt: skip


def read(path: Path) -> tuple[Planes, Mask]:
    size = check_readable(path)
    with path.open("rb") as file:
        shape, fortran, dtype = _header(path, "the array", file)
        count = math.prod(shape)
        if count * dtype.itemsize != size - file.tell():
            raise InputError(
                f"{path}: corrupt .npy file: the header says {dtype} {list(shape)}, "
                f"{count * dtype.itemsize} bytes; the file holds {size - file.tell()}"
            )
        if len(shape) != 3 or 2 not in (shape[0], shape[-1]):
            raise InputError(f"{path}: expected flow [H, W, 2] or [2, H, W], got shape {list(shape)}")
        values = np.fromfile(file, dtype, count).reshape(shape, order="F" if fortran else "C")
    return _finish(values.transpose(2, 0, 1) if shape[-1] == 2 else values)


def read_viper(path: Path) -> tuple[Planes, Mask]:
    check_readable(path)
    with path.open("rb") as file:
        return _read_viper(path, file)


def _read_viper(path: Path, file: IO[bytes]) -> tuple[Planes, Mask]:
    try:
        with zipfile.ZipFile(file) as archive:
            u, v = (_member(path, archive, name) for name in ("u", "v"))
    except _BROKEN_ZIP as error:
        raise InputError(f"{path}: truncated or corrupt .npz file: {reason(error)}") from error
    if u.ndim != 2 or u.shape != v.shape:
        shapes = f"{list(u.shape)} and {list(v.shape)}"
        raise InputError(f"{path}: expected u and v of one shape [H, W], got {shapes}")
    return _finish(np.stack((u, v)))


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    names = archive.namelist()
    if f"{name}.npy" not in names:
        listed = ", ".join(one_line(n, 40) for n in names[:20]) or "nothing"
        raise InputError(f"{path}: expected the arrays u and v (VIPER), got {listed}")
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{path}: array {name} is packed by a method that NumPy does not use")
    with archive.open(info) as stream:
        shape, fortran, dtype = _header(path, f"array {name}", stream)
        wanted = math.prod(shape) * dtype.itemsize
        check_inflated(path, f"array {name} {list(shape)}", wanted, info.compress_size)
        data = stream.read(wanted)
    if len(data) != wanted:
        raise InputError(f"{path}: truncated .npz file: array {name} has {len(data)} of {wanted} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _header(path: Path, what: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
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
        raise InputError(f"{path}: {what} has shape {one_line(str(list(shape)), 60)}")
    return shape, fortran, dtype


def _finish(values: NDArray[Any]) -> tuple[Planes, Mask]:
    with np.errstate(over="ignore"):
        flow = np.ascontiguousarray(values, np.float32)
    return flow, finite(flow)


def write(path: Path, flow: Planes, valid: Mask) -> None:
    pixels = np.ascontiguousarray(or_nan(flow, valid).transpose(1, 2, 0), "<f4")
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(pixels))
        # Not through NumPy, which does not notice a full disk.
        file.write(pixels.data)
