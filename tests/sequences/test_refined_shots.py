"""Shots with ``refine``: as single pairs, each way estimated once, and a run that goes on from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sequence_shots import QUICK, moving, quick
from torch import Tensor

from fullfield import estimate, estimate_sequence
from fullfield.cli.main import main
from fullfield.estimators import NetworkEstimator, RefinedEstimator, TVL1Estimator
from fullfield.estimators.network_config import NetworkSettings
from fullfield.io import read_flow
from fullfield.sequences import ShotSettings, open_plates


class Counting(TVL1Estimator):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(quick().config)
        self.calls = 0

    def __call__(self, frame1: Tensor, frame2: Tensor, **more: Any) -> Tensor:
        self.calls += 1
        return super().__call__(frame1, frame2, **more)


@pytest.mark.parametrize("wrap", [lambda estimator: estimator, RefinedEstimator], ids=["setting", "estimator"])
@pytest.mark.parametrize(("direction", "calls"), [("both", 6), ("forward", 6), ("backward", 6)])
def test_refined_shot_equals_single_pairs(wrap: Callable[[Any], Any], direction: str, calls: int) -> None:
    frames, counting = moving(4), Counting()
    estimator = wrap(counting)
    settings = ShotSettings(direction, occlusion=True, refine=estimator is counting)
    found = list(estimate_sequence(frames, estimator, settings=settings))
    assert counting.calls == calls, "every pair once each way"
    for index, flows in enumerate(found):
        for flow, other in ((flows.forward, index + 1), (flows.backward, index - 1)):
            if flow is None:
                continue
            alone = estimate(frames[index], frames[other], quick(), refine=True, reliability=True)
            assert torch.equal(flow.flow, alone.flow)
            assert flow.method == "tvl1"
            assert flow.parameters["refinement"]["rounds"] == 2
            assert torch.equal(flows.occlusion["forward" if other > index else "backward"], alone.occlusion)
    assert found[1].problems == ()


def test_refined_shot_bad_plate_fails_only_its_pairs() -> None:
    frames = moving(5)
    frames[2] = torch.full_like(frames[2], torch.nan)
    found = list(estimate_sequence(frames, quick(), settings=ShotSettings("both", refine=True)))
    assert [flows.forward is not None for flows in found] == [True, False, False, True, False]
    assert [flows.backward is not None for flows in found] == [False, True, False, False, True]


def test_refined_shot_continues_from_files(
    shot: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shot)
    command = ["shot", "plate.%04d.png", *QUICK, "--refine", "--warm-start", "--direction", "both", "--json", "-q"]
    for folder in ("whole", "parts"):
        Path(folder).mkdir()
        assert main([*command, "-o", f"{folder}/mv.%04d.exr", "--frames", "11-15"]) == 0
    assert '"refined": true' in capsys.readouterr().out
    for number in (14, 15):
        Path(f"parts/mv.00{number}.exr").unlink()
    assert main([*command, "-o", "parts/mv.%04d.exr", "--frames", "11-15"]) == 0
    for number in range(11, 16):
        for layer in ("forward", "backward"):
            one, other = (read_flow(f"{folder}/mv.00{number}.exr", layer=layer).flow for folder in ("whole", "parts"))
            assert torch.equal(one, other), (number, layer)
    without = [part for part in command if part != "--refine"]
    assert main([*without, "-o", "parts/mv.%04d.exr", "--frames", "11-16"]) == 2
    assert "refinement" in capsys.readouterr().err


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every call of ``NetworkEstimator.bidirectional``."""
    asked: list[int] = []
    real = NetworkEstimator.bidirectional

    def counted(self: NetworkEstimator, *pair: Tensor, **more: Any) -> Any:
        asked.append(1)
        return real(self, *pair, **more)

    monkeypatch.setattr(NetworkEstimator, "bidirectional", counted)
    return asked


@pytest.mark.parametrize("direction", ["both", "backward"])
def test_refined_shot_runs_network_once_for_both_directions(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = moving(3)
    network = NetworkEstimator("fullfield-s", NetworkSettings(updates=1))
    asked = counted_calls(monkeypatch)
    monkeypatch.setattr(NetworkEstimator, "__call__", lambda *_, **__: pytest.fail("asked one way"))
    settings = ShotSettings(direction, refine=True, confidence=True)
    found = list(estimate_sequence(frames, network, settings=settings))
    assert len(asked) == 2
    monkeypatch.undo()
    alone = estimate(frames[1], frames[0], network, refine=True, reliability=True)
    assert alone.confidence is not None
    torch.testing.assert_close(found[1].backward.flow, alone.flow, atol=1e-3, rtol=0)
    torch.testing.assert_close(found[1].confidence["backward"], alone.confidence, atol=1e-2, rtol=0)
    part = list(estimate_sequence(open_plates(frames, "2"), network, settings=settings))
    assert torch.equal(part[0].backward.flow, found[1].backward.flow)


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["network", "refined elsewhere"])
def test_shot_direction_both_runs_network_once_per_pair(is_wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = moving(5)
    network = NetworkEstimator("fullfield-s", NetworkSettings(updates=1))
    estimator = RefinedEstimator(network, refine=False) if is_wrapped else network  # as "auto", fast, on a CPU
    asked = counted_calls(monkeypatch)
    with monkeypatch.context() as only:
        only.setattr(NetworkEstimator, "__call__", lambda *_, **__: pytest.fail("asked one way"))
        found = list(estimate_sequence(frames, estimator, direction="both"))
        assert len(asked) == 4
        part = list(estimate_sequence(open_plates(frames, "2,4"), network, direction="both"))
    for flows in part:
        whole = found[flows.number - 1]
        for flow, same, other in (
            (flows.forward, whole.forward, flows.number + 1),
            (flows.backward, whole.backward, flows.number - 1),
        ):
            assert torch.equal(flow.flow, same.flow)
            alone = estimate(frames[flows.number - 1], frames[other - 1], network)
            torch.testing.assert_close(flow.flow, alone.flow, atol=1e-3, rtol=0)
    asked.clear()
    started = NetworkEstimator("fullfield-s", NetworkSettings(updates=0))  # which has no such call
    assert all(f.problems == () for f in estimate_sequence(frames[:3], started, direction="both"))
    assert len(asked) == 1
