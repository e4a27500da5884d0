"""Flow in and out: one pair of functions, the format by the suffix."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError, choice, require, tensor
from fullfield.io.files import PathLike, atomic_path
from fullfield.io.flow_formats import finite
from fullfield.io.names import EXR_COMPRESSIONS, FLOW_SUFFIXES, FLOW_WRITE_SUFFIXES

Precision: TypeAlias = Literal["float", "half"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class FlowData(NamedTuple):
    """Flow as a file holds it."""

    flow: Tensor
    """float32 ``[2, H, W]``, (u, v) = (x right, y down), pixels of the first image; 0 where not valid."""
    valid: Tensor
    """bool ``[H, W]``."""


def read_flow(path: PathLike, *, layer: str | None = None, part: int | str | None = None) -> FlowData:
    """Read flow from ``.flo``, KITTI ``.png``, ``.flo5``, ``.pfm``, ``.npy``, VIPER ``.npz`` or ``.exr``.

    The size is the stored one; truth at twice the image's size (Spring) is returned as it is.

    Args:
        path: the file; its suffix says the format.
        layer: of an EXR only: ``forward`` (the default, or bare channels u, v), ``backward`` or any other
            prefix of channels u, v or x, y. The y axis of an EXR points up (Nuke): v changes its sign.
        part: of an EXR only: the part by index or name; by default the first with the wanted channels.

    Raises:
        InputError: an unknown suffix, or a file that is corrupt, truncated or holds something else.
        OSError: a missing file, a folder, or no permission.
    """
    from fullfield.io.flow_formats import exr, flo, flo5, kitti, npy, pfm

    where = Path(path)
    suffix = _suffix(where, FLOW_SUFFIXES, "read")
    if suffix == ".exr":
        flow, valid = exr.read(where, part, layer)
    else:
        for name, value in (("layer", layer), ("part", part)):
            if value is not None:
                raise InputError(f"{where}: only OpenEXR files have a {name}, got {name}={value!r}")
        readers = {
            ".flo": flo.read,
            ".png": kitti.read,
            ".flo5": flo5.read,
            ".pfm": pfm.read,
            ".npy": npy.read,
            ".npz": npy.read_viper,
        }
        flow, valid = readers[suffix](where)
    flow[:, ~valid] = 0
    return FlowData(torch.from_numpy(flow), torch.from_numpy(valid))


def write_flow(
    path: PathLike,
    flow: Tensor,  # [2, H, W], any floating type
    valid: Tensor | None = None,  # bool [H, W]
    *,
    backward: Tensor | None = None,  # [2, H, W]
    compression: str | None = None,
    dtype: Precision | None = None,
) -> None:
    """Write flow as ``.flo``, KITTI ``.png``, ``.flo5``, ``.pfm``, ``.npy`` or ``.exr``; all or nothing.

    Pixels that are not valid, or whose flow is NaN or infinite, are written as the format marks them.

    Args:
        path: where to; the suffix says the format.
        flow: (u, v) = (x right, y down), pixels of the first image.
        valid: where the flow is known; everywhere by default.
        backward: of an EXR only: flow from this frame to the one before, as a second layer.
        compression: of an EXR: one of :data:`fullfield.io.EXR_COMPRESSIONS`, by default ``zip``; all keep the
            flow exactly. Of ``.flo5``: ``gzip`` (the default) or ``none``.
        dtype: of an EXR only: ``float`` (the default) or ``half`` (11 bits: exact to 1/16 px up to 128 px).

    Raises:
        InputError: an unknown suffix, an option the format does not have, or flow beyond what it can hold
            (KITTI: −512 to 511.98 px; half: 65504 px; ``.flo``: 10⁹ px). Nothing is written.
        OSError: the file cannot be written; what stood there before stays.
    """
    from fullfield.io.flow_formats import exr, flo, flo5, kitti, npy, pfm

    where = Path(path)
    suffix = _suffix(where, FLOW_WRITE_SUFFIXES, "written")
    values, known = _arrays(flow, valid)
    _check_options(where, suffix, backward, compression, dtype)
    writers = {".flo": flo.write, ".png": kitti.write, ".pfm": pfm.write, ".npy": npy.write}
    with atomic_path(where) as temporary:
        if suffix == ".exr":
            back = None if backward is None else _values(backward, "backward", tuple(flow.shape))
            exr.write(temporary, values, known, back, compression, dtype)
        elif suffix == ".flo5":
            flo5.write(temporary, values, known, compression)
        else:
            writers[suffix](temporary, values, known)


def write_st_map(path: PathLike, flow: Tensor) -> None:
    """Write flow ``[2, H, W]`` as an ST map for Nuke's STMap node: where each pixel's colour comes from.

    float32 OpenEXR with R = (x + u + 0.5) / W and G = 1 − (y + v + 0.5) / H. Applied to the second frame it
    gives the first; zero flow gives the identity map.

    Raises:
        InputError: another suffix than ``.exr``, or flow that is NaN or infinite somewhere.
        OSError: the file cannot be written.
    """
    from fullfield.io.flow_formats import exr

    where = Path(path)
    _suffix(where, (".exr",), "written as an ST map")
    values, known = _arrays(flow, None)
    require(bool(known.all()), "flow", "finite values for an ST map", f"{int((~known).sum())} that are not")
    with atomic_path(where) as temporary:
        exr.write_st_map(temporary, values)


def _suffix(path: Path, known: tuple[str, ...], done: str) -> str:
    suffix = path.suffix.lower()
    if suffix not in known:
        readable = " (.npz is only read)" if suffix == ".npz" else ""
        raise InputError(f"{path}: flow is {done} with a suffix out of {', '.join(known)}, got {suffix!r}{readable}")
    return suffix


def _arrays(flow: Tensor, valid: Tensor | None) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    values = _values(flow, "flow", (2, None, None))
    known = finite(values)
    if valid is not None:
        known &= tensor(valid, "valid", values.shape[1:], dtypes=(torch.bool,)).detach().cpu().numpy()
    return values, known


def _values(flow: Tensor, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
    shown = [s if s is not None else n for s, n in zip(shape, ("2", "H", "W"), strict=True)]
    checked = tensor(flow, name, shown, dtypes=_FLOATS)
    require(0 not in checked.shape, name, "at least one pixel", flow)
    return np.ascontiguousarray(checked.detach().to("cpu", torch.float32).numpy())


def _check_options(
    path: Path, suffix: str, backward: Tensor | None, compression: str | None, dtype: Precision | None
) -> None:
    from fullfield.io.flow_formats import flo5

    if suffix == ".exr":
        choice(compression, "compression", (None, *EXR_COMPRESSIONS))
        choice(dtype, "dtype", (None, "float", "half"))
        return
    if suffix == ".flo5":
        choice(compression, "compression", (None, *flo5.COMPRESSIONS))
    elif compression is not None:
        raise InputError(f"{path}: only .exr and .flo5 take a compression, got compression={compression!r}")
    if dtype is not None:
        raise InputError(f"{path}: only .exr takes a dtype, got dtype={dtype!r}")
    if backward is not None:
        raise InputError(f"{path}: only .exr holds backward flow beside forward flow")
