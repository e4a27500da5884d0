"""The frames of a shot, read with their windows and metadata."""

# ruff: noqa: D102  # the protocol Plates describes the methods

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fullfield._check import InputError, describe_value, require
from fullfield._ledger.versions import FileIdentity, compute_sampled_checksum
from fullfield._read_ahead import choose_reader_thread_count
from fullfield.estimators._frames import Frame, fill_unknown_pixels, get_frame_name_for_messages, read_or_convert_frame
from fullfield.io import open_video, read_frame_window
from fullfield.io.files import Stamp, read_stamp_if_exists
from fullfield.io.image import FrameReader
from fullfield.io.names import STACK_SUFFIXES, get_separate_mask_file_or_none
from fullfield.io.oiio import Attribute
from fullfield.io.stacks import count_stack_pictures_or_one, read_stack_picture
from fullfield.io.transfer import choose_inplace_curve_to_srgb_if_needed
from fullfield.io.windows import FrameWindow, Window, merge_frame_windows_or_raise
from fullfield.sequences.names import (
    FrameFiles,
    choose_requested_or_all_frame_numbers,
    find_frame_files,
    parse_frames,
    resolve_mask_for_frame,
)

_MAX_LARGER, _MAX_PIXELS = 16, 1 << 24  # how much larger a display window may be than the data window


class Plate(NamedTuple):
    """One frame of a shot."""

    frame: Tensor
    """float32 [C, H, W] in the host's memory, display-referred, as :func:`fullfield.io.read_frame` reads it."""
    window: FrameWindow | None = None
    """Windows of an EXR, or of a video whose pixels are not square. ``frame`` holds the data window."""
    metadata: tuple[Attribute, ...] = ()
    identity: FileIdentity | None = None
    """The version of the file that was read."""
    valid: Tensor | None = None
    """bool [H, W]: where the frame is known; elsewhere it is filled from its surroundings. None: known everywhere."""
    mask_identity: FileIdentity | None = None
    """The version of the mask file that was read."""


@runtime_checkable
class Plates(Protocol):
    """Shot that can be read frame by frame."""

    numbers: list[int]
    """The frames to work on, ascending."""
    uses_data_windows: bool
    """Whether frames are read on their own data windows, and laid where they belong by whoever compares them."""
    readers: int
    """Number of threads that may read at once; with 1, frames are requested in ascending order."""
    pinned: bool
    """Whether to read into memory that a GPU copies from by itself, where the plates can; False at first."""

    def get_frame_name(self, number: int) -> str:
        """Return the name of a frame, for messages."""
        raise NotImplementedError

    def has_frame(self, number: int) -> bool:
        """Return whether the shot has the frame."""
        raise NotImplementedError

    def is_in_range(self, number: int) -> bool:
        """Return whether the number lies between the ends of the shot, whether there is a frame or not."""
        raise NotImplementedError

    def read(self, number: int) -> Plate:
        """Read a frame."""
        raise NotImplementedError

    def get_containing_file(self, _number: int) -> str | None:
        """Return the file of a frame; None where it is in none."""
        return None

    def get_mask_file(self, _number: int) -> str | None:
        """Return the file with the mask of a frame; None where it has none."""
        return None

    def read_file_stamp(self, number: int) -> Stamp | None:
        """Return size and times of the frame's file; None where it is in none."""
        path = self.get_containing_file(number)
        return None if path is None else read_stamp_if_exists(path)

    def pop_nonfinite_messages(self) -> dict[int, str]:
        """Return and forget a message on every frame so far with pixels that are NaN or infinite."""
        return {}

    def close(self) -> None:
        """Close what is open, and warn of pixels that are NaN or infinite, once for all frames."""
        warn_at_first_nonfinite_pixels(self.pop_nonfinite_messages())


def warn_at_first_nonfinite_pixels(messages: Mapping[int, str]) -> None:
    """Warn of pictures with pixels that are NaN or infinite: of the first, with the number of all."""
    if messages:
        others = len(messages) - 1
        further = "" if others == 0 else f", nor at such pixels of {others} further frame{'s' * (others > 1)}"
        warnings.warn(f"{messages[min(messages)]}{further}", stacklevel=3)


