"""The correlation benchmark: what is looked up, who takes part, and that no wrong result gets a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import harness as run
from benchmarks.bench import failed, measure
from benchmarks.cases.correlation import contenders, volume
from benchmarks.cases.correlation import measure as correlation
from benchmarks.cases.correlation import positions as lookups
from benchmarks.cases.correlation.analysis import recorded_positions
from benchmarks.cases.correlation.contenders import Contender, Problem
from benchmarks.cases.correlation.measure import Entrant, Inputs, Plan, Truth
from benchmarks.cases.correlation.positions import Scene, coherence
from benchmarks.cases.correlation.recorded import RECORDED, between, load_recorded, resized
from benchmarks.cases.correlation.report import report
from benchmarks.runner import main
from fullfield import InputError
from fullfield.nn import CorrelationPyramid
from fullfield.ops.correlation import correlation_lookup

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


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    offsets = lookups.smooth((12, 20), 32, seed=3)[list(RECORDED)]
    np.save(tmp_path / "scene.npy", offsets.numpy())
    return tmp_path / "scene.npy"


def test_updates_between_recorded_ones_are_interpolated() -> None:
    recorded = torch.tensor(RECORDED, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 2, 3, 4)
    assert torch.allclose(between(recorded, 32)[:, 0, 0, 0], torch.arange(32.0))
    assert between(recorded, 40)[-1, 0, 0, 0] == 31
    with pytest.raises(InputError, match="updates 0, 1, 2, 4, 8, 12, 20, 31, got one of 5 updates"):
        between(recorded[:5], 8)


@pytest.mark.parametrize("size", [(6, 10), (24, 30)])
def test_offsets_scale_with_the_map(size: tuple[int, int]) -> None:
    offsets = torch.ones(1, 2, 12, 20) * torch.tensor([4.0, 6.0]).view(2, 1, 1)
    found = resized(offsets, size)
    assert found.shape == (1, 2, *size)
    assert torch.allclose(found[0, 0], torch.full(size, 4.0 * size[1] / 20))
    assert torch.allclose(found[0, 1], torch.full(size, 6.0 * size[0] / 12))


def test_positions_of_scenes(recording: Path) -> None:
    device = torch.device("cpu")
    scenes = [Scene("scene", load_recorded(recording)), Scene("smooth"), Scene("random")]
    for scene in scenes:
        coords = scene.positions((24, 40), 3, 2, device)
        assert [tuple(x.shape) for x in coords] == [(2, 2, 24, 40)] * 3
        assert all(x.dtype == torch.float32 and x.is_contiguous() for x in coords)
    smooth, random = (coherence(s.positions((24, 40), 3, 1, device), 2, 2) for s in scenes[1:])
    assert smooth["mean_window"] < random["mean_window"]
    assert 0 < random["inside"] <= 1
    start = scenes[1].positions((24, 40), 1, 1, device)[0]
    assert torch.equal(start, recorded_positions(torch.zeros(1, 2, 24, 40)))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_backend_is_checked_and_timed(backward: bool, channels_last: bool) -> None:
    who = [*contenders.our_contenders(["cpu", "dense", "reference"]), contenders.blocks()]
    (case,) = measured(plan(*who, backward=backward, channels_last=channels_last, batch=2))
    assert not failed([case])
    assert [row["name"] for row in case["rows"]] == ["cpu", "cpu, reuse off", "dense", "reference", "blocks"]
    assert case["checked_pixels"] == 12 * 20
    for row in case["rows"]:
        if row["status"] == "cannot":  # numba may be absent
            continue
        assert row["eager"]["median_s"] > 0
        assert ("prepare" in row) is not backward
        assert 0 <= row["check"]["error"] <= row["check"]["allowed"]


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
def test_sixteen_bits_pass_the_check(out_dtype: torch.dtype) -> None:
    who = contenders.our_contenders(["dense"])
    (case,) = measured(plan(*who, dtype=torch.bfloat16, out_dtype=out_dtype))
    assert not failed([case])
    assert case["out_dtype"] == str(out_dtype).removeprefix("torch.")


@pytest.mark.parametrize("backward", [False, True])
def test_a_wrong_result_gets_no_time(backward: bool) -> None:
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


def test_what_a_result_may_not_be() -> None:
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


def test_too_large_a_volume_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    (dense,) = contenders.our_contenders(["dense"])
    monkeypatch.setattr(contenders, "_free_memory", lambda: 100 << 30)
    for who in (dense, volume.contender()):
        with pytest.raises(run.TooLarge, match=r"the volume takes 61\.2 GiB"):
            who.admit(replace(SMALL, size=(224, 512)))
    with pytest.raises(run.Unsupported, match=r"at most 2\^31 elements at a time; the volume has 1\.3e\+10"):
        contenders._ptlflow_admit(replace(SMALL, size=(224, 512)))

    def exhausted(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 70 GiB")

    def broken(*_: Any) -> Any:
        raise RuntimeError("integer out of range\nmore")

    who = [Contender("large", exhausted, lambda _: None), Contender("broken", broken, lambda _: None, True), dense]
    cases = measured(plan(*who))
    large, failing, fine = cases[0]["rows"]
    assert large["status"] == "out of memory"
    assert (failing["status"], failing["reason"]) == ("failed", "integer out of range")
    assert fine["status"] == "ok"
    assert len(failed(cases)) == 1
    text = "\n".join(report({"cases": cases}))
    assert "OOM" in text
    assert "out of memory: CUDA out of memory" in text


# --- peers


class FakeExtension:
    """alt_cuda_corr's interface in plain PyTorch."""

    @staticmethod
    def _lookup(source: Tensor, level: Tensor, at: Tensor, radius: int) -> Tensor:
        first, second = (x.permute(0, 3, 1, 2) for x in (source, level))
        scale = source.shape[-1] ** 0.5
        return scale * correlation_lookup(first, [second], at[:, 0].permute(0, 3, 1, 2), radius, backend="reference")

    def forward(self, source: Tensor, level: Tensor, at: Tensor, radius: int) -> list[Tensor]:
        assert all(x.is_contiguous() and x.dtype == torch.float32 for x in (source, level, at))
        return [self._lookup(source, level, at, radius)[:, None]]

    def backward(self, source: Tensor, level: Tensor, at: Tensor, grad: Tensor, radius: int) -> list[Tensor]:
        assert grad.is_contiguous()
        with torch.enable_grad():
            first, second = (x.detach().requires_grad_() for x in (source, level))
            out = self._lookup(first, second, at, radius)
            return [*torch.autograd.grad(out, (first, second), grad[:, 0]), torch.zeros_like(at)]


