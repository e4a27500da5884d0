"""Data and display windows of OpenEXR: the place of a frame's pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from fullfield._check import InputError

Box: TypeAlias = tuple[int, int, int, int]
"""x, y of the upper left pixel, width, height."""

Window: TypeAlias = Literal["display", "data"] | Box


class FrameWindow(NamedTuple):
    """The windows of a file, in pixels with y down, and the shape of a pixel."""

    data: Box
    """The pixels that are stored."""
    display: Box
    """The frame they belong to."""
    pixel_aspect: float = 1.0
    """Width of a pixel over its height."""

    def union(self, other: FrameWindow) -> FrameWindow:
        """Return this window with the smallest data window that holds both; the rest stays."""
        left, top = (min(self.data[i], other.data[i]) for i in (0, 1))
        right, bottom = (max(self.data[i] + self.data[i + 2], other.data[i] + other.data[i + 2]) for i in (0, 1))
        return self._replace(data=(left, top, right - left, bottom - top))

    def has_overlap(self, other: FrameWindow) -> bool:
        """Return whether the data windows have a pixel in common."""
        both = self.union(other).data
        return all(both[i] < self.data[i] + other.data[i] for i in (2, 3))


def merge_frame_windows_or_raise(windows: Mapping[str, FrameWindow]) -> FrameWindow:
    """Return the first window, widened to the data windows of all; InputError names the path that does not fit."""
    (first_path, first), *others = windows.items()
    union = first
    for path, other in others:
        if other.display != first.display:
            raise InputError(
                f"{path}: its display window is {_format_box(other.display)}, but that of {first_path} is "
                f"{_format_box(first.display)}; --window data needs the same one"
            )
        if not other.has_overlap(first):  # which also bounds what the union can claim
            raise InputError(f"{path}: its data window has no pixel in common with that of {first_path}")
        union = union.union(other)
    return union


def _format_box(box: Box) -> str:
    x, y, width, height = box
    return f"{width}x{height} at ({x}, {y})"


def check_window_argument(window: object) -> None:
    """Check that ``window`` is ``display``, ``data`` or a box."""
    if window in ("display", "data"):
        return
    box = isinstance(window, tuple) and len(window) == 4 and all(type(n) is int for n in window)
    if not box or min(window[2:]) < 1:  # type: ignore[index]  # a tuple of four
        raise InputError(f"window: expected one of display, data, or (x, y, width, height), got {window!r}")


def resolve_window_to_box(window: Window, data_window: Box, display_window: Box) -> Box:
    """Return the box that ``window`` stands for in a file with these windows."""
    if isinstance(window, tuple):
        return window
    return display_window if window == "display" else data_window
