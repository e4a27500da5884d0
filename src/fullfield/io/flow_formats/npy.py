"""NumPy's ``.npy``, ``[H, W, 2]`` (what we write) or ``[2, H, W]``; VIPER's ``.npz``, u and v ``[H, W]``.

The last axis decides: two long means ``[H, W, 2]``. NaN and infinity mark invalid pixels. Pickles are never
opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.arrays import member_shape, opened_archive, read_member, read_npy, write_npy
from fullfield.io.files import check_readable, one_line
from fullfield.io.flow_formats import Mask, Planes, finite, or_nan


def read(path: Path) -> tuple[Planes, Mask]:
    """Read flow [H, W, 2] or [2, H, W] from a .npy file."""
    values = read_npy(path, check_readable(path))
    if values.ndim != 3 or 2 not in (values.shape[0], values.shape[-1]):
        raise InputError(f"{path}: expected flow [H, W, 2] or [2, H, W], got shape {list(values.shape)}")
    return _finish(values.transpose(2, 0, 1) if values.shape[-1] == 2 else values)


def read_viper(path: Path) -> tuple[Planes, Mask]:
    """Read flow from VIPER's .npz file: arrays u and v."""
    with opened_archive(path) as (archive, names):
        if not {"u", "v"} <= set(names):
            listed = ", ".join(one_line(f"{n}.npy", 40) for n in names[:20]) or "nothing"
            raise InputError(f"{path}: expected the arrays u and v (VIPER), got {listed}")
        shapes = [member_shape(path, archive, name) for name in ("u", "v")]
        if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
            told = " and ".join(str(list(shape)) for shape in shapes)
            raise InputError(f"{path}: expected u and v of one shape [H, W], got {told}")
        u, v = (read_member(path, archive, name) for name in ("u", "v"))
    return _finish(np.stack((u, v)))


def _finish(values: NDArray[Any]) -> tuple[Planes, Mask]:
    with np.errstate(over="ignore"):
        flow = np.ascontiguousarray(values, np.float32)
    return flow, finite(flow)


def write(path: Path, flow: Planes, valid: Mask) -> None:
    """Write flow as a .npy file [H, W, 2]; NaN where it is not valid."""
    write_npy(path, np.ascontiguousarray(or_nan(flow, valid).transpose(1, 2, 0), "<f4"))
