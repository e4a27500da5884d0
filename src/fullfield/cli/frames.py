"""Frames read on one grid, and true flow that fits an estimate."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError
from fullfield.cli.errors import same_size, size
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
    """Read frames of one size; return them and the window of the first, with the data window that was read.

    With ``--window data`` that is ``area``, or the smallest box that holds every data window, so that a pixel has the
    same position in all frames. Otherwise the window is None unless the first frame is an EXR.
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
        warnings.filterwarnings("ignore", ".*: frames are expected in 0 ", UserWarning)  # one warning is enough
    return read, window


def add_four_values(group: Any) -> None:
    """Add ``--four-values``, for truth of twice the frame's size."""
    group.add_argument(
        "--four-values",
        action="store_true",
        help="truth of twice the size holds four values a pixel; implied for .flo5 (Spring)",
    )


def read_truth(
    path: str,
    pred: Tensor,
    pred_path: str,
    *,
    scale: float = 1.0,
    four: bool = False,
    **choice: Any,
) -> tuple[Tensor, Tensor]:
    """Return the truth for ``pred`` ``[2, H, W]`` and where it is known (bool ``[H, W]``).

    The truth is ``[2, H, W]``, or ``[4, 2, H, W]`` if the file has twice the size and is a .flo5 or ``four`` is set.
    ``choice`` goes to ``read_flow``. InputError names both files if their sizes do not fit.
    """
    from fullfield.io import read_flow
    from fullfield.metrics import four_values

    truth, known = read_flow(path, **choice)
    if scale != 1:
        truth = truth * scale
    height, width = pred.shape[-2:]
    twice = truth.shape[-2:] == (2 * height, 2 * width)
    if twice and (four or Path(path).suffix.lower() == ".flo5"):
        values = four_values(truth, known)
        return values, values.isfinite().all(1).all(0)
    if four:
        raise InputError(
            f"--four-values: {path} is {size(truth)}, expected twice the size of {pred_path}, {size(pred)}"
        )
    if truth.shape[-2:] != pred.shape[-2:]:
        hint = "; if it holds four values a pixel, use --four-values" if twice else ""
        raise InputError(
            f"{pred_path}: is {size(pred)}, but {path} is {size(truth)}; they must have the same size{hint}"
        )
    return truth, known


def truth_values(truth: Tensor) -> int:
    """Return the number of values that the truth has for a pixel."""
    return 4 if truth.ndim == 4 else 1


FOUR_VALUES = "has twice the size, so four true values for each pixel (Spring); the nearest one counts"
"""Note on truth whose four values follow from its format, not from ``--four-values``."""
