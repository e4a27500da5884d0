"""Draw the picture of the README: a frame of 3840×2160, its flow, and a part at pixel level beside the usual shortcut.

python scripts/docs/readme_picture.py [OUT.jpg]

The scene is drawn here, from a seed: a tree, grass and hills that move differently, so that the true flow is known. The
shortcut: the same method on frames of a quarter of the size, its flow enlarged. Takes about a minute on two cores.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

import fullfield
from fullfield.io.files import write_atomically
from fullfield.metrics import end_point_error
from fullfield.viz import flow_to_image

OUT = Path(__file__).resolve().parents[2] / "docs" / "images" / "flow.jpg"
METHOD = "tvl1"
WIDTH, HEIGHT, FINER, SHORTCUT = 3840, 2160, 2, 4
LEFT, TOP, SIDE = 1700, 330, 400  # the part that is shown pixel by pixel
MOTION = 12.0  # end of the colour scale, px
INK, PAPER = (40, 40, 40), (255, 255, 255)

Matrix = tuple[float, float, float, float, float, float]  # (a, b, c, d, e, f): x' = a·x + b·y + c, y' = d·x + e·y + f
Shape = tuple[list[tuple[float, float]], tuple[int, int, int]]  # a polygon and its colour


def turned(degrees: float, x: float, y: float, right: float, down: float) -> Matrix:
    """Return a turn about (x, y) followed by a shift."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return (c, -s, x - c * x + s * y + right, s, c, y - s * x - c * y + down)


