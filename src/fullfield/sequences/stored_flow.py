"""Stored flow of a shot, by frame and direction."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

from torch import Tensor

from fullfield._check import InputError, convert_path_to_text
from fullfield.io.names import FLOW_SUFFIXES, has_exr_suffix
from fullfield.io.vectors import (
    ENDS_NOTE,
    INCOMPLETE_NOTE,
    VALID,
    FlowReadOptions,
    list_flow_and_mask_layers,
    read_finite_plane_or_raise,
    read_flow_direction_with_unknown_as_nan,
    read_header_entry_or_empty,
)
from fullfield.sequences.names import FrameFiles, find_frame_files, has_number_field
from fullfield.sequences.outputs import Output

_MAX_SCALE = 64


def _parse_and_check_scale(scale: str | float | Fraction) -> Fraction:
    """Return the size of a flow relative to the pictures: ``"1/2"`` for flow of frames of half the size."""
    try:
        value = Fraction(scale).limit_denominator(1 << 16)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        value = Fraction(0)
    if not 1 <= max(value, 1 / value if value else 0) <= _MAX_SCALE:
        raise InputError(f"scale: expected a fraction such as 1/2, at most {_MAX_SCALE}, got {scale!r}")
    return value


class ShotEndsError(InputError):
    """Direction in which the shot has no further frame."""


class StoredFlow:
    """Flow files of a shot, or one file, whose frame is 1.

    Args:
        source: a pattern such as ``mv.%04d.exr``, or one file.
        scale: size of the flow relative to the pictures that it is applied to, such as ``1/2`` for flow of proxies.
        read_options: how the vectors of a renderer are stored; by default as this package writes them.

    Attributes:
        numbers: frames with a file, ascending.
        reference: frame to which the motion of all files leads, if the shot was followed
            (:func:`fullfield.sequences.write_reference_flow`); None for flow to the neighbouring frames.

    Raises:
        InputError: if there are no such files, or they hold flow over several frames.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        scale: str | float | Fraction = 1,
        read_options: FlowReadOptions | None = None,
    ) -> None:
        self.source = source = convert_path_to_text(source, "flow")
        self.scale, self.reading = _parse_and_check_scale(scale), read_options or FlowReadOptions()
        self._frame_files: FrameFiles | None = None
        self._settings: dict[str, Any] = {}
        self.numbers = [1]
        if has_number_field(source):
            self._frame_files = find_frame_files(source)
            self.numbers = list(self._frame_files.files)
            self._settings = Output(str(self._frame_files.pattern)).read_and_check_settings_or_empty()
        self.reference: int | None = self._settings.get("reference")
        path = self.get_path(self.numbers[0])
        if not path.lower().endswith(tuple(FLOW_SUFFIXES)):
            raise InputError(f"flow: expected a file of flow ({', '.join(FLOW_SUFFIXES)}), got {path}")
        step = self._settings.get("step", 1)
        if step != 1:
            raise InputError(f"flow: expected flow to the neighbouring frame, got flow over {step} frames")

    @classmethod
    def from_path_unless_open(cls, flow: str | os.PathLike[str] | StoredFlow) -> StoredFlow:
        """Return the stored flow of a name, or the stored flow itself."""
        return flow if isinstance(flow, StoredFlow) else cls(flow)

    def __contains__(self, number: int) -> bool:
        return number in self.numbers if self._frame_files is None else number in self._frame_files.files

    @property
    def name(self) -> str:
        """Name of the files without their folder."""
        return Path(self.source).name if self._frame_files is None else self._frame_files.name

    @property
    def paths(self) -> list[str]:
        """Names of all files."""
        return [self.get_path(number) for number in self.numbers]

    def get_path(self, number: int) -> str:
        """Return the name of a frame's file, whether it exists or not."""
        return self.source if self._frame_files is None else self._frame_files.get_path(number)

    def require_directions(self, *directions: str) -> None:
        """Raise InputError if the files, by their notes or format, have not all of these directions."""
        stored = self._settings.get("direction", "both")
        if stored == "both" and len(directions) > 1 and not has_exr_suffix(self.paths[0]):
            stored = "one"
        if stored != "both" and not {*directions} <= {stored}:
            raise InputError(
                f"flow: expected {' and '.join(directions)} vectors, got {stored} direction; store both as .exr with "
                "--direction both, or choose other frames"
            )

    def read_flow_with_unknown_as_nan(self, number: int, direction: str, *, hide_occluded: bool = False) -> Tensor:
        """Return the flow [2, H, W] of a frame; unknown vectors, and with ``hide_occluded`` hidden ones, are NaN.

        Where the frame was not known, the vectors come from their surroundings; in bars they are 0.
        """
        path = self.get_path(number)
        if number not in self:
            raise InputError(f"{path}: no such file")
        if has_exr_suffix(path):
            ends, incomplete = (
                read_header_entry_or_empty(path, note).split(",") for note in (ENDS_NOTE, INCOMPLETE_NOTE)
            )
            if direction in ends:
                raise ShotEndsError(f"{path}: has no {direction} vectors: the shot ends there")
            if direction in incomplete:
                raise InputError(f"{path}: has no {direction} vectors: a plate was bad")
        flow = read_flow_direction_with_unknown_as_nan(path, direction, self.reading)
        if not hide_occluded:
            return flow
        layers = list_flow_and_mask_layers(path) if has_exr_suffix(path) else [direction]
        occlusion = f"occlusion.{direction}"
        if occlusion not in layers:
            raise InputError(f"{path}: has no layer {occlusion}; it has {', '.join(layers) or 'none that is known'}")
        hidden = read_finite_plane_or_raise(path, occlusion) > 0.5
        if VALID in layers:  # there, occlusion only says that nothing is known
            hidden &= read_finite_plane_or_raise(path, VALID) > 0.5
        return flow.masked_fill_(hidden, float("nan"))
