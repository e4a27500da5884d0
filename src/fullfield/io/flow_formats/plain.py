"""Flow formats besides OpenEXR."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError, check_choice
from fullfield.io.arrays import open_npz_and_list_arrays, read_npy, read_npz_array, read_npz_shape, write_npy
from fullfield.io.files import (
    join_to_one_line,
    open_nonempty_file_with_size,
    raise_as_input_errors,
    refuse_implausible_inflated_size,
    require_nonempty_file_and_get_bytes,
)
from fullfield.io.flow_formats import FlowRangeError, Mask, Planes, fill_invalid_with_nan, mark_finite_vectors
from fullfield.io.oiio import open_image_source, write_and_verify_picture

_FLO_MAGIC = b"PIEH"
_FLO_UNKNOWN = np.float32(1666666752.0)
_FLO_LARGEST = 1e9


def read_flo(path: Path) -> tuple[Planes, Mask]:
    """Read Middlebury's ``.flo``: float 202021.25, int32 width and height, then u, v interleaved, all little-endian.

    A value beyond 10⁹ (or NaN) marks unknown flow; we write 1666666752, as Middlebury's files do.
    """
    with open_nonempty_file_with_size(path) as (file, size):
        head = file.read(12)
        if head[:4] != _FLO_MAGIC:
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
    return flow, _mark_vectors_in_flo_range(flow)


def write_flo(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a .flo file."""
    height, width = valid.shape
    if not _mark_vectors_in_flo_range(flow)[valid].all():
        largest = np.abs(flow[:, valid]).max()
        raise FlowRangeError(f"flow: .flo holds values up to 1e9 px (larger means unknown), got {largest:g}")
    pixels = np.where(valid, flow, _FLO_UNKNOWN).astype("<f4").transpose(1, 2, 0)
    with path.open("wb") as file:
        file.write(_FLO_MAGIC + struct.pack("<ii", width, height))
        file.write(np.ascontiguousarray(pixels).data)


def _mark_vectors_in_flo_range(flow: Planes) -> Mask:
    is_within: Mask = (np.abs(flow[0]) <= _FLO_LARGEST) & (np.abs(flow[1]) <= _FLO_LARGEST)
    return is_within


FLO5_COMPRESSIONS = ("gzip", "none")


def read_flo5(path: Path) -> tuple[Planes, Mask]:
    """Read Spring's ``.flo5``: HDF5 with one dataset ``flow``, ``[H, W, 2]`` float32; NaN marks invalid pixels."""
    import h5py

    size = require_nonempty_file_and_get_bytes(path)
    if not h5py.is_hdf5(path):
        raise InputError(f"{path}: not a .flo5 file: it does not start like HDF5")
    errors = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)
    with (
        raise_as_input_errors(path, "truncated or corrupt .flo5 file", *errors),
        h5py.File(path, "r", locking=False) as file,
    ):
        values = _read_flo5_values(path, file, size)
    with np.errstate(over="ignore"):
        flow = np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)
    return flow, mark_finite_vectors(flow)


def _read_flo5_values(path: Path, file: Any, size: int) -> NDArray[Any]:
    import h5py

    if not isinstance(file.get("flow", getlink=True, default=None), h5py.HardLink):
        listed = ", ".join(join_to_one_line(name, 40) for name in list(file)[:20]) or "nothing"
        raise InputError(f"{path}: expected a dataset 'flow', got {listed}")
    data = file["flow"]
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{path}: expected 'flow' to be a dataset, got a group")
    shape = data.shape
    if shape is None or len(shape) != 3 or shape[2] != 2 or 0 in shape:
        raise InputError(f"{path}: expected 'flow' of shape [H, W, 2], got {shape and list(shape)}")
    if data.dtype.kind not in "fiu":
        raise InputError(f"{path}: expected 'flow' to hold real numbers, got {join_to_one_line(str(data.dtype), 60)}")
    if data.is_virtual or data.external:
        raise InputError(f"{path}: 'flow' keeps its values in other files, which is not supported")
    stored = min(data.id.get_storage_size(), size)
    item = data.dtype.itemsize
    packing = {"max_ratio": 1} if data.id.get_create_plist().get_nfilters() == 0 else {}
    refuse_implausible_inflated_size(path, f"'flow' {list(shape)}", math.prod(shape) * item, stored, **packing)
    if data.chunks is not None:
        claim = f"a chunk {list(data.chunks)} of 'flow'"
        refuse_implausible_inflated_size(path, claim, math.prod(data.chunks) * item, stored, **packing)
    return data[()]  # type: ignore[no-any-return]


def write_flo5(path: Path, flow: Planes, valid: Mask, compression: str | None) -> None:
    """Write flow as a .flo5 file."""
    # HDF5 crashes when a write fails while it closes a file, so the file is made in memory.
    import h5py

    pixels = np.ascontiguousarray(fill_invalid_with_nan(flow, valid).transpose(1, 2, 0))
    packed = compression != "none"
    with h5py.File("flow", "w", driver="core", backing_store=False) as file:
        packing = {"compression": "gzip", "compression_opts": 4, "shuffle": True} if packed else {}
        file.create_dataset("flow", data=pixels, **packing)
        file.flush()
        content = file.id.get_file_image()
    path.write_bytes(content)


