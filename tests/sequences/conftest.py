"""Shots on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sequence_shots import HEIGHT, WIDTH, CommandLine, moving, quick

from fullfield.estimators import TVL1Estimator
from fullfield.io import write_image


@pytest.fixture(scope="session")
def estimator() -> TVL1Estimator:
    """Prepared once."""
    made = quick()
    made(torch.zeros(1, 1, HEIGHT, WIDTH), torch.zeros(1, 1, HEIGHT, WIDTH))
    return made


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Run command lines in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(capsys)


@pytest.fixture
def shot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """plate.0011.png to plate.0018.png in the working directory."""
    monkeypatch.chdir(tmp_path)
    for number, frame in enumerate(moving(8), 11):
        write_image(tmp_path / f"plate.{number:04d}.png", frame)
    return tmp_path
