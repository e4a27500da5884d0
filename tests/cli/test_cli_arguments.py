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

CASES = 40


@pytest.mark.slow
def test_any_command_line_ends_with_an_exit_code(tmp_path: Path) -> None:
    """In a process of its own: one that hangs is ended, and says where."""
    command = [sys.executable, fuzz_arguments.__file__, "--cases", str(CASES), "--seed", "3"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert sum(found["codes"].values()) == CASES
    assert set(found["codes"]) <= {"0", "1", "2", "3"}
    assert found["codes"]["0"] >= 5, "some of them work"