_KITTI_PNG = "flow in a 16-bit RGB PNG (KITTI)"
_LOWEST, _HIGHEST = -512.0, 65535 / 64 - 512
_LARGEST_TARTANAIR_MASK = 255
ENCODINGS = ("kitti", "virtual-kitti", "tartanair")


def read_kitti_flow(path: Path, encoding: str | None = None) -> tuple[Planes, Mask]:
    """Read flow from a 16-bit RGB PNG, by default in the encoding that its values show.

    - ``kitti``, also HD1K: R = 64 u + 2¹⁵, G = 64 v + 2¹⁵, B = 1 where the flow is known, else 0.
    - ``virtual-kitti``: R and G are u / (W − 1) and v / (H − 1), −1 to 1, on 0 to 2¹⁶ − 1; B = 0 where unknown.
    - ``tartanair`` (V2): B = 64 u + 2¹⁵, G = 64 v + 2¹⁵, R = 0 where the flow is known, else the kind of occlusion.
    """
    check_choice(encoding, "encoding", (None, *ENCODINGS))
    with open_image_source(path, "png", _KITTI_PNG) as source:
        part = source.get_first_part_or_raise()
        spec = part.spec
        value_type = str(spec.format)
        if value_type != "uint16" or spec.nchannels != 3:
            raise InputError(f"{path}: expected {_KITTI_PNG}, got {value_type} × {spec.nchannels}")
        pixels = np.empty((spec.height, spec.width, 3), np.uint16)
        for start, band in source.iterate_row_bands(part, [0, 1, 2], (spec.y, spec.y + spec.height), value_type):
            pixels[start - spec.y : start - spec.y + len(band)] = band
    encoding = encoding or _detect_kitti_encoding_or_raise(path, pixels)
    u, v, mask = (2, 1, 0) if encoding == "tartanair" else (0, 1, 2)
    steps, zero = (64.0, 64.0), 32768.0
    if encoding == "virtual-kitti":
        steps, zero = (32767.5 / max(spec.width - 1, 1), 32767.5 / max(spec.height - 1, 1)), 32767.5
    flow = np.empty((2, spec.height, spec.width), np.float32)
    for axis, (channel, step) in enumerate(zip((u, v), steps, strict=True)):
        np.subtract(pixels[..., channel], np.float32(zero), out=flow[axis], dtype=np.float32)
        flow[axis] /= np.float32(step)
    valid: Mask = pixels[..., mask] == 0 if encoding == "tartanair" else pixels[..., mask] > 0
    return flow, valid


def _detect_kitti_encoding_or_raise(path: Path, pixels: NDArray[np.uint16]) -> str:
    """Return the encoding of a PNG by its mask; InputError where the mask is none that only one of them has."""
    red, blue = int(pixels[..., 0].max()), int(pixels[..., 2].max())
    if blue == 1 or not pixels.any():
        return "kitti"
    if red <= _LARGEST_TARTANAIR_MASK and blue:
        return "tartanair"
    largest = f"up to {blue}" if blue else "0 everywhere"
    raise InputError(
        f"{path}: expected B of KITTI's PNG to be 0 or 1, got {largest}; name its encoding: "
        f"{', '.join(ENCODINGS)} (encoding=, --encoding)"
    )


