"""Draw the pictures of docs/follow.md: the paint on three frames of its example, and the grid that follows.

python scripts/docs/follow_pictures.py [FOLDER]     docs/images by default; runs the commands of the page
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fullfield.cli.main import main as run_command
from fullfield.io import read_flow_layers, read_frame, write_image
from fullfield.io.all_channels import ChannelPicture, read_all_channels, write_all_channels
from fullfield.sequences.follow_pictures import draw_reference_grid
from fullfield.viz import frame_to_image

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = (1001, 1006, 1012)


def list_blocks(page: str, language: str = "") -> list[str]:
    """Return the code blocks of a page in one language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [block for name, block in blocks if name == language]


def run_pages() -> None:
    """Write the plates as docs/follow.md says, and run its commands that follow them and move the paint."""
    exec(list_blocks("compositors.md", "python")[0].replace("range(3)", "range(12)"), {})
    for line in "".join(list_blocks("follow.md")).splitlines():
        program, *words = shlex.split(line)
        if program == "fullfield" and words[0] in ("follow", "warp") and "--points" not in words:
            run_command([*words, "--quiet"])


def lay_side_by_side(pictures: list[Tensor]) -> Tensor:
    """Return pictures [3, H, W] next to each other, twice as large."""
    row = torch.cat([picture.clamp(0, 1).expand(3, -1, -1) for picture in pictures], -1)
    return frame_to_image(interpolate(row[None], scale_factor=2, mode="bilinear")[0])


def main(arguments: list[str]) -> int:
    """Run the page, draw the pictures and write them."""
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(arguments[0]).resolve() if arguments else ROOT / "docs" / "images"
    painted, grids = [], []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run_pages()
        for number in NUMBERS:
            plate, paint = read_all_channels(f"plate.{number}.exr"), read_all_channels(f"paint_on.{number}.exr")
            *colors, alpha = (paint.pixels[paint.channels.index(name)] for name in "RGBA")
            over = torch.stack(colors) + plate.pixels[[plate.channels.index(name) for name in "RGB"]] * (1 - alpha)
            write_all_channels("over.exr", ChannelPicture(over, ("R", "G", "B"), "float"))
            layers = read_flow_layers(f"ref.{number}.exr")
            painted.append(read_frame("over.exr"))
            grids.append(
                draw_reference_grid(
                    read_frame(f"plate.{number}.exr"), layers["backward"], layers["occlusion.backward"], 16
                )
            )
    write_image(target / "follow_paint.jpg", lay_side_by_side(painted))
    write_image(target / "follow_grid.jpg", lay_side_by_side(grids))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
