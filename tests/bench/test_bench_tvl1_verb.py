"""``python -m benchmarks tvl1`` on a GPU as a whole, with the stand-ins of ``test_bench_tvl1_gpu``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench_tvl1_gpu import CPU, _stand_ins

from benchmarks.bench import measure
from benchmarks.cases.tvl1 import gpu as tvl1_gpu
from benchmarks.cases.tvl1 import report as tvl1_report
from benchmarks.cases.tvl1 import schedules as tvl1_schedules
from benchmarks.cases.tvl1 import solver as tvl1_solver
from benchmarks.cases.tvl1.cpu import synthetic_pair
from benchmarks.harness import CheckFailed
from benchmarks.runner import main
from fullfield.io import write_flow, write_image

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
