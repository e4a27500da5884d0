"""Networks as estimators: what they keep, what they say, and that the network is called as it should be."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fullfield import InputError, estimate
from fullfield.estimators import (
    CascadedEstimator,
    Estimator,
    NetworkEstimator,
    NetworkSettings,
    TVL1Estimator,
    release_memory,
)
from fullfield.estimators._frames import read_or_convert_frame
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.network import AutoEstimator, PairSize, _build_float32_lookup_request
from fullfield.estimators.network_config import PRECISIONS, RAFTSettings
from fullfield.io import read_flow
from fullfield.metrics import epe
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig
from fullfield.models.cascade import (
    FlowWithLogScale,
    average_flows_or_select_confident,
    list_quartered_sizes,
    resample_flow,
    select_more_confident_flow,
)
from fullfield.models.downloads import DownloadError
from fullfield.models.framing import choose_padding
from fullfield.models.sea_raft import compute_expected_log_scale
from fullfield.nn import CorrelationPyramid
from fullfield.testing import sample_textured_scene
from refusals import refuses

SCENE = sample_textured_scene(48, 64, seed=3)
PAIR = (SCENE.frame1[None], SCENE.frame2[None])
MIDDLEBURY = ("Dimetrodon", "Grove2", "Grove3", "RubberWhale", "Urban2", "Venus")
Made = Callable[..., NetworkEstimator]


@pytest.fixture(scope="module")
def model() -> RAFT:
    torch.manual_seed(5)
    return RAFT(RAFTConfig.small()).eval()


@pytest.fixture(scope="module")
def weights(model: RAFT, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in the form of the official ones."""
    path = tmp_path_factory.mktemp("weights") / "raft-small.pth"
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, path)
    return path


