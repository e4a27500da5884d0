"""Pictures of a shot that are made along stored flow: the run that warping and retiming share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield._ledger.versions import ChecksumCache
from fullfield._read_ahead import ReadAhead
from fullfield.io import all_channels as pictures
from fullfield.io.all_channels import RAW_SUFFIXES, ChannelPicture
from fullfield.io.files import read_stamp_if_exists
from fullfield.io.names import VIDEO_WRITE_SUFFIXES, has_exr_suffix
from fullfield.io.oiio import one_thread_a_file
from fullfield.io.video import VideoWriter, check_codec_matches_suffix
from fullfield.models.cascade import resample_flow
from fullfield.ops.devices import resolve_device
from fullfield.sequences.names import FramePattern, has_number_field, normalize_mask_name_without_folder
from fullfield.sequences.outputs import Output, WritePlan
from fullfield.sequences.picture_files import convert_to_16bit_display_rgb, has_video_suffix
from fullfield.sequences.results import FrameReport, Outcome, Problem, StageTimes
from fullfield.sequences.stored_flow import StoredFlow
from fullfield.sequences.writing import WriterThreads


class InputReader:
    """Files that are read ahead; one that was replaced since is read again.

    Args:
        read: returns what is stored under a key.
        path: returns the file of a key.
        keys: all keys in the order of their first use.
        stages: receives the time of reading, and of waiting for it.
        outcome: receives the messages on pixels that are not finite.
        threads: number of reads at the same time.
    """

    def __init__(
        self,
        read: Callable[[Any], Any],
        path: Callable[[Any], str],
        keys: Iterable[Hashable],
        stages: StageTimes,
        outcome: Outcome,
        threads: int,
    ) -> None:
        self._read, self._path, self._stages, self._outcome = read, path, stages, outcome
        self._stamped: dict[Any, tuple[Any, Any]] = {}
        self._reads: ReadAhead[Any, tuple[Any, Any]] = ReadAhead(
            self._read_stamp_and_item_or_error, lambda item: _measure_item_bytes(item[1]), threads=threads
        )
        self._reads.enqueue_keys_and_start_reads(keys)

    def add_nonfinite_message_if_any(self, number: int, text: str) -> None:
        """Add the message on a picture's pixels that are not finite, if there is one."""
        if text:
            self._outcome.dead_pictures[number] = text

    def add_unknown_flow_message(self, number: int, name: str) -> None:
        """Add the message on flow without a known vector."""
        self._outcome.unknown_flows[number] = f"{name}: holds no known vector, so the picture along it is black"

    def __enter__(self) -> InputReader:
        return self

    def __exit__(self, *details: object) -> None:
        self._reads.__exit__(*details)

    def wait_and_get_current_item_or_raise(self, key: Any) -> Any:
        """Return what is stored under a key; errors of reading are raised."""
        if key not in self._stamped:
            with self._stages.measure("wait for files"):
                self._stamped[key] = self._reads.wait_and_take_item(key)
        if self._stamped[key][0] != read_stamp_if_exists(self._path(key)):
            self._stamped[key] = self._read_stamp_and_item_or_error(key)
        item = self._stamped[key][1]
        if isinstance(item, Exception):
            raise item
        return item

    def require_unchanged_files(self) -> None:
        """Raise InputError if a file was replaced since it was read."""
        for key, (stamp, _) in self._stamped.items():
            if read_stamp_if_exists(self._path(key)) != stamp:
                raise InputError(f"{self._path(key)}: was replaced during the run; run the command again")

    def discard_unneeded_items(self, is_needed: Callable[[Any], bool]) -> None:
        """Forget what is no longer needed, read or not."""
        self._stamped = {key: item for key, item in self._stamped.items() if is_needed(key)}
        self._reads.discard_and_cancel_unneeded_keys(lambda key: not is_needed(key))

    def _read_stamp_and_item_or_error(self, key: Any) -> tuple[Any, Any]:
        stamp = read_stamp_if_exists(self._path(key))
        try:
            with self._stages.measure("read"):
                return stamp, self._read(key)
        except (InputError, OSError) as error:
            return stamp, error


