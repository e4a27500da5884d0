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
from fullfield._check import NoRoomError
from fullfield.datasets import FlowDataset
from fullfield.evaluation import Run, Setting, evaluate, finishing, loading
from fullfield.evaluation.loading import read_ahead
from fullfield.metrics import FlowMetrics


def test_a_shared_frame_is_read_once(pairs: FlowDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    once = type(pairs).read_frame

    def counted(self: FlowDataset, path: Path) -> Tensor:
        read.append(path)
        return once(self, path)

    monkeypatch.setattr(type(pairs), "read_frame", counted)
    loaded = list(read_ahead(pairs, range(len(pairs))))
    assert [pair.index for pair in loaded] == list(range(5))
    assert len(read) == len(set(read)) == 7
    for pair in loaded:
        first, second = pairs.frames(pair.index)
        assert pair.frame1 is not None
        assert torch.equal(pair.frame1, first)
        assert pair.frame2 is not None
        assert torch.equal(pair.frame2, second)


def test_little_is_read_before_the_size_of_a_pair_is_known(pairs: FlowDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    once = type(pairs).truth

    def counted(self: FlowDataset, index: int) -> Any:
        asked.append(index)
        return once(self, index)

    monkeypatch.setattr(type(pairs), "truth", counted)
    monkeypatch.setattr(loading, "readers", lambda: 8)
    monkeypatch.setattr(loading, "_AHEAD_BYTES", 1)
    ahead = read_ahead(pairs, range(len(pairs)))
    next(ahead)
    assert len(asked) <= 2
    assert len(list(ahead)) == len(pairs) - 1


def test_reading_stops_when_nobody_asks(pairs: FlowDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    once = type(pairs).truth

    def slowly(self: FlowDataset, index: int) -> Any:
        asked.append(index)
        time.sleep(0.02)
        return once(self, index)

    monkeypatch.setattr(type(pairs), "truth", slowly)
    monkeypatch.setattr(loading, "readers", lambda: 1)
    ahead = read_ahead(pairs, range(len(pairs)))
    next(ahead)
    ahead.close()
    assert len(asked) <= 2
    assert not any(thread.name.startswith("fullfield-read") for thread in threading.enumerate())


def test_too_little_memory_is_noted(pairs: FlowDataset, tmp_path: Path) -> None:
    class Large(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            if self.fail_at is None:
                return super().__call__(*frames, **more)
            raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        evaluate(Large(fail_at=0), pairs, tmp_path / "run")
    noted = tmp_path / "run" / "failure.json"
    assert json.loads(noted.read_text()) == {"failure": "out of memory"}
    evaluate(Large(), pairs, tmp_path / "run")
    assert not noted.exists()
    assert (tmp_path / "run" / "result.json").is_file()


def test_a_lookup_without_room_is_noted_and_scoring_without_room_is_not(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dense(Counting):
        def __call__(self, *_: Tensor, **__: Any) -> Tensor:
            raise NoRoomError("the volume takes 100.0 GiB, 70.0 are free")

    with pytest.raises(NoRoomError):
        evaluate(Dense(), pairs, tmp_path / "dense")
    assert (tmp_path / "dense" / "failure.json").is_file()

    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(FlowMetrics, "update", no_room)
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(Counting(), pairs, tmp_path / "run")
    assert not (tmp_path / "run" / "failure.json").exists()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), NoRoomError("the volume takes 100.0 GiB")])
def test_too_little_memory_to_prepare_is_noted(pairs: FlowDataset, tmp_path: Path, error: Exception) -> None:
    class Large(Prepared):
        def prepare(self, device: object, size: tuple[int, int] | None = None) -> None:
            super().prepare(device, size)
            raise error

    with pytest.raises(type(error)):
        evaluate(Large(), pairs, tmp_path / "run")
    noted = tmp_path / "run" / "failure.json"
    assert json.loads(noted.read_text()) == {"failure": "out of memory"}
    assert evaluate(Prepared(), pairs, tmp_path / "run")["scores"] == by_hand(pairs)  # the same configuration
    assert not noted.exists()


def test_scoring_beside_the_estimation_gives_the_same(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "overlaps", lambda _: True)
    assert evaluate(Counting(), pairs, tmp_path / "run")["scores"] == by_hand(pairs)
    with pytest.raises(InputError, match=r"f_0\d: counting gives a flow that is not finite"):
        evaluate(Counting(gain=float("nan")), pairs, tmp_path / "broken")

    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(FlowMetrics, "update", no_room)
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(Counting(), pairs, tmp_path / "short")
    assert not (tmp_path / "short" / "failure.json").exists()


def test_alone_nothing_goes_on_beside_the_estimation(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[object] = []
    store, once = Run.save, type(pairs).read_frame

    def slowly(self: Run, name: str, *more: Any) -> None:
        busy.append(name)
        time.sleep(0.03)
        store(self, name, *more)
        busy.remove(name)

    def read_slowly(self: FlowDataset, path: Path) -> Tensor:
        busy.append(path)
        time.sleep(0.03)
        frame = once(self, path)
        busy.remove(path)
        return frame

    class Looking(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            assert not busy
            return super().__call__(*frames, **more)

    monkeypatch.setattr(Run, "save", slowly)
    monkeypatch.setattr(type(pairs), "read_frame", read_slowly)
    monkeypatch.setattr(finishing, "overlaps", lambda _: True)
    assert evaluate(Looking(), pairs, tmp_path / "run", Setting(alone=True))["runtime"]["alone"]


def test_otherwise_the_next_pair_is_estimated_before_the_last_is_stored(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, store = threading.Event(), Run.save

    def waiting(self: Run, *more: Any) -> None:
        assert going_on.wait(30)
        store(self, *more)

    class Second(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            if self.calls == 2:  # the first pair took two
                going_on.set()
            return super().__call__(*frames, **more)

    monkeypatch.setattr(Run, "save", waiting)
    monkeypatch.setattr(finishing, "overlaps", lambda _: True)
    result = evaluate(Second(), pairs, tmp_path / "run")
    assert not result["runtime"]["alone"]
    assert result["scores"] == by_hand(pairs)


def test_memory_that_is_short_beside_other_work_is_asked_for_again(
    pairs: FlowDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Once(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            if self.calls == 3:
                self.calls += 1
                raise torch.OutOfMemoryError("no room")
            return super().__call__(*frames, **more)

    monkeypatch.setattr(finishing, "overlaps", lambda _: True)
    assert evaluate(Once(), pairs, tmp_path / "run")["scores"] == by_hand(pairs)
    assert not (tmp_path / "run" / "failure.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_totals_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    class OnGPU(Counting):
        def __call__(self, *frames: Tensor, **more: Any) -> Tensor:
            assert all(frame.is_cuda for frame in frames)
            return super().__call__(*(frame.cpu() for frame in frames), **more).cuda()

    pairs = sequence(tmp_path / "set", {"a": 9, "b": 8})
    result = evaluate(OnGPU(), pairs, tmp_path / "run", Setting(device="cuda"))
    expected = by_hand(pairs)
    assert result["scores"] == {key: pytest.approx(value, rel=1e-6, nan_ok=True) for key, value in expected.items()}
    assert result["peak_bytes"] > 0
    run = Run.load(tmp_path / "run")
    for sample in pairs:
        flow, _ = run.read(sample.name)
        assert torch.allclose(flow, Counting()(sample.frame1[None], sample.frame2[None])[0], rtol=1e-5)
