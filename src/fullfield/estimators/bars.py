"""Bars: rows and columns of one constant colour at the edges of both frames of a pair, such as letterbox.

Their flow is not estimated. The picture between them is matched by itself, as if the frames ended there: filling bars
from their surroundings, as is done for other unknown pixels, costs more accuracy near the edge than leaving them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

# Values are 0 ... 1, lines are rows or columns.
_MAX_RANGE = 4.01 / 255  # of the values of a bar: codecs change a constant by two codes, up and down
_MIN_DIFFERENCE = 2 * _MAX_RANGE  # of the picture from the bar
_MIN_SHARE = 0.5  # of an edge's length along which the picture differs from the bar
_MIN_STEP = 0.8  # of the picture's difference; lines that are mixed from bar and picture, by resampling, have less
_MAX_BLUR = 16  # lines of an edge, at most as many as the bar's: codecs blur it within a block, of colour 16 x 16
_MAX_SHIFT = 4  # lines by which the edges of two frames differ
_MIN_PICTURE = 16  # lines between bars
_NUMPY_TYPES = (torch.uint8, torch.uint16, torch.float16, torch.float32, torch.float64)


class Bars(NamedTuple):
    """Numbers of rows and columns at the edges of a frame that have one constant colour."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def crop(self, planes: Tensor) -> Tensor:  # [..., H, W] -> [..., h, w]
        """Return the picture between the bars."""
        height, width = planes.shape[-2:]
        return planes[..., self.top : height - self.bottom, self.left : width - self.right].contiguous()

    def pad(self, planes: Tensor, value: float) -> Tensor:  # [..., h, w] -> [..., H, W]
        """Return the planes of a picture on the whole frame, with ``value`` in the bars."""
        return functional.pad(planes, (self.left, self.right, self.top, self.bottom), value=value)

    def union(self, other: Bars) -> Bars:
        """Return the bars that cover both."""
        return Bars(*map(max, self, other))

    def __str__(self) -> str:
        """Return a text such as ``56 rows at the top and 1 column at the left``."""
        words = [
            f"{count} {unit if count == 1 else unit + 's'} at the {side}"
            for side, unit, count in zip(self._fields, ("row", "row", "column", "column"), self, strict=True)
            if count
        ]
        return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class ConstantLines(NamedTuple):
    """Rows or columns of one constant colour at one edge of a frame."""

    line_count: int
    """Number of lines."""
    edge: int | None
    """Line at which the picture begins along a straight edge; None where it does not."""
    low: NDArray[Any]
    """Lowest value of each channel, 0 ... 1."""
    high: NDArray[Any]
    """Highest value of each channel."""


@np.errstate(over="ignore", invalid="ignore")  # infinities are refused after the frames are read
def measure_constant_lines_per_side(frame: Tensor) -> tuple[ConstantLines, ...]:  # [C, H, W] in the host's memory
    """Return the constant rows at the top and bottom and the columns at the left and right, in the order of Bars.

    Integers are 0 ... their maximum. Only these lines and the next few are read. It returns nothing for a frame of one
    colour, which has no bars.
    """
    planes = (frame if frame.dtype in _NUMPY_TYPES else frame.float()).detach().numpy()
    height, width = planes.shape[-2:]
    rows = [_measure_constant_lines_at_side(planes, _Side(1, is_far), width) for is_far in (False, True)]
    first, last = rows[0].line_count, height - rows[1].line_count
    if first >= last:
        return ()
    picture = planes[:, first:last]
    return *rows, *(_measure_constant_lines_at_side(picture, _Side(2, is_far), height) for is_far in (False, True))


def find_common_bars_of_frames(*frames: Tensor) -> Bars | None:  # [C, H, W] each, in the host's memory
    """Return the bars that frames of one size have in common; None if there are none."""
    return find_common_bars(frames[0].shape[-2:], [measure_constant_lines_per_side(frame) for frame in frames])


def measure_picture_size(*frames: Tensor) -> tuple[int, int]:  # [C, H, W] each, in the host's memory
    """Return height and width of the picture between the bars that frames of one size have in common."""
    bars, (height, width) = find_common_bars_of_frames(*frames) or Bars(), frames[0].shape[-2:]
    return height - bars.top - bars.bottom, width - bars.left - bars.right


def find_common_bars(size: Sequence[int], lines_per_frame: Sequence[tuple[ConstantLines, ...]]) -> Bars | None:
    """Return the bars that frames of one size have in common; None if there are none.

    A bar has the same colour in all frames and ends along a straight edge, at the same line in all frames that show it.
    Where the picture is as dark as the bar, a frame shows no edge.

    Args:
        size: height and width.
        lines_per_frame: :func:`measure_constant_lines_per_side` of each frame.
    """
    if not all(lines_per_frame):
        return None
    bars = Bars(*map(_count_common_bar_lines, zip(*lines_per_frame, strict=True)))
    height, width = size[0] - bars.top - bars.bottom, size[1] - bars.left - bars.right
    return bars if any(bars) and min(height, width) >= _MIN_PICTURE else None