def moved(matrix: Matrix, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coordinates after the motion."""
    a, b, c, d, e, f = matrix
    return a * x + b * y + c, d * x + e * y + f


def inverse(matrix: Matrix) -> Matrix:
    """Return the inverse motion."""
    full = np.linalg.inv(np.array([matrix[:3], matrix[3:], (0, 0, 1)], dtype=np.float64))
    return tuple(float(value) for value in full[:2].ravel())  # type: ignore[return-value]


def noise(seed: int) -> Tensor:
    """Return brightness with detail at every size from 3 to 800 pixels: [1, 1, H, W], about 0.4 to 1.2."""
    draw = torch.Generator().manual_seed(seed)
    total = torch.zeros(1, 1, HEIGHT, WIDTH)
    for octave in range(9):
        size = 3 * 2**octave
        coarse = torch.rand(1, 1, HEIGHT // size + 3, WIDTH // size + 3, generator=draw) - 0.5
        total += interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic", align_corners=False) * (0.22 + 0.03 * octave)
    return (0.85 + total).clamp(0.3, 1.3)


def bar(x: float, y: float, x2: float, y2: float, wide: float, wide2: float) -> list[tuple[float, float]]:
    """Return the outline of a tapered stroke."""
    length = math.hypot(x2 - x, y2 - y) or 1.0
    u, v = -(y2 - y) / length / 2, (x2 - x) / length / 2
    return [
        (x + u * wide, y + v * wide),
        (x2 + u * wide2, y2 + v * wide2),
        (x2 - u * wide2, y2 - v * wide2),
        (x - u * wide, y - v * wide),
    ]


def disc(x: float, y: float, long: float, short: float, angle: float) -> list[tuple[float, float]]:
    """Return the outline of an ellipse."""
    turns = np.linspace(0, 2 * math.pi, 14, endpoint=False)
    c, s = math.cos(angle), math.sin(angle)
    return [
        (x + c * long * math.cos(t) - s * short * math.sin(t), y + s * long * math.cos(t) + c * short * math.sin(t))
        for t in turns
    ]


def tree(draw: np.random.Generator, x: float, y: float, angle: float, length: float, wide: float) -> list[Shape]:
    """Return a branch with its branches, and leaves at their ends."""
    x2, y2 = x + length * math.cos(angle), y + length * math.sin(angle)
    dark = draw.uniform(0.75, 1.0)
    shapes: list[Shape] = [(bar(x, y, x2, y2, wide, 0.75 * wide), (int(140 * dark), int(105 * dark), int(80 * dark)))]
    if wide < 9:
        for _ in range(4):
            green = draw.uniform(0.6, 1.0)
            place = draw.uniform(-26, 26, 2)
            leaf = disc(x2 + place[0], y2 + place[1], draw.uniform(14, 26), draw.uniform(7, 11), draw.uniform(0, 3.14))
            shapes.append((leaf, (int(150 * green), int(190 * green), int(70 * green))))
        return shapes
    for side in (-1, 1):
        bend = side * draw.uniform(0.25, 0.6)
        shapes += tree(draw, x2, y2, angle + bend, length * draw.uniform(0.72, 0.86), 0.69 * wide)
    return shapes


def grass(draw: np.random.Generator) -> list[Shape]:
    """Return blades of grass along the lower edge."""
    shapes: list[Shape] = []
    for _ in range(2600):
        x, high, lean, light = (
            draw.uniform(-40, WIDTH + 40),
            draw.uniform(90, 420),
            draw.uniform(-80, 80),
            draw.uniform(0.5, 1),
        )
        y = HEIGHT + 60
        shapes.append((bar(x, y, x + lean, y - high, 11, 2), (int(120 * light), int(170 * light), int(60 * light))))
    return shapes


def hills(draw: np.random.Generator, level: float, colour: tuple[int, int, int]) -> list[Shape]:
    """Return a ridge and everything below it."""
    xs = np.linspace(-200, WIDTH + 200, 160)
    waves = np.zeros_like(xs)
    for _ in range(5):
        waves += draw.uniform(10, 60) * np.sin(xs / draw.uniform(150, 700) + draw.uniform(0, 6))
    ridge = [(float(x), float(level + y)) for x, y in zip(xs, waves, strict=True)]
    return [([*ridge, (WIDTH + 200.0, HEIGHT + 200.0), (-200.0, HEIGHT + 200.0)], colour)]


def layer(shapes: list[Shape], matrix: Matrix, light: Tensor) -> tuple[Tensor, Tensor]:
    """Draw shapes after a motion; return colour times coverage [3, H, W], and the coverage [1, H, W]."""
    size = (FINER * WIDTH, FINER * HEIGHT)
    colours, share = Image.new("RGB", size), Image.new("L", size)
    pens = ImageDraw.Draw(colours), ImageDraw.Draw(share)
    a, b, c, d, e, f = matrix
    for points, colour in shapes:
        placed = [(FINER * (a * x + b * y + c), FINER * (d * x + e * y + f)) for x, y in points]
        pens[0].polygon(placed, colour)
        pens[1].polygon(placed, 255)
    small = [
        torch.from_numpy(np.asarray(picture.reduce(FINER), dtype=np.float32) / 255) for picture in (colours, share)
    ]
    x, y = moved(inverse(matrix), *pixels())
    grid = torch.stack(((2 * x + 1) / WIDTH - 1, (2 * y + 1) / HEIGHT - 1), -1)[None]
    shade = grid_sample(light, grid, mode="bicubic", padding_mode="reflection", align_corners=False)[0]
    return small[0].permute(2, 0, 1) * shade, small[1][None]


def pixels() -> tuple[Tensor, Tensor]:
    """Return the coordinates of all pixels."""
    y, x = torch.meshgrid(
        torch.arange(HEIGHT, dtype=torch.float32), torch.arange(WIDTH, dtype=torch.float32), indexing="ij"
    )
    return x, y


def scene() -> tuple[Tensor, Tensor, Tensor]:
    """Return two frames [3, H, W] of bytes, and the true flow [2, H, W] of the first."""
    draw = np.random.default_rng(4)
    full: list[Shape] = [([(-9e3, -9e3), (9e3, -9e3), (9e3, 9e3), (-9e3, 9e3)], (150, 190, 235))]
    still = turned(0, 0, 0, 0, 0)
    layers: list[tuple[list[Shape], Matrix]] = [
        (full, turned(0, 0, 0, -3.3, 0.7)),
        (hills(draw, 1250, (120, 150, 170)), turned(0, 0, 0, -5.6, 1.1)),
        (hills(draw, 1600, (110, 160, 90)), turned(0, 0, 0, -8.4, 1.8)),
        (tree(draw, 2950, 2100, -1.65, 330, 60), turned(-0.15, 2950, 2100, -8.4, 1.8)),
        (tree(draw, 1750, 2300, -1.5, 480, 110), turned(0.24, 1750, 2300, -5.0, 1.0)),
        (grass(draw), (1, -0.012, 0.012 * (HEIGHT + 60) - 10.0, 0, 1, 2.0)),
    ]
    frames = [torch.zeros(3, HEIGHT, WIDTH), torch.zeros(3, HEIGHT, WIDTH)]
    flow = torch.zeros(2, HEIGHT, WIDTH)
    x, y = pixels()
    for number, (shapes, matrix) in enumerate(layers):
        light = noise(number) if number else (0.5 + 0.5 * noise(number))  # the sky has less of it
        for index, how in enumerate((still, matrix)):
            colour, share = layer(shapes, how, light)
            frames[index] = colour + (1 - share) * frames[index]
            if index == 0:
                x2, y2 = moved(matrix, x, y)
                flow = torch.where(share > 0.5, torch.stack((x2 - x, y2 - y)), flow)
    first, second = ((255 * frame.clamp(0, 1)).round().byte() for frame in frames)
    return first, second, flow


def shortcut(estimate: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor) -> Tensor:
    """Estimate the flow of smaller frames and enlarge it to the frames' size."""
    reduced = (np.array(picture(frame).reduce(SHORTCUT)) for frame in (first, second))
    small = [torch.from_numpy(frame).permute(2, 0, 1).contiguous() for frame in reduced]
    flow = SHORTCUT * estimate(*small)[None]
    return interpolate(flow, (HEIGHT, WIDTH), mode="bilinear", align_corners=False)[0]


def picture(frame: Tensor) -> Image.Image:
    """Return a frame [3, H, W] as a picture."""
    return Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy())


