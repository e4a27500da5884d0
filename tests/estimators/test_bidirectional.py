"""Forward and backward flow in one call equal two calls, with the features computed once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from fullfield import InputError
from fullfield.estimators import NetworkEstimator, RefinedEstimator
from fullfield.estimators.network_config import NetworkSettings, RAFTSettings
from fullfield.models import PreparedFlow
from fullfield.models.cascade import list_quartered_sizes
from fullfield.testing import sample_textured_scene
from refusals import refuses

SCENE = sample_textured_scene(72, 100, seed=3)
PAIR = SCENE.frame1[None], SCENE.frame2[None]
NETWORKS = {
    "fullfield-s": NetworkSettings(updates=2),
    "raft-small": RAFTSettings(updates=2, weights="random"),
    "raft": RAFTSettings(updates=1, weights="random"),
}


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("method", NETWORKS)
def test_network_estimator_bidirectional_equals_two_calls(
    method: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: torch.float32)
    estimator = NetworkEstimator(method, NETWORKS[method].replace(precision=precision))
    start = 0.5 * SCENE.flow[None]
    there, back = estimator(*PAIR, initial_flow=start), estimator(*PAIR[::-1])
    encoded: list[int] = []
    hook = estimator._network.fnet.register_forward_hook(lambda _m, given, _o: encoded.append(len(given[0])))
    reports: list[float] = []
    both = estimator.bidirectional(*PAIR, initial_flow=start, progress=lambda part, _: reports.append(part))
    hook.remove()
    torch.testing.assert_close(both.forward, there, atol=2e-4, rtol=0)
    torch.testing.assert_close(both.backward, back, atol=2e-4, rtol=0)
    assert reports == sorted(reports)
    assert reports[-1] == pytest.approx(1)
    assert (both.log_scales is not None) == (method == "fullfield-s")
    if precision == "exact":
        assert sum(encoded) == 2, "each frame goes through the feature encoder once"
    else:
        torch.testing.assert_close(estimator(*PAIR, initial_flow=start), there, atol=0, rtol=0)
    if both.log_scales is not None:
        assert [scale.shape for scale in both.log_scales] == [(1, 72, 100)] * 2
        flows = (both.forward, both.backward)
        assert [flow.untyped_storage().nbytes() for flow in flows] == [4 * 2 * 72 * 100] * 2, "no mixture stays with it"
        exact = NetworkEstimator(method, NETWORKS[method]).bidirectional(*PAIR, initial_flow=start)
        torch.testing.assert_close(both.log_scales, exact.log_scales, atol=2e-4, rtol=0)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("method", ["fullfield-s", "raft-small"])
def test_network_estimator_cascaded_bidirectional_equals_two_calls(
    method: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: torch.float32)
    monkeypatch.setattr(
        "fullfield.estimators.network.list_quartered_sizes",
        partial(list_quartered_sizes, threshold=60),
    )
    for name in ("MIN_PIXELS", "MIN_COARSE_PIXELS"):
        monkeypatch.setattr(f"fullfield.models.cascade.{name}", 0)
    estimator = NetworkEstimator(method, NETWORKS[method].replace(cascade=True, precision=precision))
    start = 0.5 * SCENE.flow[None]
    there, back = estimator(*PAIR, initial_flow=start), estimator(*PAIR[::-1])
    reports: list[tuple[float, str]] = []
    both = estimator.bidirectional(*PAIR, initial_flow=start, progress=lambda *said: reports.append(said))
    torch.testing.assert_close(both.forward, there, atol=2e-4, rtol=0)
    torch.testing.assert_close(both.backward, back, atol=2e-4, rtol=0)
    assert list(dict.fromkeys(where for _, where in reports)) == ["25x18", "100x72"]
    assert reports[-1][0] == pytest.approx(1)
    assert (both.log_scales is not None) == (method == "fullfield-s")
    plain = NetworkEstimator(method, NETWORKS[method].replace(cascade=False, precision=precision))
    assert (plain(*PAIR, initial_flow=start) - there).abs().max() > 0.01


@pytest.mark.unit
def test_refined_estimator_without_bidirectional_runs_twice() -> None:
    estimator = NetworkEstimator("fullfield-s", NETWORKS["fullfield-s"].replace(updates=0))
    assert estimator.bidirectional(*PAIR) is None
    found = RefinedEstimator(estimator, refine=False).estimate_both_and_refine_forward(*PAIR)
    assert found.seconds.keys() == {"forward", "backward"}
    assert torch.equal(found.backward, estimator(*PAIR[::-1]))


@pytest.mark.unit
def test_bidirectional_refuses_initial_backward_flow_of_wrong_size() -> None:
    network = NetworkEstimator("fullfield-s", NETWORKS["fullfield-s"])._get_or_load_network(torch.device("cpu"))
    pair = [frame.expand(-1, 3, -1, -1) for frame in PAIR]
    for run in (network, PreparedFlow(network, 72, 100, precision="exact")):
        refuses("initial_backward: expected", run.bidirectional_with_mixture, *pair, 1, None, torch.zeros(1, 3, 9, 9))
        with pytest.raises(InputError, match="initial_backward: expected a floating dtype"):
            run.bidirectional_with_mixture(*pair, 1, None, torch.zeros(1, 2, 9, 9, dtype=torch.int64))


def test_refined_estimator_runs_bidirectional_network_once() -> None:
    refined = RefinedEstimator(NetworkEstimator("fullfield-s", NETWORKS["fullfield-s"]))
    reports: list[float] = []
    found = refined.estimate_both_and_refine_forward(*PAIR, progress=lambda part, _: reports.append(part))
    assert found.seconds.keys() == {"bidirectional", "refinement"}
    assert found.log_scale is not None
    assert reports == sorted(reports)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("method", ["fullfield-s", "fullfield-m"])
@pytest.mark.parametrize(
    ("threshold", "large_pixels", "fewest"),
    [
        (200, 1, {"updates": 4}),
        (60, 4_000_000, {"updates": 3, "coarse_updates": 4}),
        (60, 72 * 100, {"updates": 2, "coarse_updates": 4}),
    ],
)
def test_estimate_with_rough_backward_uses_fewest_updates(
    precision: str,
    method: str,
    threshold: int,
    large_pixels: int,
    fewest: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fullfield.estimators.network._LARGE_PIXELS", large_pixels)
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: torch.float32)
    monkeypatch.setattr(
        "fullfield.estimators.network.list_quartered_sizes",
        partial(list_quartered_sizes, threshold=threshold),
    )
    settings = NetworkSettings(cascade=True, precision=precision)
    estimator = NetworkEstimator(method, settings)
    start = 0.5 * SCENE.flow[None]
    reports: list[float] = []
    found = estimator.estimate_with_rough_backward_or_none(
        *PAIR, initial_flow=start, progress=lambda part, _: reports.append(part)
    )
    torch.testing.assert_close(found.flow, estimator(*PAIR, initial_flow=start), atol=2e-4, rtol=0)
    few = NetworkEstimator(method, settings.replace(**fewest))
    torch.testing.assert_close(found.backward, few(*PAIR[::-1]), atol=2e-4, rtol=0)
    assert reports == sorted(reports)
    assert reports[-1] == pytest.approx(1)
    assert found.log_scale is None
    scaled = estimator.estimate_with_rough_backward_or_none(*PAIR, initial_flow=start, log_scale=True)
    torch.testing.assert_close(scaled.flow, found.flow, atol=2e-4, rtol=0)
    assert scaled.log_scale.shape == (1, 72, 100)


@pytest.mark.unit
def test_estimate_with_rough_backward_returns_none_if_unmeasured() -> None:
    for method, settings in (
        ("raft-small", NETWORKS["raft-small"]),
        ("fullfield-s", NetworkSettings(updates=0)),
    ):
        assert NetworkEstimator(method, settings).estimate_with_rough_backward_or_none(*PAIR) is None


def test_double_estimates_rough_backward_flow_of_upright_frames_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the frames' size, of both mirror images, at twice the size."""
    direction_counts, estimate_at = list[int](), NetworkEstimator._estimate_at_frame_size

    def estimate_and_count(self: NetworkEstimator, *arguments: Any, **options: Any) -> Any:
        direction_counts.append(len(options["initial_flows"] if "initial_flows" in options else arguments[3]))
        return estimate_at(self, *arguments, **options)

    monkeypatch.setattr(NetworkEstimator, "_estimate_at_frame_size", estimate_and_count)
    settings = NetworkSettings(updates=1, cascade=False, double=True, precision="exact")
    frames = torch.rand(2, 1, 3, 48, 56, generator=torch.Generator().manual_seed(0))
    NetworkEstimator("fullfield-s", settings).estimate_with_rough_backward_or_none(*frames)
    assert direction_counts == [2, 1, 1, 2]