@pytest.fixture
def make(weights: Path) -> Made:
    def made(backend: str | None = None, **parameters: Any) -> NetworkEstimator:
        return NetworkEstimator("raft-small", RAFTSettings(weights=str(weights), **parameters), backend=backend)

    return made


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


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_prepare_compiles_everything_of_first_call(make: Made, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[torch.Size] = []
    real = CorrelationPyramid.__call__
    monkeypatch.setattr(CorrelationPyramid, "__call__", lambda self, at: looked_up.append(at.shape) or real(self, at))
    make(updates=3, precision=precision).prepare(size=(48, 64))
    assert looked_up == [(1, 2, 2, 2)]


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


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_network_estimator_ignores_autocast(make: Made, precision: str) -> None:
    estimator = make(updates=2, precision=precision)
    expected = estimator(*PAIR)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(estimator(*PAIR), expected)


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


@pytest.fixture
def small_frames_keep_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small frames are not enlarged."""
    for name in ("MIN_PIXELS", "MIN_COARSE_PIXELS"):
        monkeypatch.setattr(f"fullfield.models.cascade.{name}", 0)


@pytest.fixture
def lower_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames above 100 pixels, in place of 800, begin at a quarter of their size."""
    monkeypatch.setattr(
        "fullfield.estimators.network.list_quartered_sizes",
        partial(list_quartered_sizes, threshold=100),
    )


@pytest.mark.usefixtures("lower_threshold")
def test_network_estimator_cascade_equals_two_calls(make: Made, model: RAFT) -> None:
    frames = (torch.rand(1, 3, 104, 106), torch.rand(1, 3, 104, 106))
    reports: list[float] = []
    estimator = make(updates=1, cascade=True, coarse_updates=2)
    flow = estimator(*frames, progress=lambda done, _: reports.append(done))
    small = [nn.functional.interpolate(frame, (26, 27), mode="bilinear") for frame in frames]
    with torch.no_grad():
        expected = model(*frames, updates=1, initial_flow=model(*small, updates=2))
    assert torch.allclose(flow, expected, atol=1e-4)
    assert reports == sorted(reports)
    assert reports[-1] == pytest.approx(1)
    parameters = estimator.parameters
    assert (parameters["updates"], parameters["coarse_updates"], parameters["cascade"]) == (1, 2, True)
    assert make(cascade=True).parameters["coarse_updates"] == 32
    assert torch.equal(make(updates=2, cascade=True, coarse_updates=9)(*PAIR), make(updates=2)(*PAIR))


@pytest.mark.usefixtures("small_frames_keep_size")
def test_fullfield_s_cascade_is_default_for_large_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Motion of up to 200 px in frames above the threshold, here of 400; published networks are what they were."""
    monkeypatch.setattr(
        "fullfield.estimators.network.list_quartered_sizes",
        partial(list_quartered_sizes, threshold=400),
    )
    far = sample_textured_scene(450, 520, seed=2, max_motion=200)
    errors = [
        float(epe(estimate(far.frame1, far.frame2, "fullfield-s", **selected).flow, far.flow, ~far.occluded))
        for selected in ({}, {"cascade": False})
    ]
    assert errors[0] < 0.7 * errors[1]
    for method, cascades in (("fullfield-s", True), ("sea-raft-s", False), ("raft", False)):
        assert NetworkEstimator(method).parameters["cascade"] is cascades
    assert NetworkEstimator("fullfield-s", NetworkSettings(updates=0)).parameters["cascade"] is False
    enlarging = NetworkEstimator("fullfield-s", NetworkSettings(updates=0, coarse_updates=4))
    assert enlarging.parameters["cascade"] is True
    estimator = NetworkEstimator("fullfield-s", NetworkSettings(coarse_updates=2))
    assert (estimator.parameters["updates"], estimator.parameters["coarse_updates"]) == (4, 2)


@pytest.mark.usefixtures("small_frames_keep_size", "lower_threshold")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "fullfield-m"}, [8, 4]),
        ({"method": "fullfield-s"}, [12, 12]),
        ({"method": "fullfield-m", "updates": 3}, [3, 3]),
        ({"method": "fullfield-m", "coarse_updates": 2}, [2, 4]),
        ({"method": "fullfield-m", "cascade": False}, [8]),
        ({"method": "fullfield-m", "cascade": False, "double": True}, [24, 4]),
        ({"method": "fullfield-m", "cascade": False, "double": True, "large_pixels": 208 * 240}, [24, 3]),
        ({"method": "fullfield-s", "cascade": False, "double": True}, [36, 12]),
        ({"method": "fullfield-m", "size": (404, 408)}, [8, 4, 4]),
        ({"method": "fullfield-m", "size": (404, 408), "large_pixels": 404 * 408}, [8, 4, 3]),
        ({"method": "fullfield-m", "size": (404, 408), "large_pixels": 404 * 408, "updates": 4}, [4, 4, 4]),
        ({"method": "fullfield-s", "large_pixels": 1}, [12, 12]),
    ],
)
def test_fullfield_m_takes_fewer_updates_from_coarse_flow(
    settings: dict[str, Any], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On frames whose flow never comes to rest, by the updates at each size; mirror images have one size."""
    monkeypatch.setattr(
        "fullfield.models.framing.mark_unconverged_pairs", lambda flow, _: torch.ones(len(flow), dtype=torch.bool)
    )
    settings = dict(settings)
    method, size = settings.pop("method"), settings.pop("size", (104, 120))
    monkeypatch.setattr("fullfield.estimators.network._LARGE_PIXELS", settings.pop("large_pixels", 4_000_000))
    estimator = NetworkEstimator(method, NetworkSettings(precision="exact", **settings))
    frames = torch.rand(2, 1, 3, *size, generator=torch.Generator().manual_seed(0))
    estimator.prepare()
    widths: list[int] = []
    assert estimator._network is not None
    estimator._network.update_block.register_forward_hook(lambda _m, given, _o: widths.append(given[0].shape[-1]))
    estimator(*frames)
    assert [len(list(run)) for _, run in itertools.groupby(widths)] == expected


@pytest.mark.unit
@pytest.mark.parametrize(
    ("method", "settings", "coarsest"),
    [
        ("fullfield-s", NetworkSettings(), (497, 884)),
        ("sea-raft-s", NetworkSettings(cascade=True), (270, 480)),
        ("raft", RAFTSettings(cascade=True), (270, 480)),
    ],
)
def test_only_networks_in_package_enlarge_coarsest_level(
    method: str, settings: NetworkSettings, coarsest: tuple[int, int]
) -> None:
    size = PairSize(1, 1080, 1920, torch.device("cpu"))
    levels = NetworkEstimator(method, settings)._list_cascade_sizes(size)
    assert [(level.height, level.width) for level in levels] == [(1080, 1920), coarsest]


def test_network_estimator_enlarges_small_frames() -> None:
    """The network sees frames of twice the size at most; results have the frames' size, and are in their pixels."""
    scene = sample_textured_scene(41, 66, seed=3)
    frames = [frame[None].expand(-1, 3, -1, -1) for frame in (scene.frame1, scene.frame2)]
    start = torch.tensor([1.0, -2.0])[None, :, None, None].expand(1, 2, 41, 66)
    estimator = NetworkEstimator("fullfield-s", NetworkSettings(updates=2))
    both = estimator.bidirectional(*frames, initial_flow=start)
    plain = NetworkEstimator("fullfield-s", NetworkSettings(updates=2, cascade=False))
    large = [nn.functional.interpolate(frame, size=(82, 132), mode="bicubic") for frame in frames]
    expected = plain.bidirectional(*large, initial_flow=start)
    reduced = [nn.functional.interpolate(flow, size=(41, 66), mode="bilinear") / 2 for flow in expected[:2]]
    assert torch.allclose(both.forward, reduced[0], atol=1e-4)
    assert torch.allclose(both.backward, reduced[1], atol=1e-4)
    assert torch.allclose(estimator(*frames, initial_flow=start), reduced[0], atol=1e-4)
    log_scale = nn.functional.interpolate(expected.log_scales[0][:, None], size=(41, 66), mode="bilinear")[:, 0]
    assert torch.allclose(both.log_scales[0], (log_scale - math.log(2)).clamp(0), atol=1e-4)
    bytes_ = [(255 * frame).round().to(torch.uint8) for frame in frames]
    assert float((estimator(*bytes_, initial_flow=start) - reduced[0]).abs().median()) < 0.02
    assert not torch.allclose(plain(*frames, initial_flow=start), reduced[0], atol=1e-2)
    cascaded = NetworkEstimator("raft-small", RAFTSettings(weights="random", cascade=True, updates=1))
    assert cascaded._compute_network_size(41, 66) == (41, 66), "not measured with published weights"


def estimate_double_by_hand(
    estimator: NetworkEstimator, frames: list[Tensor], own: Any, mirrored: list[tuple[tuple[int, ...], Any]]
) -> list[FlowWithLogScale]:
    """Estimate both directions: the mean of all mirror images at the frames' size, corrected at twice the size."""
    averaged = [FlowWithLogScale(own[n], own.log_scales[n][:, None]) for n in range(2)]
    for axes, both in mirrored:
        signs = torch.tensor([-1.0 if axis in axes else 1.0 for axis in (3, 2)]).view(1, 2, 1, 1)
        for n in range(2):
            back = FlowWithLogScale(signs * both[n].flip(axes), both.log_scales[n][:, None].flip(axes))
            averaged[n] = average_flows_or_select_confident(averaged[n], back)
    network: Any = estimator._get_or_load_network(torch.device("cpu"))
    twice = [nn.functional.interpolate(frame, scale_factor=2, mode="bicubic") for frame in frames]
    with torch.no_grad():
        large = network.bidirectional_with_mixture(*twice, estimator.config.updates, averaged[0].flow, averaged[1].flow)
    return [
        select_more_confident_flow(one, FlowWithLogScale(flow, compute_expected_log_scale(info, network.config)))
        for one, (flow, info) in zip(averaged, large, strict=True)
    ]


@pytest.mark.usefixtures("lower_threshold", "small_frames_keep_size")
def test_network_estimator_double_with_cascade_matches_levels() -> None:
    scene = sample_textured_scene(104, 116, seed=4)
    frames = [frame[None].expand(-1, 3, -1, -1) for frame in (scene.frame1, scene.frame2)]
    actual = NetworkEstimator("fullfield-s", NetworkSettings(updates=1, double=True)).bidirectional(*frames)
    settings = NetworkSettings(updates=1)
    plain = NetworkEstimator("fullfield-s", settings)
    small = [nn.functional.interpolate(frame, (26, 29), mode="bilinear") for frame in frames]
    starts = NetworkEstimator("fullfield-s", settings.replace(cascade=False)).bidirectional(*small)
    turned, mirrored = (
        NetworkEstimator("fullfield-s", settings.replace(cascade=False)).bidirectional(
            *(frame.flip(axes) for frame in frames),
            initial_flow=signs * starts.forward.flip(axes),
            initial_backward=signs * starts.backward.flip(axes),
        )
        for axes, signs in (((2, 3), -torch.ones(2, 1, 1)), ((3,), torch.tensor([-1.0, 1.0]).view(2, 1, 1)))
    )
    own = plain.bidirectional(*frames)
    expected = estimate_double_by_hand(plain, frames, own, [((2, 3), turned), ((3,), mirrored)])
    for mine, two in zip(actual[:2], expected, strict=True):
        assert torch.allclose(mine, two.flow, atol=1e-3)


@pytest.mark.usefixtures("small_frames_keep_size")
def test_network_estimator_double_selects_more_confident_flow() -> None:
    """Both ways as one way; per pixel the flow of one size or a mean, by the uncertainty in the frames' pixels."""
    reports: list[tuple[float, str]] = []
    estimator = NetworkEstimator("fullfield-s", NetworkSettings(double=True, updates=2))
    scene = sample_textured_scene(96, 128, seed=1)
    first, second = (frame[None].expand(-1, 3, -1, -1) for frame in (scene.frame1, scene.frame2))
    frames = [torch.cat((first, first)), torch.cat((second, second.roll((9, 41), (2, 3))))]  # short and long motion
    start = torch.full((2, 2, 12, 16), 0.5)
    flow = estimator(*frames, initial_flow=start, progress=lambda done, where: reports.append((done, where)))
    both = estimator.bidirectional(*frames, initial_flow=start)
    assert both.log_scales is not None
    assert torch.allclose(both.forward, flow, atol=1e-4)
    height, width = frames[0].shape[-2:]
    assert {where for _, where in reports} == {f"{width}x{height}", f"{2 * width}x{2 * height}"}
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1][0] == pytest.approx(1)
    plain = NetworkEstimator("fullfield-s", NetworkSettings(updates=2))
    own = plain.bidirectional(*frames, initial_flow=start)
    turned = plain.bidirectional(*(frame.flip((2, 3)) for frame in frames), initial_flow=-start)
    mirrored_start = start * torch.tensor([-1.0, 1.0]).view(1, 2, 1, 1)
    mirrored = plain.bidirectional(*(frame.flip(3) for frame in frames), initial_flow=mirrored_start)
    images = [((2, 3), turned), ((3,), mirrored)]
    for n, expected in enumerate(estimate_double_by_hand(plain, frames, own, images)):
        assert torch.allclose(both[n], expected.flow, atol=1e-3)
        assert torch.allclose(both.log_scales[n], expected.log_scale[:, 0].clamp(0), atol=1e-3)
        enlarged = expected.log_scale[:, 0] < own.log_scales[n]
        assert 0.3 < enlarged[1].float().mean() < 0.99
        assert enlarged[0].float().mean() > 0.95


