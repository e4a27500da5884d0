"""Run of one process over a shot: estimation, with writing in threads behind it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.estimators.estimation import build
from fullfield.estimators.protocol import Estimator, prepare_estimator
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.io.oiio import one_thread_a_file
from fullfield.io.scanlines import Scanlines, body_shape
from fullfield.io.vectors import vector_lines_there
from fullfield.sequences.engine import Engine, Estimated, More, Problem, Setting, Spent, Stages
from fullfield.sequences.outputs import Output, Plan, to_cpu
from fullfield.sequences.plates import Plates, open_plates
from fullfield.sequences.records import Checksums, Identity, Records, digest

_WAITING_BYTES = 1 << 30  # of results that are being written or wait to be
_GONE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EIO, errno.ENOTCONN,
         errno.EHOSTDOWN, errno.ENODEV}  # fmt: skip
"""Errors of writing after which the next file will fail as well."""

Tell = Callable[[int], None]


@dataclass(frozen=True)
class Work:
    """Description of a run: plain values, which can be sent to other processes and machines."""

    source: str
    output: Output
    method: str = DEFAULT_METHOD
    config: Any = None
    backend: str | None = None
    setting: Setting = field(default_factory=Setting)
    reading: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None
    made_by: dict[str, Any] | None = None
    """What records say of the run (:meth:`Output.made_by`); by default that of its own estimator."""

    def open(self, numbers: Sequence[int] | str | None) -> Plates:
        """Open the plates, with the frames to work on."""
        return open_plates(self.source, numbers, **self.reading)

    def ready(self) -> Estimator:
        """Return a new, prepared estimator, and set this process's number of threads."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        estimator = build(self.method, config=self.config, backend=self.backend)
        prepare_estimator(estimator, _check.device(self.setting.device))
        return estimator

    def settle(self, settings: dict[str, Any], plates: Plates, *, overwrite: bool) -> Plan:
        """Return which frames of ``plates`` are to be made (:meth:`Output.settle`)."""

        def inputs(number: int, checksums: Checksums) -> dict[str, str | None]:
            frames = self.setting.frames(plates, number)
            return {str(n - number): checksums.of(plates.file(n) if plates.has(n) else None) for n in frames}

        source, start = str(Path(self.source).absolute()), self.setting.step if self.setting.warm_start else None
        numbers = sorted(plates.numbers)
        return self.output.settle(settings, numbers, inputs, overwrite=overwrite, source=source, start=start)

    def settings(self, estimator: Estimator) -> dict[str, Any]:
        """Return the settings that decide the files' contents. The estimator must be prepared."""
        setting = self.setting
        parameters = dict(estimator.parameters)
        if isinstance(parameters.get("refinement"), dict):  # whose backend is known once it has run
            parameters["refinement"] = {k: v for k, v in parameters["refinement"].items() if k != "backend"}
        return {
            "plates": Path(self.source).name,
            "method": estimator.method,
            "parameters": parameters,
            "backend": self.backend,
            "direction": setting.direction,
            "step": setting.step,
            "warm_start": setting.warm_start,
            "occlusion": setting.occlusion,
            "confidence": setting.confidence,
            "reading": self.reading,
            **({"refinement": RefinedEstimator(estimator).config.as_dict()} if setting.refine else {}),
        }


@dataclass
class Outcome:
    """Result of a run over a shot, or over a part of it, in plain values."""

    written: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Each plate or file once."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)
    incomplete: list[int] = field(default_factory=list)
    """Frames whose file lacks a direction."""
    stopped: str | None = None
    """Why the run ended before its time."""
    busy_s: float = 0.0
    wall_s: float = 0.0
    stages: dict[str, Spent] = field(default_factory=dict)
    """What the parts of the work took: ``read``, ``reduce`` (for the search of cuts), ``pin``, ``wait for plates``,
    ``estimate`` (with ``look for cuts``; on a GPU only launching), ``wait for writers``, ``fetch``, ``lay out``,
    ``write``."""
    _seen: set[Any] = field(default_factory=set, repr=False, compare=False)

    def add(self, other: Outcome) -> None:
        """Add the result of another part."""
        self.note(other, "written", "incomplete", "cuts", "held", "problems")
        self.stopped = self.stopped or other.stopped
        self.busy_s += other.busy_s
        total = Stages()
        total.add(self.stages)
        total.add(other.stages)
        self.stages = total.spent

    def note(self, other: Outcome | Estimated, *names: str) -> None:
        """Add the items of these lists that are new."""
        for name in names:
            for item in getattr(other, name):
                if (name, item) not in self._seen:
                    self._seen.add((name, item))
                    getattr(self, name).append(item)

    def end(self, begin: float) -> Outcome:
        """Sort the frames, and set the time since ``begin``."""
        for items in (self.written, self.incomplete, self.cuts, self.held):
            items.sort()
        self.wall_s = time.perf_counter() - begin
        return self

    @property
    def is_good(self) -> bool:
        """True where everything was made."""
        return not self.problems and self.stopped is None


def ends_writing(error: OSError) -> bool:
    """Return whether the next file cannot be written either."""
    return error.errno in _GONE


