"""Flow in OpenEXR: layers ``forward`` and ``backward`` with channels u and v, as Nuke names them.

Nuke's y axis points up, so v changes its sign, on writing and on reading, unless the header says that the file's y
points down (``fullfield/y``). NaN marks invalid pixels, and what the data window leaves out of the display window is
invalid too.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import refuse_implausible_display_window
from fullfield.io.flow_formats import ST_MAP_NOTE, Y_NOTE, FlowRangeError, Mask, Planes
from fullfield.io.oiio import (
    Header,
    ImagePart,
    ImageSource,
    describe_part_channels,
    map_layers_to_channel_indices,
    open_image_source,
    write_and_verify_picture,
    write_and_verify_uncompressed_exr,
)
from fullfield.io.scanlines import NamedPlane, Scanlines, pack_channels_into_scanlines
from fullfield.io.windows import FrameWindow, Window, resolve_window_to_box

VALID = "valid"
"""Channel that is 0 where the frame was not known; the vectors there come from their surroundings."""
_PAIRS = (("u", "v"), ("x", "y"), ("r", "g"))
_BLENDER = ("x", "y", "z", "w")
_HALF_MAX = 65504.0
_WORTH = 0.8  # packed to more of its size, a file saves less than packing and unpacking it costs
_TRIED = 1 << 15  # bytes of a picture on which packing is tried


class ChannelSelection(NamedTuple):
    """Vectors to read from an OpenEXR: by default layer ``forward``, or bare channels u and v, of the first part."""

    part: int | str | None = None
    layer: str | None = None
    channels: tuple[str, str] | None = None
    """Full names of the channels of u and v."""
    y: str | None = None
    """Where the stored y axis points: ``up`` or ``down``; None: as the header says, else up."""


class _FlowChannelPair(NamedTuple):
    part: ImagePart
    indices: list[int]
    sign: int = 1


def read_selected_flow_and_valid(
    path: Path, selection: ChannelSelection, window: Window = "display", *, use_valid_channel: bool = True
) -> tuple[Planes, Mask]:
    """Read the vectors of a selection, and where they are known.

    Without ``use_valid_channel``, vectors that come from their surroundings count as known.
    """
    with open_image_source(path, "openexr", "flow in OpenEXR") as source:
        return _read_flow_and_valid(
            source, _find_flow_channels_and_sign_or_raise(source, selection), selection.y, window, use_valid_channel
        )


def read_selected_window(path: Path, selection: ChannelSelection) -> FrameWindow:
    """Return the windows of the part that :func:`read_selected_flow_and_valid` reads."""
    with open_image_source(path, "openexr", "flow in OpenEXR") as source:
        return _find_flow_channels_and_sign_or_raise(source, selection).part.window


def has_blender_vectors(source: ImageSource) -> bool:
    """Return whether a file has Blender's pass ``Vector``, which holds both directions."""
    return any(_find_blender_channels_or_empty(part, None) for part in source.iterate_parts())


def _find_blender_channels_or_empty(part: ImagePart, layer: str | None) -> dict[str, int]:
    """Return the channels x, y, z, w of Blender's pass ``Vector``; empty where the part has none."""
    for name, channels in map_layers_to_channel_indices(part.channels).items():
        is_vector = (name or part.name).rpartition(".")[2].lower() == "vector"
        if is_vector and layer in (None, name) and all(axis in channels for axis in _BLENDER):
            return channels
    return {}


def _find_flow_channels_and_sign_or_raise(source: ImageSource, selection: ChannelSelection) -> _FlowChannelPair:
    part, layer, channels = selection.part, selection.layer, selection.channels
    seen = [source.find_part_or_raise(part)] if part is not None else list(source.iterate_parts())
    if channels is not None:
        for candidate in seen:
            if all(name in candidate.channels for name in channels):
                return _FlowChannelPair(candidate, [candidate.channels.index(name) for name in channels])
        raise InputError(
            f"{source.path}: no channels {', '.join(channels)}; the file has {describe_part_channels(seen)}"
        )
    for name in ("forward", "") if layer is None else (layer,):
        for candidate in seen:
            group = map_layers_to_channel_indices(candidate.channels).get(name, {})
            # A layer that was not requested by name must say u and v: x and y may be anything.
            for names in _PAIRS if layer is not None else _PAIRS[:1]:
                if all(axis in group for axis in names) and not _find_blender_channels_or_empty(candidate, layer):
                    return _FlowChannelPair(candidate, [group[axis] for axis in names])
    for candidate in seen:
        # Blender stores the motion from the frame before to this one, and from this one to the frame after.
        is_direction = layer in (None, "forward", "backward")
        if group := _find_blender_channels_or_empty(candidate, None if is_direction else layer):
            is_back = layer == "backward"
            return _FlowChannelPair(
                candidate, [group[axis] for axis in ("xy" if is_back else "zw")], -1 if is_back else 1
            )
    expected = f"channels {layer}.u, {layer}.v" if layer else "channels forward.u, forward.v (or u, v)"
    groups = [group for candidate in seen for group in map_layers_to_channel_indices(candidate.channels).values()]
    has_pair = any(all(name in group for name in names) for group in groups for names in _PAIRS[:2])
    advice = "name another layer, or channels"
    if not has_pair:
        advice = "it is no flow; give a file that 'fullfield flow' wrote, or name a renderer's channels (--channels)"
    raise InputError(f"{source.path}: no {expected}; {advice}. The file has {describe_part_channels(seen)}")


