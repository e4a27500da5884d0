"""A job that follows reference frames of a shot, and its run in one process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fullfield._check import InputError
from fullfield._ledger.records import Journal, Records
from fullfield._ledger.versions import ChecksumCache, hash_json_values
from fullfield.estimators.protocol import Estimator
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.io.oiio import one_thread_a_file
from fullfield.io.vectors import ENDS_NOTE, read_flow_layers, read_header_entry_or_empty
from fullfield.ops.devices import resolve_device
from fullfield.sequences.follow import DIRECTIONS, iterate_reference_flow_results
from fullfield.sequences.job import get_parameters_without_refinement_backend, set_threads_and_build_prepared_estimator
from fullfield.sequences.names import FrameFiles
from fullfield.sequences.outputs import Output, WritePlan, move_to_cpu_as_float32
from fullfield.sequences.plates import Plate, Plates, open_found_plates
from fullfield.sequences.results import FrameReport, FrameResult, Outcome, StageTimes
from fullfield.sequences.tracking import SCHEDULE
from fullfield.sequences.writing import WriterThreads

_ST_MAP_DIRECTION = DIRECTIONS[-1]


@dataclass(frozen=True)
class FollowJob:
    """Following of one reference frame, in plain values, which can be sent to other processes.

    Attributes:
        frame_files: the plates, found by name (:func:`fullfield.sequences.names.find_frame_files`).
        numbers: frames that get a file, ascending.
        reference: number of the reference frame.
        output: the files; EXR without loss.
        method, config, backend: the estimator, as :func:`fullfield.estimate` takes it.
        reading: arguments of :func:`fullfield.io.read_frame` for the plates.
        device: where to compute.
        threads: PyTorch's threads; None: its default.
        provenance: what the record of every frame says about this job, set by
            :meth:`write_settings_and_get_job_and_plan`.
        existing: frames from the reference to ``numbers`` whose files are up to date
            (:meth:`write_settings_and_get_job_and_plan`).

    >>> files = find_frame_files("plate.%04d.exr")  # doctest: +SKIP
    >>> job = FollowJob(files, tuple(files.files), 1001, Output("ref.%04d.exr"))  # doctest: +SKIP
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
    existing: frozenset[int] = frozenset()

    def open_plates(self) -> Plates:
        """Open the plates between the reference and the frames of the job; InputError where the reference is absent."""
        first, last = min((*self.numbers, self.reference)), max((*self.numbers, self.reference))
        numbers = [number for number in self.frame_files.files or range(first, last + 1) if first <= number <= last]
        plates = open_found_plates(self.frame_files, numbers, **self.reading)
        if not plates.has_frame(self.reference):
            plates.close()
            raise InputError(f"reference: expected a frame of {self.frame_files.text}, got {self.reference}")
        return plates

    def set_threads_and_build_prepared_estimator(self) -> Estimator:
        """Return a new, prepared estimator, and set the number of threads of this process."""
        device = resolve_device(self.device)
        return set_threads_and_build_prepared_estimator(
            self.method, self.config, self.backend, device, threads=self.threads
        )

    def write_settings_and_get_job_and_plan(
        self, estimator: Estimator, plates: Plates, *, overwrite: bool = False
    ) -> tuple[FollowJob, WritePlan]:
        """Compare the job with the files that exist; return the settled job, and which frames it has to write.

        Files of another range, between the reference and this one, are compared too, and the run continues from them.
        The estimator must be prepared. Errors are those of :meth:`Output.write_settings_and_st_maps_and_plan_frames`.
        """
        recorded = {
            "plates": self.frame_files.name,
            "reference": self.reference,
            "schedule": SCHEDULE._asdict(),
            "method": estimator.method,
            "parameters": get_parameters_without_refinement_backend(estimator),
            "backend": self.backend,
            "reading": dict(self.reading),
        }
        source = str(Path(self.frame_files.text).absolute())
        numbers = sorted({*self.numbers, *plates.numbers})
        compute_input_checksums = _InputDigests(plates, self.reference)
        plan = self.output.write_settings_and_st_maps_and_plan_frames(
            recorded,
            numbers,
            compute_input_checksums,
            overwrite=overwrite,
            source=source,
            st_map_direction=_ST_MAP_DIRECTION,
            st_map_numbers=self.numbers,
        )
        existing = frozenset(numbers).difference(plan.missing)
        plan.missing = [number for number in plan.missing if number in self.numbers]
        outdated = {reason: [n for n in frames if n in self.numbers] for reason, frames in plan.outdated.items()}
        plan.outdated = {reason: frames for reason, frames in outdated.items() if frames}
        return replace(self, provenance=self.output.build_run_provenance(recorded), existing=existing), plan


