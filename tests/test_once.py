"""What several processes of one run of the tests need is made in one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_TESTS = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(4))
def test_of_several(once, number):
    def make():
        with Path({log!r}).open("a") as file:
            file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
        return {{"number": number}}
    assert set(once("thing", make)) == {{"number"}}
    with Path({seen!r}).open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_two_processes_make_it_once(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((_HERE / "conftest.py").read_text("utf-8").replace("autouse=True", ""))
    log, seen = tmp_path / "made", tmp_path / "seen"
    (tmp_path / "test_it.py").write_text(_TESTS.format(log=str(log), seen=str(seen)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist=load", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert len(set(seen.read_text().split())) == 2
    assert len(log.read_text().split()) == 1
