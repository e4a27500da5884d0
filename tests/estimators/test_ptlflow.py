"""ptlflow's models behind the protocol of estimators."""

from __future__ import annotations

import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fullfield import InputError
from fullfield.estimators import Estimator
from fullfield.estimators.network_config import PtlflowSettings
from fullfield.estimators.ptlflow import PtlflowEstimator
from refusals import refuses

pytestmark = pytest.mark.usefixtures("ptlflow")
RANDOM = PtlflowSettings(weights="random", updates=2)


@pytest.fixture(scope="module")
def frames() -> Any:
    return torch.rand(2, 1, 3, 130, 141, generator=torch.Generator().manual_seed(0))


def test_ptlflow_estimator_uses_patched_lookup(frames: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reports: list[float] = []
    patched = PtlflowEstimator("raft_small", RANDOM)
    assert isinstance(patched, Estimator)
    assert patched.backend == "automatic"
    flow = patched(*frames, progress=lambda share, _: reports.append(share))
    assert flow.shape == (1, 2, 130, 141)
    assert flow.dtype == torch.float32
    assert (patched.method, patched.backend) == ("ptlflow:raft_small", "cpu")
    assert dict(patched.parameters) == {
        "weights": "random",
        "weights_sha256": None,
        "updates": 2,
        "patched": True,
        "ptlflow": "0.4.2",
    }
    assert reports == [0.0, 1.0]

    plain = PtlflowEstimator("ptlflow:raft_small", RANDOM.replace(patched=False))
    expected = plain(*frames)
    assert plain.backend == "ptlflow"
    assert plain.parameters["patched"] is False
    assert 0 < float((flow - expected).abs().max()) < 1e-3 * float(expected.abs().max())
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_ptlflow_estimator_passes_bgr_frames(frames: Any, ptlflow: Any) -> None:
    torch.manual_seed(0)
    model = ptlflow.get_model_reference("raft_small")(iters=2).eval()
    estimator = PtlflowEstimator("raft_small", RANDOM.replace(patched=False))
    estimator.prepare()
    model.load_state_dict(estimator._model.state_dict())
    blue_first = torch.stack(tuple(frames), 1)[:, :, [2, 1, 0]]
    with torch.no_grad():
        expected = model({"images": blue_first})["flows"][:, 0]
    assert torch.equal(estimator(*frames), expected)
    grey = frames[:, :, :1]
    assert torch.equal(estimator(*grey), estimator(*grey.expand(-1, -1, 3, -1, -1)))


def test_ptlflow_estimator_runs_unpatched_without_correlation(frames: Any) -> None:
    estimator = PtlflowEstimator("flownets", PtlflowSettings(weights="random"))
    assert estimator(*frames).shape == (1, 2, 130, 141)
    assert estimator.backend == "ptlflow"
    assert estimator.parameters["updates"] is None
    with pytest.raises(InputError, match="has no correlation that is known"):
        PtlflowEstimator("flownets", PtlflowSettings(weights="random"), backend="cpu")(*frames)
    refuses("not one number", PtlflowEstimator("flownets", RANDOM), *frames)


def test_ptlflow_estimator_loads_weights_file(tmp_path: Path, frames: Any) -> None:
    source = PtlflowEstimator("raft_small", RANDOM)
    source.prepare()
    state = {name: value + 1e-4 for name, value in source._model.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "mine.ckpt")
    estimator = PtlflowEstimator("raft_small", RANDOM.replace(weights=tmp_path / "mine.ckpt"))
    flow = estimator(*frames)
    assert len(estimator.parameters["weights_sha256"]) == 12
    assert not torch.equal(flow, source(*frames))
    assert torch.equal(pickle.loads(pickle.dumps(estimator))(*frames), flow)
    with pytest.raises(InputError, match=r"expected weights of ptlflow's raft;"):
        PtlflowEstimator("raft", RANDOM.replace(weights=tmp_path / "mine.ckpt"))(*frames)


def test_ptlflow_estimator_downloads_checkpoint_once(
    tmp_path: Path, frames: Any, monkeypatch: pytest.MonkeyPatch, ptlflow: Any
) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    torch.save(ptlflow.get_model_reference("raft_small")().state_dict(), tmp_path / "raft_small-served.ckpt")
    url = (tmp_path / "raft_small-served.ckpt").as_uri()
    reference = ptlflow.get_model_reference("raft_small")
    monkeypatch.setattr(reference, "pretrained_checkpoints", {"chairs": "x", "things": url}, raising=False)
    first = PtlflowEstimator("raft_small", PtlflowSettings(updates=1))
    flow = first(*frames)
    assert first.parameters["weights"] == "things"
    (tmp_path / "raft_small-served.ckpt").unlink()
    assert torch.equal(PtlflowEstimator("raft_small", PtlflowSettings(updates=1))(*frames), flow)


def test_ptlflow_estimator_offline_names_url_and_file(
    tmp_path: Path, frames: Any, monkeypatch: pytest.MonkeyPatch, ptlflow: Any
) -> None:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path))
    reference = ptlflow.get_model_reference("raft_small")
    url = (tmp_path / "absent" / "raft_small-things.ckpt").as_uri()
    monkeypatch.setattr(reference, "pretrained_checkpoints", {"things": url}, raising=False)
    with pytest.raises(OSError, match=r"fetch file:.*things\.ckpt and put it at .*weights.*or pass a file") as error:
        PtlflowEstimator("raft_small")(*frames)
    assert "\n" not in str(error.value)


