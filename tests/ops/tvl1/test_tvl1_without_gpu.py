"""What the GPU's solver needs no GPU for: how planes lie, iterations are dealt to passes, calls come in order."""

from __future__ import annotations

import contextlib

import pytest
import torch

from fullfield.ops import _recording
from fullfield.ops.tvl1.cuda.pipeline import split_iterations_into_passes
from fullfield.ops.tvl1.cuda.state import Level, compute_row_pitch_in_elements, count_level_planes


def test_level_planes_share_one_allocation() -> None:
    level = Level(2, 5, 70, torch.float16, torch.device("cpu"))
    assert level.pitch == compute_row_pitch_in_elements(70, torch.float16) == 128
    assert level.memory.shape == (2, count_level_planes(torch.float16), 5, 128)
    level.memory.zero_()
    level.current_flow.fill_(1)
    level.front = 1
    assert not level.current_flow.any()
    level.current_dual.fill_(2)
    level.gradient.fill_(3)
    level.residual.fill_(4)
    level.origin.fill_(5)
    planes = level.memory[:, :, :, :70].float().mean((0, 2, 3)).tolist()
    assert planes == [1, 1, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 3, 3, 4, 5, 5]
    assert not level.memory[:, :, :, 70:].any()
    assert level.get_plane_address(3) - level.get_plane_address(0) == 3 * 5 * 128 * 2


@pytest.mark.parametrize(
    ("iterations", "depth", "passes"),
    [(10, 10, [10]), (11, 10, [6, 5]), (30, 10, [10, 10, 10]), (3, 5, [3]), (7, 1, [1] * 7)],
)
def test_plan_passes_returns_even_passes(iterations: int, depth: int, passes: list[int]) -> None:
    assert split_iterations_into_passes(iterations, depth) == passes


class Stream:
    """A stream of a GPU; notes what it waits for."""

    def __init__(self, number: int) -> None:
        self.cuda_stream, self.waited = number, list[object]()

    def wait_event(self, event: object) -> None:
        self.waited.append(event)

    def record_event(self) -> tuple[int, object]:
        return self.cuda_stream, object()


class Used:
    """A tensor that notes the streams it is used on."""

    def __init__(self) -> None:
        self.streams: list[int] = []

    def record_stream(self, stream: Stream) -> None:
        self.streams.append(stream.cuda_stream)


def test_in_order_orders_calls_of_two_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Stream(1), Stream(2)
    now = [one]
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: now[0])
    in_order, kept = _recording.StreamOrderedCalls(torch.device("cuda", 0)), Used()
    for stream in (one, one, two, one):
        now[0] = stream
        with in_order(lambda: iter([kept])):  # type: ignore[list-item]
            pass
    assert [event[0] for event in one.waited] == [1, 2]  # type: ignore[index]
    assert [event[0] for event in two.waited] == [1]  # type: ignore[index]
    assert kept.streams == [1, 2], "once a stream"
    other = Used()
    in_order.clear_recorded_streams()
    for stream in (two, one):
        now[0] = stream
        with in_order(lambda: iter([other])):  # type: ignore[list-item]
            pass
    assert other.streams == [2, 1]
