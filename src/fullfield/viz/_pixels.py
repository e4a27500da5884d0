"""What every picture needs: rows in blocks, known vectors, the colours of the surroundings."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fullfield import _check

UNKNOWN_BEYOND = 1e9  # the mark of an unknown vector in .flo files
BACKGROUND = (24, 26, 31)
INK = (232, 234, 238)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PIXELS_AT_ONCE = 2**18


def blocks(height: int, width: int) -> Iterator[slice]:
    """Slices of rows of a bounded number of pixels."""
    rows = max(1, _PIXELS_AT_ONCE // max(width, 1))
    for top in range(0, height, rows):
        yield slice(top, min(top + rows, height))


def check_flow(flow: Tensor, valid: Tensor | None, name: str = "flow") -> None:
    """Refuse anything but a flow ``[2, H, W]`` and a bool ``[H, W]`` beside it, on the CPU."""
    cpu = torch.device("cpu")
    _check.tensor(flow, name, (2, "H", "W"), dtypes=FLOATS, device=cpu)
    if valid is not None:
        _check.tensor(valid, "valid", tuple(flow.shape[-2:]), dtypes=(torch.bool,), device=cpu)


def known(flow: Tensor, valid: Tensor | None) -> Tensor:
    """Where the vectors ``[..., 2, H, W]`` say something: bool ``[..., H, W]``."""
    result = (flow.abs() <= UNKNOWN_BEYOND).all(-3)
    return result if valid is None else result & valid


def check_image(image: Tensor, name: str) -> None:
    """Refuse anything but a picture: uint8 ``[3, H, W]`` on the CPU, not empty."""
    _check.tensor(image, name, (3, "H", "W"), dtypes=(torch.uint8,), device=torch.device("cpu"))
    _check.require(image.numel() > 0, name, "at least one pixel", image)
