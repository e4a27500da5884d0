"""Command lines drawn at random; ``fuzz_arguments.py`` draws more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzz_arguments

pytest.importorskip("OpenImageIO")


@pytest.mark.slow
@pytest.mark.parametrize("cases", [20, pytest.param(400, marks=pytest.mark.long)])
def test_any_command_line_ends_with_an_exit_code(tmp_path: Path, cases: int) -> None:
    """In a process of its own: one that hangs is ended, and says where."""
    command = [sys.executable, fuzz_arguments.__file__, "--cases", str(cases), "--seed", "3"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert sum(found["codes"].values()) == cases
    assert set(found["codes"]) <= {"0", "1", "2", "3"}
    assert found["codes"]["0"] >= cases / 8, "some of them work"
