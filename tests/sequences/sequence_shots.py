"""A shot of known motion, and an estimator that is quick."""

from __future__ import annotations

import os
import time

from torch import Tensor

from fullfield.cli.main import main
from fullfield.estimators import TVL1Estimator
from fullfield.ops.tvl1 import PRESETS
from fullfield.sequences.engine import Engine, Estimated
from known_scenes import known_scene

HEIGHT, WIDTH = 40, 56


def moving(count: int, seed: int = 4, step: int = 2) -> list[Tensor]:
    """Frames [3, 40, 56] of a texture that moves by ``step`` px to the left each."""
    texture = known_scene(HEIGHT, WIDTH + step * count, seed).frame1
    return [texture[:, :, step * n : step * n + WIDTH].contiguous() for n in range(count)]


def quick() -> TVL1Estimator:
    return TVL1Estimator(PRESETS["fast"].replace(iterations=4, warps=2))


def slow_flow(folder: str, arguments: list[str]) -> None:
    """``fullfield flow`` in a folder, with a pause before every frame: time to be killed in."""
    os.chdir(folder)
    real = Engine._frame

    def slow(self: Engine, number: int) -> Estimated:
        time.sleep(0.05)
        return real(self, number)

    Engine._frame = slow  # type: ignore[method-assign]
    main(["flow", *arguments])


CHANGED = ("--method", "tvl1", "--iterations", "4", "--warps", "2")
QUICK = (*CHANGED, "--preset", "fast")
