"""A tiny scene on disk and a command line that runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from commands import CommandResult
from fullfield import estimate
from fullfield.cli.main import main
from fullfield.io import write_flow, write_image
from fullfield.testing import sample_textured_scene
from fullfield.testing.scenes import Scene

Cli = Callable[..., CommandResult]


@pytest.fixture
def cli(scene: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:  # noqa: ARG001 - sets the folder
    """Run one command line in the scene's folder and return its exit code and what it printed."""
    threads = torch.get_num_threads()

    def run(*argv: object) -> CommandResult:
        capsys.readouterr()
        code = main([str(arg) for arg in argv])
        return CommandResult(code, *capsys.readouterr())

    yield run
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def compiled() -> None:
    """What TV-L1 compiles and announces once on a fresh machine lies in the cache."""
    estimate(torch.zeros(3, 16, 16), torch.zeros(3, 16, 16), preset="fast")


@pytest.fixture
def refused(cli: Cli, compiled: None) -> Callable[..., str]:  # noqa: ARG001 - so that refusals stand alone
    """Run a command line that must fail as a user's mistake; returns its one line."""
    return lambda *argv: cli(*argv).get_refusal()


@pytest.fixture(scope="session")
def made() -> Scene:
    return sample_textured_scene(48, 64)


@pytest.fixture(scope="session")
def _stored(made: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    write_image(folder / "a.png", made.frame1)
    write_image(folder / "b.png", made.frame2)
    write_image(folder / "occluded.png", made.occluded.expand(3, -1, -1).to(torch.uint8) * 255)
    write_flow(folder / "truth.flo", made.flow)
    write_flow(folder / "close.flo", made.flow + 0.25)
    return folder


@pytest.fixture
def scene(_stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder, also the working directory, with a.png, b.png, truth.flo, close.flo and occluded.png."""
    for path in _stored.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path
