"""Flow in and out: one pair of functions, the format by the suffix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import (
    InputError,
    check_choice,
    check_not_meta,
    check_number,
    check_tensor,
    convert_path_to_text,
    require,
)
from fullfield.io.files import PathLike, write_atomically
from fullfield.io.flow_formats import FlowRangeError as FlowRangeError
from fullfield.io.flow_formats import exr, fill_invalid_with_nan, mark_finite_vectors, plain
from fullfield.io.names import EXR_COMPRESSIONS, FLOW_SUFFIXES, FLOW_WRITE_SUFFIXES
from fullfield.io.oiio import Header, check_name_is_utf8
from fullfield.io.scanlines import NamedPlane
from fullfield.io.windows import FrameWindow, Window, check_window_argument

Precision: TypeAlias = Literal["float", "half"]
Axis: TypeAlias = Literal["up", "down"]
Encoding: TypeAlias = Literal["kitti", "virtual-kitti", "tartanair"]

_FORMATS = {
    ".flo": "flo",
    ".png": "kitti_flow",
    ".flo5": "flo5",
    ".pfm": "pfm_flow",
    ".npy": "npy_flow",
    ".npz": "npz_flow",
}
"""Formats by suffix: the ends of the names of their readers and writers in ``flow_formats/plain.py``."""
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class FlowData(NamedTuple):
    """Flow as a file holds it."""

    flow: Tensor
    """float32 ``[2, H, W]``, (u, v) = (x right, y down), pixels of the first image. Where it is not valid, 0, or what
    a channel ``valid`` of an EXR marks as taken from its surroundings."""
    valid: Tensor
    """bool ``[H, W]``."""


def read_flow(
    path: PathLike,
    *,
    layer: str | None = None,
    part: int | str | None = None,
    channels: tuple[str, str] | None = None,
    y_axis: Axis | None = None,
    scale: float | tuple[float, float] = 1.0,
    encoding: Encoding | None = None,
    window: Window = "display",
) -> FlowData:
    """Read flow from ``.flo``, KITTI ``.png``, ``.flo5``, ``.pfm``, ``.npy``, ``.npz`` (VIPER) or ``.exr``.

    The size is the stored one; truth at twice the image's size (Spring) is returned as it is.

    Args:
        path: the file; its suffix says the format.
        layer: of an EXR only: ``forward`` (the default, or bare channels u, v), ``backward`` or any other
            prefix of channels u, v or x, y or R, G. Blender's pass ``Vector`` has both directions. The y axis of an EXR
            points up (Nuke): v changes its sign.
        part: of an EXR only: the part by index or name; by default the first with the channels.
        channels: of an EXR only: the full names of the channels of u and v, in place of ``layer``.
        y_axis: of an EXR only: where the stored y axis points, ``up`` or ``down``; by default as the header says, else
            up.
        scale: factor of the vectors, or of u and v: the frame's width and height for vectors in parts of it.
        encoding: of a PNG only: ``kitti`` (also HD1K), ``virtual-kitti`` or ``tartanair``. By default the one that the
            mask shows; a mask that shows none is refused.
        window: of an EXR: ``display`` returns the display window, not valid outside the data window; ``data`` the
            stored vectors, overscan and all; a box (x, y, width, height) just that. Other formats have no windows:
            they take no box, and their whole flow is read.

    InputError for an unknown suffix, or a file that is corrupt, truncated or holds something else; OSError for one that
    cannot be opened.
    """
    selection = {"layer": layer, "part": part, "channels": channels, "y_axis": y_axis}
    return read_flow_with_optional_valid_channel(path, **selection, scale=scale, encoding=encoding, window=window)  # type: ignore[arg-type]


def read_flow_with_optional_valid_channel(
    path: PathLike,
    *,
    layer: str | None = None,
    part: int | str | None = None,
    channels: tuple[str, str] | None = None,
    y_axis: Axis | None = None,
    scale: float | tuple[float, float] = 1.0,
    encoding: Encoding | None = None,
    window: Window = "display",
    use_valid_channel: bool = True,
) -> FlowData:
    """Read flow as :func:`read_flow` does; without ``use_valid_channel``, vectors from the surroundings count as valid.

    They are those of pixels where the channel ``valid`` of an EXR is 0; their values are returned in both cases.
    """
    where = Path(convert_path_to_text(path))
    suffix = _get_checked_suffix(where, FLOW_SUFFIXES, "read")
    check_window_argument(window)
    if suffix == ".exr":
        flow, valid = exr.read_selected_flow_and_valid(
            where,
            _check_and_build_channel_selection(layer, part, channels, y_axis),
            window,
            use_valid_channel=use_valid_channel,
        )
    else:
        if isinstance(window, tuple):
            raise InputError(f"{where}: only OpenEXR files have windows, got window={window!r}")
        for name, value in (("layer", layer), ("part", part), ("channels", channels), ("y_axis", y_axis)):
            if value is not None:
                raise InputError(f"{where}: only OpenEXR files have a {name}, got {name}={value!r}")
        if encoding is not None and suffix != ".png":
            raise InputError(f"{where}: only PNG files have an encoding, got encoding={encoding!r}")
        options = {"encoding": encoding} if suffix == ".png" else {}
        flow, valid = getattr(plain, f"read_{_FORMATS[suffix]}")(where, **options)
        np.copyto(flow, np.float32(0), where=~valid)
    if scale != 1.0:
        pair = scale if isinstance(scale, tuple) else (scale, scale)
        for factor in pair:
            check_number(factor, "scale")
        flow *= np.array(pair, np.float32)[:, None, None]
    return FlowData(torch.from_numpy(flow), torch.from_numpy(valid))


def _check_and_build_channel_selection(
    layer: str | None, part: int | str | None, channels: tuple[str, str] | None, y_axis: Axis | None
) -> exr.ChannelSelection:
    check_choice(y_axis, "y_axis", (None, "up", "down"))
    if channels is not None:
        require(layer is None, "layer", "None beside channels", repr(layer))
        are_names = isinstance(channels, (tuple, list)) and all(isinstance(name, str) for name in channels)
        got = ", ".join(channels) if are_names else channels
        require(are_names and len(channels) == 2 == len(set(channels)), "channels", "two different names", got)
    return exr.ChannelSelection(part, layer, channels, y_axis)


def read_flow_window(
    path: PathLike,
    *,
    layer: str | None = None,
    part: int | str | None = None,
    channels: tuple[str, str] | None = None,
) -> FrameWindow:
    """Return the windows and the pixel aspect of an EXR; arguments and errors are those of :func:`read_flow`."""
    where = Path(convert_path_to_text(path))
    if where.suffix.lower() != ".exr":
        raise InputError(f"{where}: only OpenEXR files have windows")
    return exr.read_selected_window(where, _check_and_build_channel_selection(layer, part, channels, None))


def write_flow(
    path: PathLike,
    flow: Tensor,  # [2, H, W], any floating type
    valid: Tensor | None = None,  # bool [H, W]
    *,
    backward: Tensor | None = None,  # [2, H, W]
    compression: str | None = None,
    dtype: Precision | None = None,
    window: FrameWindow | None = None,
    planes: Mapping[str, Tensor] | None = None,
) -> None:
    """Write flow as ``.flo``, KITTI ``.png``, ``.flo5``, ``.pfm``, ``.npy`` or ``.exr``; all or nothing.

    Pixels that are not valid, or whose flow is NaN or infinite, are written as the format marks them.

    Args:
        path: where to; the suffix says the format.
        flow: (u, v) = (x right, y down), pixels of the first image.
        valid: where the flow is known; everywhere by default.
        backward: of an EXR only: flow from this frame to the one before it, on the pixels of this frame, as a second
            layer. It is not the flow from the next frame back to this one, which belongs to the next frame's pixels.
        compression: of an EXR: one of :data:`fullfield.io.names.EXR_COMPRESSIONS`, by default ``zip``, or ``none``
            where zip would save less than a fifth; all but ``dwaa`` and ``dwab`` keep the flow exactly. Of ``.flo5``:
            ``gzip`` (the default) or ``none``.
        dtype: of an EXR only: ``float`` (the default) or ``half`` (11 bits: exact to 1/16 px up to 128 px).
        window: of an EXR only: the frame's windows and pixel aspect, from :func:`fullfield.io.read_frame_window`;
            the data window has the flow's size. By default both windows are the flow's size, at (0, 0).
        planes: of an EXR only: further channels by name, [H, W] each, such as ``occlusion`` and ``confidence``.

    Raises:
        InputError: an unknown suffix, an option the format does not have, or, as :class:`FlowRangeError`, flow
            beyond what it can hold (KITTI: −512 to 511.98 px; half: 65504 px; ``.flo``: 10⁹ px). Nothing is written.
        OSError: the file cannot be written; what stood there before stays.
    """
    where = Path(convert_path_to_text(path))
    suffix = _get_checked_suffix(where, FLOW_WRITE_SUFFIXES, "written")
    values, valid_mask = _check_flow_and_mark_finite_valid_vectors(flow, valid)
    _check_format_options(where, suffix, backward, compression, dtype)
    check_flow_window(where, suffix, window, values.shape[1:])
    if planes and suffix != ".exr":
        raise InputError(f"{where}: only .exr holds further planes beside the flow, got {', '.join(planes)}")
    if suffix in (".exr", ".png"):
        check_name_is_utf8(where)
    with write_atomically(where) as temporary:
        if suffix == ".exr":
            channels = exr.build_vector_channels("forward", fill_invalid_with_nan(values, valid_mask))
            if backward is not None:
                back = _check_and_convert_to_float32_array(backward, "backward", tuple(flow.shape))
                channels += exr.build_vector_channels(
                    "backward", fill_invalid_with_nan(back, mark_finite_vectors(back))
                )
            channels += [
                NamedPlane(name, _check_and_convert_to_float32_array(p, name, values.shape[1:]))
                for name, p in (planes or {}).items()
            ]
            exr.choose_compression_and_write_lines(
                temporary, exr.pack_channels_checking_range(channels, dtype), compression, Header(window=window)
            )
        else:
            packing = {"compression": compression} if suffix == ".flo5" else {}
            getattr(plain, f"write_{_FORMATS[suffix]}")(temporary, values, valid_mask, **packing)


def write_st_map(path: PathLike, flow: Tensor, *, window: FrameWindow | None = None) -> None:
    """Write flow ``[2, H, W]`` as an ST map for Nuke's STMap node: where each pixel's colour comes from.

    float32 OpenEXR with R = (x + u + 0.5) / W and G = 1 − (y + v + 0.5) / H. Applied to the second frame it
    gives the first; zero flow gives the identity map. ``window`` is as for :func:`write_flow`: the map lies in the
    data window, and x, y, W and H count from the display window, to which Nuke lays the map's 0 to 1.

    InputError for another suffix than ``.exr``, or flow that is NaN or infinite somewhere.
    """
    where = Path(convert_path_to_text(path))
    suffix = _get_checked_suffix(where, (".exr",), "written as an ST map")
    values, valid_mask = _check_flow_and_mark_finite_valid_vectors(flow, None)
    check_flow_window(where, suffix, window, values.shape[1:])
    check_name_is_utf8(where)
    require(bool(valid_mask.all()), "flow", "finite values for an ST map", f"{int((~valid_mask).sum())} that are not")
    with write_atomically(where) as temporary:
        exr.write_st_map(temporary, values, window)


def _get_checked_suffix(path: Path, suffixes: tuple[str, ...], action: str) -> str:
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        readable = " (.npz is only read)" if suffix == ".npz" else ""
        raise InputError(
            f"{path}: flow is {action} with a suffix out of {', '.join(suffixes)}, got {suffix!r}{readable}"
        )
    return suffix


def _check_flow_and_mark_finite_valid_vectors(
    flow: Tensor, valid: Tensor | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    vectors = _check_and_convert_to_float32_array(flow, "flow", (2, None, None))
    valid_mask = mark_finite_vectors(vectors)
    if valid is not None:
        mask = check_tensor(valid, "valid", vectors.shape[1:], dtypes=(torch.bool,))
        valid_mask &= check_not_meta(mask, "valid").detach().cpu().numpy()
    return vectors, valid_mask


def _check_and_convert_to_float32_array(flow: Tensor, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
    shape_text = [s if s is not None else n for s, n in zip(shape, ("2", "H", "W")[-len(shape) :], strict=True)]
    vectors = check_tensor(flow, name, shape_text, dtypes=_FLOATS)
    require(0 not in vectors.shape, name, "at least one pixel", flow)
    return np.ascontiguousarray(check_not_meta(vectors, name).detach().to("cpu", torch.float32).numpy())


def check_flow_window(path: Path, suffix: str, window: FrameWindow | None, size: tuple[int, ...]) -> None:
    """Windows belong to .exr, and the data window has the ``size`` (height, width) of what is written."""
    if window is None:
        return
    if suffix != ".exr":
        raise InputError(f"{path}: only .exr has windows, got window={window!r}")
    require(isinstance(window, FrameWindow), "window", "a FrameWindow", window)
    for box in (window.data, window.display):
        require(isinstance(box, tuple), "window", "boxes (x, y, width, height)", box)
        check_window_argument(box)
    height, width = size
    require(
        window.data[2:] == (width, height),
        "window",
        f"a data window of {width} × {height} pixels like the flow",
        f"{window.data[2]} × {window.data[3]}",
    )
    check_number(window.pixel_aspect, "window", above=0)


def _check_format_options(
    path: Path, suffix: str, backward: Tensor | None, compression: str | None, dtype: Precision | None
) -> None:
    if suffix == ".exr":
        check_choice(compression, "compression", (None, *EXR_COMPRESSIONS))
        check_choice(dtype, "dtype", (None, "float", "half"))
        return
    if suffix == ".flo5":
        check_choice(compression, "compression", (None, *plain.FLO5_COMPRESSIONS))
    elif compression is not None:
        raise InputError(f"{path}: only .exr and .flo5 take a compression, got compression={compression!r}")
    if dtype is not None:
        raise InputError(f"{path}: only .exr takes a dtype, got dtype={dtype!r}")
    if backward is not None:
        raise InputError(f"{path}: only .exr holds backward flow beside forward flow")
