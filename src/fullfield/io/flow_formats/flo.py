"""Middlebury ``.flo``: float 202021.25, int32 width and height, then u, v interleaved, all little-endian.

A value beyond 10⁹ (or NaN) marks unknown flow; we write 1666666752, as Middlebury's files do.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from fullfield._check import InputError
from fullfield.io.files import check_readable
from fullfield.io.flow_formats import FlowRangeError, Mask, Planes

_MAGIC = b"PIEH"
_UNKNOWN = np.float32(1666666752.0)
_LARGEST = 1e9


def read(path: Path) -> tuple[Planes, Mask]:
    """Read flow and its valid pixels from a .flo file."""
    size = check_readable(path)
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] != _MAGIC:
            raise InputError(f"{path}: not a .flo file: expected it to start with b'PIEH', got {head[:4]!r}")
        if len(head) < 12:
            raise InputError(f"{path}: truncated .flo file: it ends inside its header, after {size} bytes")
        width, height = struct.unpack("<ii", head[4:])
        if width < 1 or height < 1:
            raise InputError(f"{path}: corrupt .flo file: the header says {width} × {height} pixels")
        expected = 12 + 8 * width * height
        if size != expected:
            raise InputError(
                f"{path}: corrupt .flo file: the header says {width} × {height} pixels, {expected} bytes; "
                f"the file has {size}"
            )
        values = np.fromfile(file, "<f4", 2 * width * height)
    flow = np.ascontiguousarray(values.reshape(height, width, 2).transpose(2, 0, 1), np.float32)
    return flow, _within(flow)


def write(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a .flo file."""
    height, width = valid.shape
    if not _within(flow)[valid].all():
        largest = np.abs(flow[:, valid]).max()
        raise FlowRangeError(f"flow: .flo holds values up to 1e9 px (larger means unknown), got {largest:g}")
    pixels = np.where(valid, flow, _UNKNOWN).astype("<f4").transpose(1, 2, 0)
    with path.open("wb") as file:
        file.write(_MAGIC + struct.pack("<ii", width, height))
        file.write(np.ascontiguousarray(pixels).data)


def _within(flow: Planes) -> Mask:
    known: Mask = (np.abs(flow[0]) <= _LARGEST) & (np.abs(flow[1]) <= _LARGEST)
    return known
