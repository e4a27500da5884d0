"""Parts that all pictures share: blocks of rows, known vectors, background colours, text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullfield import _check

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

UNKNOWN_BEYOND = 1e9  # the mark of an unknown vector in .flo files
BACKGROUND = (24, 26, 31)
INK = (232, 234, 238)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BLOCK_PIXELS = 2**18


def iterate_row_blocks(height: int, width: int) -> Iterator[slice]:
    """Yield slices of rows with a bounded number of pixels."""
    rows = max(1, _BLOCK_PIXELS // max(width, 1))
    for top in range(0, height, rows):
        yield slice(top, min(top + rows, height))


def check_flow_and_mask_are_on_cpu(flow: Tensor, valid: Tensor | None, name: str = "flow") -> None:
    """Refuse anything but a flow ``[2, H, W]`` and a bool ``[H, W]`` mask on the CPU."""
    cpu = torch.device("cpu")
    _check.check_tensor(flow, name, (2, "H", "W"), dtypes=FLOATS, device=cpu)
    if valid is not None:
        _check.check_tensor(valid, "valid", tuple(flow.shape[-2:]), dtypes=(torch.bool,), device=cpu)


def mark_valid_vectors(flow: Tensor, valid: Tensor | None) -> Tensor:
    """Return where the vectors ``[..., 2, H, W]`` are known: bool ``[..., H, W]``."""
    result = (flow.abs() <= UNKNOWN_BEYOND).all(-3)
    return result if valid is None else result & valid


def check_picture_is_uint8_on_cpu(image: Tensor, name: str) -> None:
    """Refuse anything but a picture: uint8 ``[3, H, W]`` on the CPU, not empty."""
    _check.check_tensor(image, name, (3, "H", "W"), dtypes=(torch.uint8,), device=torch.device("cpu"))
    _check.require(image.numel() > 0, name, "at least one pixel", image)


def load_font(size: float) -> FreeTypeFont:
    """Return Pillow's default font at ``size`` pixels."""
    from PIL import ImageFont

    result = ImageFont.load_default(max(size, 6.0))
    if not isinstance(result, ImageFont.FreeTypeFont):
        raise OSError("Pillow was built without FreeType and cannot draw labels: install its binary wheel")
    return result


def create_blank_picture(height: int, width: int) -> Tensor:
    """Return a picture uint8 ``[3, height, width]`` of the background's colour."""
    return torch.tensor(BACKGROUND, dtype=torch.uint8).reshape(3, 1, 1).expand(3, height, width).clone()


def draw_text_inplace(
    image: Tensor,
    text: str,
    position: tuple[float, float],
    size: float,
    *,
    anchor: str = "lm",
) -> None:
    """Write ``text`` into uint8 ``[3, H, W]`` at ``position`` (x, y); ``anchor`` is Pillow's."""
    from PIL import Image, ImageDraw

    height, width = image.shape[-2:]
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).text(position, text, fill=255, font=load_font(size), anchor=anchor)
    box = mask.getbbox()
    if box is None:
        return
    left, top, right, bottom = box
    cropped = mask.crop(box)
    cover = torch.frombuffer(bytearray(cropped.tobytes()), dtype=torch.uint8).reshape(bottom - top, right - left)
    cover = cover.float() / 255
    under = image[:, top:bottom, left:right]
    ink = torch.tensor(INK, dtype=torch.float32).reshape(3, 1, 1)
    under.copy_((under * (1 - cover) + ink * cover).round())


def shorten_text_to_width(text: str, size: float, width: float) -> str:
    """Return ``text``, or as much of it as fits ``width`` pixels, with an ellipsis."""
    writing = load_font(size)
    if writing.getlength(text) <= width:
        return text
    while text and writing.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…" if text else ""
