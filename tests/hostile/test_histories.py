"""Five of the histories of histories.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("OpenImageIO")
sys.path.insert(0, str(Path(__file__).parent))
from histories import play


@pytest.mark.parametrize("number", range(5))
def test_random_histories_of_a_shot(number: int, tmp_path: Path) -> None:
    play(random.Random(f"0 {number}"), tmp_path / "shot")
