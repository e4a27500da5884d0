"""True flow beside an estimated one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fullfield._check import InputError
from fullfield.cli.errors import size

if TYPE_CHECKING:
    from torch import Tensor


def read_truth(path: str, pred: Tensor, pred_path: str, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The truth for ``pred`` ``[2, H, W]`` and where it is known (bool ``[H, W]``).

    ``[2, H, W]``, or ``[4, 2, H, W]`` where the file has twice the size: four values for each pixel (Spring).
    """
    from fullfield.io import read_flow
    from fullfield.metrics import four_values

    truth, known = read_flow(path)
    if scale != 1:
        truth = truth * scale
    height, width = pred.shape[-2:]
    if truth.shape[-2:] == (2 * height, 2 * width):
        values = four_values(truth, known)
        return values, values.isfinite().all(1).all(0)
    if truth.shape[-2:] != pred.shape[-2:]:
        raise InputError(
            f"{pred_path}: is {size(pred)}, but {path} is {size(truth)}; they must have the same size, "
            "or the truth exactly twice the size"
        )
    return truth, known
