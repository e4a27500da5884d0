"""A short form of kills.py, and the races behind it one by one."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from kills import evaluate_together, kill_a_training

from fullfield.evaluation import Run
from fullfield.evaluation import run as runs


@pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="processes are told by /proc")
@pytest.mark.parametrize("of_flow", [False, True])
def test_the_workers_of_a_killed_training_end(of_flow: bool, tmp_path: Path) -> None:
    kill_a_training(random.Random(0), tmp_path, 10_000, of_flow=of_flow)


def test_processes_evaluate_one_folder_at_once(tmp_path: Path) -> None:
    evaluate_together(random.Random(0), tmp_path, 2, 4)


def test_a_whole_prediction_never_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process stores a pair again that another one is scoring already."""
    run = Run(tmp_path / "run", {})
    run.save("pair", torch.zeros(2, 3, 4), {"seconds": 1})
    run.keep_score("pooled", "pair", "truth", {"images": 1})
    seen = []

    def watched(*_: object, **__: object) -> None:
        seen.append(run.facts("pair"))
        raise AssertionError

    monkeypatch.setattr(runs, "write_flow", watched)
    run.save("pair", torch.ones(2, 3, 4), {"seconds": 2})
    assert seen == []
    assert run.facts("pair") == {"seconds": 1, "bytes": 12 + 2 * 3 * 4 * 4}
    assert run.score("pooled", "pair", "truth") == {"images": 1}


def test_what_vanishes_while_it_is_read_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run", {})
    run.save("pair", torch.zeros(2, 3, 4), {})
    run.keep_score("pooled", "pair", "truth", {"images": 1})
    is_file = Path.is_file

    def taken(path: Path) -> bool:
        there = is_file(path)
        path.unlink(missing_ok=True)  # between the question and the reading
        return there

    monkeypatch.setattr(Path, "is_file", taken)
    run.scored("pooled", "pair").unlink()
    assert run.score("pooled", "pair", "truth") is None
    run.path("pair").with_suffix(".json").unlink()
    assert run.facts("pair") is None
