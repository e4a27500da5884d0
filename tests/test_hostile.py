"""Short forms of the programs of scripts/check/hostile, for ``scripts/check/run.py long``."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("OpenImageIO")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "check" / "hostile"))
import frames
import histories
import kills


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="processes are told by /proc")
def test_killed_training_leaves_no_workers(tmp_path: Path) -> None:
    kills.kill_a_training(random.Random(0), tmp_path, 10_000)


@pytest.mark.long
def test_evaluate_one_folder_from_many_processes(tmp_path: Path) -> None:
    kills.evaluate_together(random.Random(0), tmp_path, 2, 4)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_shots_of_hostile_frames_end_cleanly(tmp_path: Path) -> None:
    codes = [frames.play(random.Random(f"0 {number}"), tmp_path / f"{number}")[0] for number in range(12)]
    assert set(codes) == {0, 2}


@pytest.mark.long
@pytest.mark.parametrize("number", range(5))
def test_shot_histories_equal_fresh_runs(number: int, tmp_path: Path) -> None:
    histories.play(random.Random(f"0 {number}"), tmp_path / "shot")
