"""Motion from one frame of a shot to every other one, frame by frame."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield._ledger.versions import Checksums, digest
from fullfield._read_ahead import ReadAhead
from fullfield.estimators._devices import check_fork
from fullfield.estimators._frames import Frame
from fullfield.estimators.estimation import build, load_estimator
from fullfield.estimators.protocol import Estimator, get_bidirectional, prepare_estimator
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.io.oiio import one_thread_a_file
from fullfield.io.vectors import ENDS_NOTE, read_note, read_vectors
from fullfield.ops.devices import resolve_device
from fullfield.sequences.changes import GreyPicture, is_cut, reduce_frame
from fullfield.sequences.names import FrameFiles
from fullfield.sequences.outputs import Output, Plan, to_cpu
from fullfield.sequences.plates import Plate, Plates, open_frame_files, open_plates
from fullfield.sequences.results import FrameReport, FrameResult, Outcome, Problem, StageTimes
from fullfield.sequences.tracking import DISTANCES, PairMatcher, Tracker
from fullfield.sequences.writing import WriterThreads

_DIRECTIONS = ("forward", "backward")


class FollowedFrame(NamedTuple):
    """Where the pixels of the reference frame are in one frame, and where those of the frame are in the reference.

    All values are on the device that computed them.
    """

    number: int
    forward: Tensor | None  # [2, H, W], (u, v) in pixels, from the reference to the frame, on the reference's pixels
    backward: Tensor | None  # [2, H, W], from the frame to the reference, on the frame's pixels
    occlusion: dict[
        str, Tensor
    ]  # by direction, [H, W], 0 ... 1: probability that the pixel is hidden in the other frame
    confidence: dict[str, Tensor]  # by direction, [H, W], 0 ... 1: probability of an error under a pixel
    is_cut_off: bool  # True behind a cut: motion leads out of the frame, confidence is 0, occlusion is 1
    problems: tuple[Problem, ...]  # why the motion is None


@dataclass(frozen=True)
class FollowJob:
    """Following of one reference frame, in plain values.

    Attributes:
        frame_files: the plates, found by name (:func:`fullfield.sequences.names.find_frames`).
        numbers: frames that get a file, ascending.
        reference: number of the reference frame.
        output: the files; EXR without loss.
        method, config, backend: the estimator, as :func:`fullfield.estimate` takes it.
        reading: arguments of :func:`fullfield.io.read_frame` for the plates.
        device: where to compute.
        threads: PyTorch's threads; None: its default.
        provenance: what the record of every frame says about this job; :meth:`settle` sets it.
    """

    frame_files: FrameFiles
    numbers: tuple[int, ...]
    reference: int
    output: Output
    method: str = DEFAULT_METHOD
    config: Any = None
    backend: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    threads: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def open_plates(self) -> Plates:
        """Open the plates between the reference and the frames of the job; InputError where the reference is absent."""
        first, last = min((*self.numbers, self.reference)), max((*self.numbers, self.reference))
        numbers = [number for number in self.frame_files.files or range(first, last + 1) if first <= number <= last]
        plates = open_frame_files(self.frame_files, numbers, **self.reading)
        if not plates.has(self.reference):
            plates.close()
            raise InputError(f"reference: expected a frame of {self.frame_files.text}, got {self.reference}")
        return plates

    def build_estimator(self) -> Estimator:
        """Return a new, prepared estimator, and set the number of threads of this process."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        estimator = build(self.method, config=self.config, backend=self.backend)
        prepare_estimator(estimator, resolve_device(self.device))
        return estimator

    def settle(self, estimator: Estimator, plates: Plates, *, overwrite: bool = False) -> tuple[FollowJob, Plan]:
        """Compare the job with the files that exist; return the settled job, and which frames it has to write.

        The estimator must be prepared. Errors are those of :meth:`Output.settle`.
        """
        recorded = {
            "plates": Path(self.frame_files.text).name,
            "reference": self.reference,
            "distances": list(DISTANCES),
            "method": estimator.method,
            "parameters": _without_backend(dict(estimator.parameters)),
            "backend": self.backend,
            "reading": dict(self.reading),
        }
        source = str(Path(self.frame_files.text).absolute())
        plan = self.output.settle(
            recorded, sorted(self.numbers), self.input_digests(plates), overwrite=overwrite, source=source
        )
        return replace(self, provenance=self.output.describe_run(recorded)), plan

    def input_digests(self, plates: Plates) -> Callable[[int, Checksums], dict[str, str | None]]:
        """Return a callback that describes what a frame is made from: all plates from the reference to it."""
        digests: dict[int, str] = {}

        def describe(number: int, checksums: Checksums) -> dict[str, str | None]:
            step = 1 if number >= self.reference else -1
            for current in range(self.reference, number + step, step):
                if current not in digests and plates.has(current):
                    before = digests.get(_previous(digests, current, step), "")
                    files = plates.file(current), plates.mask_file(current)
                    digests[current] = digest([before, *(checksums.get(file) for file in files)])
            return {"plates": digests.get(number)}

        return describe


