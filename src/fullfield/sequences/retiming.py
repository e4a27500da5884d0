"""Slower and faster shots, with frames in between from stored flow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from fullfield import _check
from fullfield._check import InputError
from fullfield._ledger.versions import ChecksumCache
from fullfield.io.all_channels import ChannelPicture
from fullfield.io.names import get_separate_mask_file_or_none
from fullfield.sequences.changes import GreyPicture, is_cut, shrink_to_grey
from fullfield.sequences.motion import interpolate_picture_and_visibility
from fullfield.sequences.names import format_frames, resolve_mask_for_frame
from fullfield.sequences.picture_files import PictureFiles
from fullfield.sequences.pictures import (
    InputReader,
    PictureJob,
    resize_flow_to_picture_or_raise,
    write_job_pictures,
)
from fullfield.sequences.results import FrameReport, Outcome, StageTimes
from fullfield.sequences.stored_flow import StoredFlow

_MAX_FRAMES = 1_000_000
_FACTORS = (0.001, 1000.0)


@dataclass(frozen=True)
class RetimeSettings:
    """Settings of retiming.

    Attributes:
        factor: output frames per plate; 2 is half the speed.
        mask: what says where plates are known: a picture, a pattern, a channel of an EXR, or ``FILE:CHANNEL``.
    """

    factor: float | Fraction
    mask: str | None = None

    def __post_init__(self) -> None:
        if not _FACTORS[0] <= self.factor <= _FACTORS[1]:
            raise InputError(f"factor: expected {_FACTORS[0]:g} to {_FACTORS[1]:g}, got {float(self.factor):g}")


def retime_shot(
    plates: str | os.PathLike[str],
    flow: str | os.PathLike[str] | StoredFlow,
    output: str | os.PathLike[str],
    settings: RetimeSettings,
    *,
    frames: str | None = None,
    device: str = "auto",
    overwrite: bool = False,
    report: FrameReport | None = None,
) -> Outcome:
    """Write a shot at another speed, with frames in between from stored flow.

    Output frames are numbered from the first plate. A frame between two plates is interpolated from both along forward
    and backward flow; regions that only one of them shows come from that one. Nothing is interpolated across a detected
    cut. A run that was stopped continues where it stopped.

    Args:
        plates: a pattern such as ``plate.%04d.exr``, a folder or a glob.
        flow: the stored flow in both directions: ``mv.%04d.exr``, or a :class:`StoredFlow`, which says its scale and
            how a renderer wrote it.
        output: the pictures, ``slow.%04d.exr``.
        settings: the speed, and where plates are known.
        frames: consecutive plates to use; all that exist by default.
        device: where to compute.
        overwrite: write pictures that exist again, whatever they were made from.
        report: receives the number of every finished frame, from any thread.

    Raises:
        InputError: if files are missing, a direction is not stored, or existing pictures were made otherwise.

    >>> retime_shot("plate.%04d.exr", "mv.%04d.exr", "slow.%04d.exr", RetimeSettings(2.5))  # doctest: +SKIP
    """
    job = build_retime_job(plates, flow, output, settings, frames=frames, device=device)
    settled, plan = job.write_settings_and_get_job_and_plan(overwrite=overwrite)
    return write_job_pictures(settled, plan.missing, report=report)


def build_retime_job(
    plates: str | os.PathLike[str],
    flow: str | os.PathLike[str] | StoredFlow,
    output: str | os.PathLike[str],
    settings: RetimeSettings,
    *,
    frames: str | None = None,
    device: str = "auto",
) -> RetimeJob:
    """Return the job of :func:`retime_shot`, checked against plates and stored flow."""
    _check.require(isinstance(settings, RetimeSettings), "settings", "a RetimeSettings", settings)
    plates, output = _check.convert_path_to_text(plates, "plates"), _check.convert_path_to_text(output, "output")
    stored = StoredFlow.from_path_unless_open(flow)
    pictures = PictureFiles(plates, settings.mask)
    sources = pictures.choose_requested_or_all_frame_numbers(frames)
    if stored.reference is not None:
        raise InputError(f"flow: expected flow to the neighbouring frame, got motion from frame {stored.reference}")
    exact_factor = Fraction(settings.factor).limit_denominator(10_000)
    first, last = sources[0], sources[-1]
    frame_count = int((last - first) * max(exact_factor, Fraction(1)))
    if frame_count > _MAX_FRAMES:
        raise InputError(f"factor: expected at most {_MAX_FRAMES} frames, got {frame_count}")
    consecutive = range(first, last + 1)
    if (frames is not None or pictures.has_own_range) and sources != [*consecutive]:
        raise InputError("frames: expected consecutive frames")
    missing = [number for number in consecutive if number not in pictures.numbers]
    if missing:
        raise InputError(f"{pictures.text}: expected the plates {first}-{last}, missing: {format_frames(missing)}")
    numbers = tuple(range(first, first + int((last - first) * exact_factor) + 1))
    if exact_factor.numerator > 1 and len(numbers) > 1:  # else every output frame is a plate
        stored.require_directions("forward", "backward")
        _require_flow_files(stored, _list_plates_to_interpolate_from(consecutive, len(numbers), exact_factor))
    return RetimeJob(stored, output, numbers, device, plates=pictures, factor=exact_factor, mask=settings.mask)


def _list_plates_to_interpolate_from(plates: range, frame_count: int, factor: Fraction) -> list[int]:
    """Return the plates that frames in between are interpolated from, ascending."""
    steps = [divmod(index * factor.denominator, factor.numerator) for index in range(frame_count)]
    first_plates = {plates[step] for step, remainder in steps if remainder}
    return sorted(first_plates | {plate + 1 for plate in first_plates})


def _require_flow_files(flow: StoredFlow, plates: Sequence[int]) -> None:
    """Raise InputError if plates have no file of flow."""
    missing = [number for number in plates if number not in flow]
    if missing:
        raise InputError(
            f"flow: expected vectors of the plates {format_frames(plates)}, missing: {format_frames(missing)}; "
            "estimate them, or pass only frames (--frames) that have vectors"
        )


@dataclass(frozen=True)
class RetimeJob(PictureJob):
    """Frames of a shot at another speed; :func:`build_retime_job` returns it."""

    plates: PictureFiles | None = None
    factor: Fraction = Fraction(1)
    mask: str | None = None

    @property
    def input_picture_paths(self) -> list[str]:
        """Files of the pictures that are read."""
        return [] if self.plates is None else self.plates.paths

    def collect_settings(self) -> dict[str, Any]:
        """Return the settings that decide the contents of the pictures."""
        return {
            "plates": "" if self.plates is None else self.plates.name,
            "flow": self.flow.name,
            "factor": str(self.factor),
            "first": self.numbers[0],
            "flow_scale": str(self.flow.scale),
            **self.collect_mask_and_vector_settings(self.mask),
        }

    def compute_input_checksums(self, number: int, checksums: ChecksumCache) -> Mapping[str, str | None]:
        """Return the checksums of one plate, or of both plates and flows around the frame."""
        before, fraction = self._locate_plate_before_and_fraction(number)
        if fraction == 0:
            return {"plate": checksums.get_or_compute_checksum_if_readable(self._get_plate_path(before))}
        inputs = {}
        for index, plate in enumerate((before, before + 1)):
            inputs[f"plates {index}"] = checksums.get_or_compute_checksum_if_readable(self._get_plate_path(plate))
            mask = get_separate_mask_file_or_none(resolve_mask_for_frame(self.mask, plate))
            if mask is not None:
                inputs[f"mask {index}"] = checksums.get_or_compute_checksum_if_readable(mask)
            inputs[f"flow {index}"] = (
                checksums.get_or_compute_checksum_if_readable(self.flow.get_path(plate)) if plate in self.flow else None
            )
        return inputs

    def iterate_picture_callbacks(
        self, frame_numbers: Sequence[int], device: torch.device, outcome: Outcome, stages: StageTimes
    ) -> Iterator[tuple[int, Callable[[], ChannelPicture]]]:
        """Yield each frame with a callback that computes its picture on the device."""
        if self.plates is None:
            raise RuntimeError("a job without plates")
        readers = self.plates.readers
        with InputReader(
            self._read_input, self._get_input_path, self._iterate_input_keys(frame_numbers), stages, outcome, readers
        ) as reader:
            for number in frame_numbers:
                before, _ = self._locate_plate_before_and_fraction(number)
                reader.discard_unneeded_items(lambda key, before=before: key[1] >= before)  # type: ignore[misc]
                yield number, partial(self._interpolate_or_copy_picture, number, device, reader, outcome)

    def close(self) -> None:
        """Close the plates."""
        if self.plates is not None:
            self.plates.close()

    @property
    def frame_rate(self) -> float:
        """Frames a second of a video that is written."""
        return super().frame_rate if self.plates is None else self.plates.frame_rate

    def _locate_plate_before_and_fraction(self, number: int) -> tuple[int, Fraction]:
        """Return the plate at or before an output frame, and how far the frame is from it to the next one."""
        time = self.numbers[0] + Fraction(number - self.numbers[0]) / self.factor
        before = int(time // 1)
        return before, time - before

    def _get_plate_path(self, number: int) -> str:
        return "" if self.plates is None else self.plates.get_path(number)

    def _iterate_input_keys(self, frame_numbers: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Yield what is read, by kind and frame, in the order of use."""
        for number in frame_numbers:
            before, fraction = self._locate_plate_before_and_fraction(number)
            if fraction == 0:
                yield "plate", before
            else:
                if self.plates is not None and not self.plates.is_video:
                    yield from (("grey", before), ("grey", before + 1))
                yield from (("plate", before), ("plate", before + 1))
                yield from (("forward", before), ("backward", before + 1))

    def _get_input_path(self, key: tuple[str, int]) -> str:
        kind, number = key
        return self._get_plate_path(number) if kind in ("plate", "grey") else self.flow.get_path(number)

    def _read_input(self, key: tuple[str, int]) -> Any:
        kind, number = key
        if self.plates is not None and kind in ("plate", "grey"):
            return self.plates.read(number) if kind == "plate" else self.plates.read_shrunk_grey(number)
        return self.flow.read_flow_with_unknown_as_nan(number, kind)

    def _interpolate_or_copy_picture(
        self, number: int, device: torch.device, reader: InputReader, outcome: Outcome
    ) -> ChannelPicture:
        before, fraction = self._locate_plate_before_and_fraction(number)
        time = float(fraction)
        nearest = before if time < 0.5 else before + 1
        if fraction == 0 or self._detect_and_record_cut_after(before, reader, outcome):
            plate: ChannelPicture = reader.wait_and_get_current_item_or_raise(("plate", nearest))
            reader.add_nonfinite_message_if_any(nearest, plate.note)
            return plate._replace(pixels=plate.pixels.to(device))
        first, second = (
            reader.wait_and_get_current_item_or_raise(("plate", before)),
            reader.wait_and_get_current_item_or_raise(("plate", before + 1)),
        )
        if first.channels != second.channels or first.pixels.shape != second.pixels.shape:
            second_path, first_path = self._get_plate_path(before + 1), self._get_plate_path(before)
            raise InputError(f"{second_path}: has another size or other channels than {first_path}")
        flows = {}
        for direction, plate_number in (("forward", before), ("backward", before + 1)):
            flow = reader.wait_and_get_current_item_or_raise((direction, plate_number))
            flow_name = f"the flow {self.flow.get_path(plate_number)}"
            path = self._get_plate_path(plate_number)
            flows[direction] = resize_flow_to_picture_or_raise(
                flow.to(device), flow_name, first.pixels, path, self.flow.scale
            )
        for plate_number, plate in ((before, first), (before + 1, second)):
            reader.add_nonfinite_message_if_any(plate_number, plate.note)
        pixels1, pixels2 = first.pixels.to(device), second.pixels.to(device)
        valid1, valid2 = (None if plate.valid is None else plate.valid.to(device) for plate in (first, second))
        flow1, flow2 = flows["forward"], flows["backward"]
        picture = interpolate_picture_and_visibility(pixels1, pixels2, flow1, flow2, time, (valid1, valid2)).picture
        return (first if nearest == before else second)._replace(pixels=picture)  # type: ignore[no-any-return]

    def _detect_and_record_cut_after(self, number: int, reader: InputReader, outcome: Outcome) -> bool:
        """Return whether a cut follows that frame; it is detected on display-referred pictures, as for flow."""
        try:
            cut = is_cut(self._get_shrunk_grey(number, reader), self._get_shrunk_grey(number + 1, reader))
        except InputError:  # not a picture in colour: depth, masks
            return False
        if cut and (number, number + 1) not in outcome.cuts:
            outcome.cuts.append((number, number + 1))
        return cut

    def _get_shrunk_grey(self, number: int, reader: InputReader) -> GreyPicture:
        """Return the reduced picture of a plate; that of a video is display-referred itself."""
        if self.plates is not None and self.plates.is_video:
            return shrink_to_grey(reader.wait_and_get_current_item_or_raise(("plate", number)).pixels)
        grey: GreyPicture = reader.wait_and_get_current_item_or_raise(("grey", number))
        return grey
