"""Engine of a shot: reads ahead, estimates each pair once, and yields the results frame by frame."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield._read_ahead import ReadAhead
from fullfield.estimators._reliability import estimate_occlusion_and_confidence
from fullfield.estimators.bars import Bars, ConstantLines, find_common_bars, measure_constant_lines_per_side
from fullfield.estimators.protocol import Estimator
from fullfield.estimators.refined import RefinedEstimator, choose_refined_estimator_or_none
from fullfield.io.files import describe_error
from fullfield.io.vectors import VALID
from fullfield.io.windows import FrameWindow
from fullfield.ops._filling import interpolate_unknown_pixels
from fullfield.ops._splatting import predict_next_flow
from fullfield.sequences.changes import GreyPicture, is_cut, is_duplicate, shrink_to_grey
from fullfield.sequences.plates import (
    Plate,
    Plates,
    copy_to_pinned_memory,
    crop_or_pad_frame_and_valid_to_display,
    merge_plate_windows,
    pad_and_fill_frame_and_valid,
)
from fullfield.sequences.results import FrameResult, Problem, StageTimes
from fullfield.sequences.settings import ShotSettings

_REQUEST_MORE_BELOW = 8  # remaining frames at which more are requested

ReadStoredFlow = Callable[[int, int], "Tensor | None"]
"""Callback that returns the stored flow [2, H, W] from a frame to another one, if it exists."""
RequestFrames = Callable[[], Sequence[int]]
"""Callback that returns further frames, all of them after the earlier ones; none: there are no more."""


class _ReadFrame(NamedTuple):
    """Plate, with what is measured where it is read."""

    plate: Plate
    grey: GreyPicture
    lines: tuple[ConstantLines, ...]


class _FrameInBox(NamedTuple):
    """Frame on the grid of another one, on the device."""

    frame: Tensor  # [1, C, H, W]
    valid: Tensor | None  # bool [H, W], where it is known; None: everywhere
    lines: tuple[ConstantLines, ...]


class _Pair(NamedTuple):
    """Two frames on the device, without the bars that both have."""

    frames: tuple[Tensor, Tensor]
    """[1, C, h, w] each, with the same number of channels."""
    valid: tuple[Tensor | None, Tensor | None]
    """bool [h, w] each: where the frames are known; None: everywhere."""


class ShotEngine:
    """Iterator over the results of a shot; iterate over it once.

    ``busy_s`` is afterwards the seconds that the estimator took, on a GPU by its own clock; ``stages`` holds the time
    of every part of the work.

    Args:
        plates: frames of the shot.
        numbers: frames that get a result.
        estimator: computes the flow of a pair; it must be prepared for the device of ``settings``.
        settings: directions, warm start, device, ...
        read_stored_flow_or_none: returns flow that an earlier run has written, from which a warm start goes on.
        request_frames: returns further frames before ``numbers`` run out.
        rounds_to_half: whether the flow is stored as half floats; warm starts are then rounded alike, so that a run
            that continues from its files gives the result of an undisturbed one.
    """

    def __init__(
        self,
        plates: Plates,
        numbers: Sequence[int],
        estimator: Estimator,
        settings: ShotSettings,
        *,
        read_stored_flow_or_none: ReadStoredFlow | None = None,
        request_frames: RequestFrames | None = None,
        rounds_to_half: bool = False,
    ) -> None:
        self._plates, self._numbers, self._estimator, self._settings = plates, sorted(numbers), estimator, settings
        self._read_stored_flow, self._request_frames = read_stored_flow_or_none, request_frames
        self._rounds_to_half = rounds_to_half
        self._device = settings.torch_device
        plates.pinned = self._device.type == "cuda"
        self._refiner = choose_refined_estimator_or_none(estimator, self._device, refine=settings.refine)
        self.final_estimator: Estimator = self._refiner or estimator
        """Estimator whose method and parameters describe the flows."""
        if isinstance(self.final_estimator, RefinedEstimator):
            self._estimator = self.final_estimator.estimator
        self._needs_backward = settings.should_estimate_reliability or self._refiner is not None
        # Both directions of a pair in one call, unless they start from different flows.
        needs_two_calls = settings.warm_start if settings.direction == "both" else not self._needs_backward
        self._bidirectional = None if needs_two_calls else getattr(self._estimator, "bidirectional", None)
        if settings.warm_start and plates.uses_data_windows:
            raise InputError("warm_start: expected frames on one window, got window='data'")
        self._frames: dict[int, Plate | Problem] = {}
        self._grey: dict[int, GreyPicture] = {}
        self._lines: dict[int, tuple[ConstantLines, ...]] = {}
        self._on_device: dict[int, Tensor] = {}
        self._uploads: dict[int, Any] = {}
        self._upload_stream = torch.cuda.Stream(self._device) if plates.pinned else None  # type: ignore[no-untyped-call]
        self._valid_on_device: dict[int, Tensor | None] = {}
        self._in_box: dict[tuple[int, int], _FrameInBox] = {}
        self._flows: dict[tuple[int, int, int], Tensor | Problem] = {}
        self._refined: dict[tuple[int, int, int], Tensor | Problem] = {}
        self._log_scales: dict[tuple[int, int, int], Tensor] = {}
        self._changes: dict[tuple[int, int], str] = {}
        self._bars: dict[tuple[int, int, int], Bars | None] = {}
        self._size: torch.Size | None = None
        self.stages = StageTimes()
        self._cpu_s = 0.0
        self._events: list[tuple[Any, Any]] = []

    @property
    def busy_s(self) -> float:
        """Seconds of estimation up to now."""
        if self._events:
            torch.cuda.synchronize(self._device)
        gpu_s: float = sum(start.elapsed_time(end) for start, end in self._events) / 1000
        return self._cpu_s + gpu_s

    def __iter__(self) -> Iterator[FrameResult]:
        """Yield one :class:`FrameResult` for each frame, in order."""
        remaining = deque(self._numbers)
        with ReadAhead(self._read_measure_and_pin_plate, _count_frame_bytes, threads=self._plates.readers) as reads:
            reads.enqueue_keys_and_start_reads(self._list_input_frames(self._numbers))
            while remaining:
                number = remaining.popleft()
                with self.stages.measure("wait for plates"):
                    for frame in self._settings.list_input_frames(self._plates, number):
                        self._wait_and_store_frame_or_problem(reads, frame)
                self._request_numbers_and_enqueue_when_few(remaining, reads)
                if remaining:
                    self._upload_inputs_already_read(reads, remaining[0])
                with self.stages.measure("estimate"):
                    result = self._compute_frame_result(number)
                self._release_data_before_frame(remaining[0] if remaining else None)
                yield result

    def _list_input_frames(self, frame_numbers: Sequence[int]) -> list[int]:
        """Return the frames that are read for the results of ``frame_numbers``."""
        return sorted(
            {frame for number in frame_numbers for frame in self._settings.list_input_frames(self._plates, number)}
        )

    def _request_numbers_and_enqueue_when_few(self, remaining: deque[int], reads: ReadAhead[int, _ReadFrame]) -> None:
        """Request more frames before the remaining ones run out."""
        if self._request_frames is None or len(remaining) >= _REQUEST_MORE_BELOW:
            return
        numbers = sorted(self._request_frames())
        if not numbers:
            self._request_frames = None
            return
        remaining.extend(numbers)
        reads.enqueue_keys_and_start_reads(
            frame for frame in self._list_input_frames(numbers) if frame not in self._frames
        )

    # ---- reading

    def _read_measure_and_pin_plate(self, number: int) -> _ReadFrame:
        if self._plates.is_in_range(number) and not self._plates.has_frame(number):
            raise FileNotFoundError(2, "no such file", self._plates.get_frame_name(number))
        with self.stages.measure("read"):
            plate = self._plates.read(number)
        if plate.frame[0].numel() < 2:
            raise InputError(f"{self._plates.get_frame_name(number)}: expected more than one pixel")
        with self.stages.measure("reduce"):
            grey = shrink_to_grey(
                *(
                    crop_or_pad_frame_and_valid_to_display(plate)
                    if self._plates.uses_data_windows
                    else (plate.frame, plate.valid)
                )
            )
            lines = () if self._plates.uses_data_windows else measure_constant_lines_per_side(plate.frame)
        if self._device.type == "cuda" and not plate.frame.is_pinned():
            with self.stages.measure("pin"):
                plate = copy_to_pinned_memory(plate)
        return _ReadFrame(plate, grey, lines)

    def _wait_and_store_frame_or_problem(self, reads: ReadAhead[int, _ReadFrame], number: int) -> None:
        """Wait for a frame, or for the reason why it cannot be read."""
        if number in self._frames:
            return
        try:
            plate, self._grey[number], self._lines[number] = reads.wait_and_take_item(number)
        except (InputError, OSError) as error:
            self._frames[number] = Problem.from_error(self._plates.get_frame_name(number), error)
            return
        self._frames[number] = plate
        if self._size is None:
            self._size = plate.frame.shape[-2:]

    def _upload_inputs_already_read(self, reads: ReadAhead[int, _ReadFrame], number: int) -> None:
        """Copy plates of a later result to the GPU during the estimation, if they have been read."""
        if self._upload_stream is None or self._plates.uses_data_windows:
            return
        for frame in self._settings.list_input_frames(self._plates, number):
            item = None if frame in self._frames or frame in self._on_device else reads.get_item_if_read(frame)
            if item is not None:
                with torch.cuda.stream(self._upload_stream):
                    self._on_device[frame] = item.plate.frame[None].to(self._device, non_blocking=True)
                    self._uploads[frame] = self._upload_stream.record_event()

    def _release_data_before_frame(self, next_number: int | None) -> None:
        """Release what no later frame needs."""
        by_frame: tuple[dict[int, Any], ...] = (
            self._frames, self._grey, self._lines, self._on_device, self._uploads, self._valid_on_device
        )  # fmt: skip
        by_pair: tuple[dict[tuple[int, int, int], Any], ...] = (
            self._flows, self._refined, self._log_scales, self._bars
        )  # fmt: skip
        self._in_box.clear()  # each is on the grid of one result
        if next_number is None:
            for mapping in (*by_frame, *by_pair, self._changes):
                mapping.clear()  # type: ignore[attr-defined]
            return
        step, settings = self._settings.step, self._settings
        for number in [n for n in self._frames if n < next_number - step]:
            for frames in by_frame:
                frames.pop(number, None)
        pairs_back = 2 if settings.warm_start else 1
        is_reused = settings.warm_start or self._needs_backward or self._bidirectional is not None
        oldest = next_number - pairs_back * step if is_reused else next_number + step + 1
        for flows in by_pair:
            for pair in [p for p in flows if min(p[:2]) < oldest]:
                del flows[pair]
        for pair_frames in [p for p in self._changes if min(p) < next_number - step]:
            del self._changes[pair_frames]

    # ---- estimating

    def _compute_frame_result(self, number: int) -> FrameResult:
        plates, settings = self._plates, self._settings
        result = FrameResult(number)
        plate = self._frames[number]
        if isinstance(plate, Problem):
            result.problems.append(plate)
            result.missing += settings.offsets_by_direction
            return result
        result.plate, result.window = plate, plate.window
        result.add_input_identities(number, plate)
        if plates.uses_data_windows:
            try:
                result.window = self._merge_input_windows(number)
            except InputError as error:
                result.problems.append(Problem.from_error(plates.get_frame_name(number), error))
                return result
        size = plate.frame.shape[-2:] if result.window is None else result.window.data[3:1:-1]
        for direction, offset in settings.offsets_by_direction.items():
            other = number + offset
            if not plates.is_in_range(other):
                result.shot_ends.append(direction)
                self._add_zero_flow_as_occluded(result, direction, size)
                continue
            flow = self._get_flow_or_problem_noting_cut_or_duplicate(number, other, result)
            if isinstance(flow, Problem):
                result.add_missing_direction(direction, flow)
                self._add_zero_flow_as_occluded(result, direction, size)
                continue
            partner = self._frames[other]
            if isinstance(partner, Plate):
                result.add_input_identities(other, partner)
            result.tensors[direction] = flow
        if self._refiner is not None:  # backward first: the backward pair of the other direction starts from that flow
            for direction in sorted(self._list_directions_with_flow(result)):
                self._set_refined_flow_or_add_problem(
                    result, direction, number, number + settings.offsets_by_direction[direction]
                )
        if settings.should_estimate_reliability:  # after both directions, from which the backward pairs may start
            for direction in self._list_directions_with_flow(result):
                self._add_reliability_or_problem(
                    result, direction, number, number + settings.offsets_by_direction[direction]
                )
        valid = self._get_valid_mask_on_grid_if_any(number, number)
        if valid is not None:
            result.tensors[VALID] = valid.to(torch.float32)
        for direction, offset in settings.offsets_by_direction.items():
            is_whole = result.tensors[direction].shape[-2:] == size
            bars = None if is_whole else self._get_or_find_common_bars(number, number + offset, number)
            if bars is not None:
                _surround_with_bars_inplace(result, direction, bars)
        return result

    def _list_directions_with_flow(self, result: FrameResult) -> list[str]:
        return [
            name for name in self._settings.offsets_by_direction if name not in (*result.shot_ends, *result.missing)
        ]

    def _set_refined_flow_or_add_problem(self, result: FrameResult, direction: str, number: int, partner: int) -> None:
        pair = (number, partner, self._get_grid_frame_number_or_zero(number))
        if pair not in self._refined:
            self._refined[pair] = self._refine_or_get_problem(result.tensors[direction], result, number, partner)
        flow = self._refined[pair]
        if isinstance(flow, Problem):
            result.add_missing_direction(direction, flow)
        else:
            result.tensors[direction] = flow

    def _refine_or_get_problem(self, flow: Tensor, result: FrameResult, number: int, partner: int) -> Tensor | Problem:
        refiner, backward = self._refiner, self._get_flow_or_problem_noting_cut_or_duplicate(partner, number, result)
        if isinstance(backward, Problem) or refiner is None:
            return backward
        frames, valid = self._get_pair_and_masks_without_bars(number, partner, number)
        try:
            refined = self._estimate_and_add_time(lambda: refiner.refine(*frames, flow[None], backward[None]))
            return _fill_unknown_vectors_if_masked(refined, valid[0])
        except InputError as error:
            return _build_problem_by_error_prefix([self._plates.get_frame_name(n) for n in (number, partner)], error)

    def _get_pair_and_masks_without_bars(self, first: int, second: int, grid_frame_number: int) -> _Pair:
        """Return two frames of one size on a grid."""
        frames = self._get_frames_on_grid(first, second, grid_frame_number)
        channels = max(frame.shape[1] for frame in frames)
        first_frame, second_frame = (frame.expand(-1, channels, -1, -1) for frame in frames)
        valid1, valid2 = (self._get_valid_mask_on_grid_if_any(number, grid_frame_number) for number in (first, second))
        bars = self._get_or_find_common_bars(first, second, grid_frame_number)
        if bars is None:
            return _Pair((first_frame, second_frame), (valid1, valid2))
        valid1, valid2 = (None if valid is None else bars.crop(valid) for valid in (valid1, valid2))
        return _Pair((bars.crop(first_frame), bars.crop(second_frame)), (valid1, valid2))

    def _get_or_find_common_bars(self, first: int, second: int, grid_frame_number: int) -> Bars | None:
        """Return the bars that two frames of one size have on a grid; None if there are none."""
        pair = (min(first, second), max(first, second), self._get_grid_frame_number_or_zero(grid_frame_number))
        if pair not in self._bars:
            size = self._get_frames_on_grid(first, second, grid_frame_number)[0].shape[-2:]
            self._bars[pair] = find_common_bars(
                size, [self._get_constant_lines(n, grid_frame_number) for n in pair[:2]]
            )
        return self._bars[pair]

    def _get_constant_lines(self, number: int, grid_frame_number: int) -> tuple[ConstantLines, ...]:
        """Return the lines of one constant colour of a frame on a grid."""
        return (
            self._get_or_upload_frame_in_box(number, grid_frame_number).lines
            if self._plates.uses_data_windows
            else self._lines[number]
        )

    def _add_reliability_or_problem(self, result: FrameResult, direction: str, number: int, partner: int) -> None:
        backward = self._get_flow_or_problem_noting_cut_or_duplicate(partner, number, result)
        if isinstance(backward, Problem):
            result.add_missing_direction(direction, backward)
            return
        pair = self._get_pair_and_masks_without_bars(number, partner, number)
        log_scale = self._log_scales.get((number, partner, self._get_grid_frame_number_or_zero(number)))
        flows = result.tensors[direction][None], backward[None]
        valid1, valid2 = (None if valid is None else valid[None] for valid in pair.valid)
        maps = estimate_occlusion_and_confidence(
            *pair.frames, *flows, None if log_scale is None else log_scale[None], valid1=valid1, valid2=valid2
        )
        self._add_requested_planes(result, direction, maps[0][0], maps[1][0])

    def _add_requested_planes(self, result: FrameResult, direction: str, occlusion: Tensor, confidence: Tensor) -> None:
        """Add those of both planes that are requested."""
        for name, plane in (("occlusion", occlusion), ("confidence", confidence)):
            if getattr(self._settings, name):
                result.tensors[f"{name}.{direction}"] = plane

    def _add_zero_flow_as_occluded(self, result: FrameResult, direction: str, size: Sequence[int]) -> None:
        """Add zero vectors with full occlusion and no confidence."""
        zero = torch.zeros(2, *size, dtype=torch.float32, device=self._device)
        result.tensors[direction] = zero
        self._add_requested_planes(result, direction, torch.ones_like(zero[0]), torch.zeros_like(zero[0]))

    def _get_flow_or_problem_noting_cut_or_duplicate(
        self, first: int, second: int, result: FrameResult
    ) -> Tensor | Problem:
        """Return the flow [2, H, W] between two loaded frames; each pair is estimated once."""
        pair = (first, second, self._get_grid_frame_number_or_zero(result.number))
        if pair not in self._flows:
            self._flows[pair] = self._estimate_pair_or_get_problem(first, second, result.number)
        frames = (min(first, second), max(first, second))
        changes = {"cut": result.cuts, "duplicate": result.duplicates}.get(self._detect_cut_or_duplicate(*frames))
        if changes is not None and frames not in changes:
            changes.append(frames)
        return self._flows[pair]

    def _get_grid_frame_number_or_zero(self, number: int) -> int:
        """Return the frame whose pixel grid a flow is on; 0 where all frames share one."""
        return number if self._plates.uses_data_windows else 0

    def _estimate_pair_or_get_problem(self, first: int, second: int, grid_frame_number: int) -> Tensor | Problem:
        paths = [self._plates.get_frame_name(number) for number in (first, second)]
        for number in (first, second):
            if isinstance(problem := self._frames[number], Problem):
                return problem
        try:
            frames = self._get_frames_on_grid(first, second, grid_frame_number)
            if frames[0].shape[-2:] != frames[1].shape[-2:]:
                odd = 0 if frames[0].shape[-2:] != self._size and frames[1].shape[-2:] == self._size else 1
                sizes = [f"{frame.shape[-1]}x{frame.shape[-2]}" for frame in frames]
                return Problem(paths[odd], f"is {sizes[odd]}, but {paths[1 - odd]} is {sizes[1 - odd]}")
            initial_flow = self._predict_flow_from_previous_pair_or_none(first, second, frames[0].shape[-2:])
            (frame1, frame2), valid = self._get_pair_and_masks_without_bars(first, second, grid_frame_number)
            flow = self._estimate_both_and_get_requested_or_none(first, second, grid_frame_number, initial_flow)
            if flow is None:
                flow = self._estimate_and_add_time(lambda: self._estimator(frame1, frame2, initial_flow=initial_flow))
                flow = _fill_unknown_vectors_if_masked(flow, valid[0])
            _check.check_tensor(flow, f"the flow of {self._estimator.method}", (2, *frame1.shape[-2:]))
        except InputError as error:
            return _build_problem_by_error_prefix(paths, error)
        if self._device.type == "cpu" and not np.isfinite(flow.detach().numpy()).all():
            return Problem(paths[0], f"{self._estimator.method} gives a flow that is not finite")
        return flow

    def _estimate_both_and_get_requested_or_none(
        self, first: int, second: int, grid_frame_number: int, initial_flow: Tensor | None
    ) -> Tensor | None:
        """Return the flow, and keep the backward flow of the same call; None where the estimator has no such call.

        The earlier frame comes first whichever is requested, so that a run that continues from files gives the same. A
        warm start belongs to the requested direction, so with one the requested order stays.
        """
        bidirectional = self._bidirectional
        if bidirectional is None:
            return None
        order = (first, second) if self._settings.warm_start else (min(first, second), max(first, second))
        (frame1, frame2), valid = self._get_pair_and_masks_without_bars(*order, grid_frame_number)
        flows: Any = None

        def estimate() -> Tensor:
            nonlocal flows
            flows = bidirectional(frame1, frame2, initial_flow=initial_flow)
            return frame1 if flows is None else flows.forward

        self._estimate_and_add_time(estimate)
        if flows is None:
            self._bidirectional = None
            return None
        key = self._get_grid_frame_number_or_zero(grid_frame_number)
        directions = {(*order, key): flows.forward, (*order[::-1], key): flows.backward}
        for index, (pair, flow) in enumerate(directions.items()):
            self._flows.setdefault(pair, _fill_unknown_vectors_if_masked(flow[0].to(torch.float32), valid[index]))
            if self._settings.should_estimate_reliability and flows.log_scales is not None:
                self._log_scales[pair] = flows.log_scales[index][0]
        requested = self._flows[first, second, key]
        return None if isinstance(requested, Problem) else requested

    def _estimate_and_add_time(self, estimate: Callable[[], Tensor]) -> Tensor:
        """Return the flow [2, H, W] of ``estimate``, and add its time."""
        if self._device.type != "cuda":
            start_s = time.perf_counter()
            flow = estimate()[0].to(torch.float32)
            self._cpu_s += time.perf_counter() - start_s
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

    def _get_frames_on_grid(self, first: int, second: int, grid_frame_number: int) -> list[Tensor]:
        """Return both frames [1, C, H, W] on the device and on one grid."""
        if not self._plates.uses_data_windows:
            return [self._get_or_upload_frame(number) for number in (first, second)]
        return [self._get_or_upload_frame_in_box(number, grid_frame_number).frame for number in (first, second)]

    def _get_or_upload_frame_in_box(self, number: int, grid_frame_number: int) -> _FrameInBox:
        """Return a frame on the grid of another one, on the device."""
        if (number, grid_frame_number) not in self._in_box:
            frame, valid = pad_and_fill_frame_and_valid(
                self._get_plate_or_raise(number), self._merge_input_windows(grid_frame_number).data
            )
            on_device = None if valid is None else valid.to(self._device)
            self._in_box[number, grid_frame_number] = _FrameInBox(
                frame[None].to(self._device), on_device, measure_constant_lines_per_side(frame)
            )
        return self._in_box[number, grid_frame_number]

    def _get_valid_mask_on_grid_if_any(self, number: int, grid_frame_number: int) -> Tensor | None:
        """Return where a frame is known, bool [H, W] on the device and on a grid; None: everywhere."""
        if self._plates.uses_data_windows:
            return self._get_or_upload_frame_in_box(number, grid_frame_number).valid
        if number not in self._valid_on_device:
            valid = self._get_plate_or_raise(number).valid
            self._valid_on_device[number] = None if valid is None else valid.to(self._device)
        return self._valid_on_device[number]

    def _get_or_upload_frame(self, number: int) -> Tensor:
        if number not in self._on_device:
            frame = self._get_plate_or_raise(number).frame[None]
            self._on_device[number] = frame.to(self._device, non_blocking=True)  # from pinned memory
        frame, upload = self._on_device[number], self._uploads.pop(number, None)
        if upload is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(upload)
            frame.record_stream(stream)
        return frame

    def _get_plate_or_raise(self, number: int) -> Plate:
        plate = self._frames[number]
        if isinstance(plate, Problem):
            raise InputError(f"{self._plates.get_frame_name(number)}: {plate.reason}")
        return plate

    def _merge_input_windows(self, number: int) -> FrameWindow:
        """Return the window of a frame's result: its own, widened to those of the frames it is compared with."""
        frames = self._settings.list_input_frames(self._plates, number)
        plates = {n: self._frames.get(n) for n in frames}
        return merge_plate_windows(
            {self._plates.get_frame_name(n): p for n, p in plates.items() if isinstance(p, Plate)}
        )

    def _predict_flow_from_previous_pair_or_none(self, first: int, second: int, size: torch.Size) -> Tensor | None:
        """Return the initial flow from the pair before; None across a cut and where the shot starts."""
        settings, offset = self._settings, second - first
        is_requested = offset in settings.offsets_by_direction.values()
        if (
            not settings.warm_start
            or not is_requested
            or self._detect_cut_or_duplicate(*sorted((first, second))) == "cut"
        ):
            return None
        pair = (first - settings.step, second - settings.step)
        flow = (self._flows if self._refiner is None else self._refined).get((*pair, 0))  # as they are stored
        if flow is None and self._read_stored_flow is not None:
            flow = self._read_stored_flow(*pair)
        elif isinstance(flow, Tensor) and (bars := self._get_or_find_common_bars(*pair, 0)) is not None:
            flow = bars.pad(flow, 0.0)
        if flow is None or isinstance(flow, Problem) or flow.shape[-2:] != size:
            return None
        flow = flow.to(self._device)
        flow = flow.half().float() if self._rounds_to_half else flow
        predicted = predict_next_flow(flow) if offset > 0 else -predict_next_flow(-flow)
        bars = self._get_or_find_common_bars(first, second, 0)
        return (predicted if bars is None else bars.crop(predicted))[None]

    def _detect_cut_or_duplicate(self, first: int, second: int) -> str:
        """Return ``cut`` or ``duplicate``, or an empty text for two frames of one shot."""
        pair = (first, second)
        if pair not in self._changes:
            frame1, frame2 = (self._frames.get(number) for number in pair)
            self._changes[pair] = ""
            if isinstance(frame1, Plate) and isinstance(frame2, Plate):
                with self.stages.measure("look for cuts"):
                    if is_duplicate(frame1.frame, frame2.frame, allow_compression_noise=self._plates.readers == 1):
                        self._changes[pair] = "duplicate"
                    elif is_cut(self._grey[first], self._grey[second]):
                        self._changes[pair] = "cut"
        return self._changes[pair]


