"""The progress bar: silent for short work, sparse in a file, in place on a terminal."""

from __future__ import annotations

import io
import os

import pytest

from fullfield.cli import progress as module
from fullfield.cli.progress import ProgressBar

pytestmark = pytest.mark.unit


class Stream(io.StringIO):
    def __init__(self, live: bool) -> None:
        super().__init__()
        self._live = live

    def isatty(self) -> bool:
        return self._live


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.shutil, "get_terminal_size", lambda **_: os.terminal_size((60, 24)))
    return now


def _run(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], *, live: bool, seconds: float, quiet: bool = False
) -> str:
    stream = Stream(live)
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressBar("flow", quiet=quiet) as progress:
        part = progress.start_span_and_build_callback(0.0, 1.0)
        for step in range(101):
            part(step / 100, "level 1")
            clock[0] += seconds / 100
    return stream.getvalue()


def test_progress_bar_prints_nothing_for_short_work(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    assert _run(monkeypatch, clock, live=True, seconds=0.9) == ""
    assert _run(monkeypatch, clock, live=False, seconds=0.9) == ""


def test_progress_bar_quiet_prints_nothing(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    assert _run(monkeypatch, clock, live=True, seconds=90, quiet=True) == ""


def test_progress_bar_in_file_prints_line_per_tenth(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    lines = _run(monkeypatch, clock, live=False, seconds=200).splitlines()
    assert len(lines) == 10
    assert lines[2] == "fullfield: flow  30%  1:00 min, 2:20 min left  level 1"
    assert lines[-1].startswith("fullfield: flow 100%  3:20 min  level 1")


def test_progress_bar_in_file_prints_one_line_per_second(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    assert len(_run(monkeypatch, clock, live=False, seconds=3).splitlines()) == 2


def test_progress_bar_on_terminal_redraws_and_clears_line(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    text = _run(monkeypatch, clock, live=True, seconds=200)
    assert "\n" not in text
    drawn = [line for line in text.split("\r") if line]
    assert all(len(line) == 59 for line in drawn)
    assert drawn[50].startswith("flow [############            ]  51%")
    assert drawn[-1].strip() == ""


def test_progress_bar_build_span_maps_to_part(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = Stream(False)
    monkeypatch.setattr("sys.stderr", stream)
    progress = ProgressBar("flow")
    clock[0] += 10
    second = progress.start_span_and_build_callback(0.5, 1.0)
    clock[0] += 10
    second(0.5, "level 2")
    assert stream.getvalue() == "fullfield: flow  75%  20.0 s, 10.0 s left  level 2\n"
