"""The files of a shot's motion: writing them, and deciding which are out of date."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield import __version__
from fullfield._check import InputError
from fullfield._ledger.notes import check_entry_kinds
from fullfield._ledger.records import Journal, Record, Records
from fullfield._ledger.settings import SettingsFile
from fullfield._ledger.versions import ChecksumCache, compute_sampled_checksum, hash_json_values
from fullfield._read_ahead import choose_reader_thread_count
from fullfield.io import read_flow, write_flow, write_st_map
from fullfield.io.files import (
    join_to_one_line,
    read_stamp_if_exists,
    remove_abandoned_temporary_files,
    truncate_to_bytes,
)
from fullfield.io.flow_formats import ST_MAP_NOTE, Y_NOTE
from fullfield.io.image import FrameReader
from fullfield.io.names import EXR_COMPRESSIONS_WITH_LOSS
from fullfield.io.oiio import Header, one_thread_a_file, open_image_source
from fullfield.io.scanlines import Scanlines
from fullfield.io.vectors import (
    ENDS_NOTE,
    INCOMPLETE_NOTE,
    VALID,
    pack_layers_into_scanlines,
    read_flow_direction_with_unknown_as_nan,
    read_header_entry_or_empty,
    write_scanlines_atomically,
)
from fullfield.sequences.names import FramePattern, normalize_mask_name_without_folder
from fullfield.sequences.results import FrameResult

Inputs = Callable[[int, ChecksumCache], Mapping[str, "str | None"]]
"""A callback that returns the checksums of what a frame is made from, by any names; None for a file that is missing."""

_NAME_BYTES = 200
_WEIGHTS = "weights_sha256"
_ADVICE = "use --overwrite, or another name"


@dataclass
class WritePlan:
    """The frames that a run has to write; ``outdated`` are those whose file exists but is out of date, by reason."""

    missing: list[int] = field(default_factory=list)
    outdated: dict[str, list[int]] = field(default_factory=dict)
    st_maps: list[int] = field(default_factory=list)  # frames that exist, whose ST maps were written from their files

    def format_outdated_counts_and_reasons(self) -> str:
        """Return the numbers of frames that are made again, with the reasons."""
        return ", ".join(f"{len(frames)} ({reason})" for reason, frames in self.outdated.items())


@dataclass(frozen=True)
class Output:
    """The files of a shot's motion.

    Attributes:
        pattern: of the files; the suffix is the format. Only ``.exr`` holds both directions, occlusion and confidence.
        dtype, compression: as for :func:`fullfield.io.write_flow`.
        y: of an EXR: where y points, ``up`` (Nuke) or ``down``.
        st_map: pattern of ST maps beside them (forward, or backward where that is the only direction).
    """

    pattern: str
    dtype: str | None = None
    compression: str | None = None
    y: str = "up"
    st_map: str | None = None

    @property
    def suffix(self) -> str:
        """Return the suffix of the files, in lower case."""
        return Path(self.pattern).suffix.lower()

    def get_path(self, number: int) -> str:
        """Return the name of a frame's file."""
        return FramePattern.parse(self.pattern).format_path(number)

    @property
    def settings_path(self) -> Path:
        """File with the settings of the shot, beside the frames: ``mv.exr.fullfield.json``."""
        return self.records_folder.with_name(f"{self.records_folder.name}.json")

    @property
    def records_folder(self) -> Path:
        """Folder of the records of what made each frame: ``mv.exr.fullfield``."""
        folder, name = os.path.split(FramePattern.parse(self.pattern).before)
        stem = truncate_to_bytes(name.rstrip("._- "), _NAME_BYTES)
        return Path(folder) / f"{stem}{'.' if stem else ''}{self.suffix[1:]}.fullfield"

    def get_st_map_path_or_none(self, number: int) -> str | None:
        """Return the name of a frame's ST map."""
        return None if self.st_map is None else FramePattern.parse(self.st_map).format_path(number)

    def open_journal(self) -> Journal:
        """Return where this process notes what it writes."""
        return Journal(self.records_folder)

    def is_frame_complete(self, number: int) -> bool:
        """Return whether the frame has a file with every direction; files appear only when they are complete."""
        path = Path(self.get_path(number))
        if not path.is_file() or path.stat().st_size == 0:
            return False
        try:
            return self.suffix != ".exr" or not read_header_entry_or_empty(path, INCOMPLETE_NOTE)
        except InputError:
            return False

    def read_stored_flow_or_none(
        self, first: int, second: int, offsets_by_direction: Mapping[str, int]
    ) -> Tensor | None:
        """Return the flow between two frames from its file; None where there is none."""
        direction = next((name for name, offset in offsets_by_direction.items() if second - first == offset), None)
        if direction is None or not self.is_frame_complete(first):
            return None
        layer = {"layer": direction} if self.suffix == ".exr" else {}
        return read_flow(self.get_path(first), **layer).flow  # type: ignore[arg-type]

    @property
    def is_lossless_float_exr(self) -> bool:
        """True where ST maps of the stored vectors equal those of the estimated ones."""
        return self.suffix == ".exr" and self.dtype != "half" and self.compression not in EXR_COMPRESSIONS_WITH_LOSS

    @property
    def is_exr_without_st_map(self) -> bool:
        """True where a frame is one EXR file, without an ST map."""
        return self.suffix == ".exr" and self.st_map is None

    def pack_channels_into_scanlines(
        self, layers: Mapping[str, Tensor], buffer: NDArray[np.uint8] | None = None
    ) -> Scanlines:
        """Return layers on the CPU as lines of an EXR; ``buffer`` is memory that may be used for them."""
        return pack_layers_into_scanlines(
            {name: layer.numpy() for name, layer in layers.items()}, self.dtype, self.y, buffer
        )

    def write_frame_and_record(
        self,
        result: FrameResult,
        layers: Mapping[str, Tensor] | Scanlines,
        direction: str,
        journal: Journal,
        provenance: Mapping[str, Any],
    ) -> None:
        """Write a frame's files, and record in ``journal`` its ``provenance``; errors as of :func:`write_flow_layers`.

        The layers are on the CPU. For a frame that is one EXR file, they may be its lines. ``direction`` is that of the
        ST map, and of a file that holds only one.
        """
        path, st_map_checksum = self.get_path(result.number), None
        st_map = self.get_st_map_path_or_none(result.number)
        if isinstance(layers, Mapping) and st_map is not None:
            write_st_map(st_map, layers[direction], window=result.window)
            st_map_checksum = compute_sampled_checksum(st_map)
        with journal.record_file_on_atomic_write(path, provenance, st_map_checksum):
            if isinstance(layers, Mapping) and self.suffix != ".exr":
                packing: dict[str, Any] = {} if self.compression is None else {"compression": self.compression}
                valid = layers[VALID] > 0.5 if VALID in layers else None
                write_flow(path, layers[direction], valid, **packing)
                return
            notes = {Y_NOTE: self.y, "fullfield/frame": str(result.number)}
            if result.missing:
                notes[INCOMPLETE_NOTE] = ",".join(sorted(set(result.missing)))
            if result.shot_ends:
                notes[ENDS_NOTE] = ",".join(result.shot_ends)
            lines = self.pack_channels_into_scanlines(layers) if isinstance(layers, Mapping) else layers
            header = Header(notes, result.window, () if result.plate is None else result.plate.metadata)
            write_scanlines_atomically(path, lines, self.compression, header)

    # ---- what made them

    def build_run_provenance(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what every record of a run says: its settings, the checksum of the weights, the version."""
        plain, weights = self._add_own_settings_and_split_off_weights(settings)
        return {
            "settings": hash_json_values(_normalize_mask_in_settings(plain)),
            "weights": weights,
            "version": __version__,
        }

    def _add_own_settings_and_split_off_weights(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return the settings as they are noted, and the checksum of the weights, which is noted for each frame."""
        mine = {name: value for name, value in asdict(self).items() if name not in ("pattern", "st_map")}
        plain: dict[str, Any] = json.loads(json.dumps({**settings, **mine}))
        parameters = plain.get("parameters")
        weights = parameters.pop(_WEIGHTS, None) if isinstance(parameters, dict) else None
        return plain, weights

    def write_settings_and_st_maps_and_plan_frames(
        self,
        settings: Mapping[str, Any],
        numbers: Sequence[int],
        inputs: Inputs,
        *,
        overwrite: bool,
        source: str = "",
        start: int | None = None,
        st_map_direction: str = "",
        st_map_numbers: Collection[int] | None = None,
    ) -> WritePlan:
        """Return which frames of ``numbers`` are to be made: those without a file that agrees with this run.

        ST maps that are missing next to stored frames are written from these, where that is exact.
        InputError where files, or ST maps to be replaced, are there that were begun with other settings, or that
        fullfield did not write. Settings do not bind while there is no frame.

        Args:
            settings: what decides the contents of the files; noted beside them.
            numbers: all frames of the run, ascending.
            inputs: what each frame is made from.
            overwrite: make every frame again.
            source: where the plates are, noted for ``fullfield view``.
            start: for a warm start, the distance to the frame whose flow another one starts from.
            st_map_direction: the layer that ST maps are written from.
            st_map_numbers: frames of ``numbers`` that need an ST map, where there are any; all by default.
        """
        file = self._settings_file
        # In this order: a run that begins now writes the settings before its frames.
        existing = [number for number in numbers if Path(self.get_path(number)).exists()]
        has_settings = file.read_if_exists() is not None
        if not has_settings and existing and not overwrite:
            raise InputError(
                f"{self.get_path(existing[0])}: exists, and no {self.settings_path} says how it was made; {_ADVICE}"
            )
        file.write_or_check_and_return_previous(
            {"settings": self._add_own_settings_and_split_off_weights(settings)[0], "source": source},
            has_results=lambda: has_settings and not self._has_no_frames(),
            advice=_ADVICE,
            overwrite=overwrite,
        )
        records, plan = Records(self.records_folder), WritePlan(list(numbers))
        if not overwrite:
            needs_st_map = {*(numbers if st_map_numbers is None else st_map_numbers)} if self.st_map else set[int]()
            plan, st_map_records = self._plan_frames_and_find_st_map_records(
                settings, numbers, inputs, start, records, needs_st_map
            )
            self._check_st_maps_are_replaceable([*plan.missing, *st_map_records])
            self._write_and_record_st_maps_from_frames(st_map_records, st_map_direction)
        for folder in {Path(path).parent for path in (self.pattern, self.st_map) if path is not None}:
            with suppress(PermissionError):  # a folder may be writable but not readable
                remove_abandoned_temporary_files(folder)
        records.delete_superseded_notes_from_ended_processes()
        return plan

    def _check_st_maps_are_replaceable(self, numbers: Sequence[int]) -> None:
        """Raise InputError for an ST map that fullfield did not write."""
        if self.st_map is None:
            return
        for path in map(FramePattern.parse(self.st_map).format_path, numbers):
            if Path(path).is_file() and Path(path).stat().st_size and not _has_st_map_note(path):
                raise InputError(f"{path}: was not written by fullfield; {_ADVICE}")

    def _write_and_record_st_maps_from_frames(self, records: Mapping[int, Record], direction: str) -> None:
        """Write ST maps from stored frames, and record them; ``records`` are those of the frames' files."""
        journal = self.open_journal()

        def write_and_record(number: int) -> None:
            path, st_map = self.get_path(number), str(self.get_st_map_path_or_none(number))
            with open_image_source(Path(path), "openexr", "vectors") as source:
                window = source.get_first_part_or_raise().window
            write_st_map(st_map, read_flow_direction_with_unknown_as_nan(path, direction, window="data"), window=window)
            checksum = compute_sampled_checksum(st_map)
            journal.add_record(path, records[number]._replace(st_map_checksum=checksum))

        with one_thread_a_file, ThreadPoolExecutor(choose_reader_thread_count()) as pool:
            list(pool.map(write_and_record, records))

    def _has_no_frames(self) -> bool:
        """Return whether no frame of the shot exists."""
        try:
            return not FramePattern.parse(self.pattern).find_files_by_number()
        except PermissionError:  # a folder may be writable but not readable
            return False

    def _reread_records_until_file_is_stable(self, path: Path) -> list[Record]:
        """Return the records of a file that another run may have written after the notes were read."""
        while True:
            before = read_stamp_if_exists(path)
            records = Records(self.records_folder).find_records_of_current_file(str(path))
            if records or read_stamp_if_exists(path) == before:
                return records

    def _plan_frames_and_find_st_map_records(
        self,
        settings: Mapping[str, Any],
        numbers: Sequence[int],
        inputs: Inputs,
        start: int | None,
        records: Records,
        needs_st_map: Collection[int],
    ) -> tuple[WritePlan, dict[int, Record]]:
        """Return the plan, and the records of frames whose ST maps are to be written from their files."""
        run_provenance = self.build_run_provenance(settings)
        plan, current_digests, all_numbers = WritePlan(), dict[int, str](), set(numbers)
        st_map_records: dict[int, Record] = {}
        for number in numbers:
            path = Path(self.get_path(number))
            if not path.exists() or (path.is_file() and path.stat().st_size == 0):
                plan.missing.append(number)
                continue
            frame_records = records.find_records_of_current_file(
                str(path)
            ) or self._reread_records_until_file_is_stable(path)
            if not frame_records:
                raise InputError(
                    f"{path}: was not written by fullfield, or was changed since; use --overwrite, or another name"
                )
            expected = {**run_provenance, "inputs": dict(inputs(number, records.checksums)), "start": None}
            if start is not None and number - start in all_numbers:
                expected["start"] = current_digests.get(number - start, "made again")
            reasons = [self._find_outdated_reason_or_empty(number, record, expected) for record in frame_records]
            current_records = [record for record, reason in zip(frame_records, reasons, strict=True) if not reason]
            if current_records:
                current_digests[number] = hash_json_values(expected)
                st_map_checksum = records.checksums.get_or_compute_checksum_if_readable(
                    self.get_st_map_path_or_none(number)
                )
                recorded_checksums = {record.st_map_checksum for record in current_records} - {None}
                if number not in needs_st_map or st_map_checksum in recorded_checksums:
                    continue
                if self.is_lossless_float_exr:
                    st_map_records[number] = current_records[-1]
                    continue
                reasons = ["without ST map" if st_map_checksum is None else "ST map changed"]
            plan.missing.append(number)
            if self.is_frame_complete(number):
                plan.outdated.setdefault(reasons[-1], []).append(number)
        plan.st_maps = list(st_map_records)
        return plan, st_map_records

    def _find_outdated_reason_or_empty(self, number: int, record: Record, expected: Mapping[str, Any]) -> str:
        """Return why a stored frame is out of date; empty where it is not."""
        reasons = {
            "settings": "made with other settings",
            "version": f"made by fullfield {record.provenance.get('version')}",
            "weights": "made with other weights",
            "inputs": "inputs changed",
            "start": "the frame before changed",
        }
        for name, reason in reasons.items():
            if record.provenance.get(name) != expected[name]:
                return reason
        return "" if self.is_frame_complete(number) else "incomplete"

    def read_plates_path_if_recorded(self) -> str | None:
        """Return where the plates were, by the notes beside the files."""
        notes = self._settings_file.read_if_exists()
        return None if notes is None or not notes.get("source") else str(notes["source"])

    def read_and_check_settings_or_empty(self) -> dict[str, Any]:
        """Return the settings of the run that wrote the files, by the notes beside them; empty without notes.

        Raises:
            InputError: if they are damaged, or of a version that reads plates in other ways.
        """
        settings: dict[str, Any] = (self._settings_file.read_if_exists() or {"settings": {}})["settings"]
        kinds = {"step": "count", "direction": "text", "reading": "object"}
        check_entry_kinds(self.settings_path, settings, **{name: kinds[name] for name in kinds if name in settings})
        options = inspect.signature(FrameReader).parameters
        for name, value in settings.get("reading", {}).items():
            if name not in options or not isinstance(value, (str, int, float, NoneType)):
                option = join_to_one_line(f"{name}={value!r}", 60)
                raise InputError(f"{self.settings_path}: expected options for reading frames as reading, got {option}")
        return settings

    @property
    def _settings_file(self) -> SettingsFile:
        return SettingsFile(
            self.settings_path,
            "the settings of a shot",
            subject=self.pattern,
            entries={"settings": "object"},
            select_binding_settings=lambda content: _normalize_mask_in_settings(content["settings"]),
            parameters_advice="give the same --preset and options",
        )


def _has_st_map_note(path: str) -> bool:
    """Return whether the header says that fullfield wrote the ST map."""
    with suppress(InputError):
        return bool(read_header_entry_or_empty(path, ST_MAP_NOTE))
    return False


def _normalize_mask_in_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings with one spelling for each mask."""
    reading = settings.get("reading")
    if not isinstance(reading, Mapping) or not isinstance(reading.get("mask"), str):
        return dict(settings)
    return {**settings, "reading": {**reading, "mask": normalize_mask_name_without_folder(reading["mask"])}}


def move_to_cpu_as_float32(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU."""
    return {name: tensor.to("cpu", torch.float32) for name, tensor in tensors.items()}
