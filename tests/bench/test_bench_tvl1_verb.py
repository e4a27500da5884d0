"""``python -m benchmarks tvl1`` on a GPU as a whole, with the stand-ins of ``test_bench_tvl1_gpu``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench_tvl1_gpu import CPU, _stand_ins, stand_in

from benchmarks.bench import measure
from benchmarks.cases.tvl1 import command as bench_tvl1
from benchmarks.cases.tvl1 import gpu as tvl1_gpu
from benchmarks.cases.tvl1 import plots as tvl1_plots
from benchmarks.cases.tvl1 import report as tvl1_report
from benchmarks.cases.tvl1 import schedules as tvl1_schedules
from benchmarks.cases.tvl1 import solver as tvl1_solver
from benchmarks.cases.tvl1.cpu import synthetic_pair
from benchmarks.harness import CheckFailed
from benchmarks.runner import main
from fullfield.io import write_flow, write_image
from fullfield.ops.tvl1 import PRESETS

__all__ = ["_stand_ins"]


@pytest.fixture
def middlebury(tmp_path: Path) -> Path:
    scene = synthetic_pair(64, 96)
    folder = tmp_path / "Made"
    folder.mkdir()
    write_image(folder / "frame10.png", scene.frame1)
    write_image(folder / "frame11.png", scene.frame2)
    write_flow(folder / "flow10.flo", scene.flow)
    return folder


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The verb, whose GPU is the CPU."""
    monkeypatch.setattr("benchmarks.harness.timing_device", lambda _: CPU)
    monkeypatch.setattr(tvl1_gpu, "open_meter", lambda _: (None, "no sensor"))
    monkeypatch.setattr(tvl1_solver, "peers", list)
    monkeypatch.setattr(tvl1_solver, "real_time", lambda *_: {"case": "real time", "setting": {}, "rows": []})
    return lambda *argv: main(["tvl1", "--device", "cuda", *map(str, argv)])