def test_network_estimator_double_guide_leaves_forward_flow() -> None:
    """The rough backward flow has both sizes too, and the forward flow does not depend on it."""
    estimator = NetworkEstimator("fullfield-s", NetworkSettings(double=True))
    guided = estimator.estimate_with_rough_backward_or_none(*PAIR, log_scale=True)
    both = estimator.bidirectional(*PAIR)
    assert guided is not None
    assert both is not None
    assert both.log_scales is not None
    assert torch.allclose(guided.flow, both.forward, atol=1e-4)
    assert torch.allclose(guided.log_scale, both.log_scales[0], atol=1e-4)
    assert float((guided.backward - both.backward).norm(dim=1).median()) < 0.2
    assert not torch.equal(guided.backward, both.backward)


@pytest.mark.parametrize("precision", ["fast", "bfloat16"])
def test_network_estimator_double_fast_matches_exact(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: torch.float32)
    config = NetworkSettings(double=True, updates=2)
    exact, fast = (NetworkEstimator("fullfield-s", config.replace(precision=one)) for one in ("exact", precision))
    fast.prepare("cpu", (48, 64))
    assert {size[1:] for size in fast._fast._by_size} >= {(96, 128), (192, 256)}  # small frames are enlarged
    flow = fast(*PAIR)
    assert float((flow - exact(*PAIR)).norm(dim=1).median()) < (1e-4 if precision == "fast" else 0.05)
    both = fast.bidirectional(*PAIR)
    assert torch.equal(both.forward, flow)
    assert both.log_scales is not None


