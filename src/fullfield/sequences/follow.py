"""Motion from one frame of a shot to every other one, frame by frame."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield._read_ahead import ReadAhead
from fullfield.estimators._devices import check_fork_safety_and_record_use
from fullfield.estimators._frames import Frame
from fullfield.estimators.estimation import build_or_check_estimator
from fullfield.estimators.protocol import Estimator, find_bidirectional_method
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.ops.devices import resolve_device
from fullfield.sequences.changes import is_cut, shrink_to_grey
from fullfield.sequences.plates import Plate, Plates, open_plates_unless_open
from fullfield.sequences.results import FrameResult, Problem, StageTimes
from fullfield.sequences.tracking import PairMatcher, Tracker, list_needed_source_steps

if TYPE_CHECKING:
    from fullfield._config import Config

DIRECTIONS = ("forward", "backward")
_BLOCK_BYTES = 1 << 30  # frames of a video that are decoded at a time to be taken in descending order


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


class _Follower:
    """Following of one side of the reference: frames are added in order, away from it."""

    def __init__(
        self, plates: Plates, reference: int, reference_plate: Plate, estimator: Estimator, device: torch.device
    ) -> None:
        self._plates, self._device, self._last = plates, device, reference
        refiner = estimator if isinstance(estimator, RefinedEstimator) and estimator.should_refine(device) else None
        matcher = create_pair_matcher(estimator.estimator if isinstance(estimator, RefinedEstimator) else estimator)
        self._picture = shrink_to_grey(reference_plate.frame, reference_plate.valid)
        self._size = reference_plate.frame.shape[-2:]
        refine = None if refiner is None else refiner.refine
        reference_frame, valid = (
            self._upload_frame_as_rgb(reference_plate),
            self._upload_valid_mask_if_any(reference_plate),
        )
        self._tracker = Tracker(reference_frame, matcher, refine, valid=valid)
        self.is_cut_off = False

    def track_frame_or_fill_after_cut(self, number: int, plate: Plate, *, rounds_to_half: bool) -> FrameResult:
        """Return the motion between the reference and a frame."""
        result = FrameResult(number, plate=plate, window=plate.window)
        if plate.frame.shape[-2:] != self._size:
            sizes = [f"{size[1]}x{size[0]}" for size in (plate.frame.shape[-2:], self._size)]
            reason = f"is {sizes[0]}, but the reference is {sizes[1]}"
            result.problems.append(Problem(self._plates.get_frame_name(number), reason))
            return result
        picture = shrink_to_grey(plate.frame, plate.valid)
        if is_cut(self._picture, picture):
            self.is_cut_off = True
            result.cuts.append((min(self._last, number), max(self._last, number)))
        self._picture, self._last = picture, number
        if self.is_cut_off:
            self.fill_as_occluded_and_mark_end_inplace(result)
        else:
            frame, valid = self._upload_frame_as_rgb(plate), self._upload_valid_mask_if_any(plate)
            result.tensors = self._tracker.track_next_frame(frame, valid=valid, rounds_to_half=rounds_to_half)
        return result

    def restore_frame_or_skip_after_cut(self, number: int, plate: Plate, layers: Mapping[str, Tensor]) -> None:
        """Add a frame whose motion is stored; without layers it lies behind a cut."""
        self.is_cut_off = self.is_cut_off or not layers
        if self.is_cut_off:
            self._tracker.skip_frame_and_drop_unneeded()
            return
        self._picture, self._last = shrink_to_grey(plate.frame, plate.valid), number
        self._tracker.restore_frame(
            self._upload_frame_as_rgb(plate), {name: t.to(self._device) for name, t in layers.items()}
        )

    def list_frames_to_restore(self, frame_numbers: Sequence[int]) -> list[int]:
        """Return those of the next frames whose stored motion is needed to continue after them."""
        needed = list_needed_source_steps(self._tracker.step + len(frame_numbers))
        return [number for step, number in enumerate(frame_numbers, self._tracker.step) if step in needed]

    def skip_frame_and_drop_unneeded(self) -> None:
        """Count a frame whose stored motion is not needed."""
        self._tracker.skip_frame_and_drop_unneeded()

    def fill_as_occluded_and_mark_end_inplace(self, result: FrameResult) -> None:
        """Fill the result of a frame behind a cut with motion that leads out of the frame."""
        outside = 2.0 * max(self._size)
        flow = torch.full((2, *self._size), outside, dtype=torch.float32, device=self._device)
        for direction in DIRECTIONS:
            result.tensors[direction] = flow
            result.tensors[f"occlusion.{direction}"] = torch.ones_like(flow[0])
            result.tensors[f"confidence.{direction}"] = torch.zeros_like(flow[0])
        result.shot_ends = list(DIRECTIONS)

    def _upload_frame_as_rgb(self, plate: Plate) -> Tensor:
        """Return the frame [1, 3, H, W] on the device."""
        return plate.frame[None].to(self._device).expand(-1, 3, -1, -1)

    def _upload_valid_mask_if_any(self, plate: Plate) -> Tensor | None:
        return None if plate.valid is None else plate.valid.to(self._device)


def create_pair_matcher(estimator: Estimator) -> PairMatcher:
    """Return the estimator as a matcher of both directions."""
    bidirectional = find_bidirectional_method(estimator)

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


def _build_zero_motion_result(number: int, plate: Plate, device: torch.device) -> FrameResult:
    """Return the result of the reference itself; its unknown pixels are hidden."""
    flow = torch.zeros(2, *plate.frame.shape[-2:], dtype=torch.float32, device=device)
    valid_mask = torch.ones_like(flow[0]) if plate.valid is None else plate.valid.to(device, torch.float32)
    result = FrameResult(number, plate=plate, window=plate.window)
    for direction in DIRECTIONS:
        result.tensors[direction] = flow
        result.tensors[f"occlusion.{direction}"] = 1 - valid_mask
        result.tensors[f"confidence.{direction}"] = valid_mask
    return result


class _BlockReader:
    """Reader of descending frames that reads blocks of them in ascending order, as videos are decoded."""

    def __init__(self, plates: Plates, numbers: Sequence[int], block_size: int) -> None:
        self._plates, self._numbers, self._block_size = plates, list(numbers), block_size
        self._block: dict[int, Plate | InputError | OSError] = {}

    def read(self, number: int) -> Plate:
        """Read a frame; raise what its file raised."""
        if number not in self._block:
            position = self._numbers.index(number)
            block = self._numbers[position : position + self._block_size]
            self._block = {earlier: self._read_or_return_error(earlier) for earlier in reversed(block)}
        plate = self._block.pop(number)
        if isinstance(plate, Exception):
            raise plate
        return plate

    def _read_or_return_error(self, number: int) -> Plate | InputError | OSError:
        try:
            return self._plates.read(number)
        except (InputError, OSError) as error:
            return error


def iterate_reference_flow_results(
    plates: Plates,
    reference: int,
    numbers: Sequence[int],
    estimator: Estimator,
    device: torch.device,
    *,
    read_stored: Callable[[int], dict[str, Tensor]] | None = None,
    stored_numbers: Set[int] = frozenset(),
    rounds_to_half: bool = False,
    stages: StageTimes | None = None,
    add_plate_versions: Callable[[int, Plate], None] | None = None,
) -> Iterator[FrameResult]:
    """Yield the reference, the frames after it, then those before it; of ``numbers``, those that do not exist.

    Args:
        plates: the shot.
        reference: number of the reference frame.
        numbers: frames that are yielded.
        estimator: estimator of a pair, prepared.
        device: where to compute.
        read_stored: returns the layers of a frame of ``stored_numbers``; none for a frame behind a cut.
        stored_numbers: frames whose motion is stored.
        rounds_to_half: round the values to half precision.
        stages: receives the time of waiting and of the estimation.
        add_plate_versions: receives every plate that was read, before the frame's result is yielded.
    """
    stages = stages or StageTimes()
    add_plate_versions = add_plate_versions or (lambda _number, _plate: None)
    plates.pinned = device.type == "cuda"
    requested = set(numbers)
    for number in sorted(number for number in requested if not plates.has_frame(number)):
        yield FrameResult(number, problems=[Problem(plates.get_frame_name(number), "no such file")])
    if not any(plates.has_frame(number) for number in requested):
        return
    reference_plate = plates.read(reference)
    add_plate_versions(reference, reference_plate)
    if reference in requested:
        yield _build_zero_motion_result(reference, reference_plate, device)
    available = sorted(number for number in plates.numbers if plates.has_frame(number))
    for side in ([n for n in available if n > reference], [n for n in available[::-1] if n < reference]):
        side = side[: 1 + max((i for i, n in enumerate(side) if n in requested), default=-1)]
        if not side:
            continue
        follower = _Follower(plates, reference, reference_plate, estimator, device)
        read = plates.read
        if plates.readers == 1 and side[0] < reference:
            read = _BlockReader(plates, side, max(1, _BLOCK_BYTES // reference_plate.frame.nbytes)).read
        with ReadAhead(read, lambda plate: plate.frame.nbytes, threads=plates.readers) as reads:
            for is_stored, group in groupby(side, key=stored_numbers.__contains__):
                stretch = list(group)
                if is_stored and read_stored is not None:
                    restored = follower.list_frames_to_restore(stretch)
                    reads.enqueue_keys_and_start_reads(restored)
                    for number in stretch:
                        if number not in restored:
                            follower.skip_frame_and_drop_unneeded()
                            continue
                        plate = reads.wait_and_take_item(number)
                        add_plate_versions(number, plate)
                        follower.restore_frame_or_skip_after_cut(number, plate, read_stored(number))
                    continue
                reads.enqueue_keys_and_start_reads(stretch)
                for number in stretch:
                    try:
                        with stages.measure("wait for plates"):
                            plate = reads.wait_and_take_item(number)
                        add_plate_versions(number, plate)
                        with stages.measure("estimate"):
                            result = follower.track_frame_or_fill_after_cut(
                                number, plate, rounds_to_half=rounds_to_half
                            )
                    except (InputError, OSError) as error:
                        result = FrameResult(
                            number, problems=[Problem.from_error(plates.get_frame_name(number), error)]
                        )
                    if number in requested:
                        yield result


def follow_frames(
    frames: str | os.PathLike[str] | Sequence[Frame] | Plates,
    reference: int,
    method: str | Estimator = DEFAULT_METHOD,
    *,
    preset: str | None = None,
    config: Config | None = None,
    weights: str | os.PathLike[str] | None = None,
    updates: int | None = None,
    cascade: bool | None = None,
    precision: str | None = None,
    backend: str | None = None,
    device: str | torch.device = "auto",
) -> Iterator[FollowedFrame]:
    """Yield the motion from a reference frame to every other frame of a shot, and back.

    The reference comes first, then the frames after it in order, then those before it in descending order. Memory does
    not grow with the length of the shot. Nothing is followed across a cut.

    Args:
        frames: a pattern, folder, glob, video file or list of frames, as :func:`open_plates` takes them, or what that
            function returned.
        reference: number of the reference frame; a list of frames counts from 1.
        method: as for :func:`fullfield.estimate`.
        preset: as for :func:`fullfield.estimate`.
        config: as for :func:`fullfield.estimate`.
        weights: as for :func:`fullfield.estimate`.
        updates: as for :func:`fullfield.estimate`.
        cascade: as for :func:`fullfield.estimate`.
        precision: as for :func:`fullfield.estimate`.
        backend: as for :func:`fullfield.estimate`.
        device: where to compute.

    Raises:
        InputError: for a shot or a reference that does not exist, and for settings that cannot be used.
    """
    estimator = build_or_check_estimator(
        method,
        preset=preset,
        config=config,
        weights=weights,
        updates=updates,
        cascade=cascade,
        precision=precision,
        backend=backend,
    )
    plates = open_plates_unless_open(frames)
    try:
        if not plates.has_frame(reference):
            raise InputError(f"reference: expected a frame of the shot, got {reference}")
        if plates.uses_data_windows:
            raise InputError("frames: expected the display windows of the plates, got window='data'")
        target = resolve_device(device)
        check_fork_safety_and_record_use(target)
        for result in iterate_reference_flow_results(plates, reference, plates.numbers, estimator, target):
            layers = result.tensors
            yield FollowedFrame(
                result.number,
                layers.get("forward"),
                layers.get("backward"),
                {name: layers[f"occlusion.{name}"] for name in DIRECTIONS if layers},
                {name: layers[f"confidence.{name}"] for name in DIRECTIONS if layers},
                bool(result.shot_ends),
                tuple(result.problems),
            )
    finally:
        plates.close()
