"""The correlation benchmark: what is looked up, who takes part, and that no wrong result gets a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import harness as run
from benchmarks.bench import failed, measure
from benchmarks.cases.correlation import contenders, localcorr, volume
from benchmarks.cases.correlation import measure as correlation
from benchmarks.cases.correlation import positions as lookups
from benchmarks.cases.correlation.contenders import Contender, Problem
from benchmarks.cases.correlation.measure import Inputs, Plan, Truth
from benchmarks.cases.correlation.positions import Scene
from benchmarks.cases.correlation.recorded import RECORDED
from benchmarks.runner import main
from fullfield.nn import CorrelationPyramid

SMALL = Problem((12, 20), updates=2, channels=32, levels=2, radius=2, dtype=torch.float32)
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def quiet(text: str) -> None:
    del text


def measured(plan: Plan) -> list[dict[str, Any]]:
    return measure(correlation.cases(plan, quiet), quiet)


def plan(*who: Contender, **changes: Any) -> Plan:
    problem = replace(SMALL, **changes)
    return Plan(
        problem,
        [Scene("smooth")],
        who or contenders.our_contenders(["reference"]),
        sizes=[problem.size],
        updates=[problem.updates],
        channels=[problem.channels],
        repeats=1,
    )


def wrong_by(factor: float, name: str = "wrong", ours: bool = True) -> Contender:
    def prepare(problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Callable[[Tensor], Tensor]:
        right = CorrelationPyramid(fmap1, fmap2, problem.levels, problem.radius, backend="reference")
        return lambda coords: right(coords) * factor

    return Contender(name, prepare, lambda _: None, ours)


def test_positions_are_rounded_for_everybody() -> None:
    problem = replace(SMALL, position_dtype=torch.float16)
    rounded, exact = (Inputs.make(each, Scene("smooth")).coords[1] for each in (problem, SMALL))
    assert torch.equal(rounded, exact.half().float())
    assert not torch.equal(rounded, exact)
    (case,) = measured(plan(position_dtype=torch.float16))
    assert case["position_dtype"] == "float16"
    assert not failed([case])


def test_correlation_measures_selected_peers(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "correlation --device cpu --sizes 20x12 --channels 32 --levels 2 --radius 2 --updates 1 --repeats 1 --json -q"
    )
    assert main([*line.split(), "--backends", "reference", "--peers", "volume", "--position-dtype", "float16"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert [row["name"] for row in case["rows"]] == ["reference", volume.NAME]


def test_localcorr_in_triton_needs_the_package_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "localcorr.blocks", None)
    assert localcorr.triton_contender() is None
    monkeypatch.setitem(sys.modules, "localcorr.blocks", ModuleType("localcorr.blocks"))
    monkeypatch.setitem(sys.modules, "localcorr", ModuleType("localcorr"))
    contender = localcorr.triton_contender()
    assert contender is not None
    (case,) = measured(plan(contender))
    assert case["rows"][0]["reason"] == "runs on CUDA, the features are on cpu"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    offsets = lookups.smooth((12, 20), 32, seed=3)[list(RECORDED)]
    np.save(tmp_path / "scene.npy", offsets.numpy())
    return tmp_path / "scene.npy"


@pytest.mark.parametrize(("backward", "channels_last"), [(False, True), (True, False)])
def test_correlation_checks_and_times_every_backend(backward: bool, channels_last: bool) -> None:
    who = [*contenders.our_contenders(["cpu", "dense", "reference"]), contenders.blocks(), volume.contender()]
    (case,) = measured(plan(*who, backward=backward, channels_last=channels_last, batch=2))
    assert not failed([case])
    names = ["cpu", "dense", "reference", "blocks", volume.NAME]
    assert [row["name"] for row in case["rows"]] == names
    assert case["checked_pixels"] == 12 * 20
    for row in case["rows"]:
        if row["status"] == "cannot":  # numba may be absent
            continue
        assert row["eager"]["median_s"] > 0
        assert ("prepare" in row) is not backward
        assert 0 <= row["check"]["error"] <= row["check"]["allowed"]


@pytest.mark.parametrize("backward", [False, True])
def test_correlation_gives_no_time_to_wrong_result(backward: bool) -> None:
    (case,) = measured(plan(wrong_by(1.0, "right"), wrong_by(1.001), backward=backward))
    right, wrong = case["rows"]
    assert "eager" in right
    assert wrong["status"] == "check failed"
    assert "off by" in wrong["reason"]
    assert "eager" not in wrong
    (problem,) = failed([case])
    assert "wrong: " in problem
    peer = measured(plan(wrong_by(1.001, ours=False)))
    assert peer[0]["rows"][0]["status"] == "check failed"
    assert not failed(peer)


def test_truth_check_names_difference() -> None:
    inputs = Inputs.make(SMALL, Scene("smooth"))
    truth = Truth.of(inputs, "highest")
    (who,) = contenders.our_contenders(["reference"])
    right = inputs.forward(who)
    assert truth.of_lookup(right, SMALL, 1.0)[0] is None
    for out, complaint in (
        (right[:, 1:], "gave float32"),
        (right.double(), "gave float64"),
        (right.contiguous(memory_format=torch.channels_last), "another layout"),
        (torch.full_like(right, float("nan")), "NaN"),
        (right.roll(1, 1), "off by"),
    ):
        assert complaint in str(truth.of_lookup(out, SMALL, 1.0)[0])


# --- clocks


@gpu
@needs_gpu
def test_harness_captured_and_peak_bytes_match_known_values() -> None:
    source = torch.ones(1 << 20, device="cuda")
    replay = run.captured(lambda: source * 2)
    source.fill_(3)
    assert float(replay()[0]) == 6
    assert run.event_clock(replay) > 0
    assert run.peak_bytes(lambda: source * 2) == 4 << 20
    with pytest.raises(RuntimeError):
        run.captured(lambda: source.nonzero())


@gpu
@needs_gpu
@pytest.mark.parametrize("more", [[], ["--backward"], ["--out-dtype", "float16", "--layout", "channels-last"]])
def test_correlation_command_on_gpu_reports_times_and_memory(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["correlation", "--sizes", "64x28", "--updates", "3", "--repeats", "2", "--json", *more]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    rows = {row["name"]: row for row in case["rows"]}
    assert rows["dense"]["graph"]["median_s"] > 0
    assert rows["dense"]["peak_bytes"] > 0
    assert rows["dense"]["host_s"] > 0
    assert "has no gradient" in rows["blocks"]["reason"] if more == ["--backward"] else "no_graph" in rows["blocks"]


# --- the verb, its tables and pictures


def test_correlation_command_writes_results_and_figures(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "r.json"
    line = ["correlation", "--sweep", "size", "--sizes", "20x12", "40x24", "--channels", "32", "--updates", "2"]
    line += ["--repeats", "2", "--backends", "dense", "reference", "--device", "cpu", "--lookups", str(recording)]
    assert main([*line, "-o", str(out), "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    stored = json.loads(out.read_text())
    assert printed["cases"] == stored["cases"]
    assert [case["value"] for case in stored["cases"]] == [20, 40]
    assert stored["cases"][0]["lookups"].keys() == {"mean_window", "inside"}
    assert stored["environment"]["versions"]["torch"] == torch.__version__
    assert main([*line, "--plots", str(tmp_path), "--compare", str(out)]) == 0
    captured = capsys.readouterr()
    assert "Share of the eager runtime by step" in captured.out
    assert (tmp_path / "figure5_size.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure10_hardware.png").is_file()


def test_correlation_command_exits_1_after_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contenders, "our_contenders", lambda _: [wrong_by(1.5)])
    line = ["correlation", "--device", "cpu", "--sizes", "20x12", "--channels", "8", "--repeats", "1", "-q"]
    assert main(line) == 1
    captured = capsys.readouterr()
    assert "check failed" in captured.err
    assert "check failed" in captured.out
