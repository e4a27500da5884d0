"""Everything that is known about a frame's motion in one OpenEXR: both directions, occlusion, confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError, check_choice, check_not_meta, check_tensor, convert_path_to_text, require
from fullfield.io.files import PathLike, write_atomically
from fullfield.io.flow import (
    Axis,
    Encoding,
    Precision,
    check_flow_window,
    read_flow,
    read_flow_with_optional_valid_channel,
)
from fullfield.io.flow_formats import Y_NOTE, exr, fill_invalid_with_nan, mark_finite_vectors
from fullfield.io.names import DIRECTIONS, EXR_COMPRESSIONS
from fullfield.io.oiio import (
    Attribute,
    Header,
    check_name_is_utf8,
    detect_format_and_file_bytes,
    map_layers_to_channel_indices,
    open_image_source,
)
from fullfield.io.scanlines import NamedPlane, Scanlines, compute_scanlines_shape, view_scanline_planes
from fullfield.io.windows import FrameWindow, Window

INCOMPLETE_NOTE = "fullfield/incomplete"
"""Entry of the header: directions whose pair could not be estimated."""
ENDS_NOTE = "fullfield/shot_ends"
"""Entry of the header: directions in which the shot has no frame."""
PLANES = tuple(f"{kind}.{direction}" for kind in ("occlusion", "confidence") for direction in DIRECTIONS)
"""Layers of one channel, [H, W]: ``occlusion.forward`` and so on, 0 to 1."""
VALID = exr.VALID
"""Channel [H, W], 1 where the frame was known and 0 where the vectors come from their surroundings."""


def write_flow_layers(
    path: PathLike,
    layers: Mapping[str, Tensor],
    *,
    dtype: Precision | None = None,
    compression: str | None = None,
    y: Axis = "up",
    window: FrameWindow | None = None,
    metadata: Sequence[Attribute] = (),
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write the motion of a frame as OpenEXR layers that Nuke reads; all or nothing.

    Args:
        path: where to, ``.exr``.
        layers: by name, all of one height and width: ``forward`` and ``backward`` [2, H, W], (u, v) with x right and y
            down, to the frame after and before, stored as ``forward.u``, ``forward.v``, ``backward.u``,
            ``backward.v``, NaN where they are not finite; ``occlusion.forward``, ``occlusion.backward``,
            ``confidence.forward``, ``confidence.backward`` [H, W], 0 to 1; ``valid`` [H, W], 0 where the frame was not
            known and the vectors come from their surroundings.
        dtype: as for :func:`fullfield.io.write_flow`.
        compression: likewise.
        window: likewise.
        y: where the file's y axis points: ``up`` (Nuke's, the default) or ``down``, which the header then says and
            :func:`fullfield.io.read_flow` heeds.
        metadata: entries of the header, as :func:`fullfield.io.read_metadata` tells them of the frame.
        notes: more entries, of text; their names begin with ``fullfield/``.

    Raises InputError for other names, shapes or options, FlowRangeError for flow that half cannot hold, OSError where
    the file cannot be written; what stood there before stays.
    """
    where = Path(convert_path_to_text(path))
    require(where.suffix.lower() == ".exr", str(where), "the suffix .exr", repr(where.suffix))
    check_choice(compression, "compression", (None, *EXR_COMPRESSIONS))
    check_choice(dtype, "dtype", (None, "float", "half"))
    check_choice(y, "y", ("up", "down"))
    require(isinstance(layers, Mapping), "layers", "tensors by the names of their layers", layers)
    require(len(layers) > 0, "layers", "at least one layer", "none")
    values: dict[str, NDArray[np.float32]] = {}
    size: tuple[int, ...] | None = None
    for name, layer in layers.items():
        check_choice(name, "layers", (*DIRECTIONS, *PLANES, VALID))
        expected: Sequence[int | str] = ("H", "W") if size is None else size
        check_tensor(layer, name, (2, *expected) if name in DIRECTIONS else expected)
        values[name] = check_not_meta(layer, name).detach().to("cpu", torch.float32).numpy()
        size = values[name].shape[-2:]
    require(size is not None and 0 not in size, "layers", "at least one pixel", "none")
    header = Header({Y_NOTE: y, **(notes or {})}, window, metadata)
    write_scanlines_atomically(where, pack_layers_into_scanlines(values, dtype, y), compression, header)


def build_named_map_planes(maps: Mapping[str, Tensor], valid: Tensor | None = None) -> dict[str, Tensor]:
    """Return the channels that a pair's file has besides its vectors, for :func:`fullfield.io.write_flow`.

    Args:
        maps: ``occlusion`` and ``confidence`` [H, W] of the flow, those that there are.
        valid: [H, W] bool: where the frame was known, if the vectors elsewhere come from their surroundings.
    """
    planes = {f"{name}.{DIRECTIONS[0]}": plane for name, plane in maps.items()}
    return planes if valid is None or bool(valid.all()) else {**planes, VALID: valid.float()}


