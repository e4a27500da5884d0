"""Flow of live video: always of the newest pair of frames, with a count of the frames without a flow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fullfield.ops.tvl1 import persistent

if TYPE_CHECKING:
    from fullfield.io.video import VideoFrame

Item = TypeVar("Item")
_MAX_SAMPLES = 10_000
_LONG_WAIT = 2.0  # seconds


class CapturedFrame(NamedTuple):
    """Frame with its time of capture, in seconds of the run's clock."""

    frame: VideoFrame
    number: int
    at: float
    late: bool = False
    """Whether the next frame was due before this one was decoded."""


class FramePair(NamedTuple):
    """Two consecutive frames of the video."""

    first: CapturedFrame
    second: CapturedFrame


class OneItemBuffer(Generic[Item]):
    """Buffer of one item between a producing and a consuming thread.

    A new item replaces one that was not taken, which counts as dropped; with ``wait_until_taken``,
    :meth:`put_or_replace_item_unless_closed` waits instead.
    """

    def __init__(self, *, wait_until_taken: bool = False) -> None:
        self._wait_until_taken = wait_until_taken
        self._changed = threading.Condition()
        self._item: Item | None = None
        self._closed = False
        self._error: BaseException | None = None
        self.dropped = 0

    def put_or_replace_item_unless_closed(self, item: Item) -> bool:
        """Put an item in; return False once the slot is closed."""
        with self._changed:
            while self._wait_until_taken and self._item is not None and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            if self._item is not None:
                self.dropped += 1
            self._item = item
            self._changed.notify_all()
            return True

    def wait_and_take_item(self) -> Item | None:
        """Wait for an item and return it; None if the slot is closed and empty. Errors of the producer are raised."""
        with self._changed:
            while self._item is None and not self._closed:
                self._changed.wait()
            item, self._item = self._item, None
            self._changed.notify_all()
            if item is None and self._error is not None:
                raise self._error
            return item

    def close(self, error: BaseException | None = None) -> None:
        """Close the slot: its item can still be taken, and ``error`` is raised after it."""
        with self._changed:
            self._closed = True
            self._error = self._error or error
            self._changed.notify_all()


def iterate_frames_waiting_until_due(
    frames: Iterable[VideoFrame],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    interval_s: float,
    speed: float = 1.0,
    on_long_wait: Callable[[int, float], None] | None = None,
) -> Iterator[CapturedFrame]:
    """Yield the frames of a file at the times at which a camera would deliver them.

    A frame counts as captured when it was due, so that its latency includes decoding.

    Args:
        frames: decoded frames with their times.
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.
        interval_s: seconds between frames of the file.
        speed: speed relative to the file's own.
        on_long_wait: receives the number of a frame and the seconds until it is due, if they exceed two.
    """
    start: float | None = None
    for number, frame in enumerate(frames):
        now = clock()
        start = now - frame.time / speed if start is None else start
        due = start + frame.time / speed
        if due > now:
            if on_long_wait is not None and due - now > max(_LONG_WAIT, 2 * interval_s / speed):
                on_long_wait(number, due - now)
            sleep(due - now)
        yield CapturedFrame(frame, number, due, late=now > due + interval_s / speed)


def iterate_with_arrival_times(frames: Iterable[VideoFrame], clock: Callable[[], float]) -> Iterator[CapturedFrame]:
    """Yield frames as they arrive, with their time of arrival."""
    for number, frame in enumerate(frames):
        yield CapturedFrame(frame, number, clock())