def write_kitti_flow(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a KITTI .png file."""
    values = np.where(valid, flow, np.float32(0))
    low, high = float(values.min()), float(values.max())
    codes = np.rint((values.astype(np.float64) + 512) * 64)
    if low < _LOWEST - 1 / 128 or codes.max() > 65535:
        raise FlowRangeError(
            f"flow: the KITTI PNG format holds {_LOWEST:g} to {_HIGHEST:g} px, got {low:g} to {high:g}; "
            "choose .flo, .flo5 or .exr"
        )
    pixels = np.zeros((*valid.shape, 3), np.uint16)
    pixels[..., :2] = np.where(valid, codes.clip(0), 0).transpose(1, 2, 0)
    pixels[..., 2] = valid
    write_and_verify_picture(path, "png", pixels)


def read_npy_flow(path: Path) -> tuple[Planes, Mask]:
    """Read NumPy's ``.npy``, ``[H, W, 2]`` (what we write) or ``[2, H, W]``; a last axis of two decides.

    NaN and infinity mark invalid pixels.
    """
    return _convert_to_float32_and_mark_finite(_move_components_first_or_raise(path, read_npy(path)))


def read_npz_flow(path: Path) -> tuple[Planes, Mask]:
    """Read an .npz file: arrays u and v (VIPER), or flow [H, W, 2] or [2, H, W]; and valid or invalid [H, W]."""
    with open_npz_and_list_arrays(path) as (archive, names):
        array_name = next((name for name in ("flow", "arr_0") if name in names), names[0] if len(names) == 1 else None)
        if not {"u", "v"} <= set(names) and array_name is None:
            listed = ", ".join(join_to_one_line(f"{n}.npy", 40) for n in names[:20]) or "nothing"
            raise InputError(f"{path}: expected the arrays u and v (VIPER) or flow, got {listed}")
        if array_name is None or {"u", "v"} <= set(names):
            shapes = [read_npz_shape(path, archive, name) for name in ("u", "v")]
            if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
                listed = " and ".join(str(list(shape)) for shape in shapes)
                raise InputError(f"{path}: expected u and v of one shape [H, W], got {listed}")
            values = np.stack([read_npz_array(path, archive, name) for name in ("u", "v")])
        else:
            values = _move_components_first_or_raise(path, read_npz_array(path, archive, array_name)).copy()
        masks = {name: read_npz_array(path, archive, name, "fiub") for name in ("valid", "invalid") if name in names}
        doubtful = [name for name in names if "mask" in name.lower()]
    flow, valid = _convert_to_float32_and_mark_finite(values)
    for name, mask in masks.items():
        if mask.shape != valid.shape:
            raise InputError(f"{path}: expected array {name} {list(valid.shape)}, got {list(mask.shape)}")
        valid &= (mask != 0) == (name == "valid")
    if doubtful and not masks:
        raise InputError(
            f"{path}: array {join_to_one_line(doubtful[0], 40)} does not say whether it marks known vectors; rename it "
            "valid or invalid, or store it in a file of its own"
        )
    return flow, valid


def _move_components_first_or_raise(path: Path, array: NDArray[Any]) -> NDArray[Any]:
    """Return ``[2, H, W]``; a last axis of two decides."""
    if array.ndim != 3 or 2 not in (array.shape[0], array.shape[-1]):
        raise InputError(f"{path}: expected flow [H, W, 2] or [2, H, W], got shape {list(array.shape)}")
    return array.transpose(2, 0, 1) if array.shape[-1] == 2 else array


def _convert_to_float32_and_mark_finite(values: NDArray[Any]) -> tuple[Planes, Mask]:
    with np.errstate(over="ignore"):
        flow = np.ascontiguousarray(values, np.float32)
    return flow, mark_finite_vectors(flow)


def write_npy_flow(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a .npy file [H, W, 2]; NaN where it is not valid."""
    write_npy(path, np.ascontiguousarray(fill_invalid_with_nan(flow, valid).transpose(1, 2, 0), "<f4"))


_LONGEST_HEADER = 512


def read_pfm_flow(path: Path) -> tuple[Planes, Mask]:
    """Read u, v and an ignored third channel from a portable float map; NaN marks invalid pixels."""
    planes = read_pfm_planes(path)
    if len(planes) != 3:
        raise InputError(f"{path}: expected flow in a three-channel PFM (PF), got a one-channel one (Pf)")
    flow = np.ascontiguousarray(planes[:2])
    return flow, mark_finite_vectors(flow)


def read_pfm_planes(path: Path) -> Planes:  # [C, H, W], C = 1 or 3, top row first
    """Return the channels of a portable float map.

    ``PF`` (three channels) or ``Pf`` (one), width, height, scale; rows from the bottom up. A negative scale means
    little-endian; its magnitude multiplies the values.
    """
    with open_nonempty_file_with_size(path) as (file, size):
        head = file.read(_LONGEST_HEADER)
        channels, width, height, scale, start = _parse_pfm_header(path, head)
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


def read_pfm_size(path: Path) -> tuple[int, int]:
    """Return width and height by the header."""
    require_nonempty_file_and_get_bytes(path)
    with path.open("rb") as file:
        _, width, height, _, _ = _parse_pfm_header(path, file.read(_LONGEST_HEADER))
    return width, height


def _parse_pfm_header(path: Path, head: bytes) -> tuple[int, int, int, float, int]:
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
    header_text = join_to_one_line(b" ".join(words).decode("latin-1"), 60)
    try:
        width, height, scale = int(words[0]), int(words[1]), float(words[2])
    except ValueError:
        raise InputError(f"{path}: corrupt PFM file: expected width, height and scale, got '{header_text}'") from None
    if width < 1 or height < 1 or scale == 0 or not math.isfinite(scale):
        raise InputError(f"{path}: corrupt PFM file: width, height or scale makes no sense in '{header_text}'")
    return channels, width, height, scale, at + 1


def write_pfm_flow(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a three-channel PFM file; NaN where it is not valid."""
    height, width = valid.shape
    pixels = np.zeros((height, width, 3), "<f4")
    pixels[..., :2] = fill_invalid_with_nan(flow, valid).transpose(1, 2, 0)[::-1]
    with path.open("wb") as file:
        file.write(b"PF\n%d %d\n-1.0\n" % (width, height))
        file.write(pixels.data)
