"""Sheets of named pictures, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz._pixels import (
    check_picture_is_uint8_on_cpu,
    create_blank_picture,
    draw_text_inplace,
    load_font,
    shorten_text_to_width,
)

Panel = tuple[str, Tensor] | tuple[str, Tensor, Tensor]


def draw_sheet(panels: Sequence[Panel], *, columns: int | None = None, max_width: int = 4096) -> Tensor:
    """Set pictures side by side, each under its name; return uint8 ``[3, H', W']``.

    Args:
        panels: (name, picture) or (name, picture, key): pictures are uint8 ``[3, H, W]`` of any sizes; a key, such
            as :func:`draw_wheel_legend` or :func:`draw_error_legend`, stands at the right of the name.
        columns: pictures in a row; None makes the sheet about as many rows high as columns wide.
        max_width: of the sheet, pixels. Pictures that do not fit are made smaller, never larger.
    """
    _check.require(isinstance(panels, Sequence) and len(panels) > 0, "panels", "at least one (name, picture)", panels)
    for index, panel in enumerate(panels):
        is_panel = isinstance(panel, tuple) and len(panel) in (2, 3) and isinstance(panel[0], str)
        _check.require(is_panel, f"panels[{index}]", "(name, picture) or (name, picture, key)", panel)
        for picture in panel[1:]:
            check_picture_is_uint8_on_cpu(picture, f"panels[{index}]")
    if columns is None:
        columns = math.ceil(math.sqrt(len(panels)))
    _check.check_number(columns, "columns", integer=True, low=1)
    _check.check_number(max_width, "max_width", integer=True, low=64)
    columns = min(columns, len(panels))

    cell = max(panel[1].shape[-1] for panel in panels)
    gap = max(2, min(cell, max_width // columns) // 48)
    cell = max(1, min(cell, (max_width - gap) // columns - gap))
    title = max(14, round(cell / 13) if any(len(panel) == 3 for panel in panels) else round(cell / 19))
    pictures = [_resize_picture_if_smaller(panel[1], cell / panel[1].shape[-1]) for panel in panels]
    rows = [range(start, min(start + columns, len(panels))) for start in range(0, len(panels), columns)]
    heights = [max(pictures[i].shape[-2] for i in row) for row in rows]
    result = create_blank_picture(gap + sum(heights) + len(rows) * (title + gap), gap + columns * (cell + gap))
    top = gap
    for row, height in zip(rows, heights, strict=True):
        for column, index in enumerate(row):
            left = gap + column * (cell + gap)
            panel, picture = panels[index], pictures[index]
            key = panel[2] if len(panel) == 3 else None
            _draw_title_inplace(result[:, top : top + title, left : left + cell], panel[0], key)
            across = left + (cell - picture.shape[-1]) // 2
            _paste_picture_inplace(result, picture, across, top + title)
        top += title + height + gap
    return result


def _draw_title_inplace(strip: Tensor, name: str, legend: Tensor | None) -> None:
    """Draw a name at the left and a legend at the right of uint8 ``[3, H, W]``."""
    height, width = strip.shape[-2:]
    free_width = float(width)
    if legend is not None:
        small = _resize_picture_if_smaller(legend, min(height / legend.shape[-2], 0.6 * width / legend.shape[-1]))
        _paste_picture_inplace(strip, small, width - small.shape[-1], (height - small.shape[-2]) // 2)
        free_width -= small.shape[-1] + 0.2 * height
    size = min(height * 0.6, max(10.0, width / 30))
    while size > 9 and load_font(size).getlength(name) > free_width:
        size *= 0.94
    draw_text_inplace(strip, shorten_text_to_width(name, size, free_width), (0, height / 2), size)


def _resize_picture_if_smaller(picture: Tensor, factor: float) -> Tensor:
    """Scale ``picture`` by ``factor`` if that makes it smaller."""
    if factor >= 1:
        return picture
    import numpy as np
    from PIL import Image

    size = [max(1, round(length * factor)) for length in (picture.shape[-1], picture.shape[-2])]
    small = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).resize(
        (size[0], size[1]), Image.Resampling.LANCZOS, reducing_gap=3.0
    )
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


def _paste_picture_inplace(onto: Tensor, picture: Tensor, left: int, top: int) -> None:
    height, width = picture.shape[-2:]
    onto[:, top : top + height, left : left + width] = picture