def _surround_with_bars_inplace(result: FrameResult, direction: str, bars: Bars) -> None:
    """Surround the planes of a direction, which are those of the picture between bars, with the bars."""
    result.bars[direction] = bars
    for name, value in ((direction, 0.0), (f"occlusion.{direction}", 1.0), (f"confidence.{direction}", 0.0)):
        if name in result.tensors:
            result.tensors[name] = bars.pad(result.tensors[name], value)
    valid = result.tensors.get(VALID)
    valid = torch.ones_like(result.tensors[direction][0]) if valid is None else valid
    result.tensors[VALID] = bars.pad(bars.crop(valid), 0.0)


def _fill_unknown_vectors_if_masked(flow: Tensor, valid: Tensor | None) -> Tensor:
    """Return a flow [2, h, w] whose vectors come from their surroundings where its frame is not known."""
    return flow if valid is None or flow.shape[-2:] != valid.shape else interpolate_unknown_pixels(flow, valid)


def _count_frame_bytes(item: _ReadFrame) -> int:
    return item.plate.frame.nbytes


def _build_problem_by_error_prefix(paths: Sequence[str], error: InputError) -> Problem:
    """Return what is wrong with one of two frames: the second where the message starts with its name."""
    for name, path in zip(("frame2: ", "frame1: "), reversed(paths), strict=True):
        if str(error).startswith(name):
            return Problem(path, describe_error(error).removeprefix(name))
    return Problem.from_error(paths[0], error)
