"""The benchmark of networks: everybody gets the same, and no wrong result gets a time."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.bench import failed, measure
from benchmarks.cases.networks import models, peers
from benchmarks.cases.networks.forms import PEER_FORMS, PeerForm
from benchmarks.cases.networks.models import Entry, Plan
from benchmarks.harness import TooLarge, Unsupported, limit_seconds
from benchmarks.runner import main
from fullfield.io import write_flow, write_image
from fullfield.models import RAFT
from fullfield.models.prepared import choose_cpu_dtype
from fullfield.models.weights import NETWORKS, WEIGHTS, build_random_model, find_local_weights
from fullfield.testing import sample_textured_scene

SIZE = (64, 96)
CPU = torch.device("cpu")


def quiet(_: object) -> None:
    pass


def plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {"updates": (1,), "repeats": 1, "peers": False, **changes}
    return Plan(("raft-small",), (SIZE,), CPU, **settings)


def measured(plan: Plan, note: Any, keep: Any = quiet) -> list[dict[str, Any]]:
    return measure(models.cases(plan, note), note, keep)


def rows(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in case["rows"]}


def test_models_checks_and_times_every_form() -> None:
    seen: list[int] = []
    (case,) = measured(plan(cascade=True), quiet, lambda cases: seen.append(len(cases)))
    assert seen == [1]
    found = rows(case)
    assert list(found) == ["fast", "module", "fast, cascaded", "module, cascaded"]
    for name, row in found.items():
        assert row["status"] == "ok"
        half = "fast" in name and choose_cpu_dtype() == torch.bfloat16
        assert row["check"]["error"] < (models.ALLOWED if half else 1e-4)
        assert row["median_s"] > 0
    assert found["module"]["from_module_px"] == found["module"]["from_module_over_1px"] == 0
    assert found["module, cascaded"]["from_cascaded_module_px"] == 0
    flows = [torch.full((1, 2, 1, 2), value) * torch.tensor([3.0, 4.0]).view(1, 2, 1, 1) for value in (0.0, 1.0)]
    truth = models.Truth(flows[0], {}, None, flows[1])
    expected = {"from_module_px": 5.0, "from_module_over_1px": 1.0, "from_cascaded_module_px": 0.0}
    assert truth.describe_differences(flows[1]) == expected
    expected = {"from_module_px": 0.0, "from_module_over_1px": 0.0, "from_cascaded_module_px": 5.0}
    assert truth.describe_differences(flows[0]) == expected
    assert models.Truth(None, {}, None).describe_differences(flows[0]) == {}
    assert case["weights"] == "random"
    assert 0 < case["lookups"]["inside"] <= 1
    text = "\n".join(models.report({"cases": [case]}))
    assert "raft-small 96×64, 1 updates, random weights, made up frames, on cpu" in text
    assert "px from the module" in text


def test_models_gives_no_time_to_wrong_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: models.Network) -> models.Flow:
        return lambda first, second, updates: 1.1 * model(first, second, updates=updates)

    def large(_: models.Network) -> models.Flow:
        raise TooLarge("no room")

    def broken(_: models.Network) -> models.Flow:
        raise RuntimeError("broken\nfor a reason")

    def who(_plan: Plan, _method: str, model: models.Network, _size: object, _note: object) -> list[Entry]:
        makers = {"wrong": wrong, "large": large, "broken": broken}
        return [Entry(name, name != "large", partial(make, model)) for name, make in makers.items()]

    monkeypatch.setattr(models, "entries", who)
    cases = measured(plan(), quiet, quiet)
    found = rows(cases[0])
    assert {name: row["status"] for name, row in found.items()} == {
        "wrong": "check failed",
        "large": "out of memory",
        "broken": "failed",
    }
    assert not any("median_s" in row for row in found.values())
    assert len(failed(cases)) == 2
    assert "the flow is off by 10 %, allowed 2 %" in failed(cases)[0]


class StandIn(RAFT):
    """Network of ours that is called as those of ptlflow."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        first, second = inputs["images"].flip(2).unbind(1)
        return {"flows": RAFT.forward(self, first, second, updates=self.iters)[:, None]}


