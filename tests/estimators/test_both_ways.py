"""The flow there and back in one call: what two calls give, with the features computed once."""

from __future__ import annotations

import pytest
import torch

from fullfield.estimators import NetworkEstimator, RAFTEstimatorConfig, RefinedEstimator
from fullfield.estimators.network_config import NetworkConfig
from fullfield.testing import textured_scene

SCENE = textured_scene(72, 100, seed=3)
PAIR = SCENE.frame1[None], SCENE.frame2[None]
NETWORKS = {
    "fullfield-s": NetworkConfig(updates=2),
    "raft-small": RAFTEstimatorConfig(updates=2, weights="random"),
    "raft": RAFTEstimatorConfig(updates=1, weights="random"),
}


@pytest.mark.parametrize("method", NETWORKS)
def test_both_ways_are_two_calls(method: str) -> None:
    estimator = NetworkEstimator(method, NETWORKS[method])
    start = 0.5 * SCENE.flow[None]
    there, back = estimator(*PAIR, initial_flow=start), estimator(*PAIR[::-1])
    encoded: list[int] = []
    assert estimator._network is not None
    hook = estimator._network.fnet.register_forward_hook(lambda _m, given, _o: encoded.append(len(given[0])))
    told: list[float] = []
    both = estimator.both_ways(*PAIR, initial_flow=start, progress=lambda part, _: told.append(part))
    hook.remove()
    assert both is not None
    torch.testing.assert_close(both.forward, there, atol=2e-4, rtol=0)
    torch.testing.assert_close(both.backward, back, atol=2e-4, rtol=0)
    assert sum(encoded) == 2, "each frame goes through the feature encoder once"
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)
    assert (both.log_scales is not None) == (method == "fullfield-s")
    if both.log_scales is not None:
        assert [scale.shape for scale in both.log_scales] == [(1, 72, 100)] * 2


@pytest.mark.parametrize("change", [{"cascade": True}, {"updates": 0}])
def test_what_has_no_such_call_is_asked_twice(change: dict[str, object]) -> None:
    estimator = NetworkEstimator("fullfield-s", NETWORKS["fullfield-s"].replace(**change))
    assert estimator.both_ways(*PAIR) is None
    found = RefinedEstimator(estimator, refine=False).directions(*PAIR)
    assert found.seconds.keys() == {"forward", "backward"}
    assert torch.equal(found.backward, estimator(*PAIR[::-1]))


@pytest.mark.parametrize("method", NETWORKS)
def test_both_ways_in_the_fast_form(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.cpu_dtype", lambda: torch.float32)
    estimator = NetworkEstimator(method, NETWORKS[method].replace(precision="fast"))
    start = 0.5 * SCENE.flow[None]
    there, back = estimator(*PAIR, initial_flow=start), estimator(*PAIR[::-1])
    both = estimator.both_ways(*PAIR, initial_flow=start)
    assert both is not None
    assert both.log_scales is None
    torch.testing.assert_close(both.forward, there, atol=2e-4, rtol=0)
    torch.testing.assert_close(both.backward, back, atol=2e-4, rtol=0)
    torch.testing.assert_close(estimator(*PAIR, initial_flow=start), there, atol=0, rtol=0)


def test_a_refined_network_is_asked_once() -> None:
    refined = RefinedEstimator(NetworkEstimator("fullfield-s", NETWORKS["fullfield-s"]))
    told: list[float] = []
    found = refined.directions(*PAIR, progress=lambda part, _: told.append(part))
    assert found.seconds.keys() == {"both_ways", "refinement"}
    assert found.log_scale is not None
    assert told == sorted(told)
