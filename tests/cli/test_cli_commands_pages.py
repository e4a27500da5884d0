"""docs/commands has a page for every verb, with the options that the parsers have."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from commands import load_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def commands() -> ModuleType:
    return load_file("scripts/docs/commands.py")


def test_commands_pages_match_parsers(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["--check"]) == 0, capsys.readouterr().out
