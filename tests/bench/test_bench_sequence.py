"""The benchmark of whole shots: wrong files get no time, and the shares are what they are called."""

from __future__ import annotations

import json
import re
import runpy
import statistics
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import fullfield
from benchmarks.cases.sequences import shots
from benchmarks.sources import KERNELS
from benchmarks.stored import stored_result
from fullfield.io import read_frame
from fullfield.io.oiio import one_thread_a_file, open_image_source
from fullfield.sequences import outputs

pytest.importorskip("OpenImageIO")

NO_TIME = {
    f"src/fullfield/{name}.py"
    for name in (
        "_ledger/notes",
        "_ledger/settings",
        "estimators/registry",
        "estimators/tvl1",
        "io/__init__",
        "io/flow",
        "io/flow_formats/__init__",
        "io/names",
    )
}
"""Modules that the benchmark runs once for a shot, or only here, or that hold names."""
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
    (tmp_path / "here").mkdir()
    ran = cli(
        *TINY, "--device", "cpu", "--repeats", "3", "--pairs", "2", "--plates", "zip", "piz", "dwaa",
        "--folder", tmp_path / "here", "-o", "r.json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    stored = json.loads((tmp_path / "r.json").read_text())
    cases = stored["cases"]
    assert [case["plates"]["compression"] for case in cases] == ["zip", "piz", "dwaa"]
    assert [case["label"].rpartition("both")[2] for case in cases] == ["", ", plates piz", ", plates dwaa"]
    assert len({case["plate_bytes"] for case in cases}) == 3
    for case in cases:
        assert case["rows"][0]["pairs_timed"] == 2
        assert case["plates"]["distinct"] == 4
        assert "synthetic" in case["plates"]["content"]
        assert case["folder"] == str(tmp_path / "here")
        shot = case["rows"][1]
        assert shot["frames_per_s"] == pytest.approx(4 / statistics.median(shot["seconds"]))
        for spent in shot["stages_ms"].values():
            assert len(spent["wall_of_runs"]) == 3
            assert spent["wall"] == statistics.median(spent["wall_of_runs"])


def test_sequence_refuses_unknown_compression_in_one_line(cli: Callable[..., Any]) -> None:
    ran = cli(*TINY, "--plates", "zip", "jpg")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "--plates" in ran.err
    assert "'jpg'" in ran.err
    assert "dwaa" in ran.err


@pytest.mark.parametrize("compression", ["zip", "piz", "dwaa"])
def test_plates_repeat_after_sixteen(tmp_path: Path, compression: str) -> None:
    shots.make_plates(tmp_path, (32, 48), 18, compression)
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [f"plate.{number:04d}.exr" for number in range(1, 19)]
    assert len({path.stat().st_ino for path in paths}) == 16
    assert paths[16].samefile(paths[0])
    assert not one_thread_a_file.is_on
    with open_image_source(paths[3]) as source:
        spec = source.get_first_part_or_raise().spec
        assert spec.get_string_attribute("compression").startswith(compression)
        assert str(spec.format) == "half"
    first, second = (read_frame(path) for path in paths[:2])
    # Linear values in the file: read_frame encodes them for the display again, so the grain is as it was added.
    moved = (second[:, :, :-3] - first[:, :, 3:]).std()
    assert float((second - first).std()) > 1.5 * float(moved)
    assert 0.5 < float(moved) / (shots._GRAIN * 2**0.5) < 1.5


def test_sources_name_modules_that_a_shot_runs(tmp_path: Path) -> None:
    root = Path(fullfield.__file__).parent
    ran = set[str]()

    def note_file(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            ran.add(frame.f_code.co_filename)

    plan = shots.Plan("tvl1", ["fast"], [(32, 48)], 4, torch.device("cpu"), folder=str(tmp_path), repeats=1)
    threading.setprofile(note_file)
    sys.setprofile(note_file)
    try:
        for case in shots.cases(plan, lambda _: None):
            case.run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    modules = {Path(name).relative_to(root).as_posix() for name in ran if Path(name).is_relative_to(root)}
    parts = ("sequences/", "io/", "estimators/", "_ledger/", "_read_ahead.py")
    found = {f"src/fullfield/{name}" for name in modules if name.startswith(parts)}
    assert "src/fullfield/sequences/writing.py" in found
    assert found - set(KERNELS["sequence"]) - NO_TIME == set()


def test_sources_of_a_shot_exist() -> None:
    root = Path(fullfield.__file__).parent.parent.parent
    plain = [name for name in KERNELS["sequence"] if "*" not in name]
    assert len(plain) > 20
    assert [name for name in plain if not (root / name).is_file()] == []


def test_table_by_compression_shows_rates_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    tables = runpy.run_path(str(root / "scripts" / "docs" / "shot_tables.py"))
    results = stored_result("shots_h200.json")
    case = results["cases"][0]

    def timed(compression: str, repeats: int) -> dict[str, Any]:
        alone, shot = case["rows"]
        shot = {**shot, "repeats": repeats, "min": 8.0, "max": 12.5, "frames_per_s": 10.0}
        return {**case, "plates": {"compression": compression}, "plate_bytes": 3e7, "rows": [alone, shot]}

    def written(*cases: dict[str, Any]) -> str:
        functions = tables["compressions_table"].__globals__
        monkeypatch.setitem(functions, "stored_result", lambda _: {**results, "cases": cases})
        return str(tables["compressions_table"]()) + str(tables["shots_table"]())

    one = written(timed("zip", 1))
    assert "| ZIP, 30 MB | 10.0 |" in one
    assert "One run, NVIDIA H200, commit" in one
    three = written(*(timed(name, 3) for name in ("zip", "piz", "dwaa")))
    for name in ("ZIP", "PIZ", "DWAA"):
        assert three.count(f"| {name}, 30 MB | 10.0 (8.0–12.5) |") == 2
    assert "Median of 3 runs, NVIDIA H200, commit" in three
    assert "look for cuts, ms a frame" in three


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
