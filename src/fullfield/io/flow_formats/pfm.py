"""Portable float map: ``PF`` (three channels) or ``Pf`` (one), width, height, scale; rows from the bottom up.

A negative scale means little-endian; its magnitude multiplies the values. Flow is u, v and a third channel,
ignored on reading and 0 on writing; NaN marks invalid pixels.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fullfield._check import InputError
from fullfield.io.files import check_readable, one_line
from fullfield.io.flow_formats import Mask, Planes, finite, or_nan

_LONGEST_HEADER = 512


def read(path: Path) -> tuple[Planes, Mask]:
    """Read flow from a three-channel PFM file."""
    planes = read_planes(path)
    if len(planes) != 3:
        raise InputError(f"{path}: expected flow in a three-channel PFM (PF), got a one-channel one (Pf)")
    flow = np.ascontiguousarray(planes[:2])
    return flow, finite(flow)


def read_planes(path: Path) -> Planes:  # [C, H, W], C = 1 or 3, top row first
    """Return the channels of a PFM file."""
    size = check_readable(path)
    with path.open("rb") as file:
        head = file.read(_LONGEST_HEADER)
        channels, width, height, scale, start = _parse(path, head)
        expected = start + 4 * channels * width * height
        if size != expected:
            raise InputError(
                f"{path}: corrupt PFM file: the header says {width} × {height} × {channels} values, "
                f"{expected} bytes; the file has {size}"
            )
        file.seek(start)
        values = np.fromfile(file, "<f4" if scale < 0 else ">f4", channels * width * height)
    pixels = values.reshape(height, width, channels)[::-1].transpose(2, 0, 1)
    planes = np.array(pixels, np.float32, order="C")
    if abs(scale) != 1:
        with np.errstate(over="ignore", invalid="ignore"):
            planes *= np.float32(abs(scale))
    return planes


def read_size(path: Path) -> tuple[int, int]:
    """Return width and height by the header."""
    check_readable(path)
    with path.open("rb") as file:
        _, width, height, _, _ = _parse(path, file.read(_LONGEST_HEADER))
    return width, height


def _parse(path: Path, head: bytes) -> tuple[int, int, int, float, int]:
    """Return channels, width, height, scale and the byte where the pixels start."""
    channels = {b"PF": 3, b"Pf": 1}.get(head[:2])
    if channels is None or not head[2:3].isspace():
        raise InputError(f"{path}: not a PFM file: expected it to start with 'PF' or 'Pf', got {head[:3]!r}")
    words: list[bytes] = []
    at = 2
    while len(words) < 3:
        while head[at : at + 1].isspace():
            at += 1
        if head[at : at + 1] == b"#":
            at = head.find(b"\n", at) + 1 or len(head)
            continue
        end = at
        while end < len(head) and not head[end : end + 1].isspace():
            end += 1
        if end in (at, len(head)):
            raise InputError(f"{path}: corrupt PFM file: its header is cut short")
        words.append(head[at:end])
        at = end
    shown = one_line(b" ".join(words).decode("latin-1"), 60)
    try:
        width, height, scale = int(words[0]), int(words[1]), float(words[2])
    except ValueError:
        raise InputError(f"{path}: corrupt PFM file: expected width, height and scale, got '{shown}'") from None
    if width < 1 or height < 1 or scale == 0 or not math.isfinite(scale):
        raise InputError(f"{path}: corrupt PFM file: width, height or scale makes no sense in '{shown}'")
    return channels, width, height, scale, at + 1


def write(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a three-channel PFM file; NaN where it is not valid."""
    height, width = valid.shape
    pixels = np.zeros((height, width, 3), "<f4")
    pixels[..., :2] = or_nan(flow, valid).transpose(1, 2, 0)[::-1]
    with path.open("wb") as file:
        file.write(b"PF\n%d %d\n-1.0\n" % (width, height))
        file.write(pixels.data)
