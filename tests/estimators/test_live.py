"""The newest pair, what is dropped, and what is told of it, with a clock that only goes when told to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor

from fullfield.estimators.live import (
    CapturedFrame,
    FramePair,
    LiveStatistics,
    OneItemBuffer,
    PairFlow,
    capture_pairs,
    compute_newest_pair_flows,
    iterate_frames_waiting_until_due,
    iterate_with_arrival_times,
)


class Frame:
    def __init__(self, time: float) -> None:
        self.time = time

    def read_luma(self) -> Tensor:
        return torch.zeros(1, 2, 2, dtype=torch.uint8)

    def read_rgb(self) -> Tensor:
        return torch.zeros(3, 2, 2, dtype=torch.uint8)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class Simulated(OneItemBuffer[FramePair]):
    """The slot of a run without threads: frames come as the clock passes their times."""

    def __init__(self, count: int, interval: float, clock: Clock, statistics: LiveStatistics) -> None:
        super().__init__()
        self.clock, self.statistics = clock, statistics
        self.coming = [CapturedFrame(Frame(n * interval), n, clock.now + n * interval) for n in range(count)]
        self.before: CapturedFrame | None = None

    def catch_up(self) -> None:
        while self.coming and self.coming[0].at <= self.clock.now + 1e-9:
            frame = self.coming.pop(0)
            self.statistics.record_captured_frame(frame)
            if self.before is not None:
                self.put_or_replace_item_unless_closed(FramePair(self.before, frame))
            self.before, self.statistics.dropped = frame, self.dropped

    def wait_and_take_item(self) -> FramePair | None:
        self.catch_up()
        if self._item is None and self.coming:
            self.clock.now = self.coming[0].at
            self.catch_up()
            return self.wait_and_take_item()
        if not self.coming:
            self.close()
        return super().wait_and_take_item()


def simulate(
    frames: int, interval: float, seconds: float, most: int | None = None
) -> tuple[LiveStatistics, list[FramePair]]:
    """A run whose flows take ``seconds`` each, without a thread."""
    clock, statistics = Clock(), LiveStatistics()
    pairs = Simulated(frames, interval, clock, statistics)
    computed: list[FramePair] = []
    results: OneItemBuffer[PairFlow] = OneItemBuffer()

    def compute(pair: FramePair) -> int:
        clock.sleep(seconds)
        pairs.catch_up()
        computed.append(pair)
        return pair.second.number

    compute_newest_pair_flows(pairs, compute, results, statistics, clock, most)
    return statistics, computed


@pytest.mark.unit
def test_compute_newest_pairs_drops_none_when_fast_enough() -> None:
    statistics, computed = simulate(11, 0.1, 0.04)
    assert [pair.second.number for pair in computed] == list(range(1, 11))
    report = statistics.as_dict()
    assert (report["frames"], report["pairs"], report["flows"], report["dropped"]) == (11, 10, 10, 0)
    assert report["latency_s"] == pytest.approx({"median": 0.04, "p99": 0.04, "max": 0.04})
    assert report["flows_per_second"] == pytest.approx(10 / 0.94)
    statistics, computed = simulate(100, 0.1, 0.25, most=3)
    assert len(computed) == statistics.flows == 3


@pytest.mark.unit
def test_compute_newest_pairs_returns_newest_and_counts_drops() -> None:
    """Flows of 0.25 s, a frame every 0.1 s: after frame 1 comes the newest when it is done, frame 3, then 6, ..."""
    statistics, computed = simulate(12, 0.1, 0.25)
    assert [pair.second.number for pair in computed] == [1, 3, 6, 8, 11]
    assert all(pair.second.number == pair.first.number + 1 for pair in computed), "consecutive frames"
    report = statistics.as_dict()
    assert (report["pairs"], report["flows"], report["dropped"]) == (11, 5, 6)
    # From the frame to its flow, waiting included: 1 is taken at once, 3 waits 0.05 s, 6 none, 8 0.05 s, 11 none.
    assert list(statistics.latencies) == pytest.approx([0.25, 0.3, 0.25, 0.3, 0.25])
    assert list(statistics.computing) == pytest.approx([0.25] * 5)


@pytest.mark.unit
def test_live_statistics_count_missing_frames() -> None:
    """Two are lost after the third, and the last comes a little late."""
    statistics = LiveStatistics()
    assert statistics.estimated_missing_frame_count == 0
    for number, time in enumerate((0.0, 0.1, 0.2, 0.5, 0.6, 0.73)):
        statistics.record_captured_frame(CapturedFrame(Frame(time), number, time))
    assert (statistics.frames, statistics.as_dict()["missing"]) == (6, 2)
    still = LiveStatistics()
    for number in range(3):
        still.record_captured_frame(CapturedFrame(Frame(0.0), number, 0.0))
    assert still.estimated_missing_frame_count == 0, "a source without time stamps"


@pytest.mark.unit
def test_play_at_rate_waits_for_time_stamps() -> None:
    clock = Clock()
    taken = list(iterate_frames_waiting_until_due((Frame(n / 4) for n in range(4)), clock, clock.sleep, 1 / 4))
    assert [frame.at for frame in taken] == pytest.approx([100, 100.25, 100.5, 100.75])
    assert clock.now == pytest.approx(100.75)
    assert not any(frame.late for frame in taken)
    faster = list(
        iterate_frames_waiting_until_due((Frame(n / 4) for n in range(4)), clock, clock.sleep, 1 / 4, speed=2.0)
    )
    assert faster[-1].at - faster[0].at == pytest.approx(0.375)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("times", "interval", "expected_wait"),
    [
        ((0.0, 0.25, 1.0, 31.0), 1 / 4, (3, 15.0)),
        ((0.0, 3.8, 8.2), 1 / 4, (2, 2.2)),  # two seconds
        ((0.0, 19.0, 41.0), 10.0, (2, 11.0)),  # two intervals
    ],
)
def test_play_at_rate_reports_long_wait(
    times: tuple[float, ...], interval: float, expected_wait: tuple[int, float]
) -> None:
    clock, found = Clock(), []
    list(
        iterate_frames_waiting_until_due(
            map(Frame, times), clock, clock.sleep, interval, 2.0, lambda *wait: found.append(wait)
        )
    )
    assert found == [(expected_wait[0], pytest.approx(expected_wait[1]))]


@pytest.mark.unit
def test_play_at_rate_marks_late_frames() -> None:
    clock, statistics = Clock(), LiveStatistics()

    def decoded() -> Iterator[Frame]:
        for number in range(4):
            clock.now += 0.4
            yield Frame(number / 4)

    for frame in iterate_frames_waiting_until_due(decoded(), clock, clock.sleep, 1 / 4):
        statistics.record_captured_frame(frame)
        assert frame.at == pytest.approx(100.4 + frame.number / 4), "when it was due, not when it was decoded"
    assert statistics.late == 2  # 0.15 s behind, then 0.3 s and 0.45 s, more than the 0.25 s between frames


@pytest.mark.unit
def test_stamp_on_arrival_returns_time_of_arrival() -> None:
    clock = Clock()

    def frames() -> Iterator[Frame]:
        for _ in range(3):
            clock.now += 0.7
            yield Frame(0.0)

    assert [frame.at for frame in iterate_with_arrival_times(frames(), clock)] == pytest.approx([100.7, 101.4, 102.1])


@pytest.mark.unit
def test_one_item_buffer_drops_nothing_between_threads() -> None:
    statistics = LiveStatistics()
    pairs: OneItemBuffer[FramePair] = OneItemBuffer(wait_until_taken=True)
    results: OneItemBuffer[PairFlow] = OneItemBuffer(wait_until_taken=True)
    clock = Clock()
    frames = (CapturedFrame(Frame(n), n, 0.0) for n in range(200))
    threads = [
        threading.Thread(target=capture_pairs, args=(frames, pairs, statistics), daemon=True),
        threading.Thread(
            target=compute_newest_pair_flows,
            args=(pairs, lambda p: p.second.number, results, statistics, clock),
            daemon=True,
        ),
    ]
    for thread in threads:
        thread.start()
    seen = []
    while (done := results.wait_and_take_item()) is not None:
        seen.append(done.flow)
    assert seen == list(range(1, 200))
    assert (statistics.dropped, results.dropped) == (0, 0)
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.unit
def test_one_item_buffer_close_ends_waiting_threads() -> None:
    pairs: OneItemBuffer[int] = OneItemBuffer(wait_until_taken=True)
    assert pairs.put_or_replace_item_unless_closed(1)
    blocked = threading.Thread(target=pairs.put_or_replace_item_unless_closed, args=(2,), daemon=True)
    blocked.start()
    pairs.close()
    blocked.join(5)
    assert not blocked.is_alive()
    assert pairs.wait_and_take_item() == 1
    assert pairs.wait_and_take_item() is None
    assert not pairs.put_or_replace_item_unless_closed(3)


@pytest.mark.unit
@pytest.mark.parametrize("where", ["source", "computation"])
def test_one_item_buffer_take_raises_error_of_producer(where: str) -> None:
    def frames() -> Iterator[CapturedFrame]:
        yield from (CapturedFrame(Frame(n), n, 0.0) for n in range(2))
        if where == "source":
            raise OSError("unplugged")

    def compute(pair: FramePair) -> int:
        if where == "computation":
            raise OSError("unplugged")
        return pair.second.number

    statistics, clock = LiveStatistics(), Clock()
    pairs: OneItemBuffer[FramePair] = OneItemBuffer(wait_until_taken=True)
    results: OneItemBuffer[PairFlow] = OneItemBuffer(wait_until_taken=True)
    threading.Thread(target=capture_pairs, args=(frames(), pairs, statistics), daemon=True).start()
    threading.Thread(
        target=compute_newest_pair_flows, args=(pairs, compute, results, statistics, clock), daemon=True
    ).start()

    def drain() -> None:
        while results.wait_and_take_item() is not None:
            pass

    with pytest.raises(OSError, match="unplugged"):
        drain()


@pytest.mark.unit
def test_live_statistics_summarize_times_by_nearest_rank() -> None:
    def summarize_computing(seconds: Iterable[float]) -> object:
        return LiveStatistics(computing=deque(seconds)).as_dict()["computing_s"]

    assert summarize_computing([]) is None
    assert summarize_computing([3.0]) == {"median": 3.0, "p99": 3.0, "max": 3.0}
    assert summarize_computing(range(1, 101)) == {"median": 50.5, "p99": 99, "max": 100}
    assert summarize_computing(range(1, 102)) == {"median": 51, "p99": 100, "max": 101}
    assert summarize_computing([3.0, 1.0, 2.0]) == {"median": 2.0, "p99": 3.0, "max": 3.0}
    assert summarize_computing(range(1, 1001)) == {"median": 500.5, "p99": 990, "max": 1000}