def test_auto_accurate_estimates_at_two_sizes() -> None:
    def sizes(preset: str, **config: Any) -> list[str]:
        steps: list[str] = []
        frames = [frame[..., :40, :64] for frame in PAIR]
        build_estimator("auto", preset, updates=1, **config)(*frames, progress=lambda _, where: steps.append(where))
        return [size for size in dict.fromkeys(steps) if "x" in size]

    assert sizes("default") == sizes("fast") == sizes("accurate", double=False) == ["128x80"]
    assert sizes("accurate") == sizes("default", double=True) == ["128x80", "256x160"]
    assert sizes("default", cascade=False) == ["64x40"]
    copied = pickle.loads(pickle.dumps(AutoEstimator()))
    assert copied.parameters == AutoEstimator().parameters


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_auto_uses_bfloat16_on_cpus_that_support_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named network computes in float32, and so does auto with precision "exact" or a requested backend."""
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: dtype)
    flows = {}
    for name, estimator in {
        "auto": AutoEstimator(NetworkSettings(updates=2)),
        "exact": AutoEstimator(NetworkSettings(updates=2, precision="exact")),
        "requested": AutoEstimator(NetworkSettings(updates=2), backend="cpu"),
        "named": NetworkEstimator("fullfield-m", NetworkSettings(updates=2)),
    }.items():
        flows[name] = estimator(*PAIR)
        expected = "fast" if name == "auto" and dtype == torch.bfloat16 else "exact"
        assert estimator.parameters["precision"] == expected
        copied = pickle.loads(pickle.dumps(estimator))
        copied(*PAIR)
        assert copied.parameters["precision"] == expected
    assert torch.equal(flows["requested"], flows["exact"])
    assert float((flows["auto"] - flows["exact"]).norm(dim=1).mean()) < 0.05


def test_network_estimator_double_uint8_equals_float() -> None:
    estimator = NetworkEstimator("fullfield-s", NetworkSettings(double=True, updates=1))
    bytes_ = [(frame.expand(-1, 3, -1, -1) * 255).round().to(torch.uint8) for frame in PAIR]
    assert torch.allclose(estimator(*bytes_), estimator(*(frame / 255 for frame in bytes_)), atol=1e-4)


WHOLE = slice(None), slice(None)


@pytest.mark.parametrize(
    ("pair", "part"),
    [
        ("sequence_2", (slice(100, 356), slice(320, 576))),
        pytest.param("market_5", WHOLE, marks=pytest.mark.long),
        pytest.param("ambush_2", WHOLE, marks=pytest.mark.long),
    ],
)
def test_network_estimator_double_reduces_error_of_thin_objects(
    data_dir: Path, pair: str, part: tuple[slice, slice]
) -> None:
    rows, columns = part
    folder = data_dir / "flow" / "sintel" / "hard" / pair
    known = read_flow(folder / "frame_0001.flo")
    frames = [read_or_convert_frame(folder / f"frame_000{number}.png")[:, rows, columns] for number in (1, 2)]
    true = known.flow[:, rows, columns], known.valid[rows, columns]
    errors = [
        epe(estimate(*frames, "fullfield-s", preset=preset, cascade=False).flow, *true)  # at the part's own size
        for preset in ("default", "accurate")
    ]
    if pair == "sequence_2":
        assert errors[1] < 0.8 * errors[0]
    else:  # at twice the size alone, from nothing, 30 and 180 px; turned, fullfield-s loses on ambush_2
        assert errors[1] < (1.3 if pair == "ambush_2" else 1.1) * errors[0]


def test_cascaded_estimator_accepts_any_estimator(make: Made) -> None:
    large = sample_textured_scene(160, 200, seed=1)
    frames = (large.frame1[None], large.frame2[None])
    reports: list[float] = []
    inner = TVL1Estimator()
    estimator = CascadedEstimator(inner, threshold=100)
    assert isinstance(estimator, Estimator)
    flow = estimator(*frames, progress=lambda done, _: reports.append(done))
    small = [nn.functional.interpolate(frame, (40, 50), mode="bilinear") for frame in frames]
    start = resample_flow(inner(*small), 160, 200)
    assert torch.allclose(flow, inner(*frames, initial_flow=start), atol=1e-5)
    assert estimator.parameters["cascade"] is True
    assert (estimator.method, estimator.backend) == (inner.method, inner.backend)
    assert reports == sorted(reports)
    result = estimate(large.frame1, large.frame2, estimator)
    assert torch.equal(result.flow, flow[0])
    assert CascadedEstimator(make(updates=1))(*PAIR).shape == (1, 2, 48, 64)
    refuses("threshold: expected an integer >= 1", CascadedEstimator, inner, threshold=0)
    refuses("estimator: expected an Estimator", CascadedEstimator, "tvl1")
    for cascading in (make(cascade=True), estimator):
        refuses(r"estimator: expected one that does not cascade itself \(cascade=False\)", CascadedEstimator, cascading)


def test_network_estimator_uses_requested_backend(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str | None] = []
    pyramid = RAFT.build_pyramid

    def noted(self: RAFT, fmap1: Tensor, fmap2: Tensor) -> CorrelationPyramid:
        created = pyramid(self, fmap1, fmap2)
        used.append(created.backend)
        return created

    monkeypatch.setattr(RAFT, "build_pyramid", noted)
    automatic, dense = make(updates=2), make("dense", updates=2)
    expected = automatic(*PAIR)
    assert torch.allclose(dense(*PAIR), expected, atol=1e-3)
    assert dense.backend == "dense"
    assert used == [automatic.backend, "dense"]
    refuses(r"backend: expected one of cuda, cpu, dense, reference, got 'gpu'$", make, "gpu")
    if not torch.cuda.is_available():
        refuses("backend: 'cuda' cannot serve this request", make("cuda"), *PAIR)


def test_network_estimator_caches_prepared_networks_by_size(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullfield.models.prepared import runner

    monkeypatch.setattr(runner, "choose_cpu_dtype", lambda: torch.float32)
    assert set(PRECISIONS) == {"auto", *runner.PRECISIONS}
    monkeypatch.setattr("fullfield.estimators.network._SMALL_PIXELS", 0)
    estimator = make(updates=2, precision="fast")
    assert torch.allclose(estimator(*PAIR), make(updates=2)(*PAIR), atol=1e-3)
    assert estimator.backend in ("cpu", "reference")
    created = estimator._fast.get_or_prepare_size(48, 64)
    estimator.prepare(size=(48, 64))
    estimator(*PAIR)
    assert estimator._fast.get_or_prepare_size(48, 64) is created
    estimator(*[torch.rand(1, 3, 16, 24)] * 2)
    assert estimator._fast.get_or_prepare_size(48, 64) is not created
    reports: list[float] = []
    estimator(*PAIR, progress=lambda done, _: reports.append(done))
    assert reports == [0, 1]


def test_network_estimator_auto_precision_follows_kernels(
    make: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reasons: list[str | None] = [None]
    monkeypatch.setattr("fullfield.models.prepared.explain_no_half_precision", lambda _: reasons[0])
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    used = {
        (backend, device): make(backend)._choose_precision(device)
        for backend in (None, "cuda", "dense", "reference")
        for device in (gpu, cpu)
    }
    assert [key for key, precision in used.items() if precision != "exact"] == [(None, gpu), ("cuda", gpu)]
    estimator = make()
    assert estimator.parameters["precision"] == "auto"
    assert estimator._choose_precision(gpu) == "fast"
    estimator.prepare()
    assert estimator.parameters["precision"] == "exact", "as a run on the CPU noted it before there was auto"
    reasons[0] = "cuda-core is missing"
    with caplog.at_level("DEBUG", "fullfield"):
        assert make()._choose_precision(gpu) == "exact"
    assert "cuda-core is missing" in caplog.text
    assert make(precision="fast")._choose_precision(gpu) == "fast"
    assert make(precision="exact")._choose_precision(gpu) == "exact"


def test_estimate_logs_backends_and_weights(make: Made, weights: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "fullfield"):
        estimate(SCENE.frame1, SCENE.frame2, make(updates=1))
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert f"loaded weights {weights}" in log
    assert "raft-small at 64x48 on cpu: lookup cpu, float32" in log
    assert "raft-small at 64x48 on cpu: backend" in log


def test_network_estimator_keeps_last_four_small_sizes(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: torch.float32)
    estimator = make(updates=1, precision="fast")
    sizes = [(16, 24), (24, 16), (16, 32), (32, 16), (24, 24)]
    for size in sizes:
        estimator(*[torch.rand(1, 3, *size)] * 2)
    assert [key[1:] for key in estimator._fast._by_size] == sizes[1:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_network_estimator_on_gpu_equals_cpu(make: Made, precision: str) -> None:
    expected = make(updates=3)(*PAIR)
    estimator = make(updates=3, precision=precision)
    frames = [frame.cuda() for frame in PAIR]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        estimator.prepare("cuda", (48, 64))
        flow = estimator(*frames)
        assert flow.is_cuda
        assert estimator.backend == "cuda"
        difference = (flow.cpu() - expected).norm(dim=1).mean() / expected.norm(dim=1).mean()
        assert difference < {"exact": 1e-4, "auto": 0.05, "fast": 0.05, "bfloat16": 0.2}[precision]
        if precision == "exact":
            dense = make("dense", updates=3)
            assert torch.allclose(dense(*frames).cpu(), expected, rtol=1e-3, atol=1e-2)
            assert dense.backend == "dense"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [*MIDDLEBURY, "clean", "final"])
def test_exact_precision_ignores_global_torch_flags(data_dir: Path, name: str, record_property: Any) -> None:
    """The mean error of the official weights, within 0.1 % of the dense volume's in float32 throughout."""
    flows, weights = data_dir / "flow", data_dir / "weights" / "raft-sintel.pth"
    folder, pattern, number = flows / "middlebury" / name, "frame{}.png", 10
    truth = folder / "flow10.flo"
    if name not in MIDDLEBURY:
        folder, pattern, number = flows / "sintel" / name, "frame_000{}.png", 2
        truth = flows / "sintel" / "truth" / "frame_0002.flo"
    true = read_flow(truth)
    first, second = (read_or_convert_frame(folder / pattern.format(n))[None].cuda() for n in (number, number + 1))
    original = RAFT()
    original.load_checkpoint(weights)
    original.correlation = "dense"
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        right = original.cuda().eval()(first, second)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        config = RAFTSettings(weights=str(weights), precision="exact")
        flow = NetworkEstimator("raft", config)(first, second)
        assert torch.backends.cudnn.allow_tf32
    errors = [float(epe(actual[0].cpu(), true.flow, true.valid)) for actual in (right, flow)]
    record_property("errors", errors)
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


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


