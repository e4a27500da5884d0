"""Timing candidates side by side, and writing down what was measured and where."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield import _check
from fullfield._check import InputError

if TYPE_CHECKING:
    import torch


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
        spread = {"min": min(self.seconds), "max": max(self.seconds), "repeats": len(self.seconds)}
        return {"name": self.name, "median_s": self.median, **spread, **self.facts}


class CheckFailed(RuntimeError):
    """A candidate computed something wrong, so its time means nothing."""


def timing_device(name: str | None) -> torch.device:
    """The device ``--device`` names, with its number; by default the GPU where there is one. InputError for others."""
    import torch

    device = _check.device(name or ("cuda" if torch.cuda.is_available() else "cpu"), "--device")
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


def interleaved(
    candidates: Sequence[Candidate],
    repeats: int,
    note: Callable[[str], None],
    clock: Callable[[Callable[[], Any]], float] = wall_clock,
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
    """The call as a CUDA graph: a function that replays it and returns the result it has in the graph's memory.

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


def environment() -> dict[str, Any]:
    """Machine, versions and commit: what a number depends on."""
    import torch

    from fullfield import __version__
    from fullfield.cli.report import processor_name

    versions = {"fullfield": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "cv2", "skimage"):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            continue
    facts: dict[str, Any] = {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "versions": versions,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["gpu_memory_bytes"] = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        facts["cuda"] = torch.version.cuda
    return facts


def _commit() -> str | None:
    """The commit of the checkout this code runs from, marked when files differ from it; None for a wheel.

    ``FULLFIELD_COMMIT`` says it where the files came without their history.
    """
    told = os.environ.get("FULLFIELD_COMMIT")
    if told:
        return told
    import fullfield

    here = Path(fullfield.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(top)benchmarks/*.py")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write_results(path: str | os.PathLike[str], results: dict[str, Any]) -> None:
    """Write results and environment as JSON; InputError when the folder is missing."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(f"{target}: expected an existing folder for the results")
    from fullfield.io import atomic_path

    with atomic_path(target) as temporary:
        temporary.write_text(json.dumps({**results, "environment": environment()}, indent=1) + "\n")
