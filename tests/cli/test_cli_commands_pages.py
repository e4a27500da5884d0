"""docs/commands has a page for every verb, with the options that the parsers have."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def commands() -> ModuleType:
    spec = spec_from_file_location("commands", ROOT / "scripts" / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_say_what_the_parsers_say(commands: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["--check"]) == 0, capsys.readouterr().out
