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
from benchmarks.cases.correlation import contenders, localcorr, report, steps, volume, voting
from benchmarks.cases.correlation import measure as correlation
from benchmarks.cases.correlation import positions as lookups
from benchmarks.cases.correlation.contenders import Contender, Problem
from benchmarks.cases.correlation.measure import Inputs, Plan, Truth
from benchmarks.cases.correlation.positions import Scene
from benchmarks.cases.correlation.recorded import RECORDED
from benchmarks.paper import published
from benchmarks.runner import main
from fullfield._kernels.nvrtc import KernelSource
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


# --- kernels cut off after their steps


def test_correlation_does_not_compare_results_of_cut_kernels() -> None:
    whole = replace(wrong_by(1.0), name="kernel: whole")
    (case,) = measured(plan(replace(wrong_by(2.0), name="kernel: first", is_cut=True), whole))
    cut, complete = case["rows"]
    assert cut["status"] == complete["status"] == "ok"
    assert "check" not in cut
    assert cut["eager"]["median_s"] > 0
    assert "check" in complete
    assert "steps left out" in "\n".join(report.report({"cases": [case]}))


def test_shares_by_step_are_differences_of_cut_kernels() -> None:
    rows = [
        {"name": f"{kernel}: {step}", "graph": {"median_s": seconds}}
        for kernel in ("ours", "theirs")
        for step, seconds in (("first", 0.001), ("second", 0.003), ("third", 0.004))
    ]
    case = {"label": "small", "rows": [*rows, {"name": "cuda", "graph": {"median_s": 1.0}}]}
    shares = report.shares_by_step(case)
    assert list(shares) == ["ours", "theirs"]
    assert shares["ours"][0] == pytest.approx({"first": 0.25, "second": 0.5, "third": 0.25})
    assert shares["ours"][1] == 0.004
    assert report.steps_of(case)[0] == "small, ours, 4.000 ms: first 25.0 %, second 50.0 %, third 25.0 %"
    del rows[1]["graph"]
    assert list(report.shares_by_step(case)) == ["theirs"]


def test_steps_have_names_of_the_published_table() -> None:
    assert [line["step"] for line in published.rows("4")] == [*voting.STEPS, "Total"]
    names = [contender.name for contender in steps.contenders_by_step()]
    assert names == [f"{voting.NAME}: {step}" for step in voting.STEPS] + [
        f"{steps.NAME}: {step}" for step in steps.STEPS
    ]
    assert [contender.name for contender in steps.contenders_by_step() if not contender.is_cut] == [names[4], names[-1]]


def test_source_without_the_place_of_a_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="once in the lookup's source, got it 0 times"):
        steps.cut_source(KernelSource("another kernel"), 1)


@gpu
@needs_gpu
def test_correlation_command_times_steps_on_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["correlation", "--steps", "--sizes", "64x28", "--updates", "3", "--repeats", "2", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    rows = {row["name"]: row for row in case["rows"]}
    assert len(rows) == len(voting.STEPS) + len(steps.STEPS)
    whole = rows[f"{voting.NAME}: {voting.STEPS[-1]}"]
    assert 0 <= whole["check"]["error"] <= whole["check"]["allowed"]
    if torch.cuda.get_device_capability()[0] == 9:
        assert {row["status"] for row in rows.values()} == {"ok"}
        assert "check" in rows[f"{steps.NAME}: {steps.STEPS[-1]}"]
        assert list(report.shares_by_step(case)) == [voting.NAME, steps.NAME]


@gpu
@needs_gpu
def test_voting_kernel_stores_nothing_before_its_last_step() -> None:
    problem = replace(SMALL, channels=64, dtype=torch.bfloat16, device=torch.device("cuda"))
    inputs = Inputs.make(problem, Scene("smooth"))
    *cut, whole = voting.contenders_by_step()
    assert not any(bool(inputs.forward(contender).any()) for contender in cut)
    assert Truth.of(inputs, "highest").of_lookup(inputs.forward(whole), problem, 1.0)[0] is None


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


def test_hash_of_raft_extension_names_its_sources(tmp_path: Path) -> None:
    from benchmarks.cases.correlation.alt_cuda_corr import SOURCES, hash_alt_cuda_corr

    folder = tmp_path / "alt_cuda_corr"
    folder.mkdir()
    for name in SOURCES:
        (folder / name).write_text("x.is_cuda()")
    digest = hash_alt_cuda_corr(tmp_path)
    (folder / SOURCES[0]).write_text("x.type().is_cuda()")  # adapted before it is compiled
    assert hash_alt_cuda_corr(folder) == digest
    (folder / SOURCES[1]).write_text("x.is_cuda() && true")
    assert hash_alt_cuda_corr(folder) != digest


def test_raft_extension_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.cases.correlation import alt_cuda_corr

    compiled: list[str] = []

    def compile_sources(sources: dict[str, str], *_: object) -> tuple[str, bytes]:
        compiled.append(sources[alt_cuda_corr.SOURCES[0]])
        return "compiled", b"library"

    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(alt_cuda_corr, "_compile", compile_sources)
    monkeypatch.setattr(alt_cuda_corr, "_load_library", lambda path: path.read_bytes())
    for name in alt_cuda_corr.SOURCES:
        (tmp_path / name).write_text("1")
    results = [alt_cuda_corr.alt_cuda_corr_extension(tmp_path, lambda _: None) for _ in range(2)]
    assert results == ["compiled", b"library"]
    (tmp_path / alt_cuda_corr.SOURCES[0]).write_text("2")
    assert alt_cuda_corr.alt_cuda_corr_extension(tmp_path, lambda _: None) == "compiled"
    assert compiled == ["1", "2"]
