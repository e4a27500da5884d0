"""``fullfield warm``: kernels and weights ahead of the first estimate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_warm_reports_prepared_method(cli: Any) -> None:
    ran = cli("warm", "--method", "tvl1", "--preset", "fast", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["method"], ran.json["device"]) == ("tvl1", "cpu")
    assert ran.json["parameters"]["refinement"] is not None
    assert ran.json["seconds"].keys() == {"prepare", "estimate", "total"}
    assert Path(ran.json["cache"]).is_dir()
    text = cli("warm", "--method", "tvl1", "--preset", "fast", "--size", "40x24").out
    assert text.startswith("tvl1 (preset fast), backend cpu, on cpu: ready in ")


@pytest.mark.long
def test_warm_lets_next_process_compile_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "FULLFIELD_CACHE_DIR": str(tmp_path / "cache"), "FULLFIELD_QUIET": ""}
    command = [sys.executable, "-m", "fullfield", "warm", "--method", "tvl1", "--preset", "fast"]
    cold, warm = (subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in "12")
    assert "compiling" in cold.stderr
    assert "compiling" not in warm.stderr
