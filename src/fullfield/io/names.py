"""The words of the io part, importable without numpy or torch: suffixes, transfers, compressions."""

from __future__ import annotations

import os

from fullfield._check import convert_path_to_text

FRAME_SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".exr", ".dpx", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm",
    ".hdr", ".bmp", ".tga",
)  # fmt: skip
"""Usual suffixes of the frames :func:`read_frame` reads; it goes by a file's content, not by its name."""

STACK_SUFFIXES = (".gif", ".webp", ".png", ".apng", ".tif", ".tiff")
"""Suffixes of files that may hold several pictures."""

IMAGE_WRITE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".exr")

FLOW_WRITE_SUFFIXES = (".flo", ".png", ".flo5", ".pfm", ".npy", ".exr")
FLOW_SUFFIXES = (*FLOW_WRITE_SUFFIXES, ".npz")

POINT_WRITE_SUFFIXES = (".ply", ".pcd", ".las", ".laz", ".npz", ".npy")
POINT_SUFFIXES = (".ply", ".pcd", ".npy", ".npz", ".bin", ".las", ".laz")
"""Point clouds; ``.bin`` is KITTI's."""

CAMERA = "camera:"
"""What stands before the number of a camera, where a video can be one."""

VIDEO_WRITE_SUFFIXES = (".mp4", ".mkv", ".mov")
VIDEO_CODECS = ("h264", "prores", "dnxhr")

EXR_COMPRESSIONS_WITH_LOSS = ("dwaa", "dwab")
EXR_COMPRESSIONS = ("none", "rle", "zips", "zip", "piz", *EXR_COMPRESSIONS_WITH_LOSS)


ARRAY_SUFFIXES = (".npy", ".npz")


def split_mask_file_and_channel(mask: str) -> tuple[str | None, str | None]:
    """Return the file and the channel that a mask names: ``FILE``, ``FILE:CHANNEL`` or ``CHANNEL``."""
    file, colon, channel = mask.rpartition(":")
    if colon and file.lower().endswith((*FRAME_SUFFIXES, ".npz")):
        return file, channel
    folder = os.path.split(mask)[0]
    is_file = mask.lower().endswith((*FRAME_SUFFIXES, *ARRAY_SUFFIXES)) or bool(folder)
    return (mask, None) if is_file else (None, mask)


def get_separate_mask_file_or_none(mask: str | None) -> str | None:
    """Return the file of a mask without its channel; None for a channel of the frame, or no mask."""
    return None if mask is None else split_mask_file_and_channel(mask)[0]


DIRECTIONS = ("forward", "backward")


def has_exr_suffix(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is named as an OpenEXR."""
    return convert_path_to_text(path).lower().endswith(".exr")


OCIO_CONFIG = "ocio://studio-config-latest"
"""The configuration, built into OpenColorIO, that holds the cameras' curves."""

OCIO_TRANSFERS = {
    "acescc": "ACEScc",
    "acescct": "ACEScct",
    "acescg": "ACEScg",
    "aces2065-1": "ACES2065-1",
    "adx10": "ADX10",
    "adx16": "ADX16",
    "applelog": "Apple Log",
    "bmdfilm5": "BMDFilm WideGamut Gen5",
    "clog2": "CanonLog2 CinemaGamut D55",
    "clog3": "CanonLog3 CinemaGamut D55",
    "davinci": "DaVinci Intermediate WideGamut",
    "log3g10": "Log3G10 REDWideGamutRGB",
    "logc3": "ARRI LogC3 (EI800)",
    "logc4": "ARRI LogC4",
    "slog3": "S-Log3 S-Gamut3",
    "slog3.cine": "S-Log3 S-Gamut3.Cine",
    "vlog": "V-Log V-Gamut",
}
"""Short name -> colour space of ``OCIO_CONFIG``."""

TRANSFERS = ("auto", "srgb", "linear", "cineon", *OCIO_TRANSFERS)
"""What ``transfer=`` accepts besides the names of OpenColorIO colour spaces."""
