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
from benchmarks.cases.correlation.alt_cuda_corr import alt_cuda_corr_sources
from benchmarks.cases.correlation.analysis import read_shares, recorded_positions, sampling_matrix
from benchmarks.cases.correlation.contenders import Contender, Problem
from benchmarks.cases.correlation.measure import Entrant, Inputs, Plan, Truth
from benchmarks.cases.correlation.plots import draw
from benchmarks.cases.correlation.positions import Scene, coherence
from benchmarks.cases.correlation.recorded import RECORDED, between, load_recorded, resized
from benchmarks.cases.correlation.report import report, table10
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


def test_updates_that_are_all_recorded_are_taken_as_they_are() -> None:
    recorded = torch.arange(9.0).square().view(-1, 1, 1, 1).expand(-1, 2, 3, 4)
    found = lookups.Scene("all", recorded).positions((3, 4), 7, 2, torch.device("cpu"))
    assert [float(at[1, 0, 0, 0]) for at in found] == [update**2 for update in range(7)]


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


def test_gradient_of_the_second_map_is_checked() -> None:
    problem = replace(SMALL, backward=True)
    inputs = Inputs.make(problem, Scene("smooth"))
    truth = Truth.of(inputs, "highest")
    (who,) = contenders.our_contenders(["reference"])
    before = inputs.grad_out.clone() if inputs.grad_out is not None else None
    with inputs.only_at(truth.pixels):
        first, second = inputs.backward(who)
    assert before is not None
    assert inputs.grad_out is not None
    assert torch.equal(inputs.grad_out, before)
    assert truth.of_gradients((first, second), 1.0)[0] is None
    assert "gradient of fmap1" in str(truth.of_gradients((first * 1.01, second), 1.0)[0])
    assert "gradient of fmap2" in str(truth.of_gradients((first, second * 1.01), 1.0)[0])


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


def test_one_after_another_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, bool]] = []

    def timed(entrants: Any, _: Any, __: Any, graphs: bool = True) -> None:
        tried.append((len(entrants), graphs))
        if len(entrants) > 1 or (graphs and entrants[0].contender.name == "b"):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(correlation, "_timed", timed)
    inputs = Inputs.make(SMALL, Scene("smooth"))
    truth = Truth.of(inputs, "highest")
    entrants = [Entrant(wrong_by(1.0, name), inputs, truth) for name in "ab"]
    correlation._time(entrants, plan(), quiet)
    assert tried == [(2, True), (1, True), (1, True), (1, False)]
    assert "no_graph" not in entrants[0].row
    assert entrants[1].row["no_graph"] == "out of memory"


def test_no_graph_of_what_takes_most_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlation, "_memory_of", lambda _: 100)
    monkeypatch.setattr(correlation, "captured", lambda work: work)
    inputs = Inputs.make(SMALL, Scene("smooth"))
    entrant = Entrant(wrong_by(1.0), inputs, Truth.of(inputs, "highest"))
    for peak, captured in ((51, False), (50, True)):
        entrant.row["peak_bytes"] = peak
        entrant.capture()
        assert (entrant.replay is not None, "no_graph" not in entrant.row) == (captured, captured)
        entrant.row.pop("no_graph", None)


def test_precision_is_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    measured(replace(plan(), precision="medium"))
    assert torch.get_float32_matmul_precision() == before


def test_sweeps_vary_one_thing() -> None:
    base = plan()
    for sweep, name in (("updates", "updates"), ("channels", "channels")):
        varied = replace(base, sweep=sweep, **{name: [1, 4]})
        assert [(v, n, getattr(p, name)) for v, n, p in varied.problems()] == [(name, 1, 1), (name, 4, 4)]
    sizes = replace(base, sweep="size", sizes=[(14, 32), (28, 64)])
    assert [n for _, n, _ in sizes.problems()] == [32, 64]
    values = correlation.default_values(torch.device("cuda"), "size")
    assert values["sizes"][0] == (14, 32)
    assert values["sizes"][-1] == (896, 2048)
    assert correlation.default_values(torch.device("cuda"), "updates")["updates"] == [1, 8, 16, 24, 32]
    assert correlation.default_values(torch.device("cuda"), "channels")["channels"] == [64, 128, 256, 512, 1024]


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


