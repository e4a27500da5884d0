"""Results of a shot: of one frame, of a run, and the time that its stages took."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from torch import Tensor

from fullfield._check import InputError
from fullfield._ledger.versions import FileIdentity
from fullfield.estimators.bars import Bars
from fullfield.io.files import describe_error
from fullfield.io.windows import FrameWindow
from fullfield.sequences.plates import Plate, warn_at_first_nonfinite_pixels

FrameReport = Callable[[int], None]
"""Callback that receives the number of every frame that is finished, from any thread."""


class StageTime(NamedTuple):
    """Time of one stage, in all threads together."""

    calls: int = 0
    wall_s: float = 0.0
    """Seconds by the clock, including waiting."""
    cpu_s: float = 0.0
    """Processor seconds of the stage's own thread."""

    def sum_with(self, other: StageTime) -> StageTime:
        """Return the sum of both."""
        return StageTime(self.calls + other.calls, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class StageTimes:
    """Sums of the time of stages over many threads; a stage inside another one counts in both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_name: dict[str, StageTime] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Measure the work inside; work that ends with an error counts too."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.add_times({name: StageTime(1, time.perf_counter() - wall, time.thread_time() - cpu)})

    def add_times(self, times: dict[str, StageTime]) -> None:
        """Add the sums of another object."""
        with self._lock:
            for name, stage in times.items():
                self.by_name[name] = self.by_name.get(name, StageTime()).sum_with(stage)


class Problem(NamedTuple):
    """File that could not be used, and the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    @classmethod
    def from_error(cls, path: str, error: InputError | OSError) -> Problem:
        """Return what is wrong with a file, without its name twice."""
        text = (error.strerror or describe_error(error)) if isinstance(error, OSError) else describe_error(error)
        return cls(path, text.removeprefix(f"{path}: "))


@dataclass
class FrameResult:
    """Result of one frame. Tensors are on the device that computed them."""

    number: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Named as the layers of :func:`fullfield.io.write_flow_layers`; an end of the shot has zero vectors."""
    problems: list[Problem] = field(default_factory=list)
    shot_ends: list[str] = field(default_factory=list)
    """Directions in which there is no frame: the shot ends there."""
    missing: list[str] = field(default_factory=list)
    """Directions whose pair could not be estimated."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    """Neighbouring frames with the same picture."""
    bars: dict[str, Bars] = field(default_factory=dict)
    """Bars that both frames of a pair have, by direction."""
    plate: Plate | None = None
    window: FrameWindow | None = None
    inputs: dict[int, FileIdentity | None] = field(default_factory=dict)
    """The frames that it was computed from, with the versions of their files."""
    masks: dict[int, FileIdentity] = field(default_factory=dict)
    """The versions of their mask files."""

    def add_input_identities(self, number: int, plate: Plate) -> None:
        """Add a frame that the result was computed from, with the versions of its files."""
        self.inputs[number] = plate.identity
        if plate.mask_identity is not None:
            self.masks[number] = plate.mask_identity

    def add_missing_direction(self, direction: str, problem: Problem) -> None:
        """Add a direction whose pair could not be estimated, and the reason."""
        self.problems.append(problem)
        self.missing.append(direction)


@dataclass
class Outcome:
    """Result of a run over a shot, or over a part of it, in plain values.

    >>> outcome = warp_shot("plate.%04d.exr", "mv.%04d.exr", "out.%04d.exr")  # doctest: +SKIP
    >>> outcome.written, outcome.problems  # doctest: +SKIP
    """

    written: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Each plate or file once."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    bars: dict[int, Bars] = field(default_factory=dict)
    """Bars by frame, for frames whose file has bars."""
    mostly_masked: list[int] = field(default_factory=list)
    """Frames of which a mask hides more than half."""
    incomplete: list[int] = field(default_factory=list)
    """Frames whose file has only one of two directions."""
    shot_ends: list[int] = field(default_factory=list)
    """Frames without a picture, because the shot ends there."""
    dead_pictures: dict[int, str] = field(default_factory=dict)
    """Messages by frame, for pictures in which pixels are NaN or infinite."""
    unknown_flows: dict[int, str] = field(default_factory=dict)
    """Messages by frame, for flow without a known vector, along which a warped picture is black."""
    stopped: str | None = None
    """Reason why the run ended early."""
    busy_s: float = 0.0
    wall_s: float = 0.0
    stages: dict[str, StageTime] = field(default_factory=dict)
    """Time of the parts of the work: ``read``, ``reduce`` (for the search of cuts and bars), ``pin``, ``wait for
    plates``, ``estimate`` (with ``look for cuts``; on a GPU only launching), ``wait for writers``, ``fetch``, ``lay
    out``, ``write``."""
    _seen: set[Any] = field(default_factory=set, repr=False, compare=False)

    def merge_parallel_outcome(self, other: Outcome) -> None:
        """Add the result of a part that ran at the same time; the wall time stays."""
        self.add_new_items(
            other, "written", "mostly_masked", "incomplete", "shot_ends", "cuts", "duplicates", "problems"
        )
        self.bars |= other.bars
        self.dead_pictures |= other.dead_pictures
        self.unknown_flows |= other.unknown_flows
        self.stopped = self.stopped or other.stopped
        self.busy_s += other.busy_s
        total = StageTimes()
        total.add_times(self.stages)
        total.add_times(other.stages)
        self.stages = total.by_name

    def add_new_items(self, other: Outcome | FrameResult, *list_names: str) -> None:
        """Add the items of these lists that are new."""
        for name in list_names:
            for item in getattr(other, name):
                if (name, item) not in self._seen:
                    self._seen.add((name, item))
                    getattr(self, name).append(item)

    def add_bars(self, result: FrameResult) -> None:
        """Add the bars of a frame's result, of both directions together."""
        if result.bars:
            self.bars[result.number] = reduce(Bars.union, result.bars.values())

    def group_frames_by_bars(self) -> dict[Bars, list[int]]:
        """Return the frames that have the same bars, the most frequent ones first."""
        groups: dict[Bars, list[int]] = {}
        for number in sorted(self.bars):
            groups.setdefault(self.bars[number], []).append(number)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))

    def sort_warn_and_set_wall_time(self, started_at_s: float) -> Outcome:
        """Sort the frames, set the time since ``started_at_s``, and warn of pictures with NaN or infinity."""
        for items in (self.written, self.incomplete, self.cuts, self.duplicates):
            items.sort()
        self.wall_s = time.perf_counter() - started_at_s
        warn_at_first_nonfinite_pixels(self.dead_pictures)
        if self.unknown_flows:
            others = len(self.unknown_flows) - 1
            further = f"; so are {others} further pictures" if others else ""
            warnings.warn(f"{self.unknown_flows[min(self.unknown_flows)]}{further}", stacklevel=2)
        return self

    @property
    def is_complete(self) -> bool:
        """True if there are no problems and the run did not end early."""
        return not self.problems and self.stopped is None