def run(
    work: Work,
    numbers: Sequence[int],
    *,
    estimator: Estimator | None = None,
    plates: Plates | None = None,
    tell: Tell | None = None,
    more: More | None = None,
) -> Outcome:
    """Make the files of ``numbers`` and replace those that are there; call ``tell`` with every finished frame.

    ``more`` returns further frames before those that are known run out, until it has none.

    Bad plates and files that cannot be written are told in the result. Where no further file can be written (a full
    disk, a folder that is gone), the run stops; what is written stays.
    """
    begin = time.perf_counter()
    estimator = estimator or work.ready()
    plates = plates or work.open(numbers)
    setting = replace(work.setting, half=work.output.dtype == "half")
    inside = set(plates.numbers) - set(numbers)  # made before

    def stored(first: int, second: int) -> Tensor | None:
        is_kept = first in inside and bool(plates.has(first))
        return work.output.stored(first, second, setting.ways) if is_kept else None

    def further() -> Sequence[int]:
        found = [] if more is None else more()
        inside.difference_update(found)
        return found

    engine = Engine(plates, numbers, estimator, setting, stored, further)
    outcome = Outcome()
    made_by = work.made_by or work.output.made_by(work.settings(estimator))
    writer = _Writer(work, plates, outcome, engine.stages, tell, made_by, inside)
    try:
        with one_thread_a_file, writer:
            for done in engine:
                outcome.note(done, "problems", "cuts", "held")
                if any(name in done.parts for name in setting.ways) and set(done.missing) != set(setting.ways):
                    writer(done)
                elif tell is not None:
                    tell(done.number)
                path = Path(plates.path(done.number))
                gone = done.problems and not path.parent.exists() and not str(path).startswith("frame ")
                if outcome.stopped is None and gone:
                    outcome.stopped = f"{path.parent}: is not there any more"
                if outcome.stopped is not None:
                    break
    finally:
        plates.close()
    outcome.written.sort()
    outcome.busy_s, outcome.wall_s = engine.busy_s, time.perf_counter() - begin
    outcome.stages = engine.stages.spent
    return outcome