def test_alt_cuda_corr_sources(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected correlation\.cpp and correlation_kernel\.cu"):
        alt_cuda_corr_sources(tmp_path)
    folder = tmp_path / "alt_cuda_corr"
    folder.mkdir()
    old = '#define CHECK_CUDA(x) TORCH_CHECK(x.type().is_cuda(), #x " must be a CUDA tensor")\n'
    (folder / "correlation.cpp").write_text(old)
    (folder / "correlation_kernel.cu").write_text("// kernel\n")
    for given in (tmp_path, folder):
        sources = alt_cuda_corr_sources(given)
        assert "TORCH_CHECK(x.is_cuda()," in sources["correlation.cpp"]
    assert (folder / "correlation.cpp").read_text() == old
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="needs an NVIDIA GPU"):
            contenders.alt_cuda_corr(folder, quiet)


def test_peers_say_what_they_cannot() -> None:
    for admit, problem in (
        (contenders._alt_admit, SMALL),
        (contenders._fused_admit, replace(SMALL, channels=30)),
        (contenders._fused_admit, replace(SMALL, size=(1, 1))),
        (contenders._ptlflow_admit, replace(SMALL, size=(1, 1))),
    ):
        with pytest.raises(run.Unsupported):
            admit(problem)


# --- clocks


def test_a_slow_candidate_sits_out() -> None:
    ticks = {"slow": 3.0, "fast": 0.1}
    running: list[str] = []
    made = [
        run.Candidate(name, lambda name=name: running.append(name), lambda _: None)  # type: ignore[misc]
        for name in ticks
    ]

    def clock(call: Callable[[], Any]) -> float:
        call()
        return ticks[running[-1]]

    slow, fast = run.interleaved(made, 4, quiet, clock, patience=5.0)
    assert len(slow.seconds) == 2
    assert len(fast.seconds) == 4


def test_issuing_does_not_wait_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))
    seconds = run.issue_seconds([lambda: order.append("call")] * 2, repeats=1)
    assert seconds >= 0
    assert order == ["wait", "call", "call"] * 2 + ["wait"]