def resize_flow_to_picture_or_raise(
    flow: Tensor, flow_name: str, picture: Tensor, picture_path: str, scale: Fraction
) -> Tensor:
    """Return a flow [2, h, w] at the size of a picture [..., H, W]; ``scale`` is the flow's size relative to it.

    Raises:
        InputError: if the sizes differ by another factor.
    """
    tolerance = 0.5 if scale == 1 else max(1.0, float(scale))  # sizes of proxies are rounded
    sides = zip(flow.shape[-2:], picture.shape[-2:], strict=True)
    if any(abs(flow_side - float(side * scale)) >= tolerance for flow_side, side in sides):
        sizes = [f"{tensor.shape[-1]}x{tensor.shape[-2]}" for tensor in (picture, flow)]
        expected = "they must have the same size" if scale == 1 else f"expected {scale} of the size"
        raise InputError(f"{picture_path}: is {sizes[0]}, but {flow_name} is {sizes[1]}; {expected}")
    return resample_flow(flow[None], *picture.shape[-2:])[0]


def _build_problem_naming_file_or_frame(number: int, error: InputError | OSError) -> Problem:
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return Problem.from_error(error.filename, error)
    return Problem.from_error(f"frame {number}", error)


def _measure_item_bytes(item: object) -> int:
    if isinstance(item, ChannelPicture):
        return item.pixels.nbytes
    return int(getattr(item, "nbytes", 1))


@dataclass(frozen=True)
class PictureJob(ABC):
    """Pictures that are made along stored flow.

    Attributes:
        flow: the stored flow.
        output: pattern of the pictures, or one file.
        numbers: every frame that gets a picture, ascending.
        device: where to compute.
        provenance: what the record of every picture says about this job, set by
            :meth:`write_settings_and_get_job_and_plan`.
    """

    flow: StoredFlow
    output: str
    numbers: tuple[int, ...]
    device: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def input_picture_paths(self) -> list[str]:
        """Files of the pictures that are read."""

    @abstractmethod
    def collect_settings(self) -> dict[str, Any]:
        """Return the settings that decide the contents of the pictures."""

    def collect_mask_and_vector_settings(self, mask: str | None) -> dict[str, Any]:
        """Return the settings of a mask and of a renderer's vectors, where there are any."""
        reading = self.flow.reading
        vectors = {} if reading.is_default else {"vectors": asdict(reading)}
        return vectors if mask is None else {**vectors, "mask": normalize_mask_name_without_folder(mask)}

    @abstractmethod
    def compute_input_checksums(self, number: int, checksums: ChecksumCache) -> Mapping[str, str | None]:
        """Return the checksums of the files that a picture is made from."""

    @abstractmethod
    def iterate_picture_callbacks(
        self, frame_numbers: Sequence[int], device: torch.device, outcome: Outcome, stages: StageTimes
    ) -> Iterator[tuple[int, Callable[[], ChannelPicture]]]:
        """Yield each frame with a callback that computes its picture on the device."""

    @abstractmethod
    def close(self) -> None:
        """Close the pictures that are read."""

    @property
    def has_records(self) -> bool:
        """True for pictures of a shot; a single picture has no records."""
        return has_number_field(self.output)

    @property
    def frame_rate(self) -> float:
        """Frames a second of a video that is written."""
        return 24.0

    def get_path(self, number: int) -> str:
        """Return the name of a picture."""
        return FramePattern.parse(self.output).format_path(number) if self.has_records else self.output

    def write_settings_and_get_job_and_plan(self, *, overwrite: bool = False) -> tuple[PictureJob, WritePlan]:
        """Check the output; return the settled job, and which pictures it has to write.

        Raises InputError if a picture would replace an input, or existing ones have other settings or were not written
        by fullfield, and ``overwrite`` is False.
        """
        self._check_output_suffix_and_input_overlap()
        if not self.has_records:
            if Path(self.output).exists() and not overwrite:
                raise InputError(f"{self.output}: already exists; use --overwrite or another name")
            return self, WritePlan(list(self.numbers))
        output = Output(self.output)
        settings = self.collect_settings()
        plan = output.write_settings_and_st_maps_and_plan_frames(
            settings, self.numbers, self.compute_input_checksums, overwrite=overwrite
        )
        return replace(self, provenance=output.build_run_provenance(settings)), plan

    def _check_output_suffix_and_input_overlap(self) -> None:
        suffix = Path(self.output).suffix.lower()
        if suffix not in (*RAW_SUFFIXES, *VIDEO_WRITE_SUFFIXES):
            valid_mask = ", ".join((*RAW_SUFFIXES, *VIDEO_WRITE_SUFFIXES))
            raise InputError(f"output: expected a suffix out of {valid_mask}, got {self.output}")
        if suffix == ".png" and has_exr_suffix(self.input_picture_paths[0]):
            raise InputError(f"output: PNG holds no floats, as {self.input_picture_paths[0]} has; write .exr or .tif")
        if not self.has_records and len(self.numbers) > 1 and suffix in RAW_SUFFIXES:
            raise InputError(f"output: expected a pattern for the files, such as out.%04d{suffix}, got {self.output}")
        inputs = {Path(path).resolve() for path in (*self.input_picture_paths, *self.flow.paths)}
        for number in self.numbers:
            if Path(self.get_path(number)).resolve() in inputs:
                raise InputError(f"output: {self.get_path(number)} is also an input; choose another name")