def test_the_verb_on_a_gpu(
    on_cpu: Callable[..., int], middlebury: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    parts = ("frames", "schedules", "quality", "depths", "energy", "peers")
    output, tables = tmp_path / "r.json", tmp_path / "t.md"
    code = on_cpu(
        "--presets", middlebury, "--sides", 32, 48, "--parts", *parts, "--repeats", 1, "--steps", 5, 10, 20,
        "--depths", 1, 5, 6, "-o", output, "--plots", tmp_path, "--tables", tables, "--json", "-q",
    )  # fmt: skip
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    printed, stored = json.loads(captured.out), json.loads(output.read_text())
    assert printed["cases"] == stored["cases"]
    names = ["ceilings", "whole frames", "schedules", "quality", "depths", "energy", "peers"]
    assert [case["case"] for case in stored["cases"]] == names
    assert {"commit", "date", "versions"} <= stored["environment"].keys()
    for name in ("figure8_sizes.png", "figure11_depth.png", "figure13_quality.png"):
        assert (tmp_path / name).stat().st_size > 5000
    page = tables.read_text("utf-8")
    assert "1 × 1 × 10" in page
    assert "shared_pipeline float16, published" in page
    assert "Energy: not measured, no sensor" in page
    assert "Jetson AGX Xavier" in page


def test_words_for_people_and_a_failed_check(
    on_cpu: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tvl1_schedules, "versions", lambda: [stand_in("global"), stand_in("bad", off=1.0)])
    assert on_cpu("--sides", 32, "--parts", "schedules", "--repeats", 1) == 1
    captured = capsys.readouterr()
    assert "Inner iterations by schedule and size" in captured.out
    assert "check failed: schedules: bad float32: off by up to" in captured.err


def test_without_pairs_there_are_no_errors(on_cpu: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert on_cpu("--parts", "quality") == 2
    assert "--parts quality: needs pairs with true flow" in capsys.readouterr().err
    told: list[str] = []
    plan = tvl1_gpu.GpuPlan(CPU, parts=("quality",))
    assert [case["case"] for case in measure(tvl1_gpu.cases(plan, told.append), told.append)] == ["ceilings"]
    assert told[-1] == "no pairs with true flow were given: no errors against time"


def test_a_part_that_fails_says_why_and_the_others_go_on(
    on_cpu: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def full(*_: object) -> Any:
        raise RuntimeError("out of memory\nand more")

    def wrong(*_: object) -> Any:
        raise CheckFailed("opencv cpu: off; no time is reported")

    monkeypatch.setattr(tvl1_solver, "whole_frames", full)
    monkeypatch.setattr(tvl1_solver, "against_opencv", wrong)
    output = tmp_path / "r.json"
    asked = ("--sides", 32, "--depths", 1, "--repeats", 1, "-o", output, "-q")
    assert on_cpu("--parts", "frames", "peers", "depths", *asked) == 1
    captured = capsys.readouterr()
    assert "Time per iteration over the pipeline's depth" in captured.out
    assert "whole frames: not possible: out of memory\n" in captured.out
    page = tvl1_report.markdown(json.loads(output.read_text()))
    assert "Without numbers: whole frames: not possible, out of memory; peers: check failed, opencv cpu: off" in page
    assert "check failed: peers: opencv cpu: off" in captured.err
    cases = {case["case"]: case for case in json.loads(output.read_text())["cases"]}
    assert cases["whole frames"]["status"] == "not possible"
    assert cases["depths"]["took_s"] > 0


def test_a_broken_device_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tvl1_schedules, "by_size", broken)
    monkeypatch.setattr(tvl1_schedules, "ceilings", lambda _: {"case": "ceilings", "rows": []})
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: None)
    plan = tvl1_gpu.GpuPlan(torch.device("cuda"), parts=("schedules",))
    (_, case) = measure(tvl1_gpu.cases(plan, str), str)
    assert case["status"] == "not possible", "the device goes on: only this part failed"
    monkeypatch.setattr("torch.cuda.synchronize", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure(tvl1_gpu.cases(plan, str), str)


def test_a_run_is_resumed(
    on_cpu: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    done: list[str] = []

    def part(name: str) -> Callable[..., Any]:
        def make(*_: object) -> Any:
            done.append(name)
            if name == "frames" and done.count("frames") == 1:
                raise RuntimeError("out of memory")
            return {"case": tvl1_gpu.CASES[name], "rows": [], "number": len(done), "setting": {}, "meter": "none"}

        return make

    for module, made in (
        (
            tvl1_solver,
            {"frames": "whole_frames", "quality": "quality", "realtime": "real_time", "peers": "against_opencv"},
        ),
        (tvl1_schedules, {"schedules": "by_size", "depths": "by_depth", "energy": "energy"}),
    ):
        for name, function in made.items():
            monkeypatch.setattr(module, function, part(name))
    monkeypatch.setattr(tvl1_report, "report", lambda _: [])
    output = tmp_path / "r.json"
    assert on_cpu("--resume", "--parts", "depths", "frames", "-o", output) == 0, "there is nothing to keep yet"
    assert done == ["depths", "frames"]
    assert on_cpu("--resume", "-o", output) == 0
    assert done[2:] == ["frames", "schedules", "realtime", "energy", "peers"], "failed parts again, done ones not"
    assert on_cpu("--resume", "--parts", "energy", "-o", output) == 0
    assert done[7:] == ["energy"], "what is asked for is measured anew"
    cases = json.loads(output.read_text())["cases"]
    order = ["ceilings", "whole frames", "schedules", "real time", "depths", "energy", "peers"]
    assert [case["case"] for case in cases] == order
    assert [case["number"] for case in cases[1:]] == [3, 4, 5, 1, 8, 7]
    capsys.readouterr()

    stored = json.loads(output.read_text())
    stored["environment"]["commit"] = "another"
    output.write_text(json.dumps(stored))
    assert on_cpu("--resume", "-o", output) == 2
    assert "--resume: expected results of commit " in capsys.readouterr().err
    output.write_text("[]")
    assert on_cpu("--resume", "-o", output) == 2
    assert "--resume: expected results of the benchmark tvl1 in" in capsys.readouterr().err
    assert on_cpu("--resume") == 2
    assert "--output is absent" in capsys.readouterr().err


def test_stored_results_are_shown_again(
    on_cpu: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    output, tables = tmp_path / "r.json", tmp_path / "t.md"
    assert on_cpu("--parts", "depths", "--sides", 32, "--depths", 1, "--repeats", 1, "-o", output, "-q") == 0
    first = capsys.readouterr().out
    assert main(["tvl1", "--stored", str(output), "--plots", str(tmp_path), "--tables", str(tables)]) == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "figure11_depth.png").exists()
    assert "Time per iteration" in tables.read_text("utf-8")
    for more, word in (
        (("--repeats", "3"), "--repeats: --stored measures nothing"),
        (("--device", "cuda"), "--device: --stored measures nothing"),
        (("--tune",), "--tune: --stored measures nothing"),
    ):
        assert main(["tvl1", "--stored", str(output), *more]) == 2
        assert word in capsys.readouterr().err
    row = {"name": "opencv", "median_s": 1.0, "epe": 0.5}
    on_the_cpu = {"bench": "tvl1", "environment": {}, "cases": [{"case": "own defaults", "rows": [row]}]}
    output.write_text(json.dumps(on_the_cpu))
    assert main(["tvl1", "--stored", str(output)]) == 0
    assert "own defaults, per pair\n  opencv" in capsys.readouterr().out
    assert main(["tvl1", "--stored", str(output), "--tables", str(tables)]) == 2
    assert "--tables: expected results of --device cuda" in capsys.readouterr().err
    output.write_text("nonsense")
    assert main(["tvl1", "--stored", str(output)]) == 2
    assert "expected results of the benchmark tvl1 in" in capsys.readouterr().err


def test_shapes_are_tuned(
    on_cpu: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = "benchmarks.cases.tvl1.tuning"
    times = {"global float32": {"Shape(256)": 1.5, "Shape(128)": 1.25}}
    monkeypatch.setattr(f"{tuning}.tune", lambda _: times)
    monkeypatch.setattr(f"{tuning}.kept_at", lambda _: Path("cache", "gpu.json"))
    assert on_cpu("--tune") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "global float32"
    assert told[1].split() == ["1.5000", "ms", "Shape(256)"]
    assert told[2].split() == ["1.2500", "ms", "Shape(128)", "fastest"]
    assert told[3] == f"the fastest are kept in {Path('cache', 'gpu.json')}"
    monkeypatch.setattr(f"{tuning}.kept_at", lambda _: None)
    assert on_cpu("--tune", "--json") == 0
    told_json = json.loads(capsys.readouterr().out)
    assert told_json["milliseconds"] == times
    assert told_json["kept_in"] is None
    assert on_cpu("--tune") == 0
    assert "nothing is kept" in capsys.readouterr().out
    assert on_cpu("--tune", "--parts", "frames") == 2
    assert "--parts: --tune measures shapes of kernels alone" in capsys.readouterr().err
    assert main(["tvl1", "--tune"]) == 2
    assert "--tune: is for --device cuda" in capsys.readouterr().err


def test_the_table_of_energy() -> None:
    rows = [{"name": "global float32", "precision": "float32", "size": [64, 64], "status": "ok", "watts": 400.0,
             "nj_per_pixel": 12.5, "ns_per_pixel": 0.031}]  # fmt: skip
    case = {
        "case": "energy",
        "meter": "made up",
        "idle_watts": 80.0,
        "setting": PRESETS["paper"].as_dict(),
        "rows": rows,
    }
    title, table = next(iter(tvl1_report.tables({"cases": [case]})))
    assert "made up, idle 80 W" in title
    assert table[1] == ["global float32", "12.500", "0.0310", "400"]


def test_the_picture_of_energy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"name": "global float32", "precision": "float32", "size": [64, 64], "status": "ok",
             "nj_per_pixel": 12.5, "ns_per_pixel": 0.031}]  # fmt: skip
    case = {"case": "energy", "meter": "made up", "rows": rows}
    (written,) = tvl1_plots.draw({"cases": [case]}, tmp_path)
    assert written.name == "figure12_energy.png"


def test_the_table_of_real_time() -> None:
    rows = [
        {
            "name": "x",
            "precision": "float32",
            "limit_s": 0.02,
            "status": "ok",
            "side": 640,
            "median_s": 0.019,
            "watts": 300.0,
        },
        {"name": "y", "precision": "float32", "limit_s": 0.05, "status": "not possible", "reason": "slow"},
    ]
    setting = PRESETS["paper"].replace(iterations=10).as_dict()
    case = {"case": "real time", "setting": setting, "rows": rows}
    title, table = next(iter(tvl1_report.tables({"cases": [case]})))
    assert "3 × 1 × 10" in title
    assert next(iter(tvl1_report.tables({"cases": [{**case, "commit": "abc"}]})))[0] == f"{title}; commit abc"
    assert table[1] == ["fullfield float32", "640² (19.0 ms, 300 W)", ""]
    assert table[-1][0] == "float16, published"


def test_parts_are_the_same_everywhere() -> None:
    assert bench_tvl1.PARTS == tvl1_gpu.PARTS


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (("--parts", "energy"), "--parts: is for --device cuda"),
        (("--tables", "x.md"), "--tables: is for --device cuda"),
        (("--device", "cuda", "--large", "a.png", "b.png"), "large"),
        (("--device", "cuda", "--tables", "x.txt"), "--tables takes .md"),
        (("--device", "cuda", "--plots", str(tmp_path / "none")), "--plots"),
        (("--device", "abacus"), "--device"),
    ):
        assert main(["tvl1", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert word in captured.err, captured.err


def test_what_cannot_be_done_is_said_before_anything_is_measured(
    on_cpu: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tvl1_gpu, "cases", lambda *_: pytest.fail("nothing is to be measured"))
    assert on_cpu("--device", "cpu:3") == 2
    assert "--device: expected cpu, cuda, cuda:1, ..., got cpu:3" in capsys.readouterr().err
    assert on_cpu("--presets", tmp_path / "none") == 2
    assert "--presets: folder" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert on_cpu("--plots", tmp_path) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
