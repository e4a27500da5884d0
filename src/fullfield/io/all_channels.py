"""Pictures with every channel of their files in floats, highlights and alpha included."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError
from fullfield.io.channels import (
    ColorChannels,
    choose_color_channels_and_warn_if_ambiguous,
    describe_nonfinite_pixels,
    require_uint8_or_uint16_if_integer,
)
from fullfield.io.files import PathLike, write_atomically
from fullfield.io.flow_formats.plain import read_pfm_planes
from fullfield.io.masks import read_mask
from fullfield.io.oiio import (
    Attribute,
    Header,
    ImageSource,
    check_name_is_utf8,
    detect_format_and_file_bytes,
    list_inherited_attributes,
    open_image_source,
    write_and_verify_picture,
)
from fullfield.io.transfer import decode_srgb_inplace
from fullfield.io.windows import Box, FrameWindow

RAW_SUFFIXES = (".exr", ".tif", ".tiff", ".png")
_ALPHAS = ("a", "alpha")


class ChannelPicture(NamedTuple):
    """Picture with all its channels and metadata."""

    pixels: Tensor
    """float32 [C, H, W] on the display window, 0 outside the data window; integers as 0 to 1; colour multiplied by
    alpha. Not encoded or decoded: light where the file holds light."""
    channels: tuple[str, ...]
    value_type: str
    """Type of the file's values: uint8, uint16, half or float."""
    window: FrameWindow | None = None
    metadata: tuple[Attribute, ...] = ()
    valid: Tensor | None = None
    """bool [H, W]: where the picture is known (data window, finite colour and alpha, mask); None: everywhere."""
    note: str = ""
    """Message on values that are NaN or infinite, which become 0; empty where there are none."""

    @property
    def alpha_index(self) -> int | None:
        """Return the index of the alpha channel; None where there is none."""
        names = [name.rpartition(".")[2].lower() for name in self.channels]
        return next((names.index(name) for name in _ALPHAS if name in names), None)


def read_all_channels(path: PathLike, mask: str | None = None) -> ChannelPicture:
    """Read all channels of the part that :func:`fullfield.io.read_frame` reads, else of the first, with its errors."""
    where = Path(path)
    if detect_format_and_file_bytes(where)[0] == "pfm":
        planes = read_pfm_planes(where)
        names = ("R", "G", "B") if len(planes) == 3 else ("Y",)
        picture = ChannelPicture(torch.from_numpy(planes), names, "float")
        return _zero_nonfinite_inplace_and_mark_valid(where, picture, [*range(len(names))], None, mask)
    with open_image_source(where) as source:
        part, indices = _choose_color_or_first_part(source)
        spec = part.spec
        if spec.deep:
            raise InputError(f"{where}: holds deep data (several samples a pixel); flatten it first")
        forms = {str(value_type) for value_type in spec.channelformats} or {str(spec.format)}
        require_uint8_or_uint16_if_integer(where, forms)
        exr = source.kind == "openexr"
        box = part.display_window if exr else part.data_window
        planes = source.read_planes(part, list(range(len(part.channels))), box)
        window = part.window._replace(data=part.display_window) if exr else None
        value_type = next((name for name in ("float", "double", "half", "uint16", "uint8") if name in forms), "float")
        value_type = "float" if value_type == "double" else value_type
        picture = ChannelPicture(
            torch.from_numpy(planes), part.channels, value_type, window, list_inherited_attributes(spec)
        )
        judged = _list_color_and_alpha_indices(part.channels, indices)
        picture = _zero_nonfinite_inplace_and_mark_valid(
            where, picture, judged, source if exr else None, mask, part.data_window if exr else None
        )
        straight = bool(spec.get_int_attribute("oiio:UnassociatedAlpha"))
    if straight and picture.alpha_index is not None:
        others = [index for index in range(len(picture.channels)) if index != picture.alpha_index]
        picture.pixels[others] *= picture.pixels[picture.alpha_index]
    return picture