def test_ptlflow_estimator_refuses_too_small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    small = torch.rand(2, 1, 3, 40, 60)
    plain = PtlflowEstimator("raft_small", RANDOM.replace(patched=False))
    refuses(r"frame1: .* fails on frames of 60x40 \(.*\); .* sides of 128 at", plain, *small)
    assert PtlflowEstimator("raft_small", RANDOM)(*small).isfinite().all()

    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(plain._model, "forward", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        plain(*torch.rand(2, 1, 3, 128, 128))


def test_ptlflow_estimator_restores_output_and_warnings(frames: Any, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = PtlflowEstimator("raft_small", RANDOM.replace(updates=1))
    estimator(*frames, progress=lambda share, _: sys.stderr.write(f"{share}\n"))
    assert capsys.readouterr().err == "0.0\n1.0\n"
    estimators = [PtlflowEstimator("raft_small", RANDOM.replace(updates=1)) for _ in range(4)]
    before, filters = (sys.stdout, sys.stderr), list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda estimator: estimator(*frames), estimators))
    assert (sys.stdout, sys.stderr) == before
    assert warnings.filters == filters


def test_ptlflow_estimator_random_weights_keep_generator_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(_: int) -> None:
        raise AssertionError("the GPUs' generators were set")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded)
    before = torch.get_rng_state()
    first, second = (PtlflowEstimator("raft_small", RANDOM) for _ in range(2))
    for estimator in (first, second):
        estimator.prepare()
    assert torch.equal(torch.get_rng_state(), before)
    for one, two in zip(first._model.parameters(), second._model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_ptlflow_estimator_refuses_bad_arguments(tmp_path: Path, frames: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="backend: expected None with patched=False"):
        PtlflowEstimator("raft", RANDOM.replace(patched=False), backend="cpu")
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path))
    with pytest.raises(
        InputError, match=r"expected ptlflow: and one of ccmr, .*, got 'raftt'; did you mean ptlflow:raft\?"
    ):
        PtlflowEstimator("raftt")
    refuses("memfof needs 3 frames", PtlflowEstimator, "memfof")
    with pytest.raises(InputError, match=r"no\.ckpt: no such file; ptlflow publishes things for raft_small"):
        PtlflowEstimator("raft_small", PtlflowSettings(weights="no.ckpt"))(*frames)
    with pytest.raises(InputError, match=r"cannot be built here: .*QuadTreeAttention is not compiled"):
        PtlflowEstimator("matchflow", RANDOM)(*frames)
    refuses("initial_flow", PtlflowEstimator("raft_small", RANDOM), *frames, initial_flow=torch.zeros(1, 2, 130, 141))
    refuses("updates", PtlflowSettings, updates=0)
    monkeypatch.setitem(sys.modules, "ptlflow", None)
    refuses("needs the package ptlflow, which cannot be imported", PtlflowEstimator, "raft")


def test_ptlflow_estimator_parameters_report_patch_after_memory_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration that a run out of memory is noted with."""

    def no_room(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    estimator = PtlflowEstimator("raft_small", RANDOM)
    monkeypatch.setattr("fullfield.integrations.patching.patch", no_room)  # after the move, which may fail the same way
    with pytest.raises(torch.OutOfMemoryError):
        estimator.prepare()
    assert estimator.parameters["patched"] is True
