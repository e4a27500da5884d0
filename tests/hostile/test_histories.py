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


def test_a_stale_frame_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs that keep every file that is there, as they once did."""
    from fullfield.sequences.outputs import Output

    monkeypatch.setattr(Output, "_reason", lambda *_: "")
    failed = []
    for number in range(12):
        try:
            play(random.Random(f"0 {number}"), tmp_path / f"{number}")
        except AssertionError as error:
            failed.append(str(error))
    assert len(failed) > 2
    assert any("differs" in text for text in failed)
