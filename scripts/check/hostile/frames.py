"""Run shots of hostile frames.

``python scripts/check/hostile/frames.py --count 300 --seed 1`` takes some minutes.

A shot has one size, as small as one pixel. Each of its frames is smooth, constant, noise, a checkerboard, far too
bright or too dark, of one channel, or of another size, or has a value that is not finite. ``fullfield shot`` runs on it
with a random method and random options. It must end with exit code 0, or with 2 and one line for each file that it
refuses. Stored vectors must be finite; occlusion and confidence must lie in 0 … 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path[:0] = (str(Path(__file__).resolve().parents[3] / name) for name in ("tests", "tests/io"))
from io_files import ExrPart, save  # noqa: E402  of the tests

SIZES = ((1, 1), (1, 2), (2, 1), (1, 40), (40, 1), (2, 2), (3, 5), (16, 16), (17, 33), (48, 64))
KINDS = ("smooth", "smooth", "smooth", "same", "black", "white", "noise", "checks", "bright", "brightest", "dim",
         "negative", "grey", "nan", "inf", "other size")  # fmt: skip
_TVL1 = ("--method", "tvl1", "--preset", "fast", "--iterations", "2", "--warps", "1")
METHODS = (_TVL1, _TVL1, (*_TVL1, "--backend", "reference"), (), ("--method", "fullfield-s", "--updates", "1"))
OPTIONS = ("--warm-start", "--occlusion", "--confidence", "--refine", "--half", "--direction both", "--step 2",
           "--st-map st.%04d.exr", "--y-axis down")  # fmt: skip


def picture(kind: str, size: tuple[int, int], draw: random.Random) -> NDArray[np.float32]:
    """Return linear light [H, W, C]."""
    height, width = size
    noise = np.random.default_rng(draw.getrandbits(32))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    shift = draw.uniform(0, 4)
    smooth = 0.5 + 0.2 * np.sin((x + shift) / 3) + 0.2 * np.cos((y - shift) / 4)
    rgb = np.stack([smooth, 0.5 * smooth, smooth**2], -1).astype(np.float32)
    if kind == "grey":
        return rgb[..., :1]
    if kind == "other size":
        return np.zeros((height + 1, width, 3), np.float32)
    if kind in ("nan", "inf"):
        rgb[draw.randrange(height), draw.randrange(width), draw.randrange(3)] = float(kind)
        return rgb
    made = {
        "smooth": rgb,
        "same": np.full_like(rgb, 0.25),
        "black": np.zeros_like(rgb),
        "white": np.ones_like(rgb),
        "noise": noise.random(rgb.shape, np.float32),
        "checks": np.broadcast_to(((x + y) % 2)[..., None], rgb.shape),
        "bright": rgb * 1e4,
        "brightest": rgb * 3e38,
        "dim": rgb * 1e-40,
        "negative": rgb - 1e3,
    }
    return np.ascontiguousarray(made[kind], np.float32)


def play(draw: random.Random, folder: Path) -> tuple[int, str]:
    """Run one shot; return the exit code and the command."""
    from fullfield.cli.main import main as fullfield
    from fullfield.io import read_flow_layers

    folder.mkdir(parents=True)
    size = draw.choice(SIZES)
    kinds = [draw.choice(KINDS) for _ in range(draw.randint(2, 4))]
    for number, kind in enumerate(kinds, 1):
        pixels = picture(kind, size, draw)
        names = ("R", "G", "B") if pixels.shape[-1] == 3 else ("Y",)
        half = draw.random() < 0.3 and float(np.abs(np.nan_to_num(pixels, posinf=0)).max()) < 6e4
        save(folder / f"p.{number}.exr", ExrPart(pixels.astype(np.float16) if half else pixels, names))
    selected = [option for option in OPTIONS if draw.random() < 0.35]
    arguments = ["p.%d.exr", "-o", "mv.%04d.exr", *draw.choice(METHODS), *" ".join(selected).split()]
    told = f"{size[1]}x{size[0]} {', '.join(kinds)}: fullfield shot {' '.join(arguments)}"
    err = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", RuntimeWarning)  # NumPy's
        code = fullfield(["shot", *arguments])
    said = err.getvalue()
    assert code in (0, 2), told
    assert "Traceback" not in said, f"{told}\n{said}"
    assert code == 0 or "error: " in said, told
    hostile = {"nan", "inf", "other size"} & set(kinds) or size == (1, 1)
    for path in folder.glob("mv.*.exr"):
        for name, part in read_flow_layers(path).items():
            values = part.numpy()
            assert np.isfinite(values).all(), f"{path.name} {name} is not finite\n{told}"
            if name.partition(".")[0] in ("occlusion", "confidence"):
                assert 0 <= values.min() <= values.max() <= 1, f"{path.name} {name}\n{told}"
    assert hostile or code == 0 or any(word in said for word in ("too large", "values up to", "st.")), f"{told}\n{said}"
    assert not list(folder.glob(".*")), told
    return code, told


def main() -> int:
    """Play shots as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    codes: Counter[int] = Counter()
    start, failures = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.first, options.first + options.count):
            folder = Path(place) / f"{number}"
            try:
                codes[play(random.Random(f"{options.seed} {number}"), folder)[0]] += 1
            except Exception as error:  # noqa: BLE001 - all are reported
                failures += 1
                print(f"shot {number} of seed {options.seed}: {type(error).__name__}: {error}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"failures": failures, "codes": codes, "wall_s": round(time.monotonic() - start)}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
