"""Draw the pictures of docs/compositors.md: plate, vectors, what VectorBlur and STMap make of them, a retimed frame.

python scripts/docs/compositor_pictures.py [FOLDER]     docs/images by default; from the frames in examples/scene
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import OpenImageIO as oiio
import torch
from torch import Tensor

from fullfield import estimate
from fullfield.io import read_flow, read_frame, write_flow, write_image, write_st_map
from fullfield.sequences import warp_image
from fullfield.sequences.motion import interpolate_picture_and_visibility
from fullfield.viz import flow_to_image, frame_to_image

ROOT = Path(__file__).resolve().parents[2]
FRAMES = ROOT / "examples" / "scene" / "own" / "frames"
SAMPLES = 33
SHUTTER = 1.0  # of a frame, centred: long, so that it shows


def vector_blur(plate: Tensor, vectors: Tensor) -> Tensor:
    """Return the mean of the plate sampled along each pixel's own vector, as a gathering node does."""
    steps = torch.linspace(-SHUTTER / 2, SHUTTER / 2, SAMPLES)
    return torch.stack([warp_image(plate, -float(step) * vectors)[0] for step in steps]).mean(0)


def st_map(second: Tensor, path: Path) -> Tensor:
    """Sample the second frame at the map's coordinates: R from left to right, G from bottom to top, 0 to 1."""
    stored = np.asarray(oiio.ImageBuf(str(path)).get_pixels(oiio.FLOAT))
    height, width = stored.shape[:2]
    x = stored[..., 0] * width - 0.5 - np.arange(width)
    y = (1 - stored[..., 1]) * height - 0.5 - np.arange(height)[:, None]
    return warp_image(second, torch.from_numpy(np.stack([x, y]).astype(np.float32)))[0]


def main(arguments: list[str]) -> int:
    """Estimate the flow, draw the pictures and write them."""
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    # Backwards: forwards the box moves to the right, where Middlebury's colours have a step.
    plate, next_plate = (FRAMES / f"frame_000{number}.png" for number in (2, 1))
    first, second = read_frame(plate), read_frame(next_plate)
    flow = estimate(plate, next_plate)
    backward = estimate(next_plate, plate)
    with tempfile.TemporaryDirectory() as folder:
        vectors, mapped = Path(folder) / "mv.exr", Path(folder) / "st.exr"
        write_flow(vectors, flow.flow)
        write_st_map(mapped, flow.flow)
        forward = read_flow(vectors, layer="forward").flow
        pictures = {
            "plate": frame_to_image(first),
            "vectors": flow_to_image(forward),
            "vectorblur": frame_to_image(vector_blur(first, forward)),
            "retime": frame_to_image(
                interpolate_picture_and_visibility(first, second, flow.flow, backward.flow, 0.5).picture
            ),
            "stmap": frame_to_image(st_map(second, mapped)),
        }
        for name, picture in pictures.items():
            write_image(target / f"compositors_{name}.jpg", picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
