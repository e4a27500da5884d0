"""HTML page that shows the stored motion of a shot."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield.viz.frames import frame_to_image
from fullfield.viz.wheel import create_color_wheel

_STEPS = 16.0  # the page's vectors are in sixteenths of a pixel, or coarser where they are longer than 2047 px


@dataclass(frozen=True)
class ViewFrame:
    """One frame of the page.

    ``frame`` is [1 or 3, H, W], display-referred, or None without plates; one of another size is resized to that of
    ``layers``, which have the names of :func:`fullfield.io.write_flow_layers`: ``forward``, ``backward`` [2, H, W],
    ``occlusion.forward`` ... [H, W].
    """

    number: int
    frame: Tensor | None
    layers: dict[str, Tensor] = field(default_factory=dict)


def build_html_page(
    title: str,
    shot: Iterable[ViewFrame],
    *,
    max_motion: float,
    width: int = 960,
    step: int = 1,
    reference: int | None = None,
) -> str:
    """Return a self-contained HTML page that plays a shot and reports the vector under the pointer.

    The browser draws flow, arrows, occlusion, confidence, and a wipe between a frame and its warped neighbour, all
    from the vectors themselves. The page loads nothing and runs no script but its own.

    Args:
        title: title of the page, plain text.
        shot: the frames, read one at a time.
        max_motion: motion with fully saturated colour, pixels.
        width: width of the pictures, at most. Reported vectors are in pixels of the full size.
        step: how many frames the flow spans; the wipe warps the frame that far away.
        reference: number of the frame to which all vectors lead; the page then shows the frames first.
    """
    _check.check_number(step, "step", integer=True, low=1)
    frames = [_encode_frame_and_vectors(frame, width) for frame in shot]
    page_data = {
        "title": title,
        "max_motion": max_motion,
        "step": step,
        "reference": reference,
        "wheel": create_color_wheel().tolist(),
    }
    template = files("fullfield.viz").joinpath("page.html").read_text("utf-8")
    values = {
        "TITLE": html.escape(title.encode("utf-8", "replace").decode("utf-8")),
        "DATA": json.dumps({**page_data, "frames": frames}).replace("<", "\\u003c"),
        "STYLE_HASH": _hash_inline_element(template, "<style>", "</style>"),
        "SCRIPT_HASH": _hash_inline_element(template, "<script>", "</script>"),
    }
    # One pass, so that a placeholder inside a value stays text.
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda match: values[match[1]], template)


def _hash_inline_element(template: str, opening: str, end: str) -> str:
    """Return the Content-Security-Policy hash of the template's own style or script."""
    text = template.split(opening)[1].split(end)[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _encode_frame_and_vectors(view_frame: ViewFrame, max_width: int) -> dict[str, object]:
    """Encode a frame as a JPEG and its vectors as 16-bit integers in PNGs, which every browser can decode."""
    sizes = [tuple(t.shape[-2:]) for t in (*view_frame.layers.values(), view_frame.frame) if t is not None]
    height, width = sizes[0]
    scale = min(1.0, max_width / width)
    small = (max(1, round(height * scale)), max(1, round(width * scale)))
    packed: dict[str, object] = {
        "number": view_frame.number,
        "size": [width, height],
        "shown": [small[1], small[0]],
    }
    if view_frame.frame is not None:
        picture = frame_to_image(_average_to_size(view_frame.frame.float(), small)).permute(1, 2, 0).numpy()
        packed["frame"] = _encode_as_data_uri(picture, "JPEG")
    steps: dict[str, float] = {}
    for direction in ("forward", "backward"):
        if direction in view_frame.layers:
            flow = _set_unknown_to_nan(view_frame.layers[direction], view_frame.layers.get("valid"))
            packed[direction], steps[direction] = _encode_flow_as_png_and_steps_per_px(_average_to_size(flow, small))
        for what in ("occlusion", "confidence"):
            plane = view_frame.layers.get(f"{what}.{direction}")
            if plane is not None:
                codes = (_average_to_size(plane[None], small)[0].nan_to_num().clamp(0, 1) * 255).round().byte().numpy()
                packed[f"{what}.{direction}"] = _encode_as_data_uri(codes, "PNG")
    return {**packed, "steps": steps}


def _set_unknown_to_nan(flow: Tensor, valid: Tensor | None) -> Tensor:
    """Return the flow with NaN where its frame was not known."""
    return flow if valid is None else flow.masked_fill(valid < 0.5, float("nan"))


def _average_to_size(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Average ``[C, H, W]`` over the pixels of a smaller size; NaN where most of them are not finite."""
    if tuple(image.shape[-2:]) == size:
        return image
    valid = image.isfinite().all(0, keepdim=True)
    means = torch.nn.functional.interpolate(torch.where(valid, image, 0.0)[None], size, mode="area")[0]
    if bool(valid.all()):
        return means
    shares = torch.nn.functional.interpolate(valid[None].to(image.dtype), size, mode="area")[0]
    return torch.where(shares >= 0.5, means / shares, float("nan"))


def _encode_flow_as_png_and_steps_per_px(flow: Tensor) -> tuple[str, float]:
    """Encode u, with v in the rows below, as n + 2¹⁵ in red (high byte) and green; blue is 255 where it is known.

    The second value is the number of n that make one pixel.
    """
    valid = flow.isfinite().all(0)
    vectors = torch.where(valid, flow, 0.0).double()
    longest = float(vectors.abs().max())
    steps = min(_STEPS, (2**15 - 1) / longest) if longest else _STEPS
    codes = (vectors * steps).round().int() + 2**15
    planes = torch.stack([codes // 256, codes % 256, (valid * 255).expand(2, -1, -1)], -1)
    return _encode_as_data_uri(planes.flatten(0, 1).to(torch.uint8).numpy(), "PNG"), steps


def _encode_as_data_uri(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], kind: str) -> str:
    from PIL import Image

    encoded = io.BytesIO()
    options = {"quality": 88} if kind == "JPEG" else {"compress_level": 6}
    Image.fromarray(np.ascontiguousarray(pixels)).save(encoded, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(encoded.getvalue()).decode()}"
