"""Flow while the frames come: always of the newest pair, every frame without a flow counted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fullfield.ops import latency

if TYPE_CHECKING:
    from fullfield.io.video import VideoFrame

Item = TypeVar("Item")
_KEPT = 10_000
_LONG_WAIT = 2.0  # seconds


class Captured(NamedTuple):
    """A frame, and when it was there by the clock of the run, seconds."""

    frame: VideoFrame
    number: int
    at: float
    late: bool = False
    """Whether the frame after it was due before this one was decoded."""


class Pair(NamedTuple):
    """Two frames that follow each other in the video."""

    first: Captured
    second: Captured


class Slot(Generic[Item]):
    """Room for one item between a thread that makes them and one that takes them.

    Without ``wait`` a new item replaces one that was not taken, which counts as dropped; with it, :meth:`put` waits.
    """

    def __init__(self, *, wait: bool = False) -> None:
        self._wait = wait
        self._changed = threading.Condition()
        self._item: Item | None = None
        self._closed = False
        self._error: BaseException | None = None
        self.dropped = 0

    def put(self, item: Item) -> bool:
        """Hand over an item; False once the slot is closed."""
        with self._changed:
            while self._wait and self._item is not None and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            if self._item is not None:
                self.dropped += 1
            self._item = item
            self._changed.notify_all()
            return True

    def take(self) -> Item | None:
        """The newest item, waiting for one; None when the slot is closed and empty. Raises what the maker raised."""
        with self._changed:
            while self._item is None and not self._closed:
                self._changed.wait()
            item, self._item = self._item, None
            self._changed.notify_all()
            if item is None and self._error is not None:
                raise self._error
            return item

    def close(self, error: BaseException | None = None) -> None:
        """No more items: what is in the slot can still be taken. ``error`` is raised after it."""
        with self._changed:
            self._closed = True
            self._error = self._error or error
            self._changed.notify_all()


def paced(
    frames: Iterable[VideoFrame],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    interval: float,
    speed: float = 1.0,
    waiting: Callable[[int, float], None] | None = None,
) -> Iterator[Captured]:
    """The frames of a file at the times at which a camera would have made them.

    A frame counts as captured when it was due, so that what decoding takes is part of its latency. ``interval``:
    seconds from frame to frame of the file; ``speed``: times as fast as the file says. ``waiting`` hears of a frame, by
    its number, that is due only in so many seconds, where those are more than two.
    """
    start: float | None = None
    for number, frame in enumerate(frames):
        now = clock()
        start = now - frame.time / speed if start is None else start
        due = start + frame.time / speed
        if due > now:
            if waiting is not None and due - now > max(_LONG_WAIT, 2 * interval / speed):
                waiting(number, due - now)
            sleep(due - now)
        yield Captured(frame, number, due, late=now > due + interval / speed)


def arriving(frames: Iterable[VideoFrame], clock: Callable[[], float]) -> Iterator[Captured]:
    """The frames as they come, each captured when it came."""
    for number, frame in enumerate(frames):
        yield Captured(frame, number, clock())


@dataclass
class Tally:
    """What became of the frames; times in seconds, of the last 10 000 flows or frames."""

    frames: int = 0
    late: int = 0
    """Frames that were decoded after the next one was due."""
    dropped: int = 0
    """Pairs that a newer one replaced before their turn."""
    flows: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """From the capture of a pair's second frame to its flow."""
    computing: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    distances: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """From frame to frame, by the times that the source gives them."""
    _before: float | None = None
    _span: tuple[float, float] | None = None

    def captured(self, frame: Captured) -> None:
        """A frame came."""
        self.frames += 1
        self.late += frame.late
        at = frame.frame.time
        if self._before is not None:
            self.distances.append(at - self._before)
        self._before = at

    def computed(self, pair: Pair, begun: float, done: float) -> None:
        """A pair's flow is there."""
        self.flows += 1
        self.latencies.append(done - pair.second.at)
        self.computing.append(done - begun)
        self._span = (begun if self._span is None else self._span[0], done)

    @property
    def rate(self) -> float | None:
        """Flows a second, from the first pair's start to the last flow."""
        if self._span is None or self._span[1] <= self._span[0]:
            return None
        return self.flows / (self._span[1] - self._span[0])

    @property
    def missing(self) -> int:
        """Frames that never came, by distances that are a multiple of the usual one: the source's decoder, driver or
        network lost them, or its rate varies."""
        kept = list(self.distances)  # at once: frames go on coming in another thread
        usual = latency.spread(kept).median if kept else 0.0
        return sum(max(0, round(distance / usual) - 1) for distance in kept) if usual > 0 else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON.

        Every pair of frames that follow each other has a flow or was dropped, but for those that the end of the run
        leaves in hand.
        """
        return {
            "frames": self.frames,
            "pairs": max(0, self.frames - 1),
            "flows": self.flows,
            "dropped": self.dropped,
            "decoded_late": self.late,
            "missing": self.missing,
            "flows_per_second": self.rate,
            "latency_s": spread(self.latencies),
            "computing_s": spread(self.computing),
        }


def spread(seconds: Iterable[float]) -> dict[str, float] | None:
    """Median, 99th percentile and maximum; None of nothing."""
    kept = list(seconds)
    if not kept:
        return None
    found = latency.spread(kept)
    return {"median": found.median, "p99": found.p99, "max": found.high}


def capture(frames: Iterable[Captured], pairs: Slot[Pair], tally: Tally) -> None:
    """Hand over pair after pair until the frames end or nobody takes them; for a thread of its own.

    Errors of the source are raised where the pairs are taken.
    """
    before: Captured | None = None
    try:
        for frame in frames:
            tally.captured(frame)
            if before is not None and not pairs.put(Pair(before, frame)):
                break
            before, tally.dropped = frame, pairs.dropped
    except Exception as error:  # noqa: BLE001 - raised again by take
        pairs.close(error)
    finally:
        pairs.close()


class Done(NamedTuple):
    """A pair with its flow."""

    pair: Pair
    flow: Any


def follow(
    pairs: Slot[Pair],
    compute: Callable[[Pair], Any],
    results: Slot[Done],
    tally: Tally,
    clock: Callable[[], float],
    most: int | None = None,
) -> None:
    """The flow of the newest pair, again and again, until the pairs end, nobody takes the flows or there are ``most``.

    ``compute`` returns when the flow is there. Errors are raised where the results are taken.
    """
    try:
        while (most is None or tally.flows < most) and (pair := pairs.take()) is not None:
            begun = clock()
            flow = compute(pair)
            tally.computed(pair, begun, clock())
            if not results.put(Done(pair, flow)):
                break
    except Exception as error:  # noqa: BLE001 - raised again by take
        results.close(error)
    finally:
        pairs.close()
        results.close()
