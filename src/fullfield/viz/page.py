"""A shot to look at: one HTML page with everything in it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from fullfield.viz.frames import frame_to_image
from fullfield.viz.wheel import color_wheel

_STEPS = 16.0  # of a pixel, in the page's vectors


@dataclass(frozen=True)
class Shown:
    """A frame of the page.

    ``frame``: [1 or 3, H, W] display-referred, or None. ``parts``: by the names of
    :func:`fullfield.io.write_vectors`: ``forward``, ``backward`` [2, H, W], ``occlusion.forward`` ... [H, W].
    """

    number: int
    frame: Tensor | None
    parts: dict[str, Tensor] = field(default_factory=dict)


def view_page(title: str, shot: Iterable[Shown], *, max_motion: float, width: int = 960) -> str:
    """One page, without anything from outside, that plays and questions a shot.

    Scrubbing and playing, flow over the frame, arrows, occlusion, confidence, the wipe between a frame and its
    neighbour pulled onto it, and the vector under the pointer, all in the browser from the vectors themselves.

    Args:
        title: of the page.
        shot: its frames; one at a time is held. Pictures wider than ``width`` are reduced, for the page only; the
            vectors it tells are of the full size.
        max_motion: length of a vector that gets the full colour, pixels.
    """
    frames = [_packed(shown, width) for shown in shot]
    facts = {"title": title, "max_motion": max_motion, "steps": _STEPS, "wheel": color_wheel().tolist()}
    data = json.dumps({**facts, "frames": frames}).replace("</", "<\\/")
    page = files("fullfield.viz").joinpath("page.html").read_text("utf-8")
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    return page.replace("{{TITLE}}", escaped).replace("{{DATA}}", data)


def _packed(shown: Shown, most: int) -> dict[str, object]:
    """A frame as text: JPEG, and vectors as 16-bit integers inside of PNGs, which every browser unpacks."""
    sizes = [tuple(t.shape[-2:]) for t in (shown.frame, *shown.parts.values()) if t is not None]
    height, width = sizes[0]
    scale = min(1.0, most / width)
    small = (max(1, round(height * scale)), max(1, round(width * scale)))
    packed: dict[str, object] = {"number": shown.number, "size": [width, height], "shown": [small[1], small[0]]}
    if shown.frame is not None:
        picture = frame_to_image(_reduced(shown.frame.float(), small)).permute(1, 2, 0).numpy()
        packed["frame"] = _uri(picture, "JPEG")
    for direction in ("forward", "backward"):
        if direction in shown.parts:
            packed[direction] = _vectors(_reduced(shown.parts[direction], small))
        for what in ("occlusion", "confidence"):
            plane = shown.parts.get(f"{what}.{direction}")
            if plane is not None:
                codes = (_reduced(plane[None], small)[0].clamp(0, 1) * 255).round().byte().numpy()
                packed[f"{what}.{direction}"] = _uri(codes, "PNG")
    return packed


def _reduced(image: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(image.shape[-2:]) == size:
        return image
    known = torch.nan_to_num(image, nan=0.0)
    return torch.nn.functional.interpolate(known[None], size, mode="area")[0]


def _vectors(flow: Tensor) -> str:
    """u in red and green, v in the rows below: (n + 2¹⁵) as two bytes; blue is 255 where the vector is known."""
    known = flow.isfinite().all(0)
    codes = (torch.nan_to_num(flow) * _STEPS).round().clamp(-(2**15), 2**15 - 1).int() + 2**15
    planes = torch.stack([codes // 256, codes % 256, (known * 255).expand(2, -1, -1)], -1)
    return _uri(planes.flatten(0, 1).to(torch.uint8).numpy(), "PNG")


def _uri(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], kind: str) -> str:
    from PIL import Image

    made = io.BytesIO()
    more = {"quality": 88} if kind == "JPEG" else {"compress_level": 6}
    Image.fromarray(np.ascontiguousarray(pixels)).save(made, kind, **more)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(made.getvalue()).decode()}"