class _Side(NamedTuple):
    """Side of planes [C, H, W], from which lines are counted inwards."""

    axis: int  # 1 of rows, 2 of columns
    is_far: bool  # bottom or right

    @property
    def pixel_axis(self) -> int:
        """Axis of the pixels of a line."""
        return 3 - self.axis

    def take_float_lines_in_memory_order(self, planes: NDArray[Any], start: int, end: int) -> NDArray[Any]:
        """Return lines as float32, in the order of memory: reductions of a reversed view take five times as long."""
        count = planes.shape[self.axis]
        numbers = slice(max(count - end, 0), count - start) if self.is_far else slice(start, end)
        lines = planes[:, numbers] if self.axis == 1 else planes[:, :, numbers]
        is_integer = lines.dtype.kind == "u"
        values = lines.astype(np.float32, copy=False)
        return values / np.float32(np.iinfo(lines.dtype).max) if is_integer else values

    def order_lines_inwards(self, lines: NDArray[Any], axis: int) -> NDArray[Any]:
        """Return the lines of :meth:`take_float_lines_in_memory_order` from the side inwards."""
        return np.flip(lines, axis) if self.is_far else lines


def _measure_constant_lines_at_side(planes: NDArray[Any], side: _Side, full_line_length: int) -> ConstantLines:
    """Measure the constant lines of planes [C, H, W] at a side.

    ``full_line_length`` is the length of the frame's lines, of which ``planes`` may hold a part.
    """
    count, low, high = 0, np.full(len(planes), np.inf, np.float32), np.full(len(planes), -np.inf, np.float32)
    for start, end in _iterate_growing_line_ranges(planes.shape[side.axis]):
        block = side.take_float_lines_in_memory_order(planes, start, end)
        lows, highs = (
            side.order_lines_inwards(values, 1) for values in (block.min(side.pixel_axis), block.max(side.pixel_axis))
        )
        lows = np.minimum(np.minimum.accumulate(lows, 1), low[:, None])
        highs = np.maximum(np.maximum.accumulate(highs, 1), high[:, None])
        is_constant = np.asarray((highs - lows <= _MAX_RANGE).all(0))
        added = len(is_constant) if is_constant.all() else int(is_constant.argmin())
        if added:
            count, low, high = start + added, lows[:, added - 1], highs[:, added - 1]
        if added < len(is_constant):
            break
    edge = None if count == 0 else _find_picture_start_or_none(planes, side, count, (low + high) / 2, full_line_length)
    return ConstantLines(count, edge, low, high)


def _find_picture_start_or_none(
    planes: NDArray[Any], side: _Side, bar_line_count: int, bar_color: NDArray[Any], full_line_length: int
) -> int | None:
    """Return the line behind those of a bar at which the picture begins; None without a sharp edge."""
    reach = min(_MAX_BLUR, bar_line_count)
    block = side.take_float_lines_in_memory_order(planes, bar_line_count, bar_line_count + reach + 1)
    difference = side.order_lines_inwards(np.abs(block - bar_color[:, None, None]).max(0).swapaxes(0, side.axis - 1), 0)
    is_picture = (difference > _MIN_DIFFERENCE).sum(1) >= _MIN_SHARE * full_line_length
    differs = difference > _MAX_RANGE
    contrast = (difference * differs).sum(1) / differs.sum(1).clip(1)  # of the pixels that differ, by line
    steps = np.flatnonzero((is_picture & (contrast >= _MIN_STEP * np.append(contrast[1:], 0)))[:reach])
    if not len(steps):
        return None
    blurred = int(steps[0])
    if blurred == 0:
        return bar_line_count
    # Lines before the edge are mixed from bar and picture. Else something of the picture reaches into the bar.
    is_mixed = bool((contrast[:blurred] < _MIN_STEP * contrast[blurred]).all())
    return bar_line_count + blurred + 1 if is_mixed else None  # the next line is mixed, too


def _iterate_growing_line_ranges(line_count: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of lines that become longer: nearly all frames differ in the first line."""
    start, length = 0, 1
    while start < line_count:
        yield start, min(start + length, line_count)
        start, length = start + length, min(4 * length, 256)


def _count_common_bar_lines(lines_per_frame: Sequence[ConstantLines]) -> int:
    """Return the lines of the bar that frames have in common at one side; 0 where there is none."""
    edges = [lines.edge for lines in lines_per_frame if lines.edge is not None]
    if not edges or not all(lines.line_count for lines in lines_per_frame):
        return 0
    lows, highs = (
        np.broadcast_arrays(*values)
        for values in zip(*((lines.low, lines.high) for lines in lines_per_frame), strict=True)
    )
    if (np.max(highs, 0) - np.min(lows, 0) > _MAX_RANGE).any():
        return 0
    count = min(edges)
    is_same = (
        max(edges) - count <= _MAX_SHIFT and min(lines.line_count for lines in lines_per_frame) >= count - _MAX_BLUR
    )
    return count if is_same else 0