class _NonfiniteMessages:
    """Messages on frames with pixels that are NaN or infinite, by number; several threads add to it."""

    def __init__(self) -> None:
        self._messages: dict[int, str] = {}

    def add_unless_empty(self, number: int, message: str) -> None:
        """Add the message on a frame, unless it is empty."""
        if message:
            self._messages[number] = message

    def pop_all(self) -> dict[int, str]:
        """Return the messages by number, and forget them."""
        messages, self._messages = self._messages, {}
        return messages


def open_plates(
    source: str | os.PathLike[str] | Sequence[Frame],
    frames: str | Sequence[int] | None = None,
    *,
    transfer: str | None = None,
    part: int | str | None = None,
    layer: str | None = None,
    alpha: str | None = None,
    window: Window | None = None,
    mask: str | None = None,
) -> Plates:
    """Open the frames of a shot.

    Args:
        source: a pattern (``plate.%04d.exr``, ``plate.####.exr``), a folder, a glob or a video file, whose frames
            count from 1; or a list of paths, arrays or tensors, as :func:`fullfield.estimate` takes them, which count
            from 1 too.
        frames: which to work on: a range such as ``"1001-1100"`` or numbers; all that are there by default.
        transfer: encoding of the values, as for :func:`fullfield.io.read_frame`; so are ``part``, ``layer``, ``alpha``
            and ``window``.
        part: part of OpenEXR frames or page of TIFFs.
        layer: layer of OpenEXR frames.
        alpha: ``"ignore"`` or ``"apply"``.
        window: ``"display"``, ``"data"`` or a box.
        mask: what says where frames are known, as for :func:`fullfield.estimate`; a pattern names one for each frame.

    Raises InputError where there is no such shot, FileNotFoundError for a missing file.

    >>> plates = open_plates("plate.%04d.exr", "1001-1010", layer="beauty")  # doctest: +SKIP
    >>> for flows in estimate_sequence(plates):  # doctest: +SKIP
    ...     print(flows.number)
    """
    explicit = {"transfer": transfer, "part": part, "layer": layer, "alpha": alpha, "window": window, "mask": mask}
    reading = {name: value for name, value in explicit.items() if value is not None}
    _check_frame_source_type(source, "source")
    is_known = frames is None or isinstance(frames, Iterable)
    require(is_known, "frames", "a range such as '1001-1100' or a list of numbers", frames)
    if not isinstance(source, (str, os.PathLike)):
        return ListedPlates(list(source), frames, **reading)
    frame_files = find_frame_files(os.fspath(source))
    if isinstance(frames, str) or (frames is None and frame_files.video is None):
        return open_found_plates(
            frame_files, choose_requested_or_all_frame_numbers(frame_files, frames, "frames"), **reading
        )
    return open_found_plates(frame_files, None if frames is None else sorted(set(frames)), **reading)


def open_plates_unless_open(frames: str | os.PathLike[str] | Sequence[Frame] | Plates) -> Plates:
    """Return plates as they are, and anything else as :func:`open_plates` opens it."""
    if isinstance(frames, Plates):
        return frames
    _check_frame_source_type(frames, "frames")
    return open_plates(frames)


def _check_frame_source_type(source: object, name: str) -> None:
    """Check that ``source`` has a length, so that frames can be chosen from it, and is not bytes."""
    is_source = isinstance(source, (str, os.PathLike, Sequence)) and not isinstance(source, (bytes, bytearray))
    hint = "; for frames that arrive one by one, see docs/live.md" if isinstance(source, Iterator) else ""
    expected = "a pattern, a folder, a video file or a list of frames"
    require(is_source, name, expected, f"{describe_value(source)}{hint}")


def open_found_plates(frame_files: FrameFiles, frame_numbers: Sequence[int] | None, **reading: Any) -> Plates:
    """Open frames that were found by name. ``frame_numbers`` of a video may be None: all that it has."""
    if frame_files.video is None:
        return FilePlates(frame_files, frame_files.files if frame_numbers is None else frame_numbers, **reading)
    names = [name for name, value in reading.items() if name != "transfer" and value is not None]
    if names:
        raise InputError(f"{names[0]}: expected None for a video or a stack of pictures, {frame_files.video}")
    if Path(frame_files.video).suffix.lower() in STACK_SUFFIXES:
        return StackPlates(frame_files, frame_numbers, **reading)
    return VideoPlates(frame_files, frame_numbers, **reading)


