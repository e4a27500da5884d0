"""The documents say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_table_is_the_stored_results() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_ci_finds_the_readmes_test_command() -> None:
    after = (ROOT / "README.md").read_text("utf-8").split("<!-- ci: test command -->\n```\n")[1]
    command = after.split("\n```")[0]
    assert "\n" not in command
    assert command.endswith("scripts/check.py")


def test_examples_are_short() -> None:
    scripts = list((ROOT / "examples").glob("*.py"))
    assert scripts
    for script in scripts:
        assert len(script.read_text("utf-8").splitlines()) < 60, script.name


def test_memory_formula_of_the_solver() -> None:
    from fullfield.ops.tvl1 import PRESETS
    from fullfield.ops.tvl1.cpu import Solver

    height, width = 600, 800
    for config in PRESETS.values():
        solver = Solver(height, width, config)
        arrays = [solver._state, solver._packed, *solver._pyramid1, *solver._pyramid2]
        planes = sum(array.size for array in arrays) / (height * width)
        # 15 of state, 4 packed, the pyramids without their level 0 (the caller's frames); rows are padded.
        factor = config.scale_factor**2
        assert planes == pytest.approx(19 + 2 * factor / (1 - factor), rel=0.06)