def stand_in(_: str) -> Any:
    peer = build_random_model(NETWORKS["raft-small"])
    peer.__class__ = StandIn
    return peer


def test_models_runs_every_form_of_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[dict[str, Any]] = []

    def keep_eager(model: Any, **options: Any) -> Any:
        compiled.append(options)
        return model

    monkeypatch.setattr(models, "load_peer", stand_in)
    monkeypatch.setattr(torch, "compile", keep_eager)
    forms = tuple(PEER_FORMS)
    (case,) = measured(plan(peers=True, forms=("module", "module-compiled"), peer_forms=forms), quiet)
    found = rows(case)
    names = [PEER_FORMS[form].name for form in forms]
    assert list(found) == ["module", "module, compiled", *names]
    for name, row in found.items():
        if "localcorr" in name:
            assert (row["status"], row["reason"]) == ("cannot", "needs localcorr: pip install localcorr")
            continue
        assert row["status"] == "ok"
        assert row["check"]["error"] < (models.ALLOWED if "half" in name else 1e-4)
        assert row["median_s"] > 0
    assert compiled == [{"mode": "reduce-overhead", "dynamic": False}] * 3


def test_models_runs_the_extension_in_the_selected_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(peer: Any, extension: object, form: PeerForm) -> models.Flow:
        del extension
        return peers._run_form(peer, form)

    monkeypatch.setattr(models, "load_peer", stand_in)
    monkeypatch.setattr(models, "build_extension_flow", build)
    extended = {"peers": True, "forms": ("module",), "peer_forms": (), "extension": object()}
    (case,) = measured(plan(**extended), quiet)
    assert list(rows(case)) == ["module", "ptlflow, alt_cuda_corr", "ptlflow, alt_cuda_corr, half"]
    (case,) = measured(plan(**extended, extension_forms=("float32",)), quiet)
    assert list(rows(case)) == ["module", "ptlflow, alt_cuda_corr"]


def test_peer_form_with_localcorr_replaces_the_block_during_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[str] = []

    def build(fmap1: torch.Tensor, fmap2: torch.Tensor, *, num_levels: int, radius: int, corr_mode: str) -> None:
        del fmap1, fmap2, num_levels, radius
        blocks.append(corr_mode)

    class Network(torch.nn.Module):
        def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            images = inputs["images"]
            get_corr_block(fmap1=images, fmap2=images, radius=3, num_levels=4, alternate_corr=False)
            return {"flows": images[:, :, :2]}

    package = SimpleNamespace(get_localcorr_block=build, get_cuda_pyramid_library=lambda: None)
    monkeypatch.setitem(sys.modules, "localcorr", SimpleNamespace(blocks=package))
    monkeypatch.setitem(sys.modules, "localcorr.blocks", package)
    flow = peers.build_peer_flow(Network(), PEER_FORMS["localcorr-triton"], SIZE)
    frame = torch.zeros(1, 3, *SIZE)
    assert flow(frame, frame, 1).shape == (1, 2, *SIZE)
    assert blocks == ["localcorr_triton"]
    with pytest.raises(ValueError, match="own block"):
        get_corr_block()
    with pytest.raises(Unsupported, match="compiled library"):
        peers.build_peer_flow(Network(), PEER_FORMS["localcorr"], SIZE)


def get_corr_block(**_: object) -> None:
    raise ValueError("the network's own block")


def test_models_gives_up_a_form_that_compiles_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: models.Network) -> models.Flow:
        time.sleep(5)
        raise RuntimeError("slept to the end")

    def who(_plan: Plan, _method: str, model: models.Network, _size: object, _note: object) -> list[Entry]:
        return [Entry("slow, compiled", False, partial(slow, model), compiled=True)]

    monkeypatch.setattr(models, "entries", who)
    (case,) = measured(plan(compile_seconds=0.05), quiet)
    assert rows(case)["slow, compiled"]["reason"] == "its first call took more than 0.05 s"
    with limit_seconds(None, "nothing"):
        pass


