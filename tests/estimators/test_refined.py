"""`estimate` with a refined flow, occlusion and confidence, and the method that chooses."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from fullfield import estimate
from fullfield.estimators import RefinedEstimator, TVL1Estimator
from fullfield.estimators._reliability import compute_backward_coverage, estimate_occlusion_and_confidence
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.registry import DEFAULT_METHOD, METHODS
from fullfield.ops.tvl1 import TVL1Config, refine_flow
from fullfield.ops.tvl1.config import THREE_PASSES, RefinementConfig
from fullfield.testing import sample_textured_scene
from refusals import refuses

SCENE = sample_textured_scene(60, 80, seed=3)
FAST: dict[str, Any] = {"method": "tvl1", "config": TVL1Config.from_preset("fast").replace(warps=2)}


def test_estimate_refine_equals_refine_flow() -> None:
    plain = estimate(SCENE.frame1, SCENE.frame2, **FAST)
    back = estimate(SCENE.frame2, SCENE.frame1, **FAST)
    expected = refine_flow(SCENE.frame1[None], SCENE.frame2[None], plain.flow[None], back.flow[None])[0]
    reports: list[float] = []
    found = estimate(SCENE.frame1, SCENE.frame2, **FAST, refine=True, progress=lambda part, _: reports.append(part))
    assert torch.equal(found.flow, expected)
    assert not torch.equal(found.flow, plain.flow)
    assert found.method == "tvl1"
    assert found.parameters["refinement"]["lambda_"] == RefinementConfig().lambda_
    assert found.stages.keys() == {"forward", "backward", "refinement"}
    assert found.occlusion is None
    assert reports == sorted(reports)
    assert reports[-1] == 1


def test_estimate_reliability_keeps_flow() -> None:
    found = estimate(SCENE.frame1, SCENE.frame2, **FAST, reliability=True)
    assert torch.equal(found.flow, estimate(SCENE.frame1, SCENE.frame2, **FAST).flow)
    assert found.parameters["refinement"] is None
    for plane in (found.occlusion, found.confidence):
        assert plane.shape == (60, 80)
        assert 0 <= plane.min() <= plane.max() <= 1


def test_estimate_occlusion_and_confidence_marks_hidden_pixels() -> None:
    """The true flows both ways of a square that moves over a background."""
    texture = torch.rand(3, 60, 90, generator=torch.Generator().manual_seed(0))
    front = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(1))
    first, second = texture.clone(), texture.clone()
    first[:, 20:40, 20:40] = front
    second[:, 20:40, 30:50] = front
    flow, back = torch.zeros(1, 2, 60, 90), torch.zeros(1, 2, 60, 90)
    flow[:, 0, 20:40, 20:40] = 10
    back[:, 0, 20:40, 30:50] = -10
    hidden = torch.zeros(60, 90, dtype=torch.bool)
    hidden[20:40, 40:50] = True
    occlusion, confidence = estimate_occlusion_and_confidence(first[None], second[None], flow, back)
    agree = ((occlusion[0] > 0.5) == hidden).float().mean()
    assert agree > 0.97
    assert float(occlusion.mean()) == pytest.approx(0.07786, abs=5e-4), "as it was fitted"
    wrong = flow.clone()
    wrong[:, 1, 45:, :] += 3
    _, less = estimate_occlusion_and_confidence(first[None], second[None], wrong, back)
    assert (less[0, 46:54] < confidence[0, 46:54] - 0.2).float().mean() > 0.9
    out = torch.full((1, 2, 60, 90), 200.0)
    assert (estimate_occlusion_and_confidence(first[None], second[None], out, back)[0] == 1).all()


def test_compute_backward_coverage_equals_values_by_hand() -> None:
    back = torch.zeros(2, 2, 5, 8)
    back[0, 0, :, 4:] = -0.25
    back[1, 1] = 40.0
    expected = torch.ones(2, 5, 8)
    expected[0, :, 7], expected[1] = 0.75, 0.0
    assert torch.equal(compute_backward_coverage(back), expected)
    flat = torch.full((1, 3, 60, 90), 0.5)  # nothing to see in the frames
    flow, back = torch.zeros(1, 2, 60, 90), torch.zeros(1, 2, 60, 90)
    flow[:, 0, 20:40, 20:40] = 10
    back[:, 0, 20:40, 30:50] = -10
    hidden = estimate_occlusion_and_confidence(flat, flat, flow, back)[0][0]
    assert hidden[22:38, 42:48].min() > 0.3
    assert hidden[:15].max() < 0.05


def test_refined_estimator_refuses_bad_arguments() -> None:
    refined = RefinedEstimator(TVL1Estimator(TVL1Config.from_preset("fast")))
    frames = SCENE.frame1[None], SCENE.frame2[None]
    assert torch.equal(pickle.loads(pickle.dumps(refined))(*frames), refined(*frames))
    assert torch.equal(estimate(SCENE.frame1, SCENE.frame2, refined).flow, refined(*frames)[0])
    refuses("refine: expected True or False", estimate, SCENE.frame1, SCENE.frame2, refine=1)
    refuses(r"^estimator", RefinedEstimator, TVL1Estimator)


def test_estimate_confidence_falls_with_network_uncertainty() -> None:
    first, second = (torch.rand(1, 3, 24, 32, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    flow = torch.zeros(1, 2, 24, 32)
    scale = torch.full((1, 24, 32), -1.0)
    scale[..., 16:] = 3.0
    occlusion, confidence = estimate_occlusion_and_confidence(first, second, flow, flow, scale)
    plain, _ = estimate_occlusion_and_confidence(first, second, flow, flow)
    assert torch.equal(occlusion, plain)
    level = estimate_occlusion_and_confidence(first, second, flow, flow, torch.zeros_like(scale))[1]
    assert (confidence[..., :16] > level[..., :16]).all()
    assert (confidence[..., 16:] < 0.5 * level[..., 16:]).all()


def test_estimate_occlusion_ignores_noise() -> None:
    noise = torch.Generator().manual_seed(0)
    first, second = (0.5 + 0.15 * torch.randn(2, 3, 48, 64, generator=noise) for _ in range(2))
    second[1] = first[1]
    still = torch.zeros(2, 2, 48, 64)
    assert (estimate_occlusion_and_confidence(first, second, still, still)[0] > 0.5).float().mean() < 0.01
    second[1, ..., 20:40] = torch.rand(3, 48, 20, generator=noise)
    hidden = estimate_occlusion_and_confidence(first, second, still, still)[0]
    assert (hidden[0] > 0.5).float().mean() < 0.01, "every pair by itself"
    assert (hidden[1, :, 22:38] > 0.5).float().mean() > 0.9
    first = torch.full((1, 3, 32, 64), 0.5)
    first[..., 32:] = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    still = torch.zeros(1, 2, 32, 64)
    for scale in (None, torch.zeros(1, 32, 64)):
        confidence = estimate_occlusion_and_confidence(first, first + 0.02, still, still, scale)[1]
        assert confidence[..., 36:].min() > confidence[..., :28].max()


SMALL_SCENE = sample_textured_scene(64, 80, seed=3)
_NETWORK = METHODS["auto"].network or ""
QUICK: dict[str, Any] = {"updates": 1, "weights": "random"}


def test_auto_equals_refined_network() -> None:
    assert DEFAULT_METHOD == "auto"
    found = estimate(SMALL_SCENE.frame1, SMALL_SCENE.frame2, build_estimator("auto", precision="exact", **QUICK))
    network = build_estimator(_NETWORK, **QUICK)
    thrice = RefinedEstimator(network, THREE_PASSES)
    expected = estimate(SMALL_SCENE.frame1, SMALL_SCENE.frame2, thrice)
    assert torch.equal(found.flow, expected.flow)
    assert found.method == "auto"
    assert (found.parameters["refinement"]["passes"], found.parameters["refinement"]["rounds"]) == (3, 1)
    assert found.stages.keys() == {"bidirectional", "refinement"}


def test_auto_fast_on_cpu_equals_network() -> None:
    found = estimate(SMALL_SCENE.frame1, SMALL_SCENE.frame2, "auto", preset="fast", **QUICK)
    alone = estimate(SMALL_SCENE.frame1, SMALL_SCENE.frame2, _NETWORK, preset="fast", **QUICK)
    assert torch.equal(found.flow, alone.flow)
    assert found.parameters["refinement"] is None
    estimator = build_estimator("auto", "fast")
    assert isinstance(estimator, RefinedEstimator)
    assert not estimator.should_refine(torch.device("cpu"))
    assert estimator.should_refine(torch.device("cuda"))
    assert estimator.parameters["refinement"] is None, "to ask changes nothing"


def test_auto_refine_true_always_refines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: torch.float32)
    found = estimate(SMALL_SCENE.frame1, SMALL_SCENE.frame2, "auto", preset="fast", refine=True, **QUICK)
    expected = estimate(SMALL_SCENE.frame1, SMALL_SCENE.frame2, _NETWORK, refine=True, **QUICK)
    torch.testing.assert_close(found.flow, expected.flow, atol=1e-3, rtol=0)
    assert found.parameters["refinement"] is not None