@pytest.mark.unit
@pytest.mark.parametrize("kind", ["old switch", "new switch"])
def test_disable_tf32_convolutions_restores_setting(kind: str) -> None:
    from fullfield.estimators._devices import create_context_without_tf32_convolutions

    cudnn, gpu = torch.backends.cudnn, torch.device("cuda")
    if kind == "new switch" and not hasattr(cudnn, "conv"):
        pytest.skip("PyTorch before 2.9 has one switch")
    owner, name = (cudnn, "allow_tf32") if kind == "old switch" else (cudnn.conv, "fp32_precision")
    exact, fast = (False, True) if kind == "old switch" else ("ieee", "tf32")
    try:
        for setting in (fast, exact):
            setattr(owner, name, setting)
            with create_context_without_tf32_convolutions(gpu):
                assert getattr(owner, name) != fast
            assert getattr(owner, name) == setting
            with pytest.raises(KeyError), create_context_without_tf32_convolutions(gpu):
                raise KeyError
            assert getattr(owner, name) == setting
        setattr(owner, name, fast)
        first, second = (
            create_context_without_tf32_convolutions(gpu),
            create_context_without_tf32_convolutions(gpu),
        )  # of two threads
        with first:
            second.__enter__()
        assert getattr(owner, name) != fast
        second.__exit__(None, None, None)
        assert getattr(owner, name) == fast
        with create_context_without_tf32_convolutions(torch.device("cpu")):
            assert getattr(owner, name) == fast
    finally:
        setattr(owner, name, fast)


