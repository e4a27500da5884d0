"""Spring's ``.flo5``: HDF5 with one dataset ``flow``, ``[H, W, 2]`` float32; NaN marks invalid pixels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import check_inflated, check_readable, complaining, one_line
from fullfield.io.flow_formats import Mask, Planes, finite, or_nan

COMPRESSIONS = ("gzip", "none")


def read(path: Path) -> tuple[Planes, Mask]:
    """Read flow and its valid pixels from a .flo5 file."""
    import h5py

    size = check_readable(path)
    if not h5py.is_hdf5(path):
        raise InputError(f"{path}: not a .flo5 file: it does not start like HDF5")
    errors = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)
    with (
        complaining(path, "truncated or corrupt .flo5 file", *errors),
        h5py.File(path, "r", locking=False) as file,
    ):
        values = _values(path, file, size)
    with np.errstate(over="ignore"):
        flow = np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)
    return flow, finite(flow)


def _values(path: Path, file: Any, size: int) -> NDArray[Any]:
    import h5py

    if not isinstance(file.get("flow", getlink=True, default=None), h5py.HardLink):
        listed = ", ".join(one_line(name, 40) for name in list(file)[:20]) or "nothing"
        raise InputError(f"{path}: expected a dataset 'flow', got {listed}")
    data = file["flow"]
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{path}: expected 'flow' to be a dataset, got a group")
    shape = data.shape
    if shape is None or len(shape) != 3 or shape[2] != 2 or 0 in shape:
        raise InputError(f"{path}: expected 'flow' of shape [H, W, 2], got {shape and list(shape)}")
    if data.dtype.kind not in "fiu":
        raise InputError(f"{path}: expected 'flow' to hold real numbers, got {one_line(str(data.dtype), 60)}")
    if data.is_virtual or data.external:
        raise InputError(f"{path}: 'flow' keeps its values in other files, which is not supported")
    stored = min(data.id.get_storage_size(), size)
    item = data.dtype.itemsize
    packing = {"ratio": 1} if data.id.get_create_plist().get_nfilters() == 0 else {}
    check_inflated(path, f"'flow' {list(shape)}", math.prod(shape) * item, stored, **packing)
    if data.chunks is not None:
        claim = f"a chunk {list(data.chunks)} of 'flow'"
        check_inflated(path, claim, math.prod(data.chunks) * item, stored, **packing)
    return data[()]  # type: ignore[no-any-return]


def write(path: Path, flow: Planes, valid: Mask, compression: str | None) -> None:
    """Write flow as a .flo5 file."""
    # HDF5 crashes when a write fails while it closes a file, so the file is made in memory.
    import h5py

    pixels = np.ascontiguousarray(or_nan(flow, valid).transpose(1, 2, 0))
    packed = compression != "none"
    with h5py.File("flow", "w", driver="core", backing_store=False) as file:
        packing = {"compression": "gzip", "compression_opts": 4, "shuffle": True} if packed else {}
        file.create_dataset("flow", data=pixels, **packing)
        file.flush()
        made = file.id.get_file_image()
    path.write_bytes(made)
