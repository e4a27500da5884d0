"""Command lines drawn at random; ``fuzz_arguments.py`` draws more."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzz_arguments

pytest.importorskip("OpenImageIO")

SCRIPT = """
import os, runpy, sys
os.chdir(sys.argv.pop(1))
sys.argv.pop(0)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
"""


@pytest.mark.slow
@pytest.mark.parametrize("cases", [20, pytest.param(400, marks=pytest.mark.long)])
def test_main_returns_exit_code_for_random_arguments(
    tmp_path: Path, run_script: Callable[..., str], cases: int
) -> None:
    """In a process of its own: one that hangs is ended, and says where."""
    output = run_script(SCRIPT, tmp_path, fuzz_arguments.__file__, "--cases", cases, "--seed", 3)
    found = json.loads(output.splitlines()[-1])
    assert sum(found["codes"].values()) == cases
    assert set(found["codes"]) <= {"0", "1", "2", "3"}
    assert found["codes"]["0"] >= cases / 8, "some of them work"