@dataclass
class LiveStatistics:
    """Statistics of a run; times in seconds, of the last 10 000 flows or frames."""

    frames: int = 0
    late: int = 0
    """Number of frames that were decoded after the next one was due."""
    dropped: int = 0
    """Number of pairs that a newer one replaced before they were computed."""
    flows: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    """Times from the capture of a pair's second frame to its flow."""
    computing: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    distances: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    """Times between frames, by the source's time stamps."""
    _before: float | None = None
    _span: tuple[float, float] | None = None

    def record_captured_frame(self, frame: CapturedFrame) -> None:
        """Count a captured frame."""
        self.frames += 1
        self.late += frame.late
        at = frame.frame.time
        if self._before is not None:
            self.distances.append(at - self._before)
        self._before = at

    def record_computed_flow(self, pair: FramePair, started_s: float, ended_s: float) -> None:
        """Count a computed flow."""
        self.flows += 1
        self.latencies.append(ended_s - pair.second.at)
        self.computing.append(ended_s - started_s)
        self._span = (started_s if self._span is None else self._span[0], ended_s)

    @property
    def flows_per_second(self) -> float | None:
        """Flows per second, from the first pair's start to the last flow."""
        if self._span is None or self._span[1] <= self._span[0]:
            return None
        return self.flows / (self._span[1] - self._span[0])

    @property
    def estimated_missing_frame_count(self) -> int:
        """Number of frames that never arrived, by time stamps that are several usual intervals apart.

        The source's decoder, driver or network lost them, or its rate varies.
        """
        samples = list(self.distances)  # a copy, because another thread adds frames
        usual = persistent.summarize_times(samples).median if samples else 0.0
        return sum(max(0, round(distance / usual) - 1) for distance in samples) if usual > 0 else 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        Every pair of consecutive frames has a flow or was dropped, except those in progress at the end of the run.
        """
        return {
            "frames": self.frames,
            "pairs": max(0, self.frames - 1),
            "flows": self.flows,
            "dropped": self.dropped,
            "decoded_late": self.late,
            "missing": self.estimated_missing_frame_count,
            "flows_per_second": self.flows_per_second,
            "latency_s": persistent.summarize_times(self.latencies)._asdict() if self.latencies else None,
            "computing_s": persistent.summarize_times(self.computing)._asdict() if self.computing else None,
        }


def capture_pairs(
    frames: Iterable[CapturedFrame], pair_buffer: OneItemBuffer[FramePair], statistics: LiveStatistics
) -> None:
    """Put pairs into the slot until the frames end or it is closed; the body of a thread.

    Errors of the source are raised by :meth:`OneItemBuffer.wait_and_take_item`.
    """
    before: CapturedFrame | None = None
    try:
        for frame in frames:
            statistics.record_captured_frame(frame)
            if before is not None and not pair_buffer.put_or_replace_item_unless_closed(FramePair(before, frame)):
                break
            before, statistics.dropped = frame, pair_buffer.dropped
    except Exception as error:  # noqa: BLE001 - raised again by take
        pair_buffer.close(error)
    finally:
        pair_buffer.close()


class PairFlow(NamedTuple):
    """Pair of frames with its flow."""

    pair: FramePair
    flow: Any


def compute_newest_pair_flows(
    pair_buffer: OneItemBuffer[FramePair],
    compute_flow: Callable[[FramePair], Any],
    result_buffer: OneItemBuffer[PairFlow],
    statistics: LiveStatistics,
    clock: Callable[[], float],
    max_flows: int | None = None,
) -> None:
    """Compute the flow of the newest pair until the pairs end, the results are closed or there are ``max_flows`` flows.

    ``compute_flow`` returns when the flow is complete. Errors are raised by
    :meth:`OneItemBuffer.wait_and_take_item` of the results.
    """
    try:
        while (max_flows is None or statistics.flows < max_flows) and (
            pair := pair_buffer.wait_and_take_item()
        ) is not None:
            started_s = clock()
            flow = compute_flow(pair)
            statistics.record_computed_flow(pair, started_s, clock())
            if not result_buffer.put_or_replace_item_unless_closed(PairFlow(pair, flow)):
                break
    except Exception as error:  # noqa: BLE001 - raised again by take
        result_buffer.close(error)
    finally:
        pair_buffer.close()
        result_buffer.close()
