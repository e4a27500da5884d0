"""The compile cache: where it lies, what a cold start says, many processes at once, nowhere to write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fullfield._kernels import cache_folder, numba_cache

SOLVE = """
import time
import torch
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver
frames = torch.rand(2, 1, 1, 40, 50, generator=torch.Generator().manual_seed(0))
flow = TVL1Solver(40, 50, TVL1Config.preset("fast"))(*frames)
print(float(flow.abs().mean()), time.process_time())
"""
# Compiled in half the time.
SEARCH = """
import torch
from fullfield.ops.neighbors import knn_search
print(knn_search(torch.rand(50, 3, generator=torch.Generator().manual_seed(0)), 3).indices.tolist())
"""


def start(script: str, cache: str, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "FULLFIELD_CACHE_DIR": cache, **more}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def test_cold_start_is_announced_once_and_kept(tmp_path: Path) -> None:
    cold, said = finish(start(SOLVE, str(tmp_path / "cache")))
    assert said.startswith("fullfield: compiling TV-L1 kernels for this CPU, once ...\nfullfield: compiled in ")
    warm, said = finish(start(SOLVE, str(tmp_path / "cache")))
    assert said == ""
    (cold_flow, cold_seconds), (warm_flow, warm_seconds) = cold.split(), warm.split()
    assert warm_flow == cold_flow
    assert float(cold_seconds) - float(warm_seconds) <= 15


def test_quiet_cold_start(tmp_path: Path) -> None:
    assert finish(start(SEARCH, str(tmp_path), FULLFIELD_QUIET="1"))[1] == ""


def test_many_processes_share_a_cold_cache(tmp_path: Path) -> None:
    results = {finish(p)[0] for p in [start(SEARCH, str(tmp_path)) for _ in range(4)]}
    assert len(results) == 1
    assert finish(start(SEARCH, str(tmp_path)))[1] == ""


def test_unwritable_places_are_passed_over(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    out, said = finish(start(SEARCH, str(blocked / "cache"), TMPDIR=str(tmp_path)))
    assert out
    assert "for this CPU, once" in said
    assert list(tmp_path.glob("fullfield-*/numba-*/*.compiled"))


def test_nowhere_to_write_still_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "usable", lambda _: False)
    assert numba_cache.cache_folder(__file__) is None
    script = f"from fullfield._kernels import cache_folder\ncache_folder.usable = lambda _: False\n{SEARCH}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "in every process: no cache folder can be written" in done.stderr


def test_folder_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "kernels.py"
    source.write_text("a = 1\n")
    first = numba_cache.cache_folder(str(source))
    assert first == numba_cache.cache_folder(str(source))
    source.write_text("a = 2\n")
    second = numba_cache.cache_folder(str(source))
    assert first is not None
    assert second is not None
    assert first != second
    assert first.parent == second.parent == tmp_path / "cache"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_a_strangers_folder_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder.usable(tmp_path)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert not cache_folder.usable(tmp_path)


def test_numbas_own_setting_is_left_alone(tmp_path: Path) -> None:
    config = pytest.importorskip("numba").config
    before = config.CACHE_DIR
    with numba_cache.caching_in(tmp_path):
        assert str(tmp_path) == config.CACHE_DIR
    assert before == config.CACHE_DIR
