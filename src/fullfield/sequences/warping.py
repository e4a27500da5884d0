"""Warping of pictures along the stored flow of a shot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield._ledger.versions import ChecksumCache, hash_json_values
from fullfield._read_ahead import choose_reader_thread_count
from fullfield.io.all_channels import ChannelPicture, read_all_channels
from fullfield.io.names import get_separate_mask_file_or_none
from fullfield.sequences.motion import iterate_accumulated_flow_to_reference, warp_image
from fullfield.sequences.names import (
    choose_requested_or_all_frame_numbers,
    find_frame_files,
    is_sequence_or_video_path,
    resolve_mask_for_frame,
)
from fullfield.sequences.picture_files import PictureFiles, has_video_suffix
from fullfield.sequences.pictures import (
    InputReader,
    PictureJob,
    resize_flow_to_picture_or_raise,
    write_job_pictures,
)
from fullfield.sequences.results import FrameReport, Outcome, StageTimes
from fullfield.sequences.stored_flow import ShotEndsError, StoredFlow


@dataclass(frozen=True)
class WarpSettings:
    """Settings of warping.

    Attributes:
        reference: frame of the picture that is warped onto every frame; None: the neighbour of each frame is warped
            onto it. Flow of a followed shot has a reference of its own.
        direction: the neighbour, without a reference: ``forward`` the next frame, ``backward`` the previous one.
        hide_occluded: leave pixels at 0 that an occlusion layer of the flow marks as hidden; always so along the flow
            of a followed shot.
        mask: what says where pictures are known: a picture, a pattern, a channel of an EXR, or ``FILE:CHANNEL``.
    """

    reference: int | None = None
    direction: str = "forward"
    hide_occluded: bool = False
    mask: str | None = None

    def __post_init__(self) -> None:
        _check.check_choice(self.direction, "direction", ("forward", "backward"))


def warp_shot(
    source: str | os.PathLike[str],
    flow: str | os.PathLike[str] | StoredFlow,
    output: str | os.PathLike[str],
    settings: WarpSettings | None = None,
    *,
    frames: str | None = None,
    device: str = "auto",
    overwrite: bool = False,
    report: FrameReport | None = None,
) -> Outcome:
    """Warp a picture, or the plates of a shot, along stored flow, and write the pictures.

    All channels are warped, in float; unknown pixels are 0. A run that was stopped continues where it stopped.

    Args:
        source: a picture, or the plates: a pattern such as ``plate.%04d.exr``, a folder or a glob.
        flow: the stored flow: ``mv.%04d.exr``, one file, or a :class:`StoredFlow`, which says its scale and how a
            renderer wrote it.
        output: the pictures, ``out.%04d.exr``, or one file.
        settings: which picture is warped onto which frame.
        frames: range of frames that get a picture; all that exist by default.
        device: where to compute.
        overwrite: write pictures that exist again, whatever they were made from.
        report: receives the number of every finished frame, from any thread.

    Raises:
        InputError: if files are missing, directions are not stored, or existing pictures were made otherwise.

    >>> settings = WarpSettings(reference=1001)
    >>> warp_shot("paint.1001.exr", "mv.%04d.exr", "paint_on.%04d.exr", settings)  # doctest: +SKIP
    """
    job = build_warp_job(source, flow, output, settings, frames=frames, device=device)
    settled, plan = job.write_settings_and_get_job_and_plan(overwrite=overwrite)
    return write_job_pictures(settled, plan.missing, report=report)


def build_warp_job(
    source: str | os.PathLike[str],
    flow: str | os.PathLike[str] | StoredFlow,
    output: str | os.PathLike[str],
    settings: WarpSettings | None = None,
    *,
    frames: str | None = None,
    device: str = "auto",
) -> WarpJob:
    """Return the job of :func:`warp_shot`, checked against the stored flow."""
    name, output = _check.convert_path_to_text(source, "source"), _check.convert_path_to_text(output, "output")
    settings = WarpSettings() if settings is None else settings
    if settings.reference is not None and has_video_suffix(output):
        raise InputError(f"output: expected files with a reference, such as out.%04d.exr, got {output}")
    stored = StoredFlow.from_path_unless_open(flow)
    plates = PictureFiles(name, settings.mask) if is_sequence_or_video_path(name) else None
    if plates is None and not Path(name).is_file():
        raise InputError(f"{name}: no such file")
    if stored.reference is not None:
        if settings.reference not in (None, stored.reference):
            raise InputError(f"reference: expected {stored.reference}, as in {stored.source}, got {settings.reference}")
        numbers = (
            stored.numbers
            if frames is None
            else choose_requested_or_all_frame_numbers(find_frame_files(stored.source), frames, "frames")
        )
        settings = replace(settings, reference=stored.reference, direction="backward", hide_occluded=True)
        return WarpJob(stored, output, tuple(numbers), device, source=name, plates=plates, settings=settings)
    reference = settings.reference
    if reference is None and plates is None and len(stored.numbers) > 1:
        raise InputError(f"reference: expected the number of the frame that {name} belongs to, got None")
    first, last = stored.numbers[0] - 1, stored.numbers[-1] + 1
    if reference is not None and not first <= reference <= last:
        raise InputError(f"reference: expected {first} to {last}, which the flow reaches, got {reference}")
    if frames is not None and len(stored.numbers) > 1:
        numbers = choose_requested_or_all_frame_numbers(find_frame_files(stored.source), frames, "frames")
    else:
        numbers = stored.numbers if reference is None else sorted({*stored.numbers, reference})
    stored.require_directions(*_list_required_directions(settings, numbers))
    return WarpJob(stored, output, tuple(numbers), device, source=name, plates=plates, settings=settings)


def _list_required_directions(settings: WarpSettings, frame_numbers: Sequence[int]) -> list[str]:
    """Return the directions of the flow that is needed."""
    if settings.reference is None:
        return [settings.direction]
    sides = (
        ("forward", min(frame_numbers) < settings.reference),
        ("backward", max(frame_numbers) > settings.reference),
    )
    return [direction for direction, is_needed in sides if is_needed]


@dataclass(frozen=True)
class WarpJob(PictureJob):
    """Pictures that are warped along stored flow; :func:`build_warp_job` returns it."""

    source: str = ""
    plates: PictureFiles | None = None
    settings: WarpSettings = field(default_factory=WarpSettings)
    _chains: WeakKeyDictionary[ChecksumCache, dict[int, str]] = field(default_factory=WeakKeyDictionary, compare=False)

    @property
    def input_picture_paths(self) -> list[str]:
        """Files of the pictures that are read."""
        return [self.source] if self.plates is None else self.plates.paths

    def collect_settings(self) -> dict[str, Any]:
        """Return the settings that decide the contents of the pictures."""
        settings = self.settings
        return {
            "picture": Path(self.source).name if self.plates is None else self.plates.name,
            "flow": self.flow.name,
            "reference": settings.reference,
            "direction": settings.direction,
            "hide_occluded": settings.hide_occluded,
            "flow_scale": str(self.flow.scale),
            **self.collect_mask_and_vector_settings(settings.mask),
        }

    def compute_input_checksums(self, number: int, checksums: ChecksumCache) -> Mapping[str, str | None]:
        """Return the checksums of the picture, and of the flow of every frame in between."""
        inputs = {"picture": checksums.get_or_compute_checksum_if_readable(self._get_source_picture_path(number))}
        mask = get_separate_mask_file_or_none(self._get_source_mask_name(number))
        if mask is not None:
            inputs["mask"] = checksums.get_or_compute_checksum_if_readable(mask)
        if self._chain_reference_or_none is not None:
            return {**inputs, "flow": self._compute_chain_digest(self._chain_reference_or_none, number, checksums)}
        return {**inputs, "flow": self._compute_flow_file_checksum(number, checksums)}

    @property
    def frame_rate(self) -> float:
        """Frames a second of a video that is written."""
        return super().frame_rate if self.plates is None else self.plates.frame_rate

    @property
    def _chain_reference_or_none(self) -> int | None:
        """Frame from which the flow to neighbouring frames is added up; None if each file has all its flow."""
        return self.settings.reference if self.flow.reference is None else None

    def _compute_flow_file_checksum(self, number: int, checksums: ChecksumCache) -> str | None:
        return (
            checksums.get_or_compute_checksum_if_readable(self.flow.get_path(number)) if number in self.flow else None
        )

    def _compute_chain_digest(self, reference: int, number: int, checksums: ChecksumCache) -> str:
        """Return the digest of the flow of all frames between the reference and ``number``, each read once."""
        digests = self._chains.setdefault(checksums, {reference: ""})
        step = 1 if number > reference else -1
        start = number
        while start not in digests:
            start -= step
        for n in range(start + step, number + step, step):
            digests[n] = hash_json_values([digests[n - step], self._compute_flow_file_checksum(n, checksums)])
        return digests[number]

    def _get_source_picture_number(self, number: int) -> int:
        """Return the frame of the picture that is warped onto another frame."""
        if self.settings.reference is not None:
            return self.settings.reference
        return number + (1 if self.settings.direction == "forward" else -1)

    def _get_source_picture_path(self, number: int) -> str:
        return self.source if self.plates is None else self.plates.get_path(self._get_source_picture_number(number))

    def _get_source_mask_name(self, number: int) -> str | None:
        """Return the mask of the picture for a frame."""
        return resolve_mask_for_frame(self.settings.mask, self._get_source_picture_number(number))

    def iterate_picture_callbacks(
        self, frame_numbers: Sequence[int], device: torch.device, outcome: Outcome, stages: StageTimes
    ) -> Iterator[tuple[int, Callable[[], ChannelPicture]]]:
        """Yield each frame with a callback that computes its picture; frames at an end of the shot are skipped."""
        if not frame_numbers:
            return
        threads = choose_reader_thread_count() if self.plates is None else self.plates.readers
        with InputReader(
            self._read_input, self._get_input_path, self._iterate_input_keys(frame_numbers), stages, outcome, threads
        ) as reader:
            if self._chain_reference_or_none is None:
                yield from self._iterate_single_flow_callbacks_noting_ends(frame_numbers, device, reader, outcome)
            else:
                yield from self._iterate_chained_flow_callbacks(
                    self._chain_reference_or_none, frame_numbers, device, reader
                )

    def close(self) -> None:
        """Close the plates."""
        if self.plates is not None:
            self.plates.close()

    def _iterate_input_keys(self, frame_numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
        """Yield what is read, in the order of use: pictures by path, flow by direction and frame."""
        reference = self._chain_reference_or_none
        if reference is None:
            for number in frame_numbers:
                yield self.settings.direction, number
                yield "picture", self._get_source_number_and_mask(number)
            return
        yield "picture", self._get_source_number_and_mask(reference)
        yield from (("backward", number) for number in range(reference + 1, max(frame_numbers) + 1))
        yield from (("forward", number) for number in range(reference - 1, min(frame_numbers) - 1, -1))

    def _read_input(self, key: tuple[str, Any]) -> Any:
        kind, value = key
        if kind == "picture":
            number, mask = value
            return read_all_channels(self.source, mask) if self.plates is None else self.plates.read(number)
        return self.flow.read_flow_with_unknown_as_nan(value, kind, hide_occluded=self.settings.hide_occluded)

    def _get_input_path(self, key: tuple[str, Any]) -> str:
        if key[0] != "picture":
            return self.flow.get_path(key[1])
        return self.source if self.plates is None else self.plates.get_path(key[1][0])

    def _get_source_number_and_mask(self, number: int) -> tuple[int, str | None]:
        """Return the number of the picture for a frame, and its mask."""
        return self._get_source_picture_number(number), self._get_source_mask_name(number)

    def _iterate_single_flow_callbacks_noting_ends(
        self, frame_numbers: Sequence[int], device: torch.device, reader: InputReader, outcome: Outcome
    ) -> Iterator[tuple[int, Callable[[], ChannelPicture]]]:
        direction = self.settings.direction

        def compute(number: int) -> ChannelPicture:
            flow = reader.wait_and_get_current_item_or_raise((direction, number))
            return self._warp_or_copy_picture(number, flow.to(device), device, reader)

        for number in frame_numbers:
            used = {(direction, number), ("picture", self._get_source_number_and_mask(number))}
            is_end = False
            try:
                reader.wait_and_get_current_item_or_raise((direction, number))
            except ShotEndsError:
                is_end = True
            except (InputError, OSError):
                pass  # raised again by compute
            if is_end:
                outcome.shot_ends.append(number)
            else:
                yield number, partial(compute, number)
            reader.discard_unneeded_items(lambda key, used=used: key not in used)  # type: ignore[misc]

    def _iterate_chained_flow_callbacks(
        self, reference: int, frame_numbers: Sequence[int], device: torch.device, reader: InputReader
    ) -> Iterator[tuple[int, Callable[[], ChannelPicture]]]:
        taken = set[tuple[str, int]]()

        def read(direction: str, number: int) -> Tensor:
            taken.add((direction, number))
            try:
                flow: Tensor = reader.wait_and_get_current_item_or_raise((direction, number)).to(device)
            except OSError as error:
                raise InputError(str(error)) from error
            return flow

        def compute(number: int, flow: Tensor | InputError | None) -> ChannelPicture:
            if isinstance(flow, InputError):
                raise flow
            return self._warp_or_copy_picture(number, flow, device, reader)

        if reference in frame_numbers:
            yield reference, partial(compute, reference, None)
        for number, flow in iterate_accumulated_flow_to_reference(
            reference, frame_numbers, partial(read, "forward"), partial(read, "backward")
        ):
            yield number, partial(compute, number, flow)
            reader.discard_unneeded_items(lambda key: key not in taken)
            if isinstance(flow, InputError):  # and so for all further frames of that side
                direction = "backward" if number > reference else "forward"
                reader.discard_unneeded_items(lambda key, direction=direction: key[0] != direction)  # type: ignore[misc]

    def _warp_or_copy_picture(
        self, number: int, flow: Tensor | None, device: torch.device, reader: InputReader
    ) -> ChannelPicture:
        """Return the picture for a frame; without flow the picture as it is."""
        path = self._get_source_picture_path(number)
        raw: ChannelPicture = reader.wait_and_get_current_item_or_raise(
            ("picture", self._get_source_number_and_mask(number))
        )
        reader.add_nonfinite_message_if_any(self._get_source_picture_number(number), raw.note)
        reader.require_unchanged_files()
        pixels = raw.pixels.to(device)
        if flow is None:
            return raw._replace(pixels=pixels)
        if flow.isnan().all():
            reader.add_unknown_flow_message(number, self.flow.get_path(number))
        flow = resize_flow_to_picture_or_raise(flow, f"the flow {self.flow.source}", pixels, path, self.flow.scale)
        valid = None if raw.valid is None else raw.valid.to(device)
        return raw._replace(pixels=warp_image(pixels, flow, valid)[0])
