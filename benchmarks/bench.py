"""What a benchmark is: its options, its cases, what shows its results; and how cases are gone through."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import release

if TYPE_CHECKING:
    import torch

Result = dict[str, Any]
"""Of a case, with ``rows``, one for each candidate; or of a whole benchmark, with ``cases``."""
Note = Callable[[str], None]
"""Takes what is being done."""
FAILED = ("check failed", "failed")


@dataclass
class Case:
    """One thing to measure, declared before anything is made for it."""

    label: str
    make: Callable[[], Result]
    part: str | None = None
    again: bool = False
    """Measured even where an earlier run has it."""
    key: str = "label"
    """What the label is called in the stored result."""
    result: Result | None = None
    """As soon as it is there, of this run or an earlier one."""

    def run(self) -> Result:
        """Measure it."""
        start = time.perf_counter()
        head = {self.key: self.label} if self.part is None else {"part": self.part, self.key: self.label}
        return {**head, **self.make(), "took_s": round(time.perf_counter() - start, 4)}


Cases = Generator[Case, None, None]


@dataclass(frozen=True)
class Session:
    """A benchmark whose options have been read."""

    cases: Cases
    header: Result = field(default_factory=dict)
    """Stands in the results before the cases."""
    known: Sequence[Result] = ()
    """Cases of an earlier run that stay."""
    order: Sequence[str] = ()
    """Of the parts (or keys) in the results; by default as they are measured."""
    seconds: float = math.inf
    """After which no case is begun any more."""
    device: torch.device | None = None
    """Whose memory is given back between cases."""
    summary: Callable[[Sequence[Result]], Result] = lambda _: {}
    """Stands in the results after the cases."""


@dataclass(frozen=True)
class Bench:
    """A benchmark as ``python -m benchmarks NAME`` offers it. Nothing here loads a library before ``open``."""

    name: str
    help: str
    description: str
    examples: str
    add_options: Callable[[argparse.ArgumentParser], None]
    """All but those that every benchmark has."""
    check: Callable[[argparse.Namespace], Sequence[str | None]]
    """Complains of everything that can be wrong without a library; returns the files that must not be overwritten."""
    open: Callable[[argparse.Namespace, Note], Session]
    report: Callable[[Result], list[str]]
    """Results in words."""
    tables: Callable[[Result], str] | None = None
    """Results as a page of Markdown."""
    draw: Callable[[Result, Path, argparse.Namespace], list[Path]] | None = None
    """Figures into a folder."""
    instead: Callable[[argparse.Namespace], int | None] = lambda _: None
    """What some options ask for in place of measuring: its exit code."""
    showing: Sequence[str] = ()
    """Further options that belong to ``draw``."""
    resumes: bool = False
    device: str | None = None
    repeats: int = 5


def measure(
    cases: Cases,
    note: Note,
    keep: Callable[[list[Result]], None] = lambda _: None,
    known: Sequence[Result] = (),
    *,
    order: Sequence[str] = (),
    seconds: float = math.inf,
    device: torch.device | None = None,
) -> list[Result]:
    """Return the results of all cases, with the ``known`` ones, which are not measured again.

    ``keep`` receives all finished results after every case. The other arguments are those of :class:`Session`.
    """
    done = {(result.get("part"), result.get("label", result.get("case"))): result for result in known}

    def results() -> list[Result]:
        if not order:
            return list(done.values())
        return sorted(done.values(), key=lambda result: order.index(result.get("part", result.get("case"))))

    start = time.perf_counter()
    with closing(cases):
        for case in cases:
            identity = (case.part, case.label)
            if identity in done and not case.again:
                case.result = done[identity] = done.pop(identity)  # in the order of this run
                continue
            if time.perf_counter() - start > seconds:
                note(f"time is up before {case.label}")
                break
            case.result = case.run()
            done.pop(identity, None)
            done[identity] = case.result
            keep(results())
            if device is not None:
                release(device)
    return results()


def failed(results: Sequence[Result]) -> list[str]:
    """Return one line for each result of ours that did not pass its check."""
    told = [(result, one) for result in results for one in (result, *result["rows"])]
    return [
        ": ".join(filter(None, (result.get("label", result.get("case")), one.get("name"), one["reason"])))
        for result, one in told
        if one.get("ours", True) and one.get("status") in FAILED
    ]
