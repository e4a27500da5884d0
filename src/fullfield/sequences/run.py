"""Run of one process over a shot: flow is estimated, and written by threads behind the estimation."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullfield._ledger.records import Records
from fullfield._ledger.versions import FileIdentity, hash_json_values
from fullfield.estimators.protocol import Estimator
from fullfield.io.oiio import one_thread_a_file
from fullfield.io.scanlines import Scanlines, compute_scanlines_shape
from fullfield.io.vectors import pack_layers_on_device_and_check_range
from fullfield.sequences.engine import RequestFrames, ShotEngine
from fullfield.sequences.job import ShotJob
from fullfield.sequences.outputs import move_to_cpu_as_float32
from fullfield.sequences.plates import Plates
from fullfield.sequences.results import FrameReport, FrameResult, Outcome, Problem, StageTimes
from fullfield.sequences.writing import WriterThreads

_WATCHED_STEPS = 64  # pairs after which a plate is no longer watched for changes


def write_shot_flow(
    job: ShotJob,
    numbers: Sequence[int],
    estimator: Estimator,
    plates: Plates,
    *,
    report: FrameReport | None = None,
    request_frames: RequestFrames | None = None,
) -> Outcome:
    """Write the files of ``numbers``, replacing those that exist.

    Bad plates, and files that cannot be written, are problems of the result. Where no further file can be written (a
    full disk, a folder that was removed), the run stops; what is written stays.

    Args:
        job: a settled job (:meth:`ShotJob.write_settings_and_get_job_and_plan`).
        numbers: frames to write.
        estimator: estimator of the job, prepared.
        plates: plates of the job; they are closed at the end.
        report: receives the number of every finished frame, from any thread.
        request_frames: returns further frames before ``numbers`` run out, until there are none.
    """
    start_s = time.perf_counter()
    settings, output = job.settings, job.output
    existing = set(job.numbers) - set(numbers)

    def read_stored_flow_or_none(first: int, second: int) -> Tensor | None:
        exists = first in existing and plates.has_frame(first)
        return output.read_stored_flow_or_none(first, second, settings.offsets_by_direction) if exists else None

    def request_further() -> Sequence[int]:
        further = [] if request_frames is None else request_frames()
        existing.difference_update(further)
        return further

    engine = ShotEngine(
        plates,
        numbers,
        estimator,
        settings,
        read_stored_flow_or_none=read_stored_flow_or_none,
        request_frames=request_further,
        rounds_to_half=output.dtype == "half",
    )
    outcome = Outcome()
    try:
        with one_thread_a_file, FlowFileWriter(job, plates, outcome, engine.stages, report, existing) as writer:
            for result in engine:
                outcome.add_new_items(result, "problems", "cuts", "duplicates")
                outcome.add_bars(result)
                valid = None if result.plate is None or "mask" not in job.reading else result.plate.valid
                if valid is not None and 2 * int(valid.sum()) < valid.numel():
                    outcome.mostly_masked.append(result.number)
                has_flow = any(name in result.tensors for name in settings.offsets_by_direction)
                if has_flow and set(result.missing) != set(settings.offsets_by_direction):
                    writer.wait_and_submit_frame_result(result)
                elif report is not None:
                    report(result.number)
                file = plates.get_containing_file(result.number)
                if outcome.stopped is None and result.problems and file is not None and not Path(file).parent.exists():
                    outcome.stopped = f"{Path(file).parent}: is not there any more"
                if outcome.stopped is not None:
                    break
    finally:
        outcome.dead_pictures |= plates.pop_nonfinite_messages()
        plates.close()
    outcome.busy_s, outcome.stages = engine.busy_s, engine.stages.by_name
    return outcome.sort_warn_and_set_wall_time(start_s)


class FlowFileWriter:
    """Writer of the flow of frames, with a record of what each file was made from.

    Args:
        job: its output and provenance are used.
        plates: files that are watched for changes.
        outcome: receives written frames and problems.
        stages: receives the time of fetching, laying out and writing.
        report: receives the number of every finished frame.
        existing: frames that an earlier run has written.
    """

    def __init__(
        self,
        job: ShotJob,
        plates: Plates,
        outcome: Outcome,
        stages: StageTimes,
        report: FrameReport | None,
        existing: set[int],
    ) -> None:
        self._job, self._output, self._plates, self._outcome = job, job.output, plates, outcome
        self._stages, self._existing = stages, existing
        self._journal = job.output.open_journal()
        device = job.settings.torch_device
        self._threads = WriterThreads(outcome, stages, device, report)
        self._buffers = _LineBuffers(pinned=device.type == "cuda")
        self._digests: dict[int, str] = {}
        self._records: Records | None = None
        self._lock = threading.Lock()
        self._watched: dict[int, FileIdentity | None] = {}
        self._reported: set[int] = set()

    def __enter__(self) -> FlowFileWriter:
        self._threads.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._threads.__exit__(kind, *details)
        if kind is None:
            for number in sorted(self._watched):
                self._detect_and_report_replaced_plate(
                    number, "after it was read; what was made from it is of the old one"
                )

    def wait_and_submit_frame_result(self, result: FrameResult) -> None:
        """Write a result in a thread."""
        size_bytes = sum(tensor.nbytes for tensor in result.tensors.values())
        event = self._threads.record_stream_event_if_cuda()
        if result.plate is not None:  # only its metadata is written
            result.plate = result.plate._replace(frame=result.plate.frame[:0])
        record = self._build_record_and_store_warm_start_digest(result)
        path = self._output.get_path(result.number)
        self._threads.wait_and_submit_write(
            result.number, path, size_bytes, lambda: self._fetch_and_write_if_finite(result, event, record)
        )

    def _build_record_and_store_warm_start_digest(self, result: FrameResult) -> dict[str, Any]:
        """Return the record of a frame."""
        inputs = {
            str(number - result.number): None if identity is None else identity.checksum
            for number, identity in result.inputs.items()
        }
        inputs |= {f"mask {n - result.number}": identity.checksum for n, identity in result.masks.items()}
        record = {**self._job.provenance, "inputs": inputs, "start": None}
        if self._job.settings.warm_start:
            record["start"] = self._get_or_compute_record_digest(result.number - self._job.settings.step)
            self._digests[result.number] = hash_json_values(record)
        return record

    def _get_or_compute_record_digest(self, number: int) -> str | None:
        """Return the digest of a frame's record, of this run or an earlier one; None for a frame outside the run."""
        if number not in self._job.numbers:
            return None
        if number not in self._digests and (number not in self._existing or not self._plates.has_frame(number)):
            return "not made"
        if number not in self._digests:
            self._records = self._records or Records(self._output.records_folder)
            records = self._records.find_records_of_current_file(self._output.get_path(number))
            self._digests[number] = hash_json_values(records[-1].provenance) if records else "not made"
        return self._digests[number]

    def _fetch_and_write_if_finite(self, result: FrameResult, event: Any, record: dict[str, Any]) -> bool:
        """Copy a result from the device and write its file; return whether it was written."""
        if self._output.is_exr_without_st_map:
            with self._buffers.lend_scanline_buffer(result.tensors, self._output.dtype == "half") as buffer:
                with self._stages.measure("lay out" if event is None else "fetch"):
                    lines = self._pack_lines_if_values_fit(result.tensors, event, buffer)
                if lines is not None:
                    return self._write_and_record_unless_plate_replaced(result, lines, record)
        with self._stages.measure("fetch"):
            tensors = move_to_cpu_as_float32(self._threads.copy_to_host_if_on_gpu(result.tensors, event))
        for name in self._job.settings.offsets_by_direction if event is not None else ():
            # NumPy: PyTorch would start threads of its own for each of ours.
            if not np.isfinite(tensors[name].numpy()).all():
                reason = f"{self._job.method} gives a flow that is not finite ({name})"
                self._threads.add_problem_if_new(Problem(self._output.get_path(result.number), reason))
                return False
        return self._write_and_record_unless_plate_replaced(result, tensors, record)

    def _pack_lines_if_values_fit(self, tensors: dict[str, Tensor], event: Any, buffer: Tensor) -> Scanlines | None:
        """Return the lines of a file in ``buffer``; None where lines from a GPU cannot hold the values."""
        output = self._output
        if event is None:
            return output.pack_channels_into_scanlines(move_to_cpu_as_float32(tensors), buffer.numpy())
        is_valid = torch.empty((), dtype=torch.bool, pin_memory=True)
        with self._threads.use_copy_stream_and_wait(tensors, event):
            names, body, is_valid_on_device = pack_layers_on_device_and_check_range(tensors, output.dtype, output.y)
            buffer.copy_(body, non_blocking=True)
            is_valid.copy_(is_valid_on_device, non_blocking=True)
        return Scanlines(names, buffer.numpy(), output.dtype == "half") if bool(is_valid) else None

    def _write_and_record_unless_plate_replaced(
        self, result: FrameResult, content: dict[str, Tensor] | Scanlines, record: Mapping[str, Any]
    ) -> bool:
        replaced = [
            n
            for n in result.inputs
            if self._detect_and_report_replaced_plate(n, "while it was worked on", result.inputs)
        ]
        if replaced:
            return False
        with self._lock:
            self._watched.update({n: identity for n, identity in result.inputs.items() if identity is not None})
            oldest = result.number - _WATCHED_STEPS * self._job.settings.step
            for number in [n for n in self._watched if n < oldest]:
                del self._watched[number]
        with self._stages.measure("write"):
            for number, identity in result.inputs.items():
                path = self._plates.get_containing_file(number)
                if path is not None and identity is not None:
                    self._journal.record_input_once(path, identity)
            for number, identity in result.masks.items():
                self._journal.record_input_once(str(self._plates.get_mask_file(number)), identity)
            self._output.write_frame_and_record(
                result, content, self._job.settings.forward_or_only_direction, self._journal, record
            )
        if result.missing:
            with self._lock:
                self._outcome.incomplete.append(result.number)
        return True

    def _detect_and_report_replaced_plate(
        self, number: int, reason: str, inputs: dict[int, FileIdentity | None] | None = None
    ) -> bool:
        """Return whether a plate was replaced since it was read, and report it once."""
        identity = (self._watched if inputs is None else inputs).get(number)
        if identity is None or self._plates.read_file_stamp(number) == identity.stamp:
            return False
        if number not in self._reported:
            self._reported.add(number)
            self._threads.add_problem_if_new(Problem(self._plates.get_frame_name(number), f"was replaced {reason}"))
        return True


class _LineBuffers:
    """Memory for the lines of files, used again: new memory of that size costs as much time as filling it."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._free: list[Tensor] = []

    @contextlib.contextmanager
    def lend_scanline_buffer(self, tensors: dict[str, Tensor], is_half: bool) -> Iterator[Tensor]:
        """Lend uint8 memory of the shape that the lines of ``tensors`` have."""
        height, width = next(iter(tensors.values())).shape[-2:]
        shape = compute_scanlines_shape((height, width), sum(tensor.ndim - 1 for tensor in tensors.values()), is_half)
        buffer = None
        with contextlib.suppress(IndexError):  # several writers take from it at once
            buffer = self._free.pop()
        if buffer is None or buffer.shape != shape:
            buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pinned)
        try:
            yield buffer
        finally:
            self._free.append(buffer)
