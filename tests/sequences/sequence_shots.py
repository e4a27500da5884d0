"""A shot of known motion, and an estimator that is quick."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield.cli.main import main
from fullfield.estimators import TVL1Estimator
from fullfield.io import read_flow_layers
from fullfield.ops.tvl1.config import PRESETS
from fullfield.sequences.engine import ShotEngine
from fullfield.sequences.results import FrameResult
from known_scenes import known_scene

HEIGHT, WIDTH = 40, 56


def moving(count: int, seed: int = 4, step: int = 2) -> list[Tensor]:
    """Frames [3, 40, 56] of a texture that moves by ``step`` px to the left each."""
    texture = known_scene(HEIGHT, WIDTH + step * count, seed).frame1
    return [texture[:, :, step * n : step * n + WIDTH].contiguous() for n in range(count)]


def quick() -> TVL1Estimator:
    return TVL1Estimator(PRESETS["fast"].replace(iterations=4, warps=2))


def forking() -> Any:
    """Context of processes that fork from one with PyTorch imported and no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sequence_shots", "fullfield.cli.shot", "fullfield.sequences.run"])
    return context


def started(folder: Path, arguments: list[str]) -> Any:
    """Start ``fullfield shot`` in a process of its own."""
    process = forking().Process(target=slow_flow, args=(str(folder), arguments))
    process.start()
    return process


def slow_flow(folder: str, arguments: list[str]) -> None:
    """``fullfield shot`` in a folder, with a pause before every frame: time to be killed in, or to run alongside."""
    os.chdir(folder)
    real = ShotEngine._compute_frame_result

    def slow(self: ShotEngine, number: int) -> FrameResult:
        time.sleep(0.05)
        return real(self, number)

    ShotEngine._compute_frame_result = slow  # type: ignore[method-assign]
    sys.exit(main(["shot", *arguments]))


class CommandLine:
    """Run ``fullfield`` in this process: exit code, output, errors."""

    def __init__(self, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...] = (), options: tuple[str, ...] = ()):
        self.capsys, self.verb, self.options = capsys, verb, options

    def __call__(self, *argv: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main([*self.verb, *map(str, argv), *self.options])
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    def done(self, *argv: object) -> tuple[str, str]:
        """Output and errors of a command that succeeds."""
        code, out, err = self(*argv)
        assert code == 0, err
        return out, err

    def refused(self, *argv: object) -> str:
        """Errors of a command that fails."""
        code, _, err = self(*argv)
        assert code == 2, err
        return err


Shot = dict[str, dict[str, Tensor]]


def loaded(name: str, folder: Path | None = None) -> Shot:
    """The vectors of ``name.NUMBER.exr``, by number."""
    found = (folder or Path()).glob(f"{name}.*.exr")
    return {path.name.removeprefix(name): read_flow_layers(path) for path in sorted(found)}


def assert_same(one: Shot, other: Shot) -> None:
    assert one.keys() == other.keys() != set()
    for number, layers in one.items():
        assert layers.keys() == other[number].keys(), number
        for layer, part in layers.items():
            assert torch.equal(part, other[number][layer]), (number, layer)


CHANGED = ("--method", "tvl1", "--iterations", "4", "--warps", "2")
QUICK = (*CHANGED, "--preset", "fast")