def sheet(first: Tensor, truth: Tensor, found: dict[str, Tensor]) -> Image.Image:
    """Draw the frame and its flow on top, and parts of them, of the truth and of the shortcut's flow below."""
    drawn = {name: picture(flow_to_image(flow, max_motion=MOTION)) for name, flow in found.items()}
    true = picture(flow_to_image(truth, max_motion=MOTION))
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
        ((frame, f"a frame of {WIDTH} x {HEIGHT}"), (ours, f"its flow to the next: fullfield, {METHOD}"))
    ):
        small = shown.resize((wide, high), Image.Resampling.LANCZOS)
        part = [value * wide / frame.width for value in box]
        ImageDraw.Draw(small).rectangle(part, outline=INK, width=2)
        place(small, column * (wide + gap), 0, text)
    parts = {"one pixel for one pixel": frame, "true flow": true, **drawn}
    for column, (text, shown) in enumerate(parts.items()):
        if text in found:
            text = f"{text}: mean error {float(end_point_error(found[text], truth).mean()):.2f} px"
        place(shown.crop(box), column * (SIDE + gap), high + line, text)
    return canvas


def main(arguments: list[str]) -> int:
    """Draw the scene, estimate its flow and write the picture."""
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    target = Path(arguments[0]) if arguments else OUT

    def estimate(first: Tensor, second: Tensor) -> Tensor:
        return fullfield.estimate(first, second, METHOD).flow

    first, second, truth = scene()
    result = {
        "fullfield": estimate(first, second),
        f"at {WIDTH // SHORTCUT} x {HEIGHT // SHORTCUT}, enlarged": shortcut(estimate, first, second),
    }
    with write_atomically(target) as temporary:
        sheet(first, truth, result).save(temporary, "JPEG", quality=85)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