def test_models_reports_error_with_time() -> None:
    scene = sample_textured_scene(64, 96)
    known = scene.flow.clone()
    known[:, :8] = torch.nan
    pair = scene.frame1, scene.frame2
    (case,) = measured(plan(forms=("module",), pair=pair, true_flow=known), quiet)
    true_px = float(scene.flow[:, 8:].norm(dim=0).mean())
    assert case["true_flow_px"] == pytest.approx(true_px, rel=1e-4)
    row = rows(case)["module"]
    assert 0 < row["epe_median_px"] <= row["epe_px"] < 100
    errors = models.describe_errors(torch.tensor([3.0, 0.5, 0, 9]).view(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
    assert errors == {"epe_px": 3.125, "epe_median_px": 0.5, "epe_over_1px": 0.5}
    errors = models.describe_errors(torch.ones(1, 1, 1, 2), torch.tensor([0.0, torch.nan]).view(1, 1, 1, 2))
    assert errors == {"epe_px": 1.0, "epe_median_px": 1.0, "epe_over_1px": 0.0}
    large = models.resized_flow(scene.flow, (128, 288), torch.device("cpu"))
    assert float(large[0, 0].mean()) == pytest.approx(3 * float(scene.flow[0].mean()), rel=0.01)
    assert float(large[0, 1].mean()) == pytest.approx(2 * float(scene.flow[1].mean()), rel=0.01)


def test_models_command_writes_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    asked = ["models", "--methods", "raft-small", "fullfield-s", "--sizes", "96x64", "--updates", "2", "1"]
    asked += ["--repeats", "1", "--forms", "module"]
    assert main([*asked, "--device", "cpu", "--no-peers", "--json", "-q", "-o", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    stored = json.loads(out.read_text())
    assert printed["cases"] == stored["cases"]
    described_cases = [(case["method"], case["updates"], case["weights"]) for case in printed["cases"]]
    assert described_cases == [("raft-small", 2, "random"), ("fullfield-s", 1, "given")]
    assert stored["environment"]["versions"]["torch"] == torch.__version__


def test_models_command_names_option_of_weights_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["models", "--methods", "raft", "--sizes", "96x64", "--updates", "1", "--device", "cpu", "--no-peers"]
    assert main([*command, "--weights", f"raft={find_local_weights(WEIGHTS['fullfield-s'])}"]) == 2
    assert "--weights: raft: state dict: expected weights of RAFT; it looks like" in capsys.readouterr().err


def test_models_command_reads_true_flow_of_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = sample_textured_scene(64, 96)
    pair = [tmp_path / f"{name}.png" for name in "ab"]
    for path, frame in zip(pair, (scene.frame1, scene.frame2), strict=True):
        write_image(path, frame)
    write_flow(tmp_path / "truth.flo", scene.flow)
    command = ["models", "--methods", "raft-small", "--sizes", "96x64", "--updates", "1", "--repeats", "1"]
    command += ["--forms", "module", "--device", "cpu", "--no-peers", "--json", "-q"]
    assert main([*command, "--truth", str(tmp_path / "truth.flo")]) == 2
    assert "--truth: is of the frames of --pair" in capsys.readouterr().err
    assert main([*command, "--pair", *map(str, pair), "--truth", str(tmp_path / "truth.flo")]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert case["true_flow_px"] > 0
    assert rows(case)["module"]["epe_px"] > 0
    write_flow(tmp_path / "four.flo", scene.flow.repeat_interleave(2, 1).repeat_interleave(2, 2))
    assert main([*command, "--pair", *map(str, pair), "--truth", str(tmp_path / "four.flo")]) == 0
    (of_four_values,) = json.loads(capsys.readouterr().out)["cases"]
    assert of_four_values["true_flow_px"] == pytest.approx(case["true_flow_px"])
