"""The method that chooses."""

from __future__ import annotations

import pytest
import torch

from fullfield import estimate
from fullfield.estimators import RefinedEstimator
from fullfield.estimators.estimation import build
from fullfield.estimators.registry import AUTO_NETWORK, DEFAULT_METHOD
from fullfield.ops.tvl1 import RefinementConfig
from fullfield.testing import textured_scene

SCENE = textured_scene(64, 80, seed=3)
QUICK = {"updates": 1, "weights": "random"}


def test_auto_is_the_network_refined() -> None:
    assert DEFAULT_METHOD == "auto"
    found = estimate(SCENE.frame1, SCENE.frame2, "auto", **QUICK)
    network = build(AUTO_NETWORK, **QUICK)
    thrice = RefinedEstimator(network, RefinementConfig(passes=3, rounds=1))
    expected = estimate(SCENE.frame1, SCENE.frame2, thrice)
    assert torch.equal(found.flow, expected.flow)
    assert found.method == AUTO_NETWORK
    assert (found.parameters["refinement"]["passes"], found.parameters["refinement"]["rounds"]) == (3, 1)
    assert found.stages.keys() == {"bidirectional", "refinement"}


def test_in_a_hurry_on_the_cpu_it_is_the_network_alone() -> None:
    found = estimate(SCENE.frame1, SCENE.frame2, "auto", preset="fast", **QUICK)
    alone = estimate(SCENE.frame1, SCENE.frame2, AUTO_NETWORK, preset="fast", **QUICK)
    assert torch.equal(found.flow, alone.flow)
    assert found.parameters["refinement"] is None
    estimator = build("auto", "fast")
    assert isinstance(estimator, RefinedEstimator)
    assert not estimator.refines(torch.device("cpu"))
    assert estimator.refines(torch.device("cuda"))
    assert estimator.parameters["refinement"] is None, "to ask changes nothing"


def test_who_asks_for_refinement_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.cpu_dtype", lambda: torch.float32)
    found = estimate(SCENE.frame1, SCENE.frame2, "auto", preset="fast", refine=True, **QUICK)
    expected = estimate(SCENE.frame1, SCENE.frame2, AUTO_NETWORK, refine=True, **QUICK)
    torch.testing.assert_close(found.flow, expected.flow, atol=1e-3, rtol=0)
    assert found.parameters["refinement"] is not None
