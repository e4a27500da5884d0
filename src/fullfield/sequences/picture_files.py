"""Pictures of a shot with all their channels: files, or the frames of a video."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fullfield import io
from fullfield._check import InputError
from fullfield._read_ahead import choose_reader_thread_count
from fullfield.io.all_channels import ChannelPicture, read_all_channels
from fullfield.io.image import FrameReader
from fullfield.io.names import VIDEO_WRITE_SUFFIXES
from fullfield.io.transfer import choose_inplace_curve_to_srgb_if_needed
from fullfield.sequences.changes import GreyPicture, shrink_to_grey
from fullfield.sequences.names import choose_requested_or_all_frame_numbers, find_frame_files, resolve_mask_for_frame
from fullfield.sequences.plates import open_found_plates

_RATE = 24.0  # frames a second where the plates have no rate


class PictureFiles:
    """Pictures of a shot, found by name.

    Args:
        source: a pattern, a folder, a glob, or a video, whose frames count from 1.
        mask: what says where pictures are known; not for a video.

    Attributes:
        numbers: frames that exist, ascending.
        readers: number of threads that may read at once; with 1, frames are read in ascending order.
        frame_rate: frames a second.
    """

    def __init__(self, source: str, mask: str | None = None) -> None:
        self._frame_files, self._mask = find_frame_files(source), mask
        self.text, self.is_video = source, self._frame_files.video is not None
        self.has_own_range = self._frame_files.requested is not None
        self.frame_rate = _RATE
        if self.is_video:
            if mask is not None:
                raise InputError(f"mask: expected None for a video, got {mask}")
            self._plates = open_found_plates(self._frame_files, None)
            self.numbers, self.readers = list(self._plates.numbers), self._plates.readers
            self.frame_rate = read_frame_rate_or_default(source)
        else:
            self.numbers, self.readers = list(self._frame_files.files), choose_reader_thread_count()

    @property
    def name(self) -> str:
        """Name of the sequence without its folder."""
        return self._frame_files.name

    @property
    def paths(self) -> list[str]:
        """Names of all files."""
        return [self.text] if self.is_video else [str(path) for path in self._frame_files.files.values()]

    def get_path(self, number: int) -> str:
        """Return the file of a picture, whether it exists or not."""
        return self.text if self.is_video else self._frame_files.get_path(number)

    def choose_requested_or_all_frame_numbers(self, frames: str | None) -> list[int]:
        """Return the frames of a range; all that exist by default."""
        return (
            self.numbers
            if self.is_video and frames is None
            else choose_requested_or_all_frame_numbers(self._frame_files, frames, "frames")
        )

    def read(self, number: int) -> ChannelPicture:
        """Return a picture; a frame of a video is display-referred colour."""
        if not self.is_video:
            return read_all_channels(self.get_path(number), resolve_mask_for_frame(self._mask, number))
        if number not in self.numbers:
            raise InputError(f"{self.text}: has no frame {number}")
        plate = self._plates.read(number)
        frame = plate.frame
        codes = frame * 255
        kind_name = "uint8" if bool((codes - codes.round()).abs().max() < 1e-3) else "uint16"
        return ChannelPicture(frame, ("R", "G", "B") if len(frame) == 3 else ("Y",), kind_name, plate.window)

    def read_shrunk_grey(self, number: int) -> GreyPicture:
        """Return the reduced picture in which cuts are detected; not for a video, whose frames are read once."""
        path = self.get_path(number)
        image = FrameReader(mask=resolve_mask_for_frame(self._mask, number)).read(path)
        return shrink_to_grey(image.frame, image.valid)

    def close(self) -> None:
        """Close the video."""
        if self.is_video:
            self._plates.close()


def read_frame_rate_or_default(video: str) -> float:
    """Return the frames a second of a video; 24 where it does not say."""
    try:
        source = io.open_video(video)
    except (InputError, OSError):
        return _RATE
    rate: float = getattr(source, "frame_rate", None) or _RATE
    source.close()
    return rate


def has_video_suffix(path: str) -> bool:
    """Return whether an output is named as a video."""
    return Path(path).suffix.lower() in VIDEO_WRITE_SUFFIXES


def convert_to_16bit_display_rgb(picture: ChannelPicture) -> Tensor:
    """Return display-referred colour for a video: int32 [3, H, W] of 16 bits; light is encoded as sRGB."""
    names = [name.rpartition(".")[2].upper() for name in picture.channels]
    indices = [names.index(name) for name in "RGB" if name in names]
    planes = picture.pixels[indices] if len(indices) == 3 else picture.pixels[:1].expand(3, -1, -1)
    pixels = planes.contiguous().clone()
    encode = choose_inplace_curve_to_srgb_if_needed("linear", auto_transfer="linear")
    if picture.value_type not in ("uint8", "uint16") and encode is not None:
        encode(pixels.numpy())
    return pixels.nan_to_num(0.0).clamp_(0, 1).mul_(65535).round_().to(torch.int32)