def _previous(digests: Mapping[int, str], number: int, step: int) -> int:
    """Return the frame nearest to ``number`` on the way to the reference that has a digest."""
    return max((n for n in digests if (n - number) * step < 0), key=lambda n: n * step, default=number)


def _without_backend(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters without the refinement's backend, which is only known after the first flow."""
    if isinstance(parameters.get("refinement"), dict):
        parameters["refinement"] = {k: v for k, v in parameters["refinement"].items() if k != "backend"}
    return parameters


class _Follower:
    """Following of one side of the reference: frames are added in order, away from it."""

    def __init__(self, plates: Plates, reference: int, estimator: Estimator, device: torch.device) -> None:
        self._plates, self._device, self._last = plates, device, reference
        self._picture: GreyPicture | None = None
        refiner = estimator if isinstance(estimator, RefinedEstimator) and estimator.refines(device) else None
        matcher = _matcher(estimator.estimator if isinstance(estimator, RefinedEstimator) else estimator)
        plate = plates.read(reference)
        self._picture = reduce_frame(plate.frame)
        self._size = plate.frame.shape[-2:]
        refine = None if refiner is None else refiner.refined
        self._tracker = Tracker(self._to_device(plate), matcher, refine, valid=self._mask_to_device(plate))
        self.is_cut_off = False

    def add(self, number: int, plate: Plate, *, is_half: bool) -> FrameResult:
        """Return the motion between the reference and a frame."""
        result = FrameResult(number, plate=plate, window=plate.window)
        if plate.frame.shape[-2:] != self._size:
            sizes = [f"{size[1]}x{size[0]}" for size in (plate.frame.shape[-2:], self._size)]
            reason = f"is {sizes[0]}, but the reference is {sizes[1]}"
            result.problems.append(Problem(self._plates.path(number), reason))
            return result
        picture = reduce_frame(plate.frame)
        if self._picture is not None and is_cut(self._picture, picture):
            self.is_cut_off = True
            result.cuts.append((min(self._last, number), max(self._last, number)))
        self._picture, self._last = picture, number
        if self.is_cut_off:
            self.cut_off(result)
        else:
            frame, valid = self._to_device(plate), self._mask_to_device(plate)
            result.tensors = self._tracker.add(frame, valid=valid, is_half=is_half)
        return result

    def restore(self, number: int, plate: Plate, layers: Mapping[str, Tensor]) -> None:
        """Add a frame whose motion is stored; without layers it lies behind a cut."""
        self.is_cut_off = self.is_cut_off or not layers
        if self.is_cut_off:
            return
        self._picture, self._last = reduce_frame(plate.frame), number
        self._tracker.restore(self._to_device(plate), {name: t.to(self._device) for name, t in layers.items()})

    def cut_off(self, result: FrameResult) -> None:
        """Fill the result of a frame behind a cut with motion that leads out of the frame."""
        outside = 2.0 * max(self._size)
        flow = torch.full((2, *self._size), outside, dtype=torch.float32, device=self._device)
        for direction in _DIRECTIONS:
            result.tensors[direction] = flow
            result.tensors[f"occlusion.{direction}"] = torch.ones_like(flow[0])
            result.tensors[f"confidence.{direction}"] = torch.zeros_like(flow[0])
        result.shot_ends = list(_DIRECTIONS)

    def _to_device(self, plate: Plate) -> Tensor:
        """Return the frame [1, 3, H, W] on the device."""
        return plate.frame[None].to(self._device).expand(-1, 3, -1, -1)

    def _mask_to_device(self, plate: Plate) -> Tensor | None:
        return None if plate.valid is None else plate.valid.to(self._device)


def _matcher(estimator: Estimator) -> PairMatcher:
    """Return the estimator as a matcher of both directions."""
    bidirectional = get_bidirectional(estimator)

    def match(
        frame1: Tensor, frame2: Tensor, forward: Tensor | None, backward: Tensor | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        both = bidirectional and bidirectional(frame1, frame2, initial_flow=forward, initial_backward=backward)
        if both is not None:
            return both.forward.float(), both.backward.float(), both.log_scales
        flows = [
            estimator(first, second, initial_flow=start).float()
            for first, second, start in ((frame1, frame2, forward), (frame2, frame1, backward))
        ]
        return flows[0], flows[1], None

    return match


def _identity(number: int, plate: Plate, device: torch.device) -> FrameResult:
    """Return the result of the reference itself."""
    flow = torch.zeros(2, *plate.frame.shape[-2:], dtype=torch.float32, device=device)
    result = FrameResult(number, plate=plate, window=plate.window)
    for direction in _DIRECTIONS:
        result.tensors[direction] = flow
        result.tensors[f"occlusion.{direction}"] = torch.zeros_like(flow[0])
        result.tensors[f"confidence.{direction}"] = torch.ones_like(flow[0])
    return result


def _follow(
    plates: Plates,
    reference: int,
    numbers: Sequence[int],
    estimator: Estimator,
    device: torch.device,
    *,
    read_stored: Callable[[int], dict[str, Tensor]] | None = None,
    existing: Set[int] = frozenset(),
    is_half: bool = False,
    stages: StageTimes | None = None,
) -> Iterator[FrameResult]:
    """Yield the reference, the frames after it, then those before it; of ``numbers``, those that do not exist.

    ``read_stored`` returns the layers of a frame of ``existing``; none for a frame behind a cut.
    """
    stages = stages or StageTimes()
    requested = set(numbers)
    for number in sorted(number for number in requested if not plates.has(number)):
        yield FrameResult(number, problems=[Problem(plates.path(number), "no such file")])
    if reference in requested:
        yield _identity(reference, plates.read(reference), device)
    available = sorted(number for number in plates.numbers if plates.has(number))
    for side in ([n for n in available if n > reference], [n for n in available[::-1] if n < reference]):
        side = side[: 1 + max((i for i, n in enumerate(side) if n in requested), default=-1)]
        if not side:
            continue
        follower = _Follower(plates, reference, estimator, device)
        passed: list[int] = []  # existing frames since the last one that was computed
        with ReadAhead(_reader(plates, device), lambda plate: plate.frame.nbytes, threads=plates.readers) as reads:
            reads.extend(number for number in side if number not in existing)
            for number in side:
                if read_stored is not None and number in existing:
                    passed.append(number)
                    continue
                for earlier in passed[-DISTANCES[-1] :]:
                    follower.restore(earlier, plates.read(earlier), read_stored(earlier) if read_stored else {})
                passed.clear()
                try:
                    with stages.measure("wait for plates"):
                        plate = reads.take(number)
                    with stages.measure("estimate"):
                        result = follower.add(number, plate, is_half=is_half)
                except (InputError, OSError) as error:
                    result = FrameResult(number, problems=[Problem.from_error(plates.path(number), error)])
                if number in requested:
                    yield result


def _reader(plates: Plates, device: torch.device) -> Callable[[int], Plate]:
    plates.pinned = device.type == "cuda"
    return plates.read


def follow_frames(
    frames: str | os.PathLike[str] | Sequence[Frame] | Plates,
    reference: int,
    method: str | Estimator = DEFAULT_METHOD,
    *,
    device: str | torch.device = "auto",
    **parameters: Any,
) -> Iterator[FollowedFrame]:
    """Yield the motion from a reference frame to every other frame of a shot, and back.

    The reference comes first, then the frames after it in order, then those before it in descending order. Memory does
    not grow with the length of the shot. Nothing is followed across a cut.

    Args:
        frames: a pattern, folder, glob, video file or list of frames, as :func:`open_plates` takes them, or what that
            function returned.
        reference: number of the reference frame; a list of frames counts from 1.
        method: as for :func:`fullfield.estimate`.
        device: where to compute.
        **parameters: for a method given by name: ``preset`` or ``config``, ``backend``, fields of the configuration.

    Raises:
        InputError: for a shot or a reference that does not exist, and for settings that cannot be used.
    """
    estimator = load_estimator(method, **parameters)
    is_source = isinstance(frames, (str, os.PathLike, list, tuple))
    plates: Plates = open_plates(frames) if is_source else frames  # type: ignore[arg-type,assignment]
    try:
        if not plates.has(reference):
            raise InputError(f"reference: expected a frame of the shot, got {reference}")
        if plates.by_data:
            raise InputError("frames: expected the display windows of the plates, got window='data'")
        target = resolve_device(device)
        check_fork(target)
        for result in _follow(plates, reference, plates.numbers, estimator, target):
            layers = result.tensors
            yield FollowedFrame(
                result.number,
                layers.get("forward"),
                layers.get("backward"),
                {name: layers[f"occlusion.{name}"] for name in _DIRECTIONS if layers},
                {name: layers[f"confidence.{name}"] for name in _DIRECTIONS if layers},
                bool(result.shot_ends),
                tuple(result.problems),
            )
    finally:
        plates.close()


def run_follow(
    job: FollowJob,
    numbers: Sequence[int],
    estimator: Estimator,
    plates: Plates,
    *,
    report: FrameReport | None = None,
) -> Outcome:
    """Write the files of ``numbers``, replacing those that exist; other frames of the job continue from their files.

    Bad plates, and files that cannot be written, are problems of the result. Where no further file can be written, the
    run stops; what is written stays.

    Args:
        job: a settled job (:meth:`FollowJob.settle`).
        numbers: frames to write.
        estimator: estimator of the job, prepared.
        plates: plates of the job; they are closed at the end.
        report: receives the number of every finished frame, from any thread.
    """
    start_s = time.perf_counter()
    outcome, stages, device = Outcome(), StageTimes(), resolve_device(job.device)
    journal, describe, checksums = job.output.journal(), job.input_digests(plates), Checksums()

    def read_stored(number: int) -> dict[str, Tensor]:
        path = job.output.path(number)
        return {} if read_note(path, ENDS_NOTE) else read_vectors(path)

    def write(result: FrameResult, event: Any, inputs: dict[str, str | None]) -> bool:
        layers = to_cpu(writers.copy_to_host(result.tensors, event))
        identity = None if result.plate is None else result.plate.identity
        if identity is not None and plates.stamp(result.number) != identity.stamp:
            raise InputError(f"{plates.path(result.number)}: was replaced during the run")
        record = {**job.provenance, "inputs": inputs, "start": None}
        for path, version in checksums.take_new():
            journal.add_input(path, version)
        with stages.measure("write"):
            job.output.write(result, layers, _DIRECTIONS[::-1], journal, record)
        return True

    try:
        with one_thread_a_file, WriterThreads(outcome, stages, device, report) as writers:
            results = _follow(
                plates,
                job.reference,
                numbers,
                estimator,
                device,
                read_stored=read_stored,
                existing=set(job.numbers) - set(numbers),
                is_half=job.output.dtype == "half",
                stages=stages,
            )
            for result in results:
                outcome.collect(result, "problems", "cuts")
                if outcome.stopped is not None:
                    break
                if not result.tensors:
                    if report is not None:
                        report(result.number)
                    continue
                size_bytes = sum(tensor.nbytes for tensor in result.tensors.values())
                inputs = describe(result.number, checksums)
                path = job.output.path(result.number)
                task = partial(write, result, writers.record_event(), inputs)
                writers.submit(result.number, path, size_bytes, task)
    finally:
        plates.close()
    outcome.stages = stages.by_name
    return outcome.finish(start_s)