def _most_waiting(size: int, writers: int) -> int:
    """Return how many results of ``size`` bytes may wait to be written."""
    return max(1, min(writers, _WAITING_BYTES // max(size, 1) - 1))


class _Writer:
    """Threads that write results; few results wait at a time."""

    def __init__(
        self,
        work: Work,
        plates: Plates,
        outcome: Outcome,
        stages: Stages,
        tell: Tell | None,
        made_by: dict[str, Any],
        kept: set[int],
    ) -> None:
        self._work, self._plates, self._outcome, self._tell = work, plates, outcome, tell
        self._made_by, self._journal = made_by, work.output.journal()
        self._every, self._kept, self._ids = set(plates.numbers), kept, dict[int, str]()
        self._records: Records | None = None
        self._stage = stages.stage
        cuda = torch.device(work.setting.device).type == "cuda"
        # Beside a GPU most of a frame's time on the CPU is writing.
        self._count = max(2, min(16, (os.cpu_count() or 1) * 3 // 4)) if cuda else 2
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="fullfield-write")
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._rooms = _Rooms(pinned=cuda)
        self._read: dict[int, Identity | None] = {}
        self._reported: set[int] = set()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._pool.shutdown(cancel_futures=True)
            return
        try:
            self._wait(0)
        finally:
            self._pool.shutdown()
        for number in sorted(self._read):
            self._check_replaced(number, "after it was read; what was made from it is of the old one")

    def __call__(self, done: Estimated) -> None:
        size = sum(part.nbytes for part in done.parts.values())
        self._wait(_most_waiting(size, self._count))
        event = None
        device = torch.device(self._work.setting.device)
        if device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
        done.plate = None if done.plate is None else done.plate._replace(frame=done.plate.frame[:0])
        self._waiting.append(self._pool.submit(self._write, done, event, self._made(done)))

    def _made(self, done: Estimated) -> dict[str, Any]:
        """Return what the record of a frame says of it."""
        inputs = {str(n - done.number): None if used is None else used.checksum for n, used in done.used.items()}
        made = {**self._made_by, "inputs": inputs, "start": None}
        if self._work.setting.warm_start:
            made["start"] = self._id(done.number - self._work.setting.step)
            self._ids[done.number] = digest(made)
        return made

    def _id(self, number: int) -> str | None:
        """Return the digest of what made a frame, in this run or before; None for a frame of no concern to this run."""
        if number not in self._every:
            return None
        if number not in self._ids and (number not in self._kept or not self._plates.has(number)):
            return "not made"
        if number not in self._ids:
            self._records = self._records or Records(self._work.output.notes)
            found = self._records.of(self._work.output.path(number))
            self._ids[number] = digest(found[-1].made) if found else "not made"
        return self._ids[number]

    def _wait(self, most: int) -> None:
        with self._stage("wait for writers"):
            while len(self._waiting) > most:
                self._waiting.popleft().result()

    def _write(self, done: Estimated, event: Any, made: dict[str, Any]) -> None:
        path = self._work.output.path(done.number)
        try:
            if self._outcome.stopped is None:
                self._write_now(done, event, made)
        except (InputError, OSError) as error:
            problem = Problem.of(path, error)
            self._complain(problem._replace(reason=problem.reason.removeprefix("flow: ")))
            if isinstance(error, OSError) and ends_writing(error):
                self._outcome.stopped = f"{path}: {error.strerror}"
        if self._tell is not None:
            self._tell(done.number)

    def _write_now(self, done: Estimated, event: Any, made: dict[str, Any]) -> None:
        output = self._work.output
        ways = [name for name in self._work.setting.ways if name not in done.missing]
        if output.is_vectors:
            with self._rooms.room(done.parts, output.dtype == "half") as room:
                with self._stage("lay out" if event is None else "fetch"):
                    lines = (
                        output.lines(to_cpu(done.parts), room.numpy())
                        if event is None
                        else self._fetched(done.parts, event, room)
                    )
                if lines is not None:
                    self._write_file(done, lines, ways, made)
                    return
        if event is None:
            self._write_file(done, to_cpu(done.parts), ways, made)
            return
        with self._stage("fetch"):
            parts = self._copied(done.parts, event)
        for name in ways:
            # NumPy: PyTorch would bring threads of its own for each of ours.
            if not np.isfinite(parts[name].numpy()).all():
                what = f"{self._work.method} gives a flow that is not finite ({name})"
                self._complain(Problem(output.path(done.number), what))
                return
        self._write_file(done, parts, ways, made)

    def _write_file(
        self, done: Estimated, parts: dict[str, Tensor] | Scanlines, ways: Sequence[str], made: dict[str, Any]
    ) -> None:
        replaced = [number for number in done.used if self._check_replaced(number, "while it was worked on", done.used)]
        if replaced:
            return
        with self._lock:
            self._read.update({number: read for number, read in done.used.items() if read is not None})
            for number in [n for n in self._read if n < done.number - 64 * self._work.setting.step]:
                del self._read[number]  # the far past is not watched
        with self._stage("write"):
            for number, identity in done.used.items():
                path = self._plates.file(number)
                if path is not None and identity is not None:
                    self._journal.add_input(path, identity)
            self._work.output.write(done, parts, ways, self._journal, made)
        with self._lock:
            self._outcome.written.append(done.number)
            if done.missing:
                self._outcome.incomplete.append(done.number)

    def _check_replaced(self, number: int, words: str, used: dict[int, Identity | None] | None = None) -> bool:
        read = (self._read if used is None else used).get(number)
        if read is None or self._plates.stamp(number) == read.stamp:
            return False
        if number not in self._reported:
            self._reported.add(number)
            self._complain(Problem(self._plates.path(number), f"was replaced {words}"))
        return True

    def _complain(self, problem: Problem) -> None:
        with self._lock:
            if problem not in self._outcome.problems:
                self._outcome.problems.append(problem)

    def _fetched(self, parts: dict[str, Tensor], event: Any, room: Tensor) -> Scanlines | None:
        """Return the lines of a file, copied from the GPU into ``room``; None where a file cannot hold the values."""
        output = self._work.output
        good = torch.empty((), dtype=torch.bool, pin_memory=True)
        with self._beside(parts, event):
            names, body, is_good = vector_lines_there(parts, output.dtype, output.y)
            room.copy_(body, non_blocking=True)
            good.copy_(is_good, non_blocking=True)
        return Scanlines(names, room.numpy(), output.dtype == "half") if bool(good) else None

    def _copied(self, parts: dict[str, Tensor], event: Any) -> dict[str, Tensor]:
        """Return copies of the parts from the GPU."""
        host = {name: torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for name, part in parts.items()}
        with self._beside(parts, event):
            for name, part in parts.items():
                host[name].copy_(part, non_blocking=True)
        return host

    @contextlib.contextmanager
    def _beside(self, parts: dict[str, Tensor], event: Any) -> Iterator[None]:
        """Run the work inside on a stream of this thread, after ``event``, and wait for it."""
        if not hasattr(self._mine, "stream"):
            self._mine.stream = torch.cuda.Stream(self._work.setting.device)  # type: ignore[no-untyped-call]
        stream = self._mine.stream
        with torch.cuda.stream(stream):
            stream.wait_event(event)
            for part in parts.values():
                part.record_stream(stream)
            yield
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(stream)
        done.synchronize()  # asleep: a thread that waits for its stream takes a core


class _Rooms:
    """Memory for the lines of files, used again: new memory of that size costs as much time as filling it."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[Tensor] = []

    @contextlib.contextmanager
    def room(self, parts: dict[str, Tensor], half: bool) -> Iterator[Tensor]:
        """Lend uint8 memory of the shape that the lines of ``parts`` have."""
        height, width = next(iter(parts.values())).shape[-2:]
        shape = body_shape((height, width), sum(part.ndim - 1 for part in parts.values()), half)
        room = None
        with contextlib.suppress(IndexError):  # several writers take from it at once
            room = self._free.pop()
        if room is None or room.shape != shape:
            room = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pinned)
        try:
            yield room
        finally:
            self._free.append(room)
