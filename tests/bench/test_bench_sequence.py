"""The benchmark of whole shots: wrong files get no time, and the shares are what they are called."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.sequences import shots
from fullfield.sequences import Outcome, Work, outputs
from fullfield.sequences.run import run

pytest.importorskip("OpenImageIO")

TINY = ("sequence", "--method", "tvl1", "--presets", "fast", "--sizes", "48x32", "--frames", "4", "--repeats", "2")


def test_files_and_estimation_are_timed_in_turns(cli: Callable[..., Any], tmp_path: Path) -> None:
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


def test_several_devices_are_told_apart_from_their_start(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(work: Work, numbers: Sequence[int], devices: Sequence[str], tell: Callable[[int], None]) -> Outcome:
        assert list(devices) == ["cpu", "cpu"]
        time.sleep(0.3)
        return run(work, numbers, tell=tell)

    monkeypatch.setattr(shots, "run_on_devices", here)  # whose processes take seconds to start
    ran = cli(*TINY[:-1], "1", "--device", "cpu", "--devices", "cpu,cpu", "--json", "-q")
    assert ran.code == 0, ran.err
    row = ran.json["cases"][0]["rows"][2]
    assert (row["name"], row["devices"]) == ("on 2 devices", ["cpu", "cpu"])
    assert 0.3 < row["first_file_s"] < row["median_s"]
    assert row["times_one_with_start"] == pytest.approx(ran.json["cases"][0]["rows"][1]["median_s"] / row["median_s"])
    assert row["times_one"] > row["times_one_with_start"], "the start is left out"


@pytest.mark.parametrize("harm", ["missing", "other"])
def test_a_wrong_shot_gets_no_time(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    real = outputs.Output.write

    def harmed(self: Any, done: Any, parts: Any, *more: Any) -> None:
        if harm == "missing" and done.number == 3:
            raise OSError(5, "Input/output error", self.path(3))
        parts.planes[:] += 1
        real(self, done, parts, *more)

    monkeypatch.setattr(outputs.Output, "write", harmed)
    ran = cli(*TINY, "--device", "cpu")
    assert ran.code == 1
    assert ("of 4 files were written" if harm == "missing" else "vectors are off by 1") in ran.err
    assert "frames/s" not in ran.out
