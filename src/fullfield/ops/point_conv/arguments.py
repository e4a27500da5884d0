"""Checks of what callers pass: every complaint names the argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops.point_conv.protocol import FEATURES

MOST_CELLS_PER_AXIS = 8  # so that a cell has nine bits


def kernel_sides(kernel_size: int | Sequence[int]) -> tuple[int, int, int]:
    """t, or one per axis, as three."""
    sides = list(kernel_size) if isinstance(kernel_size, Iterable) else [kernel_size] * 3
    _check.require(len(sides) == 3, "kernel_size", "an integer or three", repr(kernel_size))
    for side in sides:
        _check.number(side, "kernel_size", integer=True, low=1, high=MOST_CELLS_PER_AXIS)
    return (int(sides[0]), int(sides[1]), int(sides[2]))


def check_conv(
    features: Tensor, weight: Tensor, bias: Tensor | None, points: int, cells: int, device: torch.device, groups: int
) -> None:
    """Cheap and traceable with symbolic sizes where all is well; ``_check`` words the complaints."""
    if not isinstance(groups, int) or groups < 1:
        _check.number(groups, "groups", integer=True, low=1)
    if type(features) is Tensor and type(weight) in (Tensor, torch.nn.Parameter):  # the usual case, in little time
        rows, given, dtype = features.shape, weight.shape, features.dtype
        fits = len(rows) == 2 and len(given) == 3 and as_many(rows[0], points) and given[0] == cells
        fits = fits and rows[1] == given[1] * groups and given[2] % groups == 0
        same = weight.dtype is dtype and dtype in FEATURES and features.device == weight.device == device
        if bias is not None:
            same = same and isinstance(bias, Tensor) and bias.shape == given[2:] and bias.dtype is dtype
            same = same and bias.device == device
        if fits and same:
            return
    check_rows(features, points, device, "Cin")
    inputs = features.shape[1]
    _check.require(inputs % groups == 0, "groups", f"a divisor of {inputs} input channels", groups)
    shape = (cells, inputs // groups, "Cout")
    _check.tensor(weight, "weight", shape, dtypes=(features.dtype,), device=device)
    outputs = weight.shape[2]
    _check.require(outputs % groups == 0, "groups", f"a divisor of {outputs} output channels", groups)
    if bias is not None:
        _check.tensor(bias, "bias", (outputs,), dtypes=(features.dtype,), device=device)


def check_rows(features: Tensor, points: int, device: torch.device, channels: str = "C") -> None:
    """Check that features have one row per point."""
    fits = isinstance(features, Tensor) and features.ndim == 2 and as_many(features.shape[0], points)
    rows = None if fits else int(points)
    _check.tensor(features, "features", (rows, channels), dtypes=FEATURES, device=device)


def as_many(rows: int, points: int) -> bool:
    """Return whether the numbers are equal, by two inequalities.

    After an equation torch.compile would write sizes of other tensors as sums with ``points``, which Inductor then does
    not find among the inputs of its graph.
    """
    return points <= rows <= points
