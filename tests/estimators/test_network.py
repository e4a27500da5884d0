"""Networks as estimators: what they keep, what they say, and that the network is called as it should be."""

from __future__ import annotations

import copy
import hashlib
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from network_scene import PAIR, SCENE, Made
from torch import Tensor, nn

from fullfield import InputError, estimate
from fullfield.estimators import Estimator, NetworkEstimator, NetworkSettings, release_memory
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.network_config import RAFTSettings
from fullfield.models import RAFT, RAFTConfig
from fullfield.models.downloads import DownloadError
from refusals import refuses


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Every network that is loaded."""
    actual: list[nn.Module] = []
    load = RAFT.load_checkpoint

    def counted(self: RAFT, source: Any) -> None:
        actual.append(self)
        load(self, source)

    monkeypatch.setattr(RAFT, "load_checkpoint", counted)
    return actual


def test_network_estimator_equals_model(make: Made, model: RAFT, weights: Path) -> None:
    estimator = make(updates=3)
    assert isinstance(estimator, Estimator)
    assert (estimator.method, estimator.backend) == ("raft-small", "automatic")
    with torch.no_grad():
        expected = model(*PAIR, updates=3)
    flow = estimator(*PAIR)
    assert torch.equal(flow, expected)
    assert not flow.requires_grad
    assert not flow.is_inference()
    assert estimator.parameters == {
        "weights": str(weights),
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest()[:12],
        "updates": 3,
        "cascade": False,
        "coarse_updates": None,
        "double": None,
        "precision": "exact",
        "padding": "sintel",
    }
    assert estimator.backend in ("cpu", "reference")
    result = estimate(SCENE.frame1, SCENE.frame2, "raft-small", weights=str(weights), updates=3)
    assert torch.equal(result.flow, expected[0])
    assert (result.method, result.backend) == ("raft-small", estimator.backend)
    assert result.parameters == estimator.parameters


def test_network_estimator_accepts_grey_frames_and_batches(make: Made, model: RAFT) -> None:
    grey = [frame.mean(1, keepdim=True) for frame in PAIR]
    estimator = make(updates=2)
    with torch.no_grad():
        expected = model(*[frame.expand(-1, 3, -1, -1) for frame in grey], updates=2)
    assert torch.equal(estimator(*grey), expected)
    both = estimator(*[torch.cat(frames) for frames in zip(PAIR, PAIR[::-1], strict=True)])
    assert torch.allclose(both[:1], estimator(*PAIR), atol=1e-4)
    for wrong, message in (
        ((torch.zeros(1, 2, 16, 16),) * 2, "frame1: expected 1 or 3 channels"),
        ((torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 24)), r"frame2: expected shape \[1, 3, 16, 16\]"),
        ((torch.zeros(3, 16, 16),) * 2, "frame1: expected shape"),
    ):
        refuses(message, estimator, *wrong)


def test_network_estimator_starts_from_initial_flow(make: Made, model: RAFT) -> None:
    start = torch.randn(1, 2, 48, 64)
    with torch.no_grad():
        expected = model(*PAIR, updates=2, initial_flow=start)
    assert torch.equal(make(updates=2)(*PAIR, initial_flow=start), expected)
    assert not torch.allclose(make(updates=2)(*PAIR), expected, atol=0.01)
    smooth = torch.tensor([3.0, -2.0]).view(1, 2, 1, 1).expand(1, 2, 48, 64)
    assert torch.allclose(make(updates=0)(*PAIR, initial_flow=smooth), smooth, atol=1e-5)
    refuses("updates: expected an integer >= 1", make(updates=0), *PAIR)


def test_estimate_caches_network_until_file_changes(make: Made, weights: Path, loads: list[nn.Module]) -> None:
    estimator = make(updates=1)
    estimator.prepare()
    first = estimator(*PAIR)
    assert torch.equal(estimator(*PAIR), first)
    assert estimator(torch.rand(1, 3, 24, 40), torch.rand(1, 3, 24, 40)).shape == (1, 2, 24, 40)
    assert len(loads) == 1
    torch.manual_seed(6)
    content = weights.read_bytes()
    try:
        torch.save(RAFT(RAFTConfig.small()).state_dict(), weights)
        before = estimator.parameters["weights_sha256"]
        assert not torch.allclose(estimator(*PAIR), first, atol=0.01)
        assert len(loads) == 2
        assert estimator.parameters["weights_sha256"] != before
    finally:
        weights.write_bytes(content)


def test_network_estimator_serializes_threads(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, maximum = 0, 0
    forward = RAFT.forward

    def counted(self: RAFT, *frames: Any, **more: Any) -> Tensor:
        nonlocal at_once, maximum
        at_once += 1
        maximum = max(maximum, at_once)
        time.sleep(0.02)
        flow = forward(self, *frames, **more)
        at_once -= 1
        return flow

    estimator = make(updates=1)
    expected = estimator(*PAIR)
    monkeypatch.setattr(RAFT, "forward", counted)
    with ThreadPoolExecutor(3) as threads:
        flows = list(threads.map(lambda _: estimator(*PAIR), range(3)))
    assert maximum == 1
    assert all(torch.equal(flow, expected) for flow in flows)


def test_network_estimator_copies_load_weights(make: Made, loads: list[nn.Module]) -> None:
    estimator = make(updates=1)
    flow = estimator(*PAIR)
    for other in (copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):
        assert torch.equal(other(*PAIR), flow)
    assert len(pickle.dumps(estimator)) < 1000
    assert len({id(network) for network in loads}) == 3


def test_estimate_caches_last_two_networks(weights: Path, loads: list[nn.Module]) -> None:
    release_memory()
    for _ in range(2):
        estimate(SCENE.frame1, SCENE.frame2, "raft-small", weights=str(weights), updates=1)
    assert len(loads) == 1
    for updates in (2, 1, 3, 1):  # two methods are kept
        estimate(SCENE.frame1, SCENE.frame2, "raft-small", weights=str(weights), updates=updates)
    assert len(loads) == 3
    release_memory()


def test_network_estimator_progress_counts_updates(make: Made) -> None:
    reports: list[tuple[float, str]] = []
    make(updates=4)(*PAIR, progress=lambda done, where: reports.append((done, where)))
    assert [done for done, _ in reports] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    assert {where for _, where in reports} == {"64x48"}
    estimator = make(updates=1)
    with pytest.raises(KeyboardInterrupt):
        estimator(*PAIR, progress=_interrupted)
    reports.clear()
    estimator(*PAIR)
    assert not reports, "no hook stays behind"


def _interrupted(done: float, _: str) -> None:
    if done:
        raise KeyboardInterrupt


def test_estimate_logs_backends_and_weights(make: Made, weights: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "fullfield"):
        estimate(SCENE.frame1, SCENE.frame2, make(updates=1))
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert f"loaded weights {weights}" in log
    assert "raft-small at 64x48 on cpu: lookup cpu, float32" in log
    assert "raft-small at 64x48 on cpu: backend" in log


def test_estimate_random_weights_are_seeded() -> None:
    state = torch.random.get_rng_state()
    flows = [estimate(SCENE.frame1, SCENE.frame2, m, weights="random", updates=1) for m in ("raft", "raft", "sea-raft")]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(flows[0].flow, flows[1].flow)
    assert [flow.method for flow in flows] == ["raft", "raft", "sea-raft-m"]
    assert flows[0].parameters["weights"] == "random"
    assert flows[0].parameters["weights_sha256"] is None
    release_memory()


def test_network_estimator_names_missing_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: Path, model: RAFT
) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path))
    requests = []

    def unreachable(url: str, *_: object, **__: object) -> None:
        requests.append(url)
        raise DownloadError(f"{url}: cannot be reached")

    monkeypatch.setattr("fullfield.models.weights.download_if_missing", unreachable)
    estimator = NetworkEstimator("raft-small", RAFTSettings(updates=1))
    target = tmp_path / "weights" / "raft-small.pth"
    with pytest.raises(DownloadError, match=f"raft-small: .*cannot be reached; fetch .* and put it at {target}"):
        estimator(*PAIR)
    assert len(requests) == 1
    target.write_bytes(weights.read_bytes())
    with torch.no_grad():
        assert torch.equal(estimator(*PAIR), model(*PAIR, updates=1))
    assert estimator.parameters["weights"] == "raft-small"
    assert len(requests) == 1


@pytest.mark.unit
def test_network_estimator_refuses_bad_arguments(weights: Path) -> None:
    for arguments, message in (
        ({"updates": -1}, "updates: expected an integer >= 0"),
        ({"coarse_updates": 2, "cascade": False}, "coarse_updates: expected None without a cascade, got 2"),
        ({"cascade": 1}, "cascade: expected True, False or None"),
        ({"double": 1}, "double: expected True, False or None"),
        ({"double": True}, "double: expected False for RAFT, which does not estimate its uncertainty, got True"),
        ({"precision": "half"}, "precision: expected one of auto, exact, fast, bfloat16"),
        ({"weights": ""}, "weights: expected a file or the name of an entry"),
        ({"padding": "none"}, "padding: expected one of sintel, kitti"),
    ):
        refuses(message, RAFTSettings, **arguments)
    assert NetworkSettings(weights=weights).weights == str(weights)  # type: ignore[arg-type]
    refuses("method: expected one of fullfield-s, fullfield-m, raft, raft-small, sea-raft-s", NetworkEstimator, "tvl1")
    with pytest.raises(InputError, match="coarse_updates: expected None without a cascade, got 2"):
        NetworkEstimator("raft", RAFTSettings(coarse_updates=2))
    with pytest.raises(InputError, match="config: expected a NetworkSettings, got RAFTSettings"):
        NetworkEstimator("sea-raft-m", RAFTSettings())
    with pytest.raises(InputError, match="config: expected a RAFTSettings"):
        estimate(SCENE.frame1, SCENE.frame2, "raft", config=NetworkSettings())
    with pytest.raises(InputError, match=r"padding: expected a parameter of sea-raft-m \(weights, updates"):
        build_estimator("sea-raft", padding="kitti")
    with pytest.raises(InputError, match="preset: expected one of default, fast, got 'paper'"):
        estimate(SCENE.frame1, SCENE.frame2, "raft", preset="paper")


def test_estimate_padding_changes_network_input(weights: Path) -> None:
    frames = [frame[:, :45, :61] for frame in (SCENE.frame1, SCENE.frame2)]
    both = [
        estimate(*frames, "raft-small", config=RAFTSettings(weights=str(weights), updates=2, padding=padding)).flow
        for padding in ("sintel", "kitti")
    ]
    assert not torch.allclose(*both, atol=1e-3)
    release_memory()


def test_estimate_refuses_network_with_nonfinite_weights(tmp_path: Path) -> None:
    model = RAFT(RAFTConfig.small())
    model.state_dict()["fnet.conv1.weight"].fill_(torch.nan)
    torch.save(model.state_dict(), tmp_path / "nan.pth")
    frame = torch.rand(3, 32, 40)
    with pytest.raises(InputError, match="the flow is NaN or infinite at 1280 pixels; raft-small has weights"):
        estimate(frame, frame, "raft-small", weights=str(tmp_path / "nan.pth"), updates=1)
