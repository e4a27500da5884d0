"""What several processes of one run of the tests need is made in one of them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from made_once import made_once


def _ask(place: Path, worker: str, ready: Any) -> None:
    """What a process of pytest-xdist does in a test that takes the fixture; the folders are those it is given."""
    os.environ["PYTEST_XDIST_WORKER"] = worker
    own = place / f"popen-{worker}"
    own.mkdir()

    def make() -> dict[str, str]:
        with (place / "made").open("a") as file:
            file.write(f"{worker}\n")
        time.sleep(0.3)  # the other one asks meanwhile
        return {"by": worker}

    once = made_once(own)
    ready.wait()
    found = [once("thing", make) for _ in range(3)]
    (own / "found").write_text(repr(found))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked")
def test_two_processes_make_it_once(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    ready = fork.Barrier(2)
    workers = [fork.Process(target=_ask, args=(tmp_path, name, ready)) for name in ("gw0", "gw1")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    (by,) = (tmp_path / "made").read_text().split()
    for name in ("gw0", "gw1"):
        assert (tmp_path / f"popen-{name}" / "found").read_text() == repr([{"by": by}] * 3)


def test_without_xdist_it_is_made_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    own = tmp_path / "own"
    own.mkdir()
    made: list[int] = []
    once = made_once(own)
    for _ in range(2):
        assert once("thing", lambda: [made.append(1), len(made)][1:]) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_the_fixture_is_that(once: Any) -> None:
    assert once.__qualname__ == "made_once.<locals>.made"