class FilePlates(Plates):
    """Frames in one file each."""

    def __init__(self, frame_files: FrameFiles, numbers: Iterable[int], **reading: Any) -> None:
        self._frame_files, self.numbers, self.pinned = frame_files, list(numbers), False
        self._reading = {name: value for name, value in reading.items() if value is not None}
        self.uses_data_windows = self._reading.get("window") == "data"
        self.readers = choose_reader_thread_count()
        self._nonfinite_messages = _NonfiniteMessages()
        mask = self._reading.get("mask")
        self._mask = mask if get_separate_mask_file_or_none(mask) is not None else None
        numbers = [*frame_files.files, *self.numbers]
        self._ends = min(numbers), max(numbers)

    def get_frame_name(self, number: int) -> str:
        return self._frame_files.get_path(number)

    def has_frame(self, number: int) -> bool:
        return number in self._frame_files.files

    def is_in_range(self, number: int) -> bool:
        return self._ends[0] <= number <= self._ends[1]

    def get_containing_file(self, number: int) -> str | None:
        return self._frame_files.get_path(number)

    def get_mask_file(self, number: int) -> str | None:
        return get_separate_mask_file_or_none(resolve_mask_for_frame(self._mask, number))

    def read(self, number: int) -> Plate:
        """Read the frame; read it again where it was replaced during the first read."""
        path, mask = self._frame_files.get_path(number), self.get_mask_file(number)
        reading = (
            self._reading if mask is None else {**self._reading, "mask": resolve_mask_for_frame(self._mask, number)}
        )
        reader = FrameReader(**reading, pinned=self.pinned)
        for is_first in (True, False):
            before = self.read_file_stamp(number)
            mask_before = None if mask is None else read_stamp_if_exists(mask)
            if mask is not None and mask_before is None:
                raise InputError(f"mask: {mask}: no such file")
            try:
                image = reader.read(path)
                window = image.window
                if self.uses_data_windows:
                    channels = {name: self._reading[name] for name in ("part", "layer") if name in self._reading}
                    window = window or read_frame_window(path, **channels)
                elif window is not None:
                    window = window._replace(data=window.display)
                checksum = compute_sampled_checksum(path)
                mask_identity = (
                    None if mask_before is None else FileIdentity(mask_before, compute_sampled_checksum(str(mask)))
                )
            except (InputError, OSError):
                if is_first and before is not None and self.read_file_stamp(number) != before:
                    continue
                raise
            is_same_mask = mask is None or read_stamp_if_exists(mask) == mask_before
            if before is not None and self.read_file_stamp(number) == before and is_same_mask:
                frame = fill_unknown_pixels(image.frame, image.valid, path)
                self._nonfinite_messages.add_unless_empty(number, image.note)
                return Plate(frame, window, image.metadata, FileIdentity(before, checksum), image.valid, mask_identity)
        raise InputError(f"{path}: is being written while it is read")

    def pop_nonfinite_messages(self) -> dict[int, str]:
        return self._nonfinite_messages.pop_all()


