"""From what a file stores to display-referred, sRGB-encoded values."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError, format_did_you_mean_hint, require
from fullfield.io.files import join_to_one_line
from fullfield.io.names import OCIO_CONFIG, OCIO_TRANSFERS, TRANSFERS

Planes: TypeAlias = NDArray[np.float32]
Curve: TypeAlias = Callable[[Planes], None]
"""Works in place on float32 ``[C, H, W]``."""

_LINEAR_SPACES = (
    "Linear Rec.709 (sRGB)",
    "lin_rec709_scene",
    "lin_rec709",
    "lin_rec709_srgb",
    "lin_srgb",
    "Utility - Linear - sRGB",
)


def choose_inplace_curve_to_srgb_if_needed(transfer: str, auto_transfer: str) -> Curve | None:
    """Return the function from stored to sRGB-encoded values; None where they are the same.

    Args:
        transfer: one of :data:`TRANSFERS`, or a colour space (also alias or role) of the OpenColorIO
            configuration that ``$OCIO`` names, or, without ``$OCIO``, of the one built into OpenColorIO.
        auto_transfer: what ``"auto"`` stands for in this file.
    """
    require(isinstance(transfer, str), "transfer", "a name", transfer)
    name = auto_transfer if transfer == "auto" else transfer
    if name == "srgb":
        return None
    if name == "linear":
        return encode_srgb_inplace
    if name == "cineon":
        return _convert_cineon_log_to_srgb_inplace
    if name in OCIO_TRANSFERS:
        return _build_inplace_ocio_curve_to_srgb(OCIO_TRANSFERS[name], OCIO_CONFIG)
    return _build_inplace_ocio_curve_to_srgb(name, os.environ.get("OCIO") or OCIO_CONFIG)


@lru_cache(maxsize=4)
def build_half_float_table_if_possible(curve: Curve | None) -> Planes | None:
    """Return the values of a curve (None: the identity) for every half float, by its bits.

    NaN for those that are not finite. None for a curve of OpenColorIO, because it mixes channels. A lookup takes a
    tenth of the time.
    """
    if curve not in (None, encode_srgb_inplace, _convert_cineon_log_to_srgb_inplace):
        return None
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    values = halves.astype(np.float32)
    finite = np.isfinite(values)
    values[~finite] = 0
    if curve is not None:
        with np.errstate(over="ignore"):
            curve(values)
    values[~finite] = np.nan
    return values


def encode_srgb_inplace(light: Planes) -> None:
    """IEC 61966-2-1, in place: negative light becomes 0, light above 1 follows the curve on."""
    # NumPy, not torch: there, a value's last bit depends on its place in the array and on the thread count.
    np.maximum(light, 0, out=light)
    toe = light <= 0.0031308
    low = light[toe] * np.float32(12.92)
    np.power(light, np.float32(1 / 2.4), out=light)
    light *= np.float32(1.055)
    light -= np.float32(0.055)
    light[toe] = low


def decode_srgb_inplace(values: Planes) -> None:
    """Apply the inverse of :func:`encode_srgb_inplace` in place."""
    np.maximum(values, 0, out=values)
    toe = values <= 0.04045
    low = values[toe] / np.float32(12.92)
    values += np.float32(0.055)
    values /= np.float32(1.055)
    with np.errstate(over="ignore"):
        np.power(values, np.float32(2.4), out=values)
    values[toe] = low


def _convert_cineon_log_to_srgb_inplace(planes: Planes) -> None:
    """Kodak's printing density: code 95 of 1023 is black, 685 white, 0.002 density a code, gamma 0.6."""
    per_code = 0.002 / 0.6
    black = 10.0 ** ((95 - 685) * per_code)
    planes *= np.float32(1023)
    planes -= np.float32(685)
    planes *= np.float32(per_code)
    with np.errstate(over="ignore"):
        np.power(np.float32(10), planes, out=planes)
    planes -= np.float32(black)
    planes /= np.float32(1 - black)
    encode_srgb_inplace(planes)


def _build_inplace_ocio_curve_to_srgb(space: str, config: str) -> Curve:
    import OpenImageIO as oiio

    names = _list_lowercase_ocio_names(config)
    if space.lower() not in names:
        where = "$OCIO" if config != OCIO_CONFIG else "OpenColorIO's studio configuration"
        raise InputError(
            f"transfer: expected one of {', '.join(TRANSFERS)}, or a colour space of {where}, got {space!r}"
            f"{format_did_you_mean_hint(space, [*TRANSFERS, *sorted(names)])}"
        )
    linear = next((name for name in _LINEAR_SPACES if name.lower() in names), "scene_linear")
    if linear.lower() not in names:
        raise InputError(f"OCIO: the configuration {config!r} has no linear Rec.709 space and no scene_linear role")

    def convert_to_srgb_inplace(planes: Planes) -> None:
        colour = np.ascontiguousarray(np.broadcast_to(planes, (3, *planes.shape[1:])).transpose(1, 2, 0))
        buffer = oiio.ImageBuf(colour)
        if not oiio.ImageBufAlgo.colorconvert(buffer, buffer, space, linear, False, colorconfig=config):
            raise InputError(
                f"transfer: cannot convert from {space!r} to {linear!r}: {join_to_one_line(buffer.geterror())}"
            )
        light = np.asarray(buffer.get_pixels(oiio.FLOAT), np.float32).transpose(2, 0, 1)
        planes[:] = light if len(planes) == 3 else light[1:2]
        encode_srgb_inplace(planes)

    return convert_to_srgb_inplace


@lru_cache(maxsize=4)
def _list_lowercase_ocio_names(config: str) -> frozenset[str]:
    """Return the names, aliases and roles of a configuration's colour spaces; OpenColorIO ignores case."""
    import OpenImageIO as oiio

    colours = oiio.ColorConfig(config)
    message = colours.geterror()
    if message:
        raise InputError(f"OCIO: cannot use the configuration {config!r}: {join_to_one_line(message)}")
    spaces = list(colours.getColorSpaceNames())
    aliases = [alias for space in spaces for alias in colours.getAliases(space)]
    return frozenset(name.lower() for name in (*spaces, *aliases, *colours.getRoles()))
