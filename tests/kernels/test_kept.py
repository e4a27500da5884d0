"""What tests compile is kept."""

from __future__ import annotations

import os
from pathlib import Path

import kept
import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "folder", lambda: tmp_path)
    return tmp_path


def test_made_once_for_everything_it_is_made_from(folder: Path) -> None:
    made = []

    def make(place: Path) -> None:
        made.append(place)
        place.write_text(str(len(made)))

    assert [kept.kept(key, make).read_text() for key in (("a", 1), ("a", 1), ("a", 2), ("a", 1))] == [
        "1",
        "1",
        "2",
        "1",
    ]
    assert len(list(folder.iterdir())) == 2


def test_what_fails_leaves_nothing(folder: Path) -> None:
    def make(place: Path) -> None:
        place.write_text("half")
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        kept.kept("a", make)
    assert not list(folder.iterdir())


def test_what_nobody_asks_for_goes(folder: Path) -> None:
    place = kept.kept("a", lambda place: place.touch())
    kept.kept("b", lambda place: place.touch())
    os.utime(place, (0, 0))
    kept.forget_old(folder)
    assert len(list(folder.iterdir())) == 1
    os.utime(next(folder.iterdir()), (0, 0))
    kept.kept("b", lambda place: place.touch())
    kept.forget_old(folder)
    assert len(list(folder.iterdir())) == 1