class _InputDigests:
    """Digests of what frames are made from: all plates from the reference to each one.

    Plates that were read count as they were read; other ones as they are.
    """

    def __init__(self, plates: Plates, reference: int) -> None:
        self._plates = plates
        self._available = sorted(number for number in plates.numbers if plates.has_frame(number))
        self._reference = reference
        self._read: dict[int, tuple[str | None, str | None]] = {}
        self._digests: dict[int, str] = {}

    def add_plate_versions(self, number: int, plate: Plate) -> None:
        """Note the versions of a plate and its mask that were read."""
        identities = plate.identity, plate.mask_identity
        checksum, mask_checksum = (None if identity is None else identity.checksum for identity in identities)
        self._read[number] = checksum, mask_checksum

    def __call__(self, number: int, checksums: ChecksumCache) -> dict[str, str | None]:
        """Return the digest for a frame."""
        is_after = number >= self._reference
        frame_path = [n for n in self._available if min(self._reference, number) <= n <= max(self._reference, number)]
        before = ""
        for current in frame_path if is_after else reversed(frame_path):
            if current not in self._digests:
                files = self._read.get(current)
                if files is None:
                    get, plates = checksums.get_or_compute_checksum_if_readable, self._plates
                    files = get(plates.get_containing_file(current)), get(plates.get_mask_file(current))
                self._digests[current] = hash_json_values([before, *files])
            before = self._digests[current]
        return {"plates": self._digests.get(number)}


def write_reference_flow(
    job: FollowJob,
    numbers: Sequence[int],
    estimator: Estimator,
    plates: Plates,
    *,
    report: FrameReport | None = None,
) -> Outcome:
    """Write the files of ``numbers``, replacing those that exist, and continue from the other files that exist.

    Bad plates, and files that cannot be written, are problems of the result. Where no further file can be written, the
    run stops; what is written stays.

    Args:
        job: a settled job (:meth:`FollowJob.write_settings_and_get_job_and_plan`).
        numbers: frames to write.
        estimator: estimator of the job, prepared.
        plates: plates of the job; they are closed at the end.
        report: receives the number of every finished frame, from any thread.

    >>> estimator, plates = job.set_threads_and_build_prepared_estimator(), job.open_plates()  # doctest: +SKIP
    >>> job, plan = job.write_settings_and_get_job_and_plan(estimator, plates)  # doctest: +SKIP
    >>> outcome = write_reference_flow(job, plan.missing, estimator, plates)  # doctest: +SKIP
    """
    start_s = time.perf_counter()
    outcome, stages, device = Outcome(), StageTimes(), resolve_device(job.device)
    journal, compute_input_checksums = job.output.open_journal(), _InputDigests(plates, job.reference)
    checksums = Records(job.output.records_folder).checksums
    checksums.pop_new_checksums()  # those of earlier runs are recorded already

    def add_plate_versions(number: int, plate: Plate) -> None:
        compute_input_checksums.add_plate_versions(number, plate)
        _record_plate_versions(journal, plates, number, plate)

    def read_stored(number: int) -> dict[str, Tensor]:
        path = job.output.get_path(number)
        return {} if read_header_entry_or_empty(path, ENDS_NOTE) else read_flow_layers(path)

    def write(result: FrameResult, event: Any, inputs: dict[str, str | None]) -> bool:
        layers = move_to_cpu_as_float32(writers.copy_to_host_if_on_gpu(result.tensors, event))
        identity = None if result.plate is None else result.plate.identity
        if identity is not None and plates.read_file_stamp(result.number) != identity.stamp:
            raise InputError(f"{plates.get_frame_name(result.number)}: was replaced during the run")
        record = {**job.provenance, "inputs": inputs, "start": None}
        for path, version in checksums.pop_new_checksums():
            journal.record_input_once(path, version)
        with stages.measure("write"):
            job.output.write_frame_and_record(result, layers, _ST_MAP_DIRECTION, journal, record)
        return True

    try:
        with one_thread_a_file, WriterThreads(outcome, stages, device, report) as writers:
            results = iterate_reference_flow_results(
                plates,
                job.reference,
                numbers,
                estimator,
                device,
                read_stored=read_stored,
                stored_numbers=job.existing.difference(numbers),
                rounds_to_half=job.output.dtype == "half",
                stages=stages,
                add_plate_versions=add_plate_versions,
            )
            for result in results:
                outcome.add_new_items(result, "problems", "cuts")
                if outcome.stopped is not None:
                    break
                if not result.tensors:
                    if report is not None:
                        report(result.number)
                    continue
                size_bytes = sum(tensor.nbytes for tensor in result.tensors.values())
                inputs = compute_input_checksums(result.number, checksums)
                path = job.output.get_path(result.number)
                task = partial(write, result, writers.record_stream_event_if_cuda(), inputs)
                writers.wait_and_submit_write(result.number, path, size_bytes, task)
    finally:
        outcome.dead_pictures |= plates.pop_nonfinite_messages()
        plates.close()
    outcome.stages = stages.by_name
    return outcome.sort_warn_and_set_wall_time(start_s)


def _record_plate_versions(journal: Journal, plates: Plates, number: int, plate: Plate) -> None:
    """Record the versions of a plate and its mask, so that later runs need not read them for a comparison."""
    files = ((plates.get_containing_file(number), plate.identity), (plates.get_mask_file(number), plate.mask_identity))
    for path, identity in files:
        if path is not None and identity is not None:
            journal.record_input_once(path, identity)
