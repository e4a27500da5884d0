"""Networks as estimators: backends, precisions, prepared networks, GPUs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from network_scene import PAIR, Made
from torch import Tensor

from fullfield.estimators import NetworkEstimator, NetworkSettings
from fullfield.estimators._frames import read_or_convert_frame
from fullfield.estimators.network import AutoEstimator, PairSize, _build_float32_lookup_request
from fullfield.estimators.network_config import PRECISIONS, RAFTSettings
from fullfield.io import read_flow
from fullfield.metrics import epe
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig
from fullfield.models.framing import choose_padding
from fullfield.nn import CorrelationPyramid
from refusals import refuses

MIDDLEBURY = ("Dimetrodon", "Grove2", "Grove3", "RubberWhale", "Urban2", "Venus")


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_prepare_compiles_everything_of_first_call(make: Made, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[torch.Size] = []
    real = CorrelationPyramid.__call__
    monkeypatch.setattr(CorrelationPyramid, "__call__", lambda self, at: looked_up.append(at.shape) or real(self, at))
    make(updates=3, precision=precision).prepare(size=(48, 64))
    assert looked_up == [(1, 2, 2, 2)]


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_network_estimator_ignores_autocast(make: Made, precision: str) -> None:
    estimator = make(updates=2, precision=precision)
    expected = estimator(*PAIR)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(estimator(*PAIR), expected)


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