class VideoOutput:
    """Video that gets the pictures of a job in the order of their frames; it appears when it is complete."""

    def __init__(self, job: PictureJob, codec: str) -> None:
        check_codec_matches_suffix(job.output, codec)
        self._job, self._codec = job, codec
        self._writer: VideoWriter | None = None

    def __enter__(self) -> VideoOutput:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)

    def write(self, number: int, picture: ChannelPicture) -> None:
        """Add the picture of a frame."""
        pixels = convert_to_16bit_display_rgb(picture)
        if self._writer is None:
            height, width = pixels.shape[-2:]
            aspect = 1.0 if picture.window is None else picture.window.pixel_aspect
            self._writer = VideoWriter(self._job.output, width, height, self._job.frame_rate, self._codec, aspect)
        self._writer.write(pixels, (number - self._job.numbers[0]) / self._job.frame_rate)


def write_job_pictures(
    job: PictureJob, numbers: Sequence[int], *, codec: str = "h264", report: FrameReport | None = None
) -> Outcome:
    """Write the pictures of ``numbers``, replacing those that exist; see :func:`write_shot_flow`.

    Args:
        job: a settled job (:meth:`PictureJob.write_settings_and_get_job_and_plan`).
        numbers: frames to write.
        codec: encoding of a video; see :class:`fullfield.io.VideoWriter`.
        report: receives the number of every finished frame, from any thread.
    """
    start_s = time.perf_counter()
    device = resolve_device(job.device)
    video = VideoOutput(job, codec) if has_video_suffix(job.output) else None
    outcome, stages, checksums = Outcome(), StageTimes(), ChecksumCache()
    journal = Output(job.output).open_journal() if job.has_records else None

    def write(number: int, raw: ChannelPicture, event: Any, inputs: Mapping[str, str | None]) -> bool:
        with stages.measure("fetch"):
            pixels: Tensor = threads.copy_to_host_if_on_gpu({"pixels": raw.pixels}, event)["pixels"]
        recording: AbstractContextManager[None] = nullcontext()
        if journal is not None:
            recording = journal.record_file_on_atomic_write(
                job.get_path(number), {**job.provenance, "inputs": inputs, "start": None}
            )
        if video is not None:
            with stages.measure("write"):
                video.write(number, raw._replace(pixels=pixels))
            return True
        with recording, stages.measure("write"):
            pictures.write_all_channels(job.get_path(number), raw._replace(pixels=pixels))
        return True

    writers = None if video is None else 1  # in the order of the frames
    with (
        closing(job),
        nullcontext() if video is None else video,
        one_thread_a_file,
        WriterThreads(outcome, stages, device, report, writers) as threads,
    ):
        for number, compute in job.iterate_picture_callbacks(sorted(numbers), device, outcome, stages):
            try:
                inputs = dict(job.compute_input_checksums(number, checksums))
                with stages.measure("compute"):
                    raw = compute()
                if job.compute_input_checksums(number, checksums) != inputs:
                    raise InputError("an input was replaced during the run")
            except (InputError, OSError) as error:
                threads.add_problem_if_new(_build_problem_naming_file_or_frame(number, error))
                if report is not None:
                    report(number)
                continue
            if journal is not None:
                for path, identity in checksums.pop_new_checksums():
                    journal.record_input_once(path, identity)
            event = threads.record_stream_event_if_cuda()
            task = partial(write, number, raw, event, inputs)
            threads.wait_and_submit_write(number, job.get_path(number), raw.pixels.nbytes, task)
            if outcome.stopped is not None:
                break
    outcome.stages = stages.by_name
    return outcome.sort_warn_and_set_wall_time(start_s)
