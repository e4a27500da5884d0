"""Frames that belong together, read on one grid."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fullfield.cli.errors import same_size
from fullfield.cli.options import reading_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torch import Tensor

    from fullfield.io import FrameWindow
    from fullfield.io.windows import Box


def read_frames(
    args: argparse.Namespace, frames: Sequence[str], area: Box | None = None
) -> tuple[list[Tensor], FrameWindow | None]:
    """The frames, all of one size, and the window of the first, whose data window is what was read of all.

    With ``--window data`` that is ``area`` or else the smallest box that holds every data window, so that a pixel is
    at one place in all of them wherever the files' windows begin. Without, the window is None unless the first frame
    is an EXR.
    """
    from fullfield.estimators.frames import warn_of_range
    from fullfield.io import frame_window, read_frame
    from fullfield.io.oiio import sniff
    from fullfield.io.windows import common_window

    reading = reading_arguments(args)
    channels = {name: reading[name] for name in ("part", "layer") if name in reading}
    window = None
    if reading.get("window") == "data":
        window = common_window({frame: frame_window(frame, **channels) for frame in frames})
        if area is not None:
            window = window._replace(data=area)
        reading["window"] = window.data
    elif sniff(Path(frames[0]))[0] == "openexr":
        window = frame_window(frames[0], **channels)
        window = window._replace(data=window.display)
    read = [read_frame(frame, **reading) for frame in frames]
    for frame, tensor in zip(frames[1:], read[1:], strict=True):
        same_size(read[0], frames[0], tensor, frame)
    if any(warn_of_range(tensor, frame) for frame, tensor in zip(frames, read, strict=True)):
        warnings.filterwarnings("ignore", ".*: frames are expected in 0 ", UserWarning)  # said once is enough
    return read, window
