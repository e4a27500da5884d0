"""A tiny scene on disk and the command line of the benchmarks, run in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.runner import main
from commands import CommandResult
from fullfield.cli.main import main as fullfield
from fullfield.io import write_flow, write_image
from known_scenes import known_scene


@pytest.fixture(autouse=True, scope="module")
def _kept() -> None:
    """What files before have imported stays to the end: benchmarks collect garbage before they measure."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _coarse_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a figure's time goes into its pixels."""
    monkeypatch.setattr("benchmarks.figures.DPI", 40)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder, also the working directory, with a.png, b.png and truth.flo."""
    made = known_scene(48, 64)
    write_image(tmp_path / "a.png", made.frame1)
    write_image(tmp_path / "b.png", made.frame2)
    write_flow(tmp_path / "truth.flo", made.flow)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(scene: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:  # noqa: ARG001 - sets the folder
    """Run one command line in the scene's folder: the benchmarks', or fullfield's where it begins with that word."""

    def run(*argv: object) -> CommandResult:
        capsys.readouterr()
        words = [str(arg) for arg in argv]
        code = fullfield(words[1:]) if words[0] == "fullfield" else main(words)
        return CommandResult(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(cli: Callable[..., CommandResult]) -> Callable[..., str]:
    """Run a command line that must fail as a user's mistake; returns its one line."""
    return lambda *argv: cli(*argv).refusal()