def _read_flow_and_valid(
    source: ImageSource, pair: _FlowChannelPair, y_axis: str | None, window: Window, use_valid_channel: bool
) -> tuple[Planes, Mask]:
    path, part, spec = source.path, pair.part, pair.part.spec
    if spec.deep:
        raise InputError(f"{path}: part {part.index} holds deep data (several samples a pixel)")
    forms = {str(spec.channelformats[c]) if spec.channelformats else str(spec.format) for c in pair.indices}
    if not forms <= {"half", "float"}:
        raise InputError(f"{path}: expected half or float flow, got {', '.join(sorted(forms))}")
    box = resolve_window_to_box(window, part.data_window, part.display_window)
    _, _, width, height = box
    if not isinstance(window, tuple):
        refuse_implausible_display_window(path, width, height, source.size)
    # Zeros that nobody writes take no memory: only the data window's pixels do.
    flow = np.zeros((2, height, width), np.float32)
    valid = np.zeros((height, width), np.bool_)
    is_down = (y_axis or spec.get_string_attribute(Y_NOTE)) == "down"
    signs = pair.sign, pair.sign if is_down else -pair.sign
    marks = [index for index, name in enumerate(part.channels) if name == VALID] if use_valid_channel else []
    channels = pair.indices + marks
    for area, pixels in source.iterate_pixels_in_box(part, channels, box, "float"):
        is_finite = np.isfinite(pixels).all(axis=-1)
        for axis, sign in enumerate(signs):
            np.copyto(flow[axis][area], pixels[..., axis] if sign > 0 else -pixels[..., axis], where=is_finite)
        valid[area] = is_finite & (pixels[..., -1] > 0.5) if marks else is_finite
    return flow, valid


def build_vector_channels(layer: str, flow: Any, y_axis: str = "up") -> list[NamedPlane]:
    """Return the channels of a flow [2, H, W], an array or a tensor."""
    return [NamedPlane(f"{layer}.u", flow[0]), NamedPlane(f"{layer}.v", flow[1], y_axis == "up")]


def choose_compression_and_write_lines(path: Path, lines: Scanlines, compression: str | None, header: Header) -> None:
    """Write a file, packed as :func:`choose_compression` says."""
    selected = choose_compression(compression, lines.planes)
    header = header._replace(attributes={"compression": selected, **header.attributes})
    if selected == "none":
        write_and_verify_uncompressed_exr(path, lines, header)
    else:
        write_and_verify_picture(path, "openexr", lines.planes.transpose(0, 2, 1), lines.names, header)


def choose_compression(compression: str | None, planes: NDArray[Any]) -> str:
    """Return OpenImageIO's name of the compression of ``[H, C, W]``: by default zip, or none if zip gains little.

    Zip's first level is faster than the usual fourth, and files are hardly larger: ``docs/formats.md`` has the numbers.
    """
    selected = compression or ("zip" if _is_clearly_smaller_with_zip(planes) else "none")
    return f"{selected}:1" if selected in ("zip", "zips") else selected


def _is_clearly_smaller_with_zip(planes: NDArray[Any]) -> bool:
    """Return whether zip makes it clearly smaller, by a trial on a few rows, rearranged as OpenEXR does."""
    height, count, width = planes.shape
    row: int = width * count * planes.itemsize
    rows = np.linspace(0, height - 1, min(height, max(4, _TRIED // row))).round().astype(np.intp)
    size = 0
    for line in planes[rows]:
        values = line.reshape(-1).view(np.uint8)
        split = np.concatenate((values[0::2], values[1::2]))
        split[1:] = np.diff(split)
        size += len(zlib.compress(split.tobytes(), 1))
    return bool(size < _WORTH * row * len(rows))


def pack_channels_checking_range(
    channels: Sequence[NamedPlane], dtype: str | None, buffer: NDArray[np.uint8] | None = None
) -> Scanlines:
    """Return channels, which are arrays, as lines of the file's type; FlowRangeError where half cannot hold them."""
    lines = pack_channels_into_scanlines(channels, dtype == "half", buffer)
    if lines.half and bool(np.isinf(lines.planes).any()):
        finite_planes = [plane for _, plane, _ in channels if not np.isnan(plane).all()]
        longest = max(float(np.nanmax(np.abs(plane))) for plane in finite_planes)
        raise FlowRangeError(f"flow: half precision holds up to {_HALF_MAX:g} px, got {longest:g}")
    return lines


def write_st_map(path: Path, flow: Planes, window: FrameWindow | None = None) -> None:
    """Write the ST map of a flow: for each pixel the place it is sampled from, in 0 … 1 of the display window."""
    left = top = 0
    _, height, width = flow.shape
    x, y = np.arange(width), np.arange(height)[:, None]
    if window is not None:
        x, y = x + window.data[0], y + window.data[1]
        left, top, width, height = window.display
    s = (x - left + flow[0].astype(np.float64) + 0.5) / width
    t = 1 - (y - top + flow[1].astype(np.float64) + 0.5) / height
    lines = pack_channels_checking_range([NamedPlane("R", s), NamedPlane("G", t)], None)
    choose_compression_and_write_lines(path, lines, None, Header({ST_MAP_NOTE: "1"}, window))
