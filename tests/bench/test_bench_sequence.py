"""The benchmark of whole shots: wrong files get no time, and the shares are what they are called."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fullfield.sequences import outputs

pytest.importorskip("OpenImageIO")

TINY = ("sequence", "--method", "tvl1", "--presets", "fast", "--sizes", "48x32", "--frames", "4", "--repeats", "2")


def test_sequence_times_files_and_estimation_in_turns(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    ran = cli(*TINY, "--device", "cpu", "--half", "--folder", tmp_path / "here", "-o", "r.json")
    assert ran.code == 0, ran.err
    (case,) = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert (case["size"], case["frames"], case["direction"]) == ([32, 48], 4, "both")
    alone, shot = case["rows"]
    assert (alone["name"], shot["name"]) == ("estimation alone", "files to files")
    assert shot["times_alone"] == pytest.approx(shot["median_s"] / alone["median_s"])
    assert shot["device_share"] == pytest.approx(alone["median_s"] / shot["median_s"])
    assert 0 < shot["estimating_share"] <= 1
    assert {"read", "estimate", "lay out", "write"} <= shot["stages_ms"].keys()
    assert shot["stages_ms"]["estimate"]["wall"] * 4 < 1000 * max(shot["seconds"])
    assert re.search(r"write +[0-9.]+ ms a frame, [0-9.]+ of them of a processor", ran.out)
    assert len(shot["seconds"]) == 2
    assert "tvl1 fast, 4 frames of 48×32, both, on cpu; plates and vectors (half, default)" in ran.out
    assert not list((tmp_path / "here").iterdir()), "plates and vectors go away"
    assert "files to files" in cli("sequence", "--stored", "r.json").out


def test_sequence_measures_plates_of_each_compression(cli: Callable[..., Any], tmp_path: Path) -> None:
    ran = cli(*TINY, "--device", "cpu", "--repeats", "1", "--pairs", "2", "--plates", "zip", "dwaa", "-o", "r.json")
    assert ran.code == 0, ran.err
    cases = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert [case["plates"]["compression"] for case in cases] == ["zip", "dwaa"]
    assert [case["label"].endswith("both, plates dwaa") for case in cases] == [False, True]
    assert [case["rows"][0]["pairs_timed"] for case in cases] == [2, 2]


def test_sequence_gives_no_time_to_wrong_shot(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = outputs.Output.write_frame_and_record

    def harmed(self: Any, done: Any, parts: Any, *more: Any) -> None:
        parts.planes[:] += 1
        real(self, done, parts, *more)

    monkeypatch.setattr(outputs.Output, "write_frame_and_record", harmed)
    ran = cli(*TINY, "--device", "cpu")
    assert ran.code == 1
    assert "vectors are off by 1" in ran.err
    assert "frames/s" not in ran.out
