"""Timing candidates side by side, and writing down what was measured and where."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fullfield._check import InputError


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


def interleaved(candidates: Sequence[Candidate], repeats: int, note: Callable[[str], None]) -> list[Timing]:
    """Time all candidates in turn, ``repeats`` rounds, each round starting with another one.

    A first, untimed round warms up and checks every result. Raises CheckFailed when a check does.
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
            start = time.perf_counter()
            candidate.call()
            seconds[candidate.name].append(time.perf_counter() - start)
    return [Timing(c.name, tuple(seconds[c.name]), c.facts) for c in candidates]


def environment() -> dict[str, Any]:
    """Machine, versions and commit: what a number depends on."""
    import torch

    from fullfield import __version__

    versions = {"fullfield": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "cv2", "skimage"):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            continue
    facts: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "versions": versions,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    return facts


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """The commit of the checkout this code runs from, marked when files differ from it; None for a wheel."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
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
