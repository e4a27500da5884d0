"""Makers of small files that claim much."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from io_files import ExrPart, save


def las(**changes: int) -> bytearray:
    """Version 1.4 with three points of format 6, made by hand; ``changes`` are fields by name."""
    fields = {
        "version": (24, "<BB"), "header": (94, "<H"), "points_at": (96, "<I"), "records": (100, "<I"),
        "form": (104, "<B"), "row": (105, "<H"), "old_points": (107, "<I"), "extended_at": (235, "<Q"),
        "extended": (243, "<I"), "points": (247, "<Q"),
    }  # fmt: skip
    data = bytearray(b"LASF") + bytes(371 + 3 * 30)
    struct.pack_into("<BB", data, *[24, 1, 4])
    struct.pack_into("<3d", data, 131, 1.0, 1.0, 1.0)
    values = {"header": 375, "points_at": 375, "row": 30, "form": 6, "points": 3, **changes}
    for name, value in values.items():
        at, form = fields[name]
        struct.pack_into(form, data, at, value)
    return data


def npy(shape: str, descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz_of_shared_bytes(entries: int, *, renamed: bool = True) -> bytes:
    """A kernel of zeros that many entries of the directory point to, each unpacking its 48 MB again."""
    kernel = io.BytesIO()
    with zipfile.ZipFile(kernel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("points.npy", npy("(2000000, 3)") + bytes(48_000_000))
    data = kernel.getvalue()
    at, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    names = [b"%06d.npy" % n if n and renamed else b"points.npy" for n in range(entries)]
    directory = b"".join(data[at:end].replace(b"points.npy", name) for name in names)
    counts = struct.pack("<HHI", entries, entries, len(directory))
    return data[:at] + directory + data[end : end + 8] + counts + data[end + 16 :]


def npz_of_another_length() -> bytes:
    """Two points, and 240 MB of labels."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("points.npy", npy("(2, 3)") + bytes(48))
        archive.writestr("label.npy", npy("(30000000,)") + bytes(240_000_000))
    return packed.getvalue()


def gif(side: int = 16000) -> bytes:
    size = struct.pack("<HH", side, side)
    return b"GIF89a" + size + b"\x80\0\0" + bytes(6) + b"," + bytes(4) + size + b"\0\x02\x02\x44\x01\0;"


def empty_window(path: Path) -> Path:
    """Six pixels of flow in a display window of 16384×8192."""
    part = ExrPart(np.ones((2, 3, 2), np.float32), ("u", "v"), origin=(5, 7), display=(0, 0, 16384, 8192))
    return save(path, part)


def pcd_of_many_values() -> bytes:
    names = " ".join(f"f{n}" for n in range(2000))
    lines = [f"FIELDS x y z {names}", "SIZE" + " 4" * 2003, "TYPE" + " F" * 2003, "COUNT 1 1 1" + " 4096" * 2000]
    return "\n".join([*lines, "POINTS 0", "DATA binary", ""]).encode()


def lzf_file(body: bytes, count: int) -> bytes:
    head = b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nPOINTS %d\nDATA binary_compressed\n" % count
    return head + struct.pack("<II", len(body), 12 * count) + body


def lzf_of_one_byte(count: int = 22 * 100_000) -> bytes:
    """One literal zero, then copies of 264 bytes from one before: byte by byte this takes a minute."""
    copies, rest = divmod(12 * count - 1, 264)
    return lzf_file(b"\0\0" + b"\xe0\xff\0" * copies + b"\xe0" + bytes([rest - 9]) + b"\0", count)