def pack_layers_into_scanlines(
    layers: Mapping[str, NDArray[np.float32]], dtype: str | None, y_axis: str, buffer: NDArray[np.uint8] | None = None
) -> Scanlines:
    """Return vectors as lines of a file, in ``buffer`` if it fits; FlowRangeError where half cannot hold them."""
    channels: list[NamedPlane] = []
    for name, values in layers.items():
        if name not in DIRECTIONS:
            channels.append(NamedPlane(name, values))
            continue
        finite = mark_finite_vectors(values)
        channels += exr.build_vector_channels(
            name, values if finite.all() else fill_invalid_with_nan(values, finite), y_axis
        )
    return exr.pack_channels_checking_range(channels, dtype, buffer)


def pack_layers_on_device_and_check_range(
    layers: Mapping[str, Tensor], dtype: str | None, y_axis: str
) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Return the channels' names, the lines' bytes and one bool, as tensors on the device of the parts.

    The bool is true where a file can hold the vectors: all are finite, and no half float became infinite.
    """
    channels = [
        channel
        for name, layer in layers.items()
        for channel in (
            exr.build_vector_channels(name, layer, y_axis) if name in DIRECTIONS else [NamedPlane(name, layer)]
        )
    ]
    channels.sort(key=lambda channel: channel.name)
    first, half = channels[0].plane, dtype == "half"
    body = torch.empty(
        compute_scanlines_shape(first.shape, len(channels), half), dtype=torch.uint8, device=first.device
    )
    planes = view_scanline_planes(body, len(channels), torch.float16 if half else torch.float32)
    for index, (_, plane, negated) in enumerate(channels):
        planes[:, index] = -plane if negated else plane
    vectors = [torch.isfinite(layer).all() for name, layer in layers.items() if name in DIRECTIONS]
    good = torch.stack([*vectors, ~torch.isinf(planes).any()]).all()
    return tuple(channel.name for channel in channels), body, good


def write_scanlines_atomically(path: PathLike, lines: Scanlines, compression: str | None, header: Header) -> None:
    """Write lines of vectors as :func:`write_flow_layers` does; the header says where y points."""
    where, planes = Path(path), lines.planes
    check_flow_window(where, ".exr", header.window, (planes.shape[0], planes.shape[2]))
    check_name_is_utf8(where)
    with write_atomically(where) as temporary:
        exr.choose_compression_and_write_lines(temporary, lines, compression, header)


@dataclass(frozen=True)
class FlowReadOptions:
    """How the vectors of a renderer are stored, as :func:`fullfield.io.read_flow` takes it, for both directions.

    Attributes:
        channels: full names of the channels of u and v, and then of u and v of the backward flow if there is one.
        layer, part, y_axis, scale, encoding: as for :func:`fullfield.io.read_flow`; a layer is the forward flow.

    >>> vectors = read_flow_layers("beauty.0001.exr", FlowReadOptions(layer="vector", y_axis="up"))  # doctest: +SKIP
    """

    channels: tuple[str, ...] | None = None
    layer: str | None = None
    part: int | str | None = None
    y_axis: Axis | None = None
    scale: float | tuple[float, float] = 1.0
    encoding: Encoding | None = None

    def __post_init__(self) -> None:
        if self.channels is not None:
            are_pairs = len(self.channels) in (2, 4) and len(set(self.channels)) == len(self.channels)
            require(are_pairs, "channels", "two or four different names", ", ".join(self.channels))

    def build_read_arguments(self, direction: str) -> dict[str, Any]:
        """Return the arguments of :func:`fullfield.io.read_flow` for a direction; InputError where it has none."""
        explicit = {
            name: getattr(self, name) for name in ("part", "y_axis", "encoding") if getattr(self, name) is not None
        }
        if self.scale != 1.0:
            explicit["scale"] = self.scale
        if self.channels is None:
            layer = self.layer if direction == "forward" and self.layer is not None else None
            return explicit if layer is None else {**explicit, "layer": layer}
        names = self.channels[:2] if direction == "forward" else self.channels[2:]
        require(bool(names), "channels", "four names, of forward and backward flow", ", ".join(self.channels))
        return {**explicit, "channels": tuple(names)}

    @property
    def is_default(self) -> bool:
        """True if files are read as this package writes them."""
        return self == FlowReadOptions()


def has_backward_flow(path: PathLike, part: int | str | None = None) -> bool:
    """Return whether an OpenEXR holds flow to the frame before."""
    with open_image_source(Path(path)) as source:
        if exr.has_blender_vectors(source):
            return True
        parts = [source.find_part_or_raise(part)] if part is not None else list(source.iterate_parts())
        return any(
            {"u", "v"} <= map_layers_to_channel_indices(listed.channels).get("backward", {}).keys() for listed in parts
        )


def read_flow_direction_with_unknown_as_nan(
    path: PathLike, direction: str, read_options: FlowReadOptions | None = None, window: Window = "display"
) -> Tensor:
    """Return the flow [2, H, W] of a direction; NaN where there is none.

    Vectors that come from their surroundings stay. A file of another format than OpenEXR has one direction, whichever
    is requested.
    """
    where, read_options = Path(path), read_options or FlowReadOptions()
    arguments = read_options.build_read_arguments(direction)
    if where.suffix.lower() != ".exr":
        return _set_invalid_vectors_to_nan_inplace(*read_flow(where, **arguments))
    if "channels" not in arguments and "layer" not in arguments:
        arguments["layer"] = direction
    return _set_invalid_vectors_to_nan_inplace(
        *read_flow_with_optional_valid_channel(where, **arguments, window=window, use_valid_channel=False)
    )


def read_flow_layers(path: PathLike, read_options: FlowReadOptions | None = None) -> dict[str, Tensor]:
    """Return all flow and mask layers of a file, by the names of :func:`write_flow_layers`.

    ``read_options`` says how a renderer stored the vectors; then the result has its directions alone.

    Unknown vectors are NaN, but those of pixels where the channel ``valid`` is 0 come from their surroundings. A file
    of another format than OpenEXR holds ``forward`` alone. Size and errors are those of
    :func:`fullfield.io.read_flow`.
    """
    where = Path(convert_path_to_text(path))
    if read_options is not None and not read_options.is_default:
        count = 2 if len(read_options.channels or ()) == 4 else 1
        return {name: read_flow_direction_with_unknown_as_nan(where, name, read_options) for name in DIRECTIONS[:count]}
    if where.suffix.lower() != ".exr":
        return {"forward": _set_invalid_vectors_to_nan_inplace(*read_flow(where))}
    layers: dict[str, Tensor] = {}
    for name in list_flow_and_mask_layers(where):
        layers[name] = (
            read_flow_direction_with_unknown_as_nan(where, name)
            if name in DIRECTIONS
            else read_finite_plane_or_raise(where, name)
        )
    if not layers.keys() & DIRECTIONS:
        with open_image_source(where, "openexr", "flow in OpenEXR") as source:
            is_blender = exr.has_blender_vectors(source)
        if is_blender:
            return layers | {name: read_flow_direction_with_unknown_as_nan(where, name) for name in DIRECTIONS}
        layers["forward"] = _set_invalid_vectors_to_nan_inplace(
            *read_flow_with_optional_valid_channel(where, use_valid_channel=False)
        )  # bare u and v, or the complaint
    return layers


def _set_invalid_vectors_to_nan_inplace(flow: Tensor, valid: Tensor) -> Tensor:
    """Set vectors that are not known to NaN, in place."""
    return flow.masked_fill_(~valid, float("nan"))


def list_flow_and_mask_layers(path: PathLike) -> list[str]:
    """Return the names of :func:`write_flow_layers` that the first part of an OpenEXR holds."""
    with open_image_source(Path(path)) as source:
        grouped = map_layers_to_channel_indices(source.get_first_part_or_raise().channels)
    directions_ = [name for name in DIRECTIONS if {"u", "v"} <= grouped.get(name, {}).keys()]
    planes = {f"{kind}.{name}" for kind, names in grouped.items() for name in names}
    planes |= grouped.get("", {}).keys()
    return directions_ + [name for name in (*PLANES, VALID) if name in planes]


def read_existing_forward_reliability_maps(path: PathLike) -> dict[str, Tensor]:
    """Return ``occlusion`` and ``confidence`` of the forward flow, those that an OpenEXR holds with it."""
    layers = list_flow_and_mask_layers(path)
    forward = DIRECTIONS[0]
    kinds = [name.partition(".")[0] for name in PLANES if name.endswith(forward) and {name, forward} <= {*layers}]
    return {kind: read_finite_plane_or_raise(path, f"{kind}.{forward}") for kind in kinds}


def read_header_entry_or_empty(path: PathLike, entry_name: str) -> str:
    """Return an entry of the header as text; empty where there is none."""
    if detect_format_and_file_bytes(Path(path))[0] != "openexr":
        return ""
    with open_image_source(Path(path)) as source:
        return str(source.get_first_part_or_raise().spec.get_string_attribute(entry_name))


def read_finite_plane_or_raise(path: PathLike, plane_name: str) -> Tensor:
    """Return a channel of :func:`list_flow_and_mask_layers` on the display window, 0 outside the data window."""
    with open_image_source(Path(path)) as source:
        part = source.get_first_part_or_raise()
        names = [have.lower() for have in part.channels]
        plane = source.read_planes(part, [names.index(plane_name)], part.display_window)[0]
    if not np.isfinite(plane).all():
        raise InputError(f"{path}: {plane_name} has values that are not finite")
    return torch.from_numpy(plane)
