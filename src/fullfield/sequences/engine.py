"""Engine of a shot: reads ahead, estimates each pair once, and yields the results frame by frame."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.estimators.protocol import Estimator
from fullfield.estimators.refined import refiner_of
from fullfield.estimators.reliability import occlusion_and_confidence
from fullfield.io import FrameWindow
from fullfield.io.files import reason
from fullfield.ops.splatting import moved_forward
from fullfield.sequences.changes import Small, is_cut, is_held, small
from fullfield.sequences.plates import Plate, Plates, common_box, pinned, placed
from fullfield.sequences.records import Identity

DIRECTIONS = ("forward", "backward", "both")
_AHEAD_BYTES = 1 << 30
_FEWEST = 2
_MORE_AT = 8  # frames left at which more are requested


class Spent(NamedTuple):
    """Time of one stage, in all threads together."""

    times: int = 0
    wall_s: float = 0.0
    """Seconds by the clock, including waiting."""
    cpu_s: float = 0.0
    """Processor seconds of the stage's own thread."""

    def plus(self, other: Spent) -> Spent:
        """Return the sum of both."""
        return Spent(self.times + other.times, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class Stages:
    """Sums of stages over many threads; a stage inside another one counts in both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spent: dict[str, Spent] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the work inside; work that ends with an error counts too."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.add({name: Spent(1, time.perf_counter() - wall, time.thread_time() - cpu)})

    def add(self, spent: dict[str, Spent]) -> None:
        """Add the sums of another object."""
        with self._lock:
            for name, more in spent.items():
                self.spent[name] = self.spent.get(name, Spent()).plus(more)


@dataclass(frozen=True)
class Setting:
    """Settings of a run over a shot.

    Attributes:
        direction: ``forward``: from each frame to the one ``step`` after; ``backward``: to the one before; ``both``.
        step: how many frames apart the two frames of a pair are.
        warm_start: start from the flow of the frame before, moved along; not across a cut.
        occlusion, confidence: estimate them too, from both directions
            (:func:`fullfield.estimators.reliability.occlusion_and_confidence`).
        refine: refine the flows to sub-pixel accuracy (:func:`fullfield.ops.tvl1.refine_flow`), with the backward
            flow. Estimators that always refine do so without it.
        device: where to compute.
        half: whether flows are stored as half floats; warm starts are then rounded alike, so that a run that goes on
            from its files gives what an undisturbed one does.
    """

    direction: str = "forward"
    step: int = 1
    warm_start: bool = False
    occlusion: bool = False
    confidence: bool = False
    device: str = "cpu"
    half: bool = False
    refine: bool = False

    def __post_init__(self) -> None:
        _check.choice(self.direction, "direction", DIRECTIONS)
        _check.number(self.step, "step", integer=True, low=1)

    @property
    def ways(self) -> dict[str, int]:
        """Directions, with the distance to the second frame of their pairs."""
        every = {"forward": self.step, "backward": -self.step}
        return {name: way for name, way in every.items() if self.direction in (name, "both")}

    def frames(self, plates: Plates, number: int) -> list[int]:
        """Return the frames that the result of a frame needs, itself first, ascending otherwise."""
        others = [number + way for way in self.ways.values() if plates.has(number + way) is not None]
        return [number, *sorted(others)]

    @property
    def is_checked(self) -> bool:
        """True where occlusion or confidence is requested, which need both directions of a pair."""
        return self.occlusion or self.confidence


class Problem(NamedTuple):
    """File that could not be used, and the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    @classmethod
    def of(cls, path: str, error: InputError | OSError) -> Problem:
        """Return what is wrong with a file, without its name twice."""
        text = (error.strerror or reason(error)) if isinstance(error, OSError) else reason(error)
        return cls(path, text.removeprefix(f"{path}: "))


@dataclass
class Estimated:
    """Result of one frame. Tensors are on the device that computed them."""

    number: int
    parts: dict[str, Tensor] = field(default_factory=dict)
    """By the names of :func:`fullfield.io.write_vectors`; an end of the shot has zero vectors."""
    problems: list[Problem] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """Directions in which there is no frame: the shot ends there."""
    missing: list[str] = field(default_factory=list)
    """Directions whose pair could not be estimated."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)
    plate: Plate | None = None
    window: FrameWindow | None = None
    used: dict[int, Identity | None] = field(default_factory=dict)
    """The frames that went into it, with the versions of their files."""

    def add_missing(self, direction: str, problem: Problem) -> None:
        """Add a direction whose pair could not be estimated, and the reason."""
        self.problems.append(problem)
        self.missing.append(direction)


Stored = Callable[[int, int], "Tensor | None"]
"""The stored flow [2, H, W] from a frame to another one, if there is any."""
More = Callable[[], Sequence[int]]
"""Further frames, all of them after the ones that are known; none: there are no more."""


class Engine:
    """Iterator over the results of a shot; iterate over it once.

    ``busy_s`` is afterwards the seconds that the estimator took, on a GPU by its own clock; ``stages`` tells what every
    part of the work took.
    """

    def __init__(
        self,
        plates: Plates,
        numbers: Sequence[int],
        estimator: Estimator,
        setting: Setting,
        stored: Stored | None = None,
        more: More | None = None,
    ) -> None:
        self._more = more
        self._plates, self._numbers, self._estimator, self._setting = plates, sorted(numbers), estimator, setting
        self._stored = stored or (lambda _a, _b: None)
        self._device = _check.device(setting.device)
        plates.pinned = self._device.type == "cuda"
        self._refiner = refiner_of(estimator, self._device, refine=setting.refine)
        if self._refiner is not None:
            self._estimator = self._refiner.estimator
        self._refined: dict[tuple[int, int, int], Tensor | Problem] = {}
        self._log_scales: dict[tuple[int, int, int], Tensor] = {}
        # Both ways of a pair in one call, unless they start from different flows.
        self._needs_back = setting.is_checked or self._refiner is not None
        apart = setting.warm_start if setting.direction == "both" else not self._needs_back
        self._both_ways = None if apart else getattr(self._estimator, "bidirectional", None)
        self._pending: dict[int, Future[tuple[Plate, Small]]] = {}
        self._ready: dict[int, Plate | Problem] = {}
        self._small: dict[int, Small] = {}
        self._on_device: dict[int, Tensor] = {}
        self._flows: dict[tuple[int, int, int], Tensor | Problem] = {}
        if setting.warm_start and plates.by_data:
            raise InputError("warm_start: expected frames on one window, got window='data'")
        self._changes: dict[tuple[int, int], str] = {}
        self._size: torch.Size | None = None
        self.stages = Stages()
        self._cpu_s = 0.0
        self._events: list[tuple[Any, Any]] = []

    @property
    def maker(self) -> Estimator:
        """Estimator whose method and parameters made the flows."""
        return self._estimator if self._refiner is None else self._refiner

    @property
    def busy_s(self) -> float:
        """Seconds of estimation up to now."""
        if self._events:
            torch.cuda.synchronize(self._device)
        on_gpu: float = sum(begin.elapsed_time(end) for begin, end in self._events) / 1000
        return self._cpu_s + on_gpu

    def __iter__(self) -> Iterator[Estimated]:
        """Yield one :class:`Estimated` for each frame, in order."""
        left, needed = deque(self._numbers), deque(self._around(self._numbers))
        ahead = _FEWEST
        with ThreadPoolExecutor(self._plates.readers, thread_name_prefix="fullfield-read") as pool:
            try:
                while left:
                    number = left.popleft()
                    frames = self._frames(number)
                    self._read_ahead(pool, needed, ahead, max(frames))
                    with self.stages.stage("wait for plates"):
                        for frame in frames:
                            self._fetch(frame)
                    ahead = self._depth()
                    self._extend(left, needed)
                    self._read_ahead(pool, needed, ahead)
                    with self.stages.stage("estimate"):
                        done = self._frame(number)
                    self._forget(left[0] if left else None)
                    yield done
            finally:
                for future in self._pending.values():
                    future.cancel()

    def _around(self, numbers: Sequence[int]) -> list[int]:
        """Return the frames that are read for the results of ``numbers``."""
        return sorted({frame for number in numbers for frame in self._frames(number)})

    def _read_ahead(self, pool: ThreadPoolExecutor, needed: deque[int], ahead: int, wanted: float = -math.inf) -> None:
        """Begin to read up to the frame ``wanted``, and further while fewer than ``ahead`` reads are pending."""
        while needed and (needed[0] <= wanted or len(self._pending) < ahead):
            frame = needed.popleft()
            self._pending[frame] = pool.submit(self._read, frame)

    def _extend(self, left: deque[int], needed: deque[int]) -> None:
        """Ask for more frames before those that are known run out."""
        if self._more is None or len(left) >= _MORE_AT:
            return
        further = sorted(self._more())
        if not further:
            self._more = None
            return
        left.extend(further)
        known = {*needed, *self._pending, *self._ready}
        needed.extend(frame for frame in self._around(further) if frame not in known)

    # ---- reading

    def _frames(self, number: int) -> list[int]:
        return self._setting.frames(self._plates, number)

    def _read(self, number: int) -> tuple[Plate, Small]:
        if self._plates.has(number) is False:
            raise FileNotFoundError(2, "no such file", self._plates.path(number))
        with self.stages.stage("read"):
            plate = self._plates.read(number)
        if plate.frame[0].numel() < 2:
            raise InputError(f"{self._plates.path(number)}: expected more than one pixel")
        with self.stages.stage("reduce"):
            picture = small(plate.frame)
        if self._device.type == "cuda" and not plate.frame.is_pinned():
            with self.stages.stage("pin"):
                plate = pinned(plate)
        return plate, picture

    def _fetch(self, number: int) -> None:
        if number in self._ready:
            return
        try:
            plate, self._small[number] = self._pending.pop(number).result()
        except (InputError, OSError) as error:
            self._ready[number] = Problem.of(self._plates.path(number), error)
            return
        self._ready[number] = plate
        if self._size is None:
            self._size = plate.frame.shape[-2:]

    def _depth(self) -> int:
        """Return how many frames to read ahead."""
        one = next((plate.frame.nbytes for plate in self._ready.values() if isinstance(plate, Plate)), 1)
        return max(_FEWEST, min(self._plates.readers + 1, _AHEAD_BYTES // max(one, 1)))

    def _forget(self, following: int | None) -> None:
        """Release what no later frame needs."""
        pictures: tuple[dict[int, Any], ...] = (self._ready, self._small, self._on_device)
        if following is None:
            others: list[dict[Any, Any]] = [self._flows, self._refined, self._log_scales, self._changes]
            for kept in (*pictures, *others):
                kept.clear()
            return
        step, setting = self._setting.step, self._setting
        for number in [n for n in self._ready if n < following - step]:
            for frames in pictures:
                frames.pop(number, None)
        reach = 2 if setting.warm_start else 1
        lasts = setting.warm_start or self._needs_back or self._both_ways is not None
        oldest = following - reach * step if lasts else following + step + 1
        for flows in (self._flows, self._refined, self._log_scales):
            for pair in [p for p in flows if min(p[:2]) < oldest]:
                del flows[pair]
        for both in [p for p in self._changes if min(p) < following - step]:
            del self._changes[both]

    # ---- estimating

    def _frame(self, number: int) -> Estimated:
        plates, setting = self._plates, self._setting
        done = Estimated(number)
        own = self._ready[number]
        if isinstance(own, Problem):
            done.problems.append(own)
            done.missing += setting.ways
            return done
        done.plate, done.window = own, own.window
        done.used[number] = own.identity
        if plates.by_data:
            try:
                done.window = self._box(number)
            except InputError as error:
                done.problems.append(Problem.of(plates.path(number), error))
                return done
        size = own.frame.shape[-2:] if done.window is None else done.window.data[3:1:-1]
        for direction, way in setting.ways.items():
            other = number + way
            if plates.has(other) is None:
                done.ends.append(direction)
                self._add_end(done, direction, size)
                continue
            flow = self._flow(number, other, done)
            if isinstance(flow, Problem):
                done.add_missing(direction, flow)
                self._add_end(done, direction, size)
                continue
            partner = self._ready[other]
            done.used[other] = partner.identity if isinstance(partner, Plate) else None
            done.parts[direction] = flow
        if self._refiner is not None:  # backward first: from that flow the pair back of the other direction starts
            made = [name for name in setting.ways if name not in (*done.ends, *done.missing)]
            for direction in sorted(made):
                self._refine(done, direction, number, number + setting.ways[direction])
        if setting.is_checked:  # after both directions, from which the pairs back may start
            for direction in [name for name in setting.ways if name not in (*done.ends, *done.missing)]:
                self._check(done, direction, number, number + setting.ways[direction])
        return done

    def _refine(self, done: Estimated, direction: str, number: int, other: int) -> None:
        pair = (number, other, self._grid(number))
        if pair not in self._refined:
            self._refined[pair] = self._refined_flow(done.parts[direction], done, number, other)
        found = self._refined[pair]
        if isinstance(found, Problem):
            done.add_missing(direction, found)
        else:
            done.parts[direction] = found

    def _refined_flow(self, flow: Tensor, done: Estimated, number: int, other: int) -> Tensor | Problem:
        refiner, back = self._refiner, self._flow(other, number, done)
        if isinstance(back, Problem) or refiner is None:
            return back
        first, second = self._alike(number, other, self._grid(number))
        try:
            return self._timed(lambda: refiner.refined(first, second, flow[None], back[None]))
        except InputError as error:
            return _problem_of_pair([self._plates.path(n) for n in (number, other)], error)

    def _alike(self, first: int, second: int, grid: int) -> list[Tensor]:
        """Return both frames on the device, with the same number of channels."""
        frames = self._frames_on(first, second, grid)
        channels = max(frame.shape[1] for frame in frames)
        return [frame.expand(-1, channels, -1, -1) for frame in frames]

    def _check(self, done: Estimated, direction: str, number: int, other: int) -> None:
        back = self._flow(other, number, done)
        if isinstance(back, Problem):
            done.add_missing(direction, back)
            return
        first, second = self._alike(number, other, self._grid(number))
        own = self._log_scales.get((number, other, self._grid(number)))
        flows = done.parts[direction][None], back[None]
        occlusion, confidence = occlusion_and_confidence(first, second, *flows, None if own is None else own[None])
        self._add_planes(done, direction, occlusion[0], confidence[0])

    def _add_planes(self, done: Estimated, direction: str, occlusion: Tensor, confidence: Tensor) -> None:
        """Add those of both planes that are requested."""
        for name, plane in (("occlusion", occlusion), ("confidence", confidence)):
            if getattr(self._setting, name):
                done.parts[f"{name}.{direction}"] = plane

    def _add_end(self, done: Estimated, direction: str, size: Sequence[int]) -> None:
        """Add zero vectors with full occlusion and no confidence."""
        zero = torch.zeros(2, *size, dtype=torch.float32, device=self._device)
        done.parts[direction] = zero
        self._add_planes(done, direction, torch.ones_like(zero[0]), torch.zeros_like(zero[0]))

    def _flow(self, first: int, second: int, done: Estimated) -> Tensor | Problem:
        """Return the flow [2, H, W] between two frames that are ready; each pair is estimated once."""
        pair = (first, second, self._grid(done.number))
        if pair not in self._flows:
            self._flows[pair] = self._estimate(first, second, done.number)
        both = (min(first, second), max(first, second))
        listed = {"cut": done.cuts, "held": done.held}.get(self._change(*both))
        if listed is not None and both not in listed:
            listed.append(both)
        return self._flows[pair]

    def _grid(self, number: int) -> int:
        """Return the frame whose pixel grid a flow is on; 0 where all frames share one."""
        return number if self._plates.by_data else 0

    def _estimate(self, first: int, second: int, grid: int) -> Tensor | Problem:
        plates, paths = [self._ready[n] for n in (first, second)], [self._plates.path(n) for n in (first, second)]
        for plate in plates:
            if isinstance(plate, Problem):
                return plate
        try:
            frames = self._frames_on(first, second, grid)
            if frames[0].shape[-2:] != frames[1].shape[-2:]:
                odd = 0 if frames[0].shape[-2:] != self._size and frames[1].shape[-2:] == self._size else 1
                sizes = [f"{frame.shape[-1]}x{frame.shape[-2]}" for frame in frames]
                return Problem(paths[odd], f"is {sizes[odd]}, but {paths[1 - odd]} is {sizes[1 - odd]}")
            start = self._start(first, second, frames[0].shape[-2:])
            one, two = self._alike(first, second, grid)
            together = self._both_ways
            flow = None if together is None else self._together(together, first, second, grid, start)
            if flow is None:
                flow = self._timed(lambda: self._estimator(one, two, initial_flow=start))
            _check.tensor(flow, f"the flow of {self._estimator.method}", (2, *one.shape[-2:]))
        except InputError as error:
            return _problem_of_pair(paths, error)
        if self._device.type == "cpu" and not np.isfinite(flow.detach().numpy()).all():
            return Problem(paths[0], f"{self._estimator.method} gives a flow that is not finite")
        return flow

    def _together(self, together: Any, first: int, second: int, grid: int, start: Tensor | None) -> Tensor | None:
        """Return the flow, and keep the backward flow of the same call; None where the estimator has no such call.

        The earlier frame comes first whichever is requested, so that a run that continues from files gives the same. A
        warm start belongs to the requested direction, so with one the requested order stays.
        """
        order = (first, second) if self._setting.warm_start else (min(first, second), max(first, second))
        one, two = self._alike(*order, grid)
        found: list[Any] = []

        def estimate() -> Tensor:
            found.append(together(one, two, initial_flow=start))
            return one if found[0] is None else found[0].forward

        self._timed(estimate)
        if found[0] is None:
            self._both_ways = None
            return None
        key = self._grid(grid)
        ways = {(*order, key): found[0].forward, (*order[::-1], key): found[0].backward}
        for number, (pair, flow) in enumerate(ways.items()):
            self._flows.setdefault(pair, flow[0].to(torch.float32))
            if self._setting.is_checked and found[0].log_scales is not None:
                self._log_scales[pair] = found[0].log_scales[number][0]
        kept = self._flows[first, second, key]
        return None if isinstance(kept, Problem) else kept

    def _timed(self, estimate: Callable[[], Tensor]) -> Tensor:
        """Return the flow [2, H, W] of ``estimate``, and add its time."""
        if self._device.type != "cuda":
            begin = time.perf_counter()
            flow = estimate()[0].to(torch.float32)
            self._cpu_s += time.perf_counter() - begin
            return flow
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(self._device)
        events[0].record(stream)
        flow = estimate()[0].to(torch.float32)
        events[1].record(stream)
        if len(self._events) >= 256:  # their clocks are read in time, so that none pile up
            start, end = self._events.pop(0)
            end.synchronize()
            self._cpu_s += start.elapsed_time(end) / 1000
        self._events.append((events[0], events[1]))
        return flow

    def _frames_on(self, first: int, second: int, grid: int) -> list[Tensor]:
        """Return both frames [1, C, H, W] on the device and on one grid."""
        if not self._plates.by_data:
            return [self._sent(number) for number in (first, second)]
        box = self._box(grid).data
        return [placed(self._plate(number), box)[None].to(self._device) for number in (first, second)]

    def _sent(self, number: int) -> Tensor:
        if number not in self._on_device:
            frame = self._plate(number).frame[None]
            self._on_device[number] = frame.to(self._device, non_blocking=True)  # from pinned memory
        return self._on_device[number]

    def _plate(self, number: int) -> Plate:
        plate = self._ready[number]
        if isinstance(plate, Problem):
            raise InputError(f"{self._plates.path(number)}: {plate.reason}")
        return plate

    def _box(self, number: int) -> FrameWindow:
        """Return the window of a frame's result: its own, widened to those of the frames it is compared with."""
        plates = {n: self._ready.get(n) for n in self._frames(number)}
        return common_box({self._plates.path(n): p for n, p in plates.items() if isinstance(p, Plate)})

    def _start(self, first: int, second: int, size: torch.Size) -> Tensor | None:
        """Return the initial flow from the pair before; None across a cut and at the beginning."""
        setting, way = self._setting, second - first
        requested = way in setting.ways.values()
        if not setting.warm_start or not requested or self._change(*sorted((first, second))) == "cut":
            return None
        before = (first - setting.step, second - setting.step)
        made = self._flows if self._refiner is None else self._refined  # as they are stored
        flow = made.get((*before, 0))
        if flow is None:
            flow = self._stored(*before)
        if flow is None or isinstance(flow, Problem) or flow.shape[-2:] != size:
            return None
        flow = flow.to(self._device)
        flow = flow.half().float() if setting.half else flow
        return moved_forward(flow)[None] if way > 0 else -moved_forward(-flow)[None]

    def _change(self, first: int, second: int) -> str:
        pair = (first, second)
        if pair not in self._changes:
            one, two = (self._ready.get(number) for number in pair)
            self._changes[pair] = ""
            if isinstance(one, Plate) and isinstance(two, Plate):
                with self.stages.stage("look for cuts"):
                    if is_held(one.frame, two.frame, compressed=self._plates.readers == 1):
                        self._changes[pair] = "held"
                    elif is_cut(self._small[first], self._small[second]):
                        self._changes[pair] = "cut"
        return self._changes[pair]


def _problem_of_pair(paths: Sequence[str], error: InputError) -> Problem:
    """Return what is wrong with one of two frames: the second where the message begins with its name."""
    for name, path in zip(("frame2: ", "frame1: "), reversed(paths), strict=True):
        if str(error).startswith(name):
            return Problem(path, reason(error).removeprefix(name))
    return Problem.of(paths[0], error)
