"""A picture as the scan lines of an unpacked OpenEXR hold it, so that they need only be written.

The planes are laid out where they are, on the CPU or on a GPU: one pass over them, and nothing is interleaved that
OpenEXR would take apart again. Writing such lines takes less time of the CPU than OpenImageIO's own writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HEAD = 8
"""Bytes in front of every line: its y and its size, int32 each."""


class NamedPlane(NamedTuple):
    """A plane [H, W] of a file, float32, in NumPy's or PyTorch's memory."""

    name: str
    plane: Any
    negated: bool = False
    """The file holds its negative."""


class Scanlines(NamedTuple):
    """All lines of a picture in the host's memory."""

    names: tuple[str, ...]
    """Of the channels, ascending, as OpenEXR orders them."""
    body: NDArray[np.uint8]
    """[H, 8 + C · W · 2 or 4]: the head, which the writer fills, then channel by channel."""
    half: bool

    @property
    def planes(self) -> NDArray[Any]:
        """[H, C, W] float32 or float16: the channels inside ``body``."""
        planes: NDArray[Any] = view_scanline_planes(self.body, len(self.names), np.float16 if self.half else np.float32)
        return planes


def compute_scanlines_shape(size: Sequence[int], channel_count: int, is_half: bool) -> tuple[int, int]:
    """Return the shape of the lines of a picture of ``size`` (height, width)."""
    height, width = size
    return height, HEAD + channel_count * width * (2 if is_half else 4)


def view_scanline_planes(body: Any, channel_count: int, dtype: Any) -> Any:
    """Return the values [H, C, W] inside the lines' bytes, of NumPy's or PyTorch's type ``dtype``."""
    return body[:, HEAD:].view(dtype).reshape(len(body), channel_count, -1)


def pack_channels_into_scanlines(
    channels: Sequence[NamedPlane], half: bool, buffer: NDArray[np.uint8] | None = None
) -> Scanlines:
    """Return channels, which are arrays, as lines; ``buffer`` is used as their memory where its size fits."""
    ordered = sorted(channels, key=lambda channel: channel.name)
    shape = compute_scanlines_shape(ordered[0].plane.shape, len(ordered), half)
    body = buffer if buffer is not None and buffer.shape == shape else np.empty(shape, np.uint8)
    lines = Scanlines(tuple(channel.name for channel in ordered), body, half)
    planes = lines.planes
    with np.errstate(over="ignore"):
        for index, (_, plane, negated) in enumerate(ordered):
            if negated:
                np.negative(plane, out=planes[:, index], casting="same_kind")
            else:
                planes[:, index] = plane
    return lines
