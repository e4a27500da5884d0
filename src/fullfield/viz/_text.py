"""Words in pictures, with Pillow's own scalable font."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullfield.viz._pixels import INK

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont


def font(size: float) -> FreeTypeFont:
    """Pillow's default font at ``size`` pixels."""
    from PIL import ImageFont

    result = ImageFont.load_default(max(size, 6.0))
    if not isinstance(result, ImageFont.FreeTypeFont):
        raise OSError("Pillow was built without FreeType and cannot draw labels: install its binary wheel")
    return result


def draw_text(
    image: Tensor,
    text: str,
    place: tuple[float, float],
    size: float,
    *,
    anchor: str = "lm",
    color: tuple[int, int, int] = INK,
) -> None:
    """Write ``text`` into uint8 ``[3, H, W]`` at ``place`` (x, y); ``anchor`` is Pillow's."""
    from PIL import Image, ImageDraw

    height, width = image.shape[-2:]
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).text(place, text, fill=255, font=font(size), anchor=anchor)
    box = mask.getbbox()
    if box is None:
        return
    left, top, right, bottom = box
    part = mask.crop(box)
    cover = torch.frombuffer(bytearray(part.tobytes()), dtype=torch.uint8).reshape(bottom - top, right - left)
    cover = cover.float() / 255
    under = image[:, top:bottom, left:right]
    ink = torch.tensor(color, dtype=torch.float32).reshape(3, 1, 1)
    under.copy_((under * (1 - cover) + ink * cover).round())


def shorten(text: str, size: float, width: float) -> str:
    """``text``, or as much of it as fits ``width`` pixels, with an ellipsis."""
    writing = font(size)
    if writing.getlength(text) <= width:
        return text
    while text and writing.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…" if text else ""