class ListedPlates(Plates):
    """Frames from a list."""

    def __init__(self, frames: Sequence[Frame], numbers: str | Sequence[int] | None, **reading: Any) -> None:
        self._frames, self._reading = frames, {k: v for k, v in reading.items() if v is not None}
        if not set(self._reading) <= {"transfer"}:
            raise InputError(
                "part, layer, alpha, window, mask: expected None for a list of frames; a pattern takes them"
            )
        listed = parse_frames(numbers) if isinstance(numbers, str) else numbers
        self.numbers = list(range(1, len(frames) + 1)) if listed is None else sorted(set(listed))
        self.uses_data_windows, self.readers, self.pinned = False, 2, False
        self._nonfinite_messages = _NonfiniteMessages()

    def pop_nonfinite_messages(self) -> dict[int, str]:
        return self._nonfinite_messages.pop_all()

    def get_frame_name(self, number: int) -> str:
        return get_frame_name_for_messages(
            self._frames[number - 1] if self.has_frame(number) else None, f"frame {number}"
        )

    def has_frame(self, number: int) -> bool:
        return 1 <= number <= len(self._frames)

    is_in_range = has_frame

    def read(self, number: int) -> Plate:
        if not self.has_frame(number):
            raise InputError(f"frame {number}: the list has {len(self._frames)}")
        # Plates lie in the host's memory, wherever the frames came from; the engine takes them where it computes.
        frame, name = self._frames[number - 1], self.get_frame_name(number)
        if isinstance(frame, (str, os.PathLike)):
            image = FrameReader(**self._reading).read(frame)
            self._nonfinite_messages.add_unless_empty(number, image.note)
            return Plate(fill_unknown_pixels(image.frame, image.valid, name), valid=image.valid)
        return Plate(read_or_convert_frame(frame, name, **self._reading).cpu())


class StackPlates(Plates):
    """Pictures of one file (GIF, WebP, PNG, TIFF), counted from 1."""

    def __init__(
        self, frame_files: FrameFiles, numbers: Sequence[int] | None, transfer: str | None = None, **_: Any
    ) -> None:
        self._path, self._transfer = frame_files.text, transfer
        self._count = count_stack_pictures_or_one(self._path)
        self.numbers = list(range(1, self._count + 1)) if numbers is None else list(numbers)
        if not any(1 <= number <= self._count for number in self.numbers):
            raise InputError(f"{self._path}: has frames 1-{self._count}, and none of the requested ones is among them")
        self.uses_data_windows, self.readers, self.pinned = False, choose_reader_thread_count(), False

    def get_frame_name(self, number: int) -> str:
        return f"{self._path}, frame {number}"

    def get_containing_file(self, _number: int) -> str | None:
        return self._path

    def has_frame(self, number: int) -> bool:
        return 1 <= number <= self._count

    def is_in_range(self, number: int) -> bool:
        return min(1, self.numbers[0]) <= number <= max(self._count, self.numbers[-1])

    def read(self, number: int) -> Plate:
        stamp = read_stamp_if_exists(self._path)
        frame = read_stack_picture(self._path, number - 1, self._transfer)
        identity = None if stamp is None else FileIdentity(stamp, compute_sampled_checksum(self._path))
        return Plate(frame, identity=identity)


class VideoPlates(Plates):
    """Frames of a video, counted from 1 and decoded in order; earlier frames need decoding from the start.

    Videos of more than 8 bits are read with all of them.
    """

    readers, pinned = 1, False
    uses_data_windows = False

    def __init__(
        self, frame_files: FrameFiles, numbers: Sequence[int] | None, transfer: str | None = None, **_: Any
    ) -> None:
        self._path = frame_files.text
        self._curve = choose_inplace_curve_to_srgb_if_needed(transfer or "auto", auto_transfer="srgb")
        self._lock = threading.Lock()
        stamp = read_stamp_if_exists(self._path)
        self._identity = None if stamp is None else FileIdentity(stamp, compute_sampled_checksum(self._path))
        self._reopen_from_start()
        self._length = (
            self._source.count_frames_and_warn_if_truncated()
            if hasattr(self._source, "count_frames_and_warn_if_truncated")
            else 0
        )
        self._reopen_from_start()
        if self._length < 1:
            raise InputError(f"{self._path}: expected a video, and there is no frame in it")
        self.numbers = list(range(1, self._length + 1)) if numbers is None else list(numbers)
        if not any(1 <= number <= self._length for number in self.numbers):
            raise InputError(f"{self._path}: has frames 1-{self._length}, and none of the requested ones is among them")

    def _reopen_from_start(self) -> None:
        self.close()
        self._source: Any = open_video(self._path)
        self._frames: Iterator[Any] = iter(self._source)
        self._next = 1

    def get_frame_name(self, number: int) -> str:
        return f"{self._path}, frame {number}"

    def get_containing_file(self, _number: int) -> str | None:
        return self._path

    def has_frame(self, number: int) -> bool:
        return 1 <= number <= self._length

    def is_in_range(self, number: int) -> bool:
        return min(1, self.numbers[0]) <= number <= max(self._length, self.numbers[-1])

    def read(self, number: int) -> Plate:
        with self._lock:
            if number < self._next:
                self._reopen_from_start()
            frame: Any = None
            while self._next <= number:
                self._next += 1
                frame = next(self._frames, None)
                if frame is None:
                    raise InputError(f"{self._path}: has no frame {number}; it ends before")
            values: Tensor = frame.convert_to_float_rgb()
        if self._curve is not None:
            self._curve(values.numpy())
        return Plate(values, self._build_window_if_pixels_not_square(values), identity=self._identity)

    def _build_window_if_pixels_not_square(self, frame: Tensor) -> FrameWindow | None:
        """Return the window of a frame whose pixels are not square."""
        aspect = float(getattr(self._source, "pixel_aspect", 1))
        box = (0, 0, frame.shape[-1], frame.shape[-2])
        return None if aspect == 1 else FrameWindow(box, box, aspect)

    def close(self) -> None:
        """Close the video."""
        if hasattr(self, "_source"):
            self._source.close()


