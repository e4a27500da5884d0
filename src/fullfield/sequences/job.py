"""A job over a shot: everything that decides its work, settled before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fullfield._ledger.versions import ChecksumCache
from fullfield.estimators.cascaded import ReducedSizeEstimator
from fullfield.estimators.estimation import build_estimator
from fullfield.estimators.protocol import Estimator, prepare_estimator_if_supported
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import DEFAULT_METHOD
from fullfield.sequences.names import FrameFiles
from fullfield.sequences.outputs import Output, WritePlan
from fullfield.sequences.plates import Plates, open_found_plates
from fullfield.sequences.settings import ShotSettings


def set_threads_and_build_prepared_estimator(
    method: str, config: Any, backend: str | None, device: torch.device, *, scale: str = "1", threads: int | None = None
) -> Estimator:
    """Return a new, prepared estimator, and set the number of threads of this process; None leaves it."""
    if threads is not None:
        torch.set_num_threads(threads)
    estimator = build_estimator(method, config=config, backend=backend)
    if scale != "1":
        estimator = ReducedSizeEstimator(estimator, scale)
    prepare_estimator_if_supported(estimator, device)
    return estimator


def get_parameters_without_refinement_backend(estimator: Estimator) -> dict[str, Any]:
    """Return the parameters without the refinement's backend, which is only known after the first flow."""
    parameters = dict(estimator.parameters)
    if isinstance(parameters.get("refinement"), dict):
        parameters["refinement"] = {k: v for k, v in parameters["refinement"].items() if k != "backend"}
    return parameters


@dataclass(frozen=True)
class ShotJob:
    """Work on a shot in plain values, which can be sent to other processes and machines.

    Attributes:
        frame_files: the plates, found by name (:func:`fullfield.sequences.names.find_frame_files`).
        numbers: every frame of the run, ascending, including those that are written already.
        output: the files that are written.
        settings: directions, step, device, ...
        method, config, backend: the estimator, as :func:`fullfield.estimate` takes it.
        reading: arguments of :func:`fullfield.io.read_frame` for the plates.
        threads: PyTorch's threads in each process; None: its default.
        provenance: what the record of every frame says about this job, set by
            :meth:`write_settings_and_get_job_and_plan`.
    """

    frame_files: FrameFiles
    numbers: tuple[int, ...]
    output: Output
    settings: ShotSettings = field(default_factory=ShotSettings)
    method: str = DEFAULT_METHOD
    config: Any = None
    backend: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def open_plates(self) -> Plates:
        """Open the plates in this process."""
        return open_found_plates(self.frame_files, self.numbers, **self.reading)

    def set_threads_and_build_prepared_estimator(self) -> Estimator:
        """Return a new, prepared estimator, and set the number of threads of this process."""
        settings = self.settings
        return set_threads_and_build_prepared_estimator(
            self.method, self.config, self.backend, settings.torch_device, scale=settings.scale, threads=self.threads
        )

    def write_settings_and_get_job_and_plan(
        self, estimator: Estimator, plates: Plates, *, overwrite: bool = False
    ) -> tuple[ShotJob, WritePlan]:
        """Compare the job with the files that exist; return the settled job, and which frames it has to write.

        The estimator must be prepared. Errors are those of :meth:`Output.write_settings_and_st_maps_and_plan_frames`.
        """

        def compute_input_checksums(number: int, checksums: ChecksumCache) -> dict[str, str | None]:
            frames = self.settings.list_input_frames(plates, number)
            get = checksums.get_or_compute_checksum_if_readable
            inputs = {
                str(n - number): get(plates.get_containing_file(n) if plates.has_frame(n) else None) for n in frames
            }
            masks = {n: plates.get_mask_file(n) for n in frames if plates.has_frame(n)}
            return inputs | {f"mask {n - number}": get(mask) for n, mask in masks.items() if mask is not None}

        recorded = self._collect_recorded_settings(estimator)
        plan = self.output.write_settings_and_st_maps_and_plan_frames(
            recorded,
            sorted(self.numbers),
            compute_input_checksums,
            overwrite=overwrite,
            source=str(Path(self.frame_files.text).absolute()),
            start=self.settings.step if self.settings.warm_start else None,
            st_map_direction=self.settings.forward_or_only_direction,
        )
        return replace(self, provenance=self.output.build_run_provenance(recorded)), plan

    def _collect_recorded_settings(self, estimator: Estimator) -> dict[str, Any]:
        """Return the settings that decide the contents of the files."""
        settings = self.settings
        refinement = RefinedEstimator(estimator).config.as_dict() if settings.refine else None
        return {
            "plates": self.frame_files.name,
            "method": estimator.method,
            "parameters": get_parameters_without_refinement_backend(estimator),
            "backend": self.backend,
            "direction": settings.direction,
            "step": settings.step,
            "warm_start": settings.warm_start,
            "occlusion": settings.occlusion,
            "confidence": settings.confidence,
            "refinement": refinement,
            "reading": dict(self.reading),
        }
