"""Masks that say where a frame is known: a channel of the frame's own OpenEXR, or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.arrays import open_npz_and_list_arrays, read_npy, read_npz_array
from fullfield.io.files import join_to_one_line
from fullfield.io.flow_formats import Mask
from fullfield.io.flow_formats.plain import read_pfm_planes
from fullfield.io.names import ARRAY_SUFFIXES, split_mask_file_and_channel
from fullfield.io.oiio import (
    ImagePart,
    ImageSource,
    describe_part_channels,
    detect_format_and_file_bytes,
    map_layers_to_channel_indices,
    open_image_source,
)
from fullfield.io.orientation import apply_exif_orientation
from fullfield.io.windows import Box

_PLANES = (("r", "g", "b"), ("red", "green", "blue"), ("y",), ("a",), ("alpha",))


_MASK_KINDS = "fiub"


def read_mask(
    mask: str, source: ImageSource | None, box: Box, display_window: Box
) -> Mask:  # [height, width] of the box
    """Return where a mask is not black, on ``box``; what lies beyond the mask's pixels is black.

    Args:
        mask: the name of a channel of ``source``, or of a picture of the frame's size, or ``FILE:CHANNEL``.
        source: the open frame, if it is an OpenEXR.
        box: the pixels of the frame, in coordinates of its windows.
        display_window: the frame's display window; a mask in another format than OpenEXR covers that.
    """
    name, channel = split_mask_file_and_channel(mask)
    if name is None:
        if source is None:
            raise InputError(f"mask: expected a picture or a channel of an OpenEXR frame, got {mask!r}")
        return _read_mask_channel(source, list(source.iterate_parts()), mask, box)
    path = Path(name)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _crop_or_extend_mask_to_box(path, read_mask_array(path, channel)[None], box, display_window)
    if detect_format_and_file_bytes(path)[0] == "pfm":
        return _crop_or_extend_mask_to_box(path, read_pfm_planes(path), box, display_window)
    with open_image_source(path) as file:
        parts = list(file.iterate_parts())
        if file.kind == "openexr":
            if parts and parts[0].display_window != display_window:
                raise _build_mask_size_error(path, parts[0].display_window[2:], display_window)
            return _read_mask_channel(file, parts, channel, box)
        part = file.get_first_part_or_raise()
        planes = file.read_planes(part, _choose_default_mask_channels(part) or [0], part.data_window)
        planes = apply_exif_orientation(planes, part.spec.get_int_attribute("Orientation", 1))
        return _crop_or_extend_mask_to_box(path, planes, box, display_window)


def read_mask_array(path: Path, array_name: str | None = None) -> Mask:
    """Return where an array [H, W] of a ``.npy`` or ``.npz`` file is not 0 (TartanAir's masks: where it is hidden).

    ``array_name`` is the array in an archive that has several.
    """
    if path.suffix.lower() == ".npy":
        values = read_npy(path, dtype_kinds=_MASK_KINDS)
    else:
        with open_npz_and_list_arrays(path) as (archive, names):
            selected = names[0] if array_name is None and len(names) == 1 else array_name
            if selected not in names:
                listed = ", ".join(join_to_one_line(n, 40) for n in names[:20]) or "nothing"
                raise InputError(f"{path}: expected one array, or its name as FILE:NAME, got {listed}")
            values = read_npz_array(path, archive, selected, _MASK_KINDS)
    if values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
        values = values.reshape(values.shape[1:] if values.shape[0] == 1 else values.shape[:-1])
    if values.ndim != 2:
        raise InputError(f"{path}: expected a mask [H, W], got shape {list(values.shape)}")
    mask: Mask = values != 0
    return mask


def _read_mask_channel(source: ImageSource, parts: list[ImagePart], channel: str | None, box: Box) -> Mask:
    """Return where a channel is not black; without a name the colours, else the alpha, else the only channel."""
    for part in parts:
        names = [name.lower() for name in part.channels]
        if channel is None:
            indices = _choose_default_mask_channels(part) or ([0] if len(names) == 1 else [])
        elif channel.lower() in names:
            indices = [names.index(channel.lower())]
        else:
            by_layer = {
                layer.lower(): indices_by_name
                for layer, indices_by_name in map_layers_to_channel_indices(part.channels).items()
            }
            named = by_layer.get(channel.lower(), {})
            alpha = next((named[name] for name in ("a", "alpha") if name in named), None)
            indices = [alpha] if alpha is not None else list(named.values()) if len(named) == 1 else []
            if not indices and part.name.lower() == channel.lower() and len(names) == 1:
                indices = [0]
        if indices:
            return _mark_nonblack(source.read_planes(part, indices, box))
    expected = "one channel, R, G, B or A" if channel is None else f"a channel {join_to_one_line(channel, 40)!r}"
    raise InputError(f"mask: {source.path}: expected {expected}; the file has {describe_part_channels(parts)}")


def _choose_default_mask_channels(part: ImagePart) -> list[int]:
    channels = map_layers_to_channel_indices(part.channels).get("", {})
    names = next((names for names in _PLANES if all(name in channels for name in names)), ())
    return [channels[name] for name in names]


def _crop_or_extend_mask_to_box(path: Path, planes: NDArray[Any], box: Box, display_window: Box) -> Mask:
    """Return a mask that covers the display window on a box."""
    height, width = planes.shape[-2:]
    if (width, height) != display_window[2:]:
        raise _build_mask_size_error(path, (width, height), display_window)
    mask = _mark_nonblack(planes)
    result = np.zeros((box[3], box[2]), np.bool_)
    left, top = box[0] - display_window[0], box[1] - display_window[1]
    inside = mask[max(top, 0) : max(top + box[3], 0), max(left, 0) : max(left + box[2], 0)]
    y, x = max(-top, 0), max(-left, 0)
    result[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return result


def _mark_nonblack(planes: NDArray[Any]) -> Mask:
    return np.asarray((planes > 0).any(axis=0))


def _build_mask_size_error(path: Path, size: tuple[int, ...], display_window: Box) -> InputError:
    return InputError(
        f"mask: {path}: expected the frame's size, {display_window[2]}x{display_window[3]}, got {size[0]}x{size[1]}"
    )
