"""A few of the shots of frames.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("OpenImageIO")
sys.path.insert(0, str(Path(__file__).parent))
import frames


def test_hostile_frames(tmp_path: Path) -> None:
    codes = [frames.play(random.Random(f"0 {number}"), tmp_path / f"{number}")[0] for number in range(12)]
    assert set(codes) == {0, 2}
