"""What goes on beside the estimation, reading, scoring, storing, and what happens when memory is short."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation_sets import Counting, Prepared, by_hand, sequence
from torch import Tensor

from fullfield import InputError
from fullfield._check import NotEnoughMemoryError
from fullfield.datasets import FlowDataset
from fullfield.evaluation import EvaluationSettings, evaluate, finishing, loading
from fullfield.evaluation.loading import iterate_pairs_ahead
from fullfield.evaluation.run import PredictionRun
from fullfield.metrics import FlowMetrics


def test_evaluate_read_ahead_reads_shared_frame_once(pairs: FlowDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    once = type(pairs).read_frame_and_valid_mask

    def counted(self: FlowDataset, path: Path) -> tuple[Tensor, Tensor | None]:
        read.append(path)
        return once(self, path)

    monkeypatch.setattr(type(pairs), "read_frame_and_valid_mask", counted)
    loaded = list(iterate_pairs_ahead(pairs, range(len(pairs))))
    assert [pair.index for pair in loaded] == list(range(5))
    assert len(read) == len(set(read)) == 7
    for pair in loaded:
        first, second = pairs.read_frames(pair.index)
        assert torch.equal(pair.frame1, first)
        assert torch.equal(pair.frame2, second)


def test_evaluate_read_ahead_reads_two_pairs_before_size_known(
    pairs: FlowDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []
    once = type(pairs).read_truth

    def counted(self: FlowDataset, index: int) -> Any:
        requests.append(index)
        return once(self, index)

    monkeypatch.setattr(type(pairs), "read_truth", counted)
    monkeypatch.setattr(loading, "choose_reader_thread_count", lambda: 8)
    monkeypatch.setattr(loading, "_MAX_BYTES", 1)
    ahead = iterate_pairs_ahead(pairs, range(len(pairs)))
    next(ahead)
    assert len(requests) <= 2
    assert len(list(ahead)) == len(pairs) - 1


def test_read_pairs_ahead_stops_when_closed(pairs: FlowDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    once = type(pairs).read_truth

    def slowly(self: FlowDataset, index: int) -> Any:
        requests.append(index)
        time.sleep(0.02)
        return once(self, index)

    monkeypatch.setattr(type(pairs), "read_truth", slowly)
    monkeypatch.setattr(loading, "choose_reader_thread_count", lambda: 1)
    before = set(threading.enumerate())
    ahead = iterate_pairs_ahead(pairs, range(len(pairs)))
    next(ahead)
    ahead.close()
    assert len(requests) <= 2
    started = set(threading.enumerate()) - before
    assert not any(thread.name.startswith("fullfield-read") for thread in started)


class Raising(Counting):
    """Raises an error, but at the calls up to ``after`` and beyond ``before``."""

    def __init__(self, error: Exception, after: int = 0, before: int = 100) -> None:
        super().__init__()
        self.error, self.after, self.before = error, after, before

    def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
        if self.after <= self.calls < self.before:
            self.calls += 1
            raise self.error
        return super().__call__(*frames, **more)


NO_ROOM = torch.OutOfMemoryError("no room")


@pytest.fixture
def _no_room_to_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise NO_ROOM

    monkeypatch.setattr(FlowMetrics, "update", no_room)


@pytest.mark.parametrize("error", [NO_ROOM, NotEnoughMemoryError("the volume takes 100.0 GiB, 70.0 are free")])
@pytest.mark.parametrize("when", ["preparing", "estimating"])
def test_evaluate_records_out_of_memory(pairs: FlowDataset, tmp_path: Path, error: Exception, when: str) -> None:
    class Large(Prepared):
        def prepare(self, device: object, size: tuple[int, int] | None = None) -> None:
            super().prepare(device, size)
            raise error

    preparing = when == "preparing"
    with pytest.raises(type(error)):
        evaluate(Large() if preparing else Raising(error), pairs, tmp_path / "run")
    noted = tmp_path / "run" / "failure.json"
    assert json.loads(noted.read_text()) == {"failure": "out of memory"}
    again = Prepared() if preparing else Counting()  # the same configuration
    assert evaluate(again, pairs, tmp_path / "run")["scores"] == by_hand(pairs)
    assert not noted.exists()
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.usefixtures("_no_room_to_score")
@pytest.mark.parametrize("beside", [False, True])
def test_evaluate_does_not_record_memory_shortage_of_scoring(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    monkeypatch.setattr(finishing, "can_score_on_other_threads", lambda _: beside)
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(Counting(), pairs, tmp_path / "run")
    assert not (tmp_path / "run" / "failure.json").exists()


def test_evaluate_with_overlapped_scoring_equals_sequential(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "can_score_on_other_threads", lambda _: True)
    assert evaluate(Counting(), pairs, tmp_path / "run")["scores"] == by_hand(pairs)
    with pytest.raises(InputError, match=r"f_0\d: counting gives a flow that is not finite"):
        evaluate(Counting(gain=float("nan")), pairs, tmp_path / "broken")
    monkeypatch.setattr(finishing, "can_score_on_other_threads", lambda _: False)
    with pytest.raises(InputError, match="a/f_00: counting gives a flow that is not finite"):
        evaluate(Counting(gain=float("nan")), pairs, tmp_path / "alone")


def test_evaluate_alone_overlaps_no_work(pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy: list[object] = []
    store, once = PredictionRun.save_prediction_unless_complete, type(pairs).read_frame_and_valid_mask

    def slowly(self: PredictionRun, name: str, *more: Any) -> None:
        busy.append(name)
        time.sleep(0.03)
        store(self, name, *more)
        busy.remove(name)

    def read_slowly(self: FlowDataset, path: Path) -> tuple[Tensor, Tensor | None]:
        busy.append(path)
        time.sleep(0.03)
        frame = once(self, path)
        busy.remove(path)
        return frame

    class Looking(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            assert not busy
            return super().__call__(*frames, **more)

    monkeypatch.setattr(PredictionRun, "save_prediction_unless_complete", slowly)
    monkeypatch.setattr(type(pairs), "read_frame_and_valid_mask", read_slowly)
    monkeypatch.setattr(finishing, "can_score_on_other_threads", lambda _: True)
    assert evaluate(Looking(), pairs, tmp_path / "run", EvaluationSettings(sequential=True))["runtime"]["sequential"]


def test_predict_estimates_next_pair_before_storing_last(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, store = threading.Event(), PredictionRun.save_prediction_unless_complete

    def waiting(self: PredictionRun, *more: Any) -> None:
        assert going_on.wait(30)
        store(self, *more)

    class Second(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            if self.calls == 2:  # the first pair took two
                going_on.set()
            return super().__call__(*frames, **more)

    monkeypatch.setattr(PredictionRun, "save_prediction_unless_complete", waiting)
    monkeypatch.setattr(finishing, "can_score_on_other_threads", lambda _: True)
    result = evaluate(Second(), pairs, tmp_path / "run")
    assert not result["runtime"]["sequential"]
    assert result["scores"] == by_hand(pairs)


def test_predict_repeats_pair_after_memory_shortage(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "can_score_on_other_threads", lambda _: True)
    assert evaluate(Raising(NO_ROOM, 3, 4), pairs, tmp_path / "run")["scores"] == by_hand(pairs)
    assert not (tmp_path / "run" / "failure.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_evaluate_on_gpu_equals_plain_loop(tmp_path: Path) -> None:
    class OnGPU(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            assert all(frame.is_cuda for frame in frames)
            return super().__call__(*(frame.cpu() for frame in frames), **more).cuda()

    pairs = sequence(tmp_path / "set", {"a": 9, "b": 8})
    result = evaluate(OnGPU(), pairs, tmp_path / "run", EvaluationSettings(device="cuda"))
    expected = by_hand(pairs)
    assert result["scores"] == {key: pytest.approx(value, rel=1e-6, nan_ok=True) for key, value in expected.items()}
    assert result["peak_bytes"] > 0
    run = PredictionRun.load(tmp_path / "run")
    for sample in pairs:
        flow, _ = run.read_prediction(sample.name)
        assert torch.allclose(flow, Counting()(sample.frame1[None], sample.frame2[None])[0], rtol=1e-5)
