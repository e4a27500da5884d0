"""Programs in ``benchmarks/experiments``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "experiments"
PROGRAMS = [path for path in sorted(FOLDER.glob("*.py")) if '__name__ == "__main__"' in path.read_text("utf-8")]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_experiments_print_their_docstring_as_help(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    documentation = path.read_text("utf-8").split('"""')[1].strip()
    assert documentation in capsys.readouterr().out
