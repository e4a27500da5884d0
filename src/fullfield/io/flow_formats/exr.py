"""Flow in OpenEXR: layers ``forward`` and ``backward`` with channels u and v, as Nuke names them.

Nuke's y axis points up, so v changes its sign, on writing and on reading, unless the header says that the file's y
points down (``fullfield/y``). NaN marks invalid pixels, and what the data window leaves out of the display window is
invalid too.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import check_window
from fullfield.io.flow_formats import Y_NOTE, FlowRangeError, Mask, Planes
from fullfield.io.oiio import Header, Part, Source, describe_parts, layers, opened, write_picture, write_scanlines
from fullfield.io.scanlines import Channel, Scanlines, lay_out
from fullfield.io.windows import FrameWindow, Window, select

_PAIRS = (("u", "v"), ("x", "y"))
_HALF_MAX = 65504.0
_WORTH = 0.8  # packed to more of its size, a file saves less than packing and unpacking it costs
_TRIED = 1 << 15  # bytes of a picture on which packing is tried


def read(
    path: Path, part: int | str | None = None, layer: str | None = None, window: Window = "display"
) -> tuple[Planes, Mask]:
    """Read a layer of flow; by default ``forward``, or bare channels u and v, of the first part that has them."""
    with opened(path, "openexr", "flow in OpenEXR") as source:
        chosen, pair = _find(source, part, layer)
        return _read(source, chosen, pair, window)


def read_window(path: Path, part: int | str | None = None, layer: str | None = None) -> FrameWindow:
    """Return the windows of the part that :func:`read` reads."""
    with opened(path, "openexr", "flow in OpenEXR") as source:
        return _find(source, part, layer)[0].window


def _find(source: Source, part: int | str | None, layer: str | None) -> tuple[Part, list[int]]:
    seen = [source.part(part)] if part is not None else list(source.parts())
    for wanted in ("forward", "") if layer is None else (layer,):
        for candidate in seen:
            found = layers(candidate.channels).get(wanted, {})
            # A layer that was not requested by name must say u and v: x and y may be anything.
            for names in _PAIRS if layer is not None else _PAIRS[:1]:
                if all(name in found for name in names):
                    return candidate, [found[name] for name in names]
    expected = f"channels {layer}.u, {layer}.v" if layer else "channels forward.u, forward.v (or u, v)"
    groups = [group for candidate in seen for group in layers(candidate.channels).values()]
    has_pair = any(all(name in group for name in names) for group in groups for names in _PAIRS)
    advice = "name another layer" if has_pair else "it is no flow; give a file that 'fullfield flow' wrote"
    raise InputError(f"{source.path}: no {expected}; {advice}. The file has {describe_parts(seen)}")


def _read(source: Source, part: Part, pair: list[int], window: Window) -> tuple[Planes, Mask]:
    path, spec = source.path, part.spec
    if spec.deep:
        raise InputError(f"{path}: part {part.index} holds deep data (several samples a pixel)")
    forms = {str(spec.channelformats[c]) if spec.channelformats else str(spec.format) for c in pair}
    if not forms <= {"half", "float"}:
        raise InputError(f"{path}: expected half or float flow, got {', '.join(sorted(forms))}")
    box = select(window, part.data_window, part.display_window)
    _, _, width, height = box
    if not isinstance(window, tuple):
        check_window(path, width, height, source.size)
    # Zeros that nobody writes take no memory: only the data window's pixels do.
    flow = np.zeros((2, height, width), np.float32)
    valid = np.zeros((height, width), np.bool_)
    down = spec.get_string_attribute(Y_NOTE) == "down"
    for area, pixels in source.inside(part, pair, box, "float"):
        known = np.isfinite(pixels).all(axis=-1)
        np.copyto(flow[0][area], pixels[..., 0], where=known)
        np.copyto(flow[1][area], pixels[..., 1] if down else -pixels[..., 1], where=known)
        valid[area] = known
    return flow, valid


def vectors(layer: str, flow: Any, y: str = "up") -> list[Channel]:
    """Return the channels of a flow [2, H, W], an array or a tensor."""
    return [Channel(f"{layer}.u", flow[0]), Channel(f"{layer}.v", flow[1], y == "up")]


def save(path: Path, lines: Scanlines, compression: str | None, header: Header) -> None:
    """Write a file, packed as :func:`packing` says."""
    chosen = packing(compression, lines.planes)
    header = header._replace(attributes={"compression": chosen, **header.attributes})
    if chosen == "none":
        write_scanlines(path, lines, header)
    else:
        write_picture(path, "openexr", lines.planes.transpose(0, 2, 1), lines.names, header)


def packing(compression: str | None, planes: NDArray[Any]) -> str:
    """Return OpenImageIO's name of the compression of ``[H, C, W]``: by default zip, or none if zip gains little.

    Zip's first level is faster than the usual fourth, and files are hardly larger: ``docs/formats.md`` has the numbers.
    """
    chosen = compression or ("zip" if _packs(planes) else "none")
    return f"{chosen}:1" if chosen in ("zip", "zips") else chosen


def _packs(planes: NDArray[Any]) -> bool:
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


def as_stored(channels: Sequence[Channel], dtype: str | None, room: NDArray[np.uint8] | None = None) -> Scanlines:
    """Return channels, which are arrays, as lines of the file's type; FlowRangeError where half cannot hold them."""
    lines = lay_out(channels, dtype == "half", room)
    if lines.half and bool(np.isinf(lines.planes).any()):
        known = [plane for _, plane, _ in channels if not np.isnan(plane).all()]
        most = max(float(np.nanmax(np.abs(plane))) for plane in known)
        raise FlowRangeError(f"flow: half precision holds up to {_HALF_MAX:g} px, got {most:g}")
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
    save(path, as_stored([Channel("R", s), Channel("G", t)], None), None, Header(window=window))