@pytest.mark.parametrize("backward", [False, True])
def test_what_is_measured_on_a_gpu(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def captured(call: Callable[[], Any]) -> Callable[[], Any]:
        call()
        return call

    def peak_bytes(call: Callable[[], Any]) -> int:
        call()
        return 5

    def issue_seconds(calls: list[Callable[[], Any]]) -> float:
        return 1e-5 if calls[0]().requires_grad else 1e-6

    monkeypatch.setattr(correlation, "_on_gpu", lambda _: True)
    monkeypatch.setattr(correlation, "event_clock", run.wall_clock)
    for name, fake in (("captured", captured), ("peak_bytes", peak_bytes), ("issue_seconds", issue_seconds)):
        monkeypatch.setattr(correlation, name, fake)
    who = [*contenders.our_contenders(["dense"]), contenders.blocks(), wrong_by(1.0, "peer", ours=False)]
    (case,) = measured(plan(*who, backward=backward))
    dense, blocks, peer = case["rows"]
    assert not failed([case])
    assert {"graph", "eager"} <= dense.keys()
    assert "graph" not in blocks
    assert "has no gradient" in blocks["reason"] if backward else "waits for the device" in blocks["no_graph"]
    assert dense["peak_with_inputs_bytes"] == 5 + case["input_bytes"]
    assert (dense["host_s"], dense["host_with_grad_s"]) == (1e-6, 1e-5)
    assert "host_with_grad_s" not in peer
    assert dense["outputs_bytes"] == 50 * 240 * 4 * (2 if backward else 1)
    assert ("write" in case) is not backward
    assert "graph" in "\n".join(report({"cases": [case]}))


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


def fake_results(variable: str) -> dict[str, Any]:
    def timed(ms: float) -> dict[str, Any]:
        seconds = [ms / 1e3] * 2
        return {"median_s": seconds[0], "min": seconds[0], "max": seconds[0], "seconds": seconds}

    def row(name: str, ms: float, megabytes: float, ours: bool) -> dict[str, Any]:
        memory = {"peak_bytes": megabytes * 1e6, "peak_with_inputs_bytes": megabytes * 1e6}
        ways = {"graph": timed(ms)} if ours else {}
        facts = {"eager": timed(1.1 * ms), "host_s": 2e-5, "check": {"error": 0.1, "allowed": 1.0}}
        return {"name": name, "ours": ours, "status": "ok", **ways, **facts, **memory}

    cases = []
    for value in (256, 512):
        rows = [row("cuda", 5, 400, True), row("alt_cuda_corr", 1000, 700, False)]
        rows.append({"name": "dense", "ours": True, "status": "out of memory", "reason": "70 GiB"})
        form = {"dtype": "bfloat16", "out_dtype": "float32", "layout": "nchw", "precision": "highest"}
        work = {"size": [112, 256], "updates": 32, "batch": 1, "channels": 256, "levels": 4, "radius": 4}
        facts = {"label": "a case", "pass": "forward", "lookups": {"mean_window": 190.0, "inside": 0.9}}
        cases.append({"variable": variable, "value": value, **work, **form, **facts, "rows": rows})
    return {"cases": cases, "environment": {"gpu": "a GPU", "gpu_memory_bytes": 150e9}}


def test_table_of_runtime_and_memory() -> None:
    lines = table10(fake_results("size")["cases"])
    assert "OOM" in lines[2]
    assert "99.5 %" in lines[2]
    assert lines[2].split()[:4] == ["256", "5", "±", "0"]
    assert len({len(line) for line in lines[1:]}) == 1
    text = "\n".join(report(fake_results("size")))
    assert "host 20.0 us a lookup" in text
    assert "peak 400 MB" in text


@pytest.mark.parametrize("variable", ["size", "updates", "channels"])
def test_pictures(variable: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (path,) = draw(fake_results(variable), tmp_path)
    assert path.stat().st_size > 10_000


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "five.npy", np.zeros((5, 2, 4, 4), np.float32))
    (tmp_path / "other.json").write_text('{"bench": "tvl1"}')
    (tmp_path / "broken.json").write_text("{")
    cases = [
        (["--levels", "9"], "--levels"),
        (["--radius", "0"], "--radius"),
        (["--sizes", "12"], "WxH"),
        (["--updates", "1", "2"], "--sweep updates"),
        (["--channels", "32", "64", "--sweep", "size"], "--sweep channels"),
        (["--sizes", "8x8", "9x9", "--sweep", "updates"], "--sizes"),
        (["--lookups", "none.npy"], "none.npy"),
        (["--lookups", str(tmp_path / "five.npy"), "--updates", "6"], "expected the 8 updates"),
        (["--compare", str(tmp_path / "other.json")], "--plots"),
        (["--compare", str(tmp_path / "other.json"), "--plots", str(tmp_path)], "expected results"),
        (["--compare", str(tmp_path / "broken.json"), "--plots", str(tmp_path)], "got something else"),
        (["--plots", str(tmp_path / "none")], "--plots"),
        (["--alt-cuda-corr", str(tmp_path / "none")], "--alt-cuda-corr"),
        (["--alt-cuda-corr", str(tmp_path)], "correlation_kernel.cu"),
        (["--device", "abacus"], "--device"),
        (["--device", "meta"], "--device"),
        (["-o", "r.txt"], ".json"),
        (["--backends", "magic"], "magic"),
    ]
    for arguments, said in cases:
        assert main(["correlation", *arguments]) == 2, arguments
        captured = capsys.readouterr()
        assert captured.out == ""
        last = captured.err.splitlines()[-1]
        assert last.startswith("fullfield: error: ")
        assert said in last
    assert main([]) == 2


def test_a_failed_check_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(contenders, "our_contenders", lambda _: [wrong_by(1.5)])
    line = ["correlation", "--device", "cpu", "--sizes", "20x12", "--channels", "8", "--repeats", "1", "-q"]
    assert main(line) == 1
    captured = capsys.readouterr()
    assert "check failed" in captured.err
    assert "check failed" in captured.out


@pytest.mark.parametrize("layout", ["row-major", "patch-major"])
def test_the_matrix_holds_the_share_of_cells_read(layout: str, recording: Path) -> None:
    offsets = load_recorded(recording)
    (share,) = read_shares(recorded_positions(offsets), 2, blocks=[1])
    matrix = sampling_matrix(offsets, 2, 8, layout)
    assert matrix.shape == (240, 240)
    assert float(matrix.mean()) == pytest.approx(share.share, rel=1e-5)
    coarse = sampling_matrix(offsets, 2, 8, layout, pixels=60)
    assert torch.allclose(coarse, matrix.view(60, 4, 60, 4).mean((1, 3)), atol=1e-6)