def pad_and_fill_frame_and_valid(plate: Plate, box: tuple[int, int, int, int]) -> tuple[Tensor, Tensor | None]:
    """Return the frame in the box (x, y, width, height), and where it is known; elsewhere it is filled."""
    if plate.window is None or plate.window.data == box:
        return plate.frame, plate.valid
    x, y, width, height = plate.window.data
    area = (slice(y - box[1], y - box[1] + height), slice(x - box[0], x - box[0] + width))
    valid = torch.zeros(box[3], box[2], dtype=torch.bool)
    valid[area] = True if plate.valid is None else plate.valid
    frame = plate.frame.new_zeros(plate.frame.shape[0], box[3], box[2])
    frame[:, area[0], area[1]] = plate.frame
    return fill_unknown_pixels(frame, valid, "frame"), valid


def crop_or_pad_frame_and_valid_to_display(plate: Plate) -> tuple[Tensor, Tensor | None]:
    """Return the frame on its display window, and where it is known; of a window that is much larger, the frame."""
    if plate.window is None or plate.window.data == plate.window.display:
        return plate.frame, plate.valid
    (x, y, width, height), (left, top, display_width, display_height) = plate.window.data, plate.window.display
    if display_width * display_height > _MAX_LARGER * width * height + _MAX_PIXELS:  # a header may claim anything
        return plate.frame, plate.valid
    first_x, last_x = max(x, left), min(x + width, left + display_width)
    first_y, last_y = max(y, top), min(y + height, top + display_height)
    frame = plate.frame.new_zeros(plate.frame.shape[0], display_height, display_width)
    valid = torch.zeros(display_height, display_width, dtype=torch.bool)
    if first_x < last_x and first_y < last_y:
        target = slice(first_y - top, last_y - top), slice(first_x - left, last_x - left)
        area = slice(first_y - y, last_y - y), slice(first_x - x, last_x - x)
        frame[:, target[0], target[1]] = plate.frame[:, area[0], area[1]]
        valid[target] = True if plate.valid is None else plate.valid[area]
    return frame, None if bool(valid.all()) else valid


def merge_plate_windows(plates: Mapping[str, Plate]) -> FrameWindow:
    """Return :func:`fullfield.io.windows.merge_frame_windows_or_raise` of plates, by name."""
    boxes = {name: (0, 0, plate.frame.shape[-1], plate.frame.shape[-2]) for name, plate in plates.items()}
    return merge_frame_windows_or_raise(
        {name: p.window or FrameWindow(boxes[name], boxes[name]) for name, p in plates.items()}
    )


def copy_to_pinned_memory(plate: Plate) -> Plate:
    """Return the plate in pinned memory."""
    frame = torch.empty(plate.frame.shape, dtype=plate.frame.dtype, pin_memory=True)
    np.copyto(frame.numpy(), plate.frame.numpy())  # in this thread: PyTorch's copy would take all cores
    return plate._replace(frame=frame)