def _zero_nonfinite_inplace_and_mark_valid(
    path: Path,
    picture: ChannelPicture,
    color_and_alpha_indices: list[int],
    source: ImageSource | None,
    mask: str | None,
    stored_box: Box | None = None,
) -> ChannelPicture:
    """Return the picture with what is known of it; values that are not finite become 0, in place.

    The channels ``color_and_alpha_indices``, colour and alpha, become 0 together, and the pixel is unknown. Others,
    such as a depth that is infinite in the sky, say nothing of the colour.
    """
    height, width = picture.pixels.shape[-2:]
    display: Box = (0, 0, width, height) if picture.window is None else picture.window.display
    valid_mask = np.ones((height, width), np.bool_)
    if stored_box is not None:
        valid_mask[:] = False
        top, left = stored_box[1] - display[1], stored_box[0] - display[0]
        valid_mask[max(top, 0) : max(top + stored_box[3], 0), max(left, 0) : max(left + stored_box[2], 0)] = True
    values = picture.pixels.numpy()
    dead_values = ~np.isfinite(values)
    note = ""
    if dead_values.any():
        dead = dead_values[color_and_alpha_indices].any(axis=0)
        dead_values[color_and_alpha_indices] = dead
        values[dead_values] = 0
        valid_mask &= ~dead
        if dead.any():
            note = describe_nonfinite_pixels(str(path), dead)
        else:
            names = [name for name, plane in zip(picture.channels, dead_values, strict=True) if plane.any()]
            note = describe_nonfinite_pixels(f"{path}: {', '.join(names)}", dead_values.any(axis=0))
    if mask is not None:
        valid_mask &= read_mask(mask, source, display, display)
    return picture._replace(valid=None if valid_mask.all() else torch.from_numpy(valid_mask), note=note)


def _list_color_and_alpha_indices(channels: tuple[str, ...], color_indices: list[int]) -> list[int]:
    """Return the indices of colour channels and of the alpha of their layer."""
    layers = {channels[index].rpartition(".")[0] for index in color_indices}
    split_names = [name.rpartition(".") for name in channels]
    alphas = [n for n, (layer, _, name) in enumerate(split_names) if layer in layers and name.lower() in _ALPHAS]
    return sorted({*color_indices, *alphas})


def _choose_color_or_first_part(source: ImageSource) -> ColorChannels:
    """Return the part in colour, or the first one with all its channels where none is (depth, masks)."""
    first = source.get_first_part_or_raise()
    try:
        return choose_color_channels_and_warn_if_ambiguous(source, None, None)
    except InputError:
        return ColorChannels(first, [*range(len(first.channels))])


def write_all_channels(path: PathLike, picture: ChannelPicture) -> None:
    """Write a picture with all its channels; all or nothing.

    OpenEXR stores half where the picture came as half, else float; integers are then taken for sRGB and become light.
    PNG and TIFF store integers of as many bits as came; TIFF floats too.

    Raises InputError for another suffix, or floats into PNG, which would lose the highlights.
    """
    where = Path(path)
    suffix = where.suffix.lower()
    if suffix not in RAW_SUFFIXES:
        raise InputError(f"{where}: expected a suffix out of {', '.join(RAW_SUFFIXES)}, got {suffix!r}")
    is_integer = picture.value_type in ("uint8", "uint16")
    if suffix == ".png" and not is_integer:
        raise InputError(f"{where}: PNG holds no floats; write .exr or .tif")
    check_name_is_utf8(where)
    planes = picture.pixels.numpy().copy()
    attributes: dict[str, str | int | float] = {} if suffix == ".png" else {"compression": "zip"}
    others = [index for index in range(len(picture.channels)) if index != picture.alpha_index]
    if suffix == ".exr" and is_integer:
        _convert_srgb_to_linear_inplace(planes, others, picture.alpha_index)
    elif suffix != ".exr" and picture.alpha_index is not None:
        alpha = planes[picture.alpha_index]
        planes[others] = np.where(alpha > 0, planes[others] / np.where(alpha > 0, alpha, 1), 0)
        attributes["oiio:UnassociatedAlpha"] = 1
    pixels: NDArray[np.generic] = planes.transpose(1, 2, 0)
    if suffix != ".exr" and is_integer:
        full = 255 if picture.value_type == "uint8" else 65535
        pixels = (pixels.clip(0, 1) * full).round().astype(picture.value_type)
    elif picture.value_type == "half" and suffix == ".exr":
        with np.errstate(over="ignore"):
            pixels = pixels.astype(np.float16)
    kind = {".png": "png", ".exr": "openexr"}.get(suffix, "tiff")
    header = Header(attributes, picture.window, picture.metadata) if suffix == ".exr" else Header(attributes)
    with write_atomically(where) as temporary:
        write_and_verify_picture(temporary, kind, pixels, picture.channels, header)


def _convert_srgb_to_linear_inplace(
    planes: NDArray[np.float32], color_indices: list[int], alpha_index: int | None
) -> None:
    """Convert sRGB-encoded colour, multiplied by alpha, to light multiplied by alpha, in place."""
    over = np.ones_like(planes[0]) if alpha_index is None else planes[alpha_index]
    colour = (planes[color_indices] / np.where(over > 0, over, 1)).astype(np.float32)
    decode_srgb_inplace(colour)
    planes[color_indices] = colour * over