def test_estimate_refuses_network_with_nonfinite_weights(tmp_path: Path) -> None:
    model = RAFT(RAFTConfig.small())
    model.state_dict()["fnet.conv1.weight"].fill_(torch.nan)
    torch.save(model.state_dict(), tmp_path / "nan.pth")
    frame = torch.rand(3, 32, 40)
    with pytest.raises(InputError, match="the flow is NaN or infinite at 1280 pixels; raft-small has weights"):
        estimate(frame, frame, "raft-small", weights=str(tmp_path / "nan.pth"), updates=1)


@pytest.mark.unit
@pytest.mark.parametrize("model", [RAFT(RAFTConfig.small(levels=3)), SEARAFT(SEARAFTConfig.small(channels=32))])
def test_build_lookup_request_matches_encoded_features(model: RAFT | SEARAFT) -> None:
    frame, padding = torch.rand(2, 3, 45, 83), choose_padding(45, 83)
    request = _build_float32_lookup_request(model.config, PairSize.from_frame(frame))
    with torch.no_grad():
        encoded = model.eval().encode(*[model.normalize_and_pad_frame(frame, padding)] * 2)
    assert (request.batch, request.channels, *request.size1) == encoded.fmap1.shape
    assert (request.levels, request.radius) == (model.config.levels, model.config.radius)
    assert request.sizes2[1] == (request.size1[0] // 2, request.size1[1] // 2)
    assert request.device == frame.device


def test_network_estimator_logs_dtype_of_fast_precision(
    make: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fullfield.models.prepared.runner.choose_cpu_dtype", lambda: torch.float32)
    with caplog.at_level("DEBUG", "fullfield"):
        make(updates=1, precision="fast")(*PAIR)
    assert "raft-small on cpu: precision fast, float32" in caplog.text