@pytest.mark.parametrize("backward", [False, True])
def test_alt_cuda_corr_is_called_as_it_wants(backward: bool) -> None:
    peer = Contender("alt_cuda_corr", contenders._alt_prepare(FakeExtension()), lambda _: None)
    (case,) = measured(plan(peer, backward=backward))
    assert case["rows"][0]["status"] == "ok", case["rows"][0]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("changes", [{}, {"size": (4, 5)}, {"channels_last": True, "batch": 2}])
def test_the_volume_of_raft(backward: bool, changes: dict[str, Any]) -> None:
    """Levels of side one, too."""
    (case,) = measured(plan(volume.contender(), backward=backward, **changes))
    assert case["rows"][0]["status"] == "ok", case["rows"][0]


def test_a_volume_in_slices_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.randn(2, 2, 8, 7, 10)
    whole = volume.pyramid(first, second, 3)
    monkeypatch.setattr(volume, "SLICE", 13 * 70)  # 13 source pixels of 70, the last slice shorter
    sliced = volume.pyramid(first, second, 3, limit=1000)
    assert [level.shape for level in sliced] == [(140, 1, 7, 10), (140, 1, 3, 5), (140, 1, 1, 2)]
    torch.testing.assert_close(sliced, whole)


@pytest.mark.parametrize("backward", [False, True])
def test_the_volume_of_ptlflow(backward: bool, ptlflow: Any) -> None:  # noqa: ARG001
    peer = contenders.ptlflow_volume()
    assert peer is not None
    (case,) = measured(plan(peer, backward=backward, size=(16, 24)))
    assert case["rows"][0]["status"] == "ok", case["rows"][0]


# --- clocks


def test_a_wrong_replay_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlation, "captured", lambda call: lambda: call() * 2)
    inputs = Inputs.make(SMALL, Scene("smooth"))
    entrant = Entrant(wrong_by(1.0), inputs, Truth.of(inputs, "highest"))
    entrant.enter()
    assert entrant.row["status"] == "ok"
    entrant.capture()
    assert entrant.row["status"] == "check failed"
    assert "graph replay" in entrant.row["reason"]


@gpu
@needs_gpu
def test_graph_replay_events_and_memory() -> None:
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
def test_on_a_gpu(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["correlation", "--sizes", "64x28", "--updates", "3", "--repeats", "2", "--json", *more]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    rows = {row["name"]: row for row in case["rows"]}
    assert rows["dense"]["graph"]["median_s"] > 0
    assert rows["dense"]["peak_bytes"] > 0
    assert rows["dense"]["host_s"] > 0
    assert "has no gradient" in rows["blocks"]["reason"] if more == ["--backward"] else "no_graph" in rows["blocks"]


# --- the verb, its tables and pictures


def test_verb(tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "r.json"
    line = [
        "correlation",
        "--sweep",
        "size",
        "--sizes",
        "20x12",
        "40x24",
        "--channels",
        "32",
        "--updates",
        "2",
    ]
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


def test_a_failed_check_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(contenders, "our_contenders", lambda _: [wrong_by(1.5)])
    line = ["correlation", "--device", "cpu", "--sizes", "20x12", "--channels", "8", "--repeats", "1", "-q"]
    assert main(line) == 1
    captured = capsys.readouterr()
    assert "check failed" in captured.err
    assert "check failed" in captured.out


def test_fused_local_corr_is_called_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    def local_corr(rows: Tensor, level: Tensor, warp: Tensor, mode: str) -> Tensor:
        assert mode == "bilinear"
        height, width = level.shape[1:3]
        grid = 2 * warp / torch.tensor([width, height]) - 1
        sampled = torch.nn.functional.grid_sample(level.permute(0, 3, 1, 2), grid, align_corners=False)
        return torch.einsum("bnc,bcnm->bnm", rows, sampled)

    module = SimpleNamespace(local_corr=local_corr, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "local_corr", module)  # type: ignore[arg-type]
    peer = contenders.fused_local_corr()
    assert peer is not None
    (case,) = measured(plan(peer, batch=2))
    assert case["rows"][0]["status"] == "ok", case["rows"][0]
    (case,) = measured(plan(peer, backward=True))
    assert case["rows"][0]["status"] == "cannot"
