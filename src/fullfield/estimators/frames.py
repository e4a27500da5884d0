"""What users hand in as a frame: paths, arrays, tensors."""

from __future__ import annotations

import os
import warnings
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield import _check

Frame: TypeAlias = str | os.PathLike[str] | NDArray[Any] | Tensor

# Linear highlights, sRGB-encoded, reach about 100 (half's maximum), but not on average. Resampling undershoots black.
_BRIGHTEST, _BRIGHT_ON_AVERAGE, _DARKEST = 128.0, 1.0, -0.1


def as_frame(frame: Frame, name: str = "frame", *, transfer: str = "auto", **reading: Any) -> Tensor:
    """A frame tensor: float32 [C, H, W], C = 1 or 3, display-referred, nominally 0 ... 1.

    Args:
        frame: a path of an image file; an array [H, W], [H, W, 1] or [H, W, 3] (a fourth channel, alpha, is ignored);
            or a tensor [C, H, W] with C = 1 or 3. Integers are uint8 or uint16 and divided by their maximum;
            floats (half, single, double) are taken as they are and must be finite. RGB order.
        name: what messages call it.
        transfer: how the values are encoded, as for :func:`fullfield.io.read_frame`; for arrays and tensors
            ``"auto"`` is ``"srgb"``.
        **reading: ``part``, ``layer``, ``alpha`` and ``window`` of a path, as for :func:`fullfield.io.read_frame`.

    Raises InputError for anything else, FileNotFoundError for a missing file. Warns of values that cannot be meant as
    0 ... 1.
    """
    tensor = _read(frame, name, transfer, **reading)
    warn_of_range(tensor, label(frame, name))
    return tensor


def label(frame: object, name: str) -> str:
    """What messages call a frame: its path, or ``name``."""
    return os.fspath(frame) if isinstance(frame, (str, os.PathLike)) else name


def as_frames(
    pair: tuple[Frame, Frame], names: tuple[str, str], transfer: str, **reading: Any
) -> tuple[Tensor, Tensor]:
    """:func:`as_frame` of both, with one warning for the pair."""
    first, second = (_read(frame, name, transfer, **reading) for frame, name in zip(pair, names, strict=True))
    any(warn_of_range(frame, name) for frame, name in zip((first, second), names, strict=True))
    return first, second


def _read(frame: Frame, name: str, transfer: str, **reading: Any) -> Tensor:
    if isinstance(frame, (str, os.PathLike)):
        from fullfield.io import read_frame

        return read_frame(frame, transfer=transfer, **reading)
    for option in reading:
        _check.require(False, option, "none beside an array or tensor: it is of a file", repr(reading[option]))
    if isinstance(frame, np.ndarray):
        tensor = _from_array(frame, name)
    elif isinstance(frame, Tensor):
        _check.require(frame.ndim == 3 and frame.shape[0] in (1, 3), name, "a tensor [1 or 3, H, W]", frame)
        tensor = frame.detach()
    else:
        raise _check.InputError(f"{name}: expected a path, an array or a tensor, got {_check.describe(frame)}")
    _check.require(tensor.numel() > 0, name, "at least one pixel", tensor)
    tensor = _scaled(tensor, name)
    if transfer != "auto":
        from fullfield.io.transfer import curve

        to_display = curve(transfer, auto="srgb")
        if to_display is not None:
            values = tensor.cpu().clone()
            to_display(values.numpy())
            tensor = values.to(tensor.device)
    return tensor


def check_pair(frame1: Tensor, frame2: Tensor) -> None:
    """Refuse what is no pair [B, 1 or 3, H, W] of one size on one device; InputError names the frame."""
    _check.tensor(frame1, "frame1", ("B", "C", "H", "W"))
    _check.require(frame1.shape[1] in (1, 3), "frame1", "1 or 3 channels", frame1)
    _check.tensor(frame2, "frame2", frame1.shape, device=frame1.device)


def _from_array(array: NDArray[Any], name: str) -> Tensor:
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    _check.require(fits, name, "an array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]", array)
    kinds = ("uint8", "uint16", "float16", "float32", "float64")
    _check.require(array.dtype.name in kinds, name, f"dtype {', '.join(kinds)}", array)
    planes = array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)[: 1 if array.shape[2] == 1 else 3]
    native = planes.astype(planes.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(native))


def _scaled(tensor: Tensor, name: str) -> Tensor:
    _check.values(tensor, name)
    whole = {torch.uint8: 255.0, torch.uint16: 65535.0}
    if tensor.dtype in whole:
        return tensor.to(torch.float32).div_(whole[tensor.dtype])
    _check.require(tensor.is_floating_point(), name, "dtype uint8, uint16 or floating", tensor)
    tensor = tensor.to(torch.float32)
    low, high = (float(v) for v in torch.aminmax(tensor))
    _check.require(np.isfinite(low) and np.isfinite(high), name, "finite values", "NaN or infinity")
    return tensor


def warn_of_range(frame: Tensor, name: str) -> bool:
    """Warn, and tell so, of a frame [C, H, W] whose values cannot be meant as 0 ... 1, black to white of a display."""
    low, high = (float(value) for value in torch.aminmax(frame))
    mean = float(frame.mean())
    if low >= _DARKEST and high <= _BRIGHTEST and mean <= _BRIGHT_ON_AVERAGE:
        return False
    warnings.warn(
        f"{name}: frames are expected in 0 ... 1, black to white as a display shows them; got {low:g} to {high:g}, "
        f"{mean:.3g} on average. Bring them to that range, or pass uint8 or uint16; name the transfer of light that is "
        "linear or of a camera's curve",
        stacklevel=4,
    )
    return True
