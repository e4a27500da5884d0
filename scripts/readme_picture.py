"""Draw the picture of the README: a real frame, its flow, and a part of both at pixel level beside OpenCV's methods.

python scripts/readme_picture.py VIDEO [OUT.jpg]     VIDEO: two seconds of Big Buck Bunny, 1920×1080, bbb_1080p_2s.mp4

The frames are (c) copyright 2008, Blender Foundation / www.bigbuckbunny.org, CC-BY 3.0.
Needs the extras video and bench.
"""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import fullfield
from fullfield.io import atomic_path, open_video
from fullfield.viz import flow_to_image

OUT = Path(__file__).resolve().parent.parent / "docs" / "images" / "flow.jpg"
FIRST = 36  # index of the first frame of the pair
METHOD = "fullfield-s"
LEFT, TOP, SIDE = 690, 190, 400  # the part that is shown pixel by pixel
MOTION = 20.0  # pixels of motion that get the full colour
INK, PAPER = (40, 40, 40), (255, 255, 255)


def flows(first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
    """The flow ``[2, H, W]`` by every method, ours first; OpenCV's with its own defaults, on its own grey."""
    cv2: Any = importlib.import_module("cv2")
    grey = [cv2.cvtColor(frame.permute(1, 2, 0).numpy(), cv2.COLOR_RGB2GRAY) for frame in (first, second)]
    peers = {
        "OpenCV DIS (medium)": cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM),
        "OpenCV TV-L1": cv2.optflow.createOptFlow_DualTVL1(),
    }
    found = {f"fullfield, {METHOD}": fullfield.estimate(first, second, METHOD).flow}
    for name, method in peers.items():
        found[name] = torch.from_numpy(np.ascontiguousarray(method.calc(*grey, None).transpose(2, 0, 1)))
    return found


def picture(frame: torch.Tensor) -> Image.Image:
    return Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy())


def sheet(first: torch.Tensor, found: dict[str, torch.Tensor]) -> Image.Image:
    """Above the whole frame and its flow, below the part of them and of the others' flow, one pixel for one pixel."""
    drawn = {name: picture(flow_to_image(flow, max_motion=MOTION)) for name, flow in found.items()}
    frame, ours = picture(first), next(iter(drawn.values()))
    box = (LEFT, TOP, LEFT + SIDE, TOP + SIDE)
    gap, line = 8, 30
    wide = 2 * SIDE + gap
    high = round(wide * frame.height / frame.width)
    canvas = Image.new("RGB", (2 * wide + gap, high + SIDE + 2 * line), PAPER)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(19)

    def place(shown: Image.Image, x: int, y: int, text: str) -> None:
        canvas.paste(shown, (x, y + line))
        pen.text((x, y + 4), text, INK, font)

    for column, (shown, text) in enumerate(
        ((frame, f"a frame of {frame.width} x {frame.height}"), (ours, f"its flow to the next: {next(iter(drawn))}"))
    ):
        small = shown.resize((wide, high), Image.Resampling.LANCZOS)
        part = [value * wide / frame.width for value in box]
        ImageDraw.Draw(small).rectangle(part, outline=INK, width=2)
        place(small, column * (wide + gap), 0, text)
    parts = {"one pixel for one pixel": frame, **drawn}
    for column, (text, shown) in enumerate(parts.items()):
        place(shown.crop(box), column * (SIDE + gap), high + line, text)
    return canvas


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(arguments[1]) if len(arguments) == 2 else OUT
    video = open_video(arguments[0])
    first, second = (frame.rgb() for frame in islice(video, FIRST, FIRST + 2))
    video.close()
    with atomic_path(target) as temporary:
        sheet(first, flows(first, second)).save(temporary, "JPEG", quality=85)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
