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


def test_a_confidence_that_is_not_finite_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.sequences import engine

    monkeypatch.setattr(engine, "occlusion_and_confidence", lambda *a: (a[0][:, 0] * 0, a[0][:, 0] * 0 - 1))
    monkeypatch.setattr(frames, "KINDS", ("smooth",))
    monkeypatch.setattr(frames, "METHODS", frames.METHODS[:1])
    monkeypatch.setattr(frames, "OPTIONS", ("--confidence", "--occlusion"))
    monkeypatch.setattr(frames, "SIZES", ((17, 33),))
    found = []
    for number in range(6):
        try:
            frames.play(random.Random(f"0 {number}"), tmp_path / f"{number}")
        except AssertionError as error:
            found.append(str(error))
    assert any("confidence.forward" in text for text in found)
