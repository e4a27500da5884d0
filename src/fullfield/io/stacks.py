"""Files that hold several pictures: animated GIF, WebP and PNG, and TIFF stacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fullfield._check import InputError
from fullfield.io.files import PathLike, raise_as_input_errors, require_nonempty_file_and_get_bytes
from fullfield.io.image import read_frame
from fullfield.io.names import STACK_SUFFIXES


def count_stack_pictures_or_one(path: PathLike) -> int:
    """Return the number of pictures in a GIF, WebP, PNG or TIFF; 1 for other files and damaged ones."""
    where = Path(path)
    if where.suffix.lower() not in STACK_SUFFIXES:
        return 1
    from PIL import Image

    try:
        with Image.open(where) as image:
            return int(getattr(image, "n_frames", 1))
    except (OSError, ValueError, SyntaxError, EOFError):
        return 1


def read_stack_picture(path: PathLike, picture_index: int, transfer: str | None = None) -> Tensor:
    """Return one picture, counted from 0, as :func:`fullfield.io.read_frame` does: float32 [C, H, W].

    Pages of a TIFF are read as they are. Pictures of an animation are composed as a viewer shows them, without alpha.

    Raises:
        InputError: if the file is damaged or has no such picture.
    """
    where = Path(path)
    if where.suffix.lower() in (".tif", ".tiff"):
        return read_frame(where, part=picture_index, transfer=transfer or "auto")
    if transfer not in (None, "auto", "srgb"):
        raise InputError(f"transfer: expected srgb for an animation, got {transfer!r}")
    require_nonempty_file_and_get_bytes(where)
    from PIL import Image

    reason = f"cannot read picture {picture_index}"
    with raise_as_input_errors(where, reason, OSError, ValueError, SyntaxError, EOFError), Image.open(where) as image:
        image.seek(picture_index)
        pixels = np.asarray(image.convert("RGB"))
    return torch.from_numpy(pixels.astype(np.float32).transpose(2, 0, 1) / 255)
