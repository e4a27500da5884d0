"""The documents say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "src").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
]


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


def test_the_page_of_networks_on_points_runs_and_learns() -> None:
    page = (ROOT / "docs" / "points.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for block in blocks:
        exec(block, names)
    assert float(names["loss"].detach()) < 0.2  # type: ignore[attr-defined]


def test_the_page_of_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    loop, *others = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in loop.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for block in (loop, *others):
        exec(block, names)
    torch.manual_seed(0)
    fresh = names["SEARAFT"](names["network"].config).state_dict()
    for network in (names["network"], names["average"].model):
        moved = [key for key, value in network.state_dict().items() if not torch.equal(value, fresh[key])]
        assert len(moved) > 0.9 * len(fresh)
    assert float(names["loss"].detach()) < 10
    assert names["trained"].history[-1].step == 4
    assert (tmp_path / "runs" / "mine" / "weights.safetensors").is_file()
    assert names["batch"].frame1.shape == (4, 3, 40, 48)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_example_at_a_frame_rate_runs() -> None:
    command = [sys.executable, str(ROOT / "examples" / "realtime_flow.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "99 flows: " in done.stdout


def test_memory_formula_of_the_solver() -> None:
    from fullfield.ops.tvl1 import PRESETS
    from fullfield.ops.tvl1.cpu import Solver

    page = (ROOT / "src" / "fullfield" / "ops" / "tvl1" / "README.md").read_text("utf-8")
    height, width = 600, 800
    for name, stated in (("default", "29.5 planes"), ("fast", "21.7 planes")):
        assert stated in page
        solver = Solver(height, width, PRESETS[name])
        arrays = [solver._state, solver._packed, *solver._pyramid1, *solver._pyramid2]
        planes = 2 + sum(array.size for array in arrays) / (height * width)  # and the grey frames, the caller's
        assert planes == pytest.approx(float(stated.split()[0]), rel=0.06)  # rows are padded
