"""What every measurement shares: candidates in turns, checks, clocks, graphs, memory, and what an error means."""

from __future__ import annotations

import gc
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fullfield import _check
from fullfield._check import InputError

if TYPE_CHECKING:
    import torch

Clock = Callable[[Callable[[], Any]], float]
"""Seconds that a call takes."""


@dataclass
class Candidate:
    """One thing to time: ``call`` does the work and returns its result, ``check`` says what is wrong with it."""

    name: str
    call: Callable[[], Any]
    check: Callable[[Any], str | None]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Seconds of every repetition, with the median and the spread."""

    name: str
    seconds: tuple[float, ...]
    facts: dict[str, Any]

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"name": self.name, **spread(self.seconds), **self.facts}

    def in_full(self) -> dict[str, Any]:
        """Return the spread and the seconds of every round."""
        return {**spread(self.seconds), "seconds": list(self.seconds)}


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and number of times, in seconds."""
    return {
        "median_s": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "repeats": len(seconds)
    }  # fmt: skip


class CheckFailed(RuntimeError):
    """A candidate computed something wrong, so its time means nothing."""


class TooLarge(MemoryError):
    """A contender that needs more memory than there is says so before it tries."""


class TookTooLong(RuntimeError):
    """A step took more than its time. No TimeoutError, which compilers catch."""


class Unsupported(RuntimeError):
    """A contender that cannot do a problem, with its reason."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was what was missing."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "DefaultCPUAllocator" in text
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error; of a compiler's error that of its cause."""
    while inner := getattr(error, "inner_exception", None):
        error = inner
    return next(iter(str(error).splitlines()), type(error).__name__)


def given_up(error: BaseException) -> dict[str, str]:
    """Return what an error means for a row of results: its status and the reason."""
    if isinstance(error, Unsupported):
        return {"status": "cannot", "reason": str(error)}
    return {"status": "out of memory" if is_out_of_memory(error) else "failed", "reason": first_line(error)}


@contextmanager
def limit_seconds(seconds: float | None, what: str) -> Iterator[None]:
    """Raise TookTooLong inside the block after ``seconds``; without effect outside the main thread and on Windows."""
    if seconds is None or not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TookTooLong(f"{what} took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def release(device: torch.device) -> None:
    """Give memory back between cases."""
    import torch

    gc.collect()
    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.empty_cache()


def timing_device(name: str | None) -> torch.device:
    """Return the device that ``--device`` names, by default the GPU where there is one; InputError for others."""
    import torch

    device = _check.resolve_available_device(name or ("cuda" if torch.cuda.is_available() else "cpu"), "--device")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device: times are taken on cpu and cuda, got {name}")
    return torch.empty(0, device=device).device


def wall_clock(call: Callable[[], Any]) -> float:
    """Seconds of one call that has finished its work when it returns."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def event_clock(call: Callable[[], Any]) -> float:
    """Seconds on the current CUDA stream from before the call to the end of its work, host time included."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """How work on the device is timed."""
    return event_clock if device.type == "cuda" else wall_clock


def interleaved(
    candidates: Sequence[Candidate],
    repeats: int,
    note: Callable[[str], None],
    clock: Clock = wall_clock,
    patience: float = float("inf"),
) -> list[Timing]:
    """Time all candidates in turn, ``repeats`` rounds, each round starting with another one.

    A first, untimed round warms up and checks every result. A candidate that has taken ``patience`` seconds in all
    sits out the rounds that are left. Raises CheckFailed when a check does.
    """
    for candidate in candidates:
        note(f"checking {candidate.name}")
        problem = candidate.check(candidate.call())
        if problem is not None:
            raise CheckFailed(f"{candidate.name}: {problem}; no time is reported")
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for number in range(repeats):
        note(f"round {number + 1} of {repeats}")
        first = number % len(candidates)
        for candidate in [*candidates[first:], *candidates[:first]]:
            taken = seconds[candidate.name]
            if sum(taken) < patience:
                taken.append(clock(candidate.call))
    return [Timing(c.name, tuple(seconds[c.name]), c.facts) for c in candidates]


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return the call as a CUDA graph: a function that replays it and returns the result in the graph's memory.

    The function keeps the call, and so the memory whose addresses are in the graph. Raises RuntimeError where the call
    waits for the device, which is found out before anything is captured: a capture that fails leaves the allocator in
    disorder.
    """
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        with _no_waiting():
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Relaxed: calls such as asking for free memory do no harm here.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        result = call()
    return _Replay(graph, result, call)


@dataclass(frozen=True)
class _Replay:
    graph: torch.cuda.CUDAGraph
    result: Any
    call: Callable[[], Any]

    def __call__(self) -> Any:
        self.graph.replay()
        return self.result


@contextmanager
def _no_waiting() -> Iterator[None]:
    import torch

    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most CUDA memory that PyTorch had allocated during a call, beyond what was allocated before it."""
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def issue_seconds(calls: Sequence[Callable[[], Any]], repeats: int = 5) -> float:
    """Host seconds a call takes to issue its work on the GPU, not waiting for it: median over bursts."""
    import torch

    bursts = []
    for _ in range(1 + repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for call in calls:
            call()
        bursts.append((time.perf_counter() - start) / len(calls))
    torch.cuda.synchronize()
    return statistics.median(bursts[1:])
