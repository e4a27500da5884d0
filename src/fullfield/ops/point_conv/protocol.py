"""Interface and choice of the point convolution's backends, and checks of callers' arguments.

A backend is a module with

``explain_unsupported(request) -> str | None``
    As :class:`fullfield.ops._backends.Backends` asks.
``explain_triplets_unsupported(device) -> str | None``
    The same question about making triplets there.
``convolve_triplets(request, features, weight, bias, triplets) -> Tensor``
    MVMR: ``out[r] = bias + Σ over row r of features[index] @ weight[cell]``, [R, Cout] of the features' dtype, summed
    in ``request.accumulate_dtype``.
``TRANSPOSES``
    True where ``convolve_triplets`` also takes ``transposed``: 1 for the weights of the other direction, whose
    :func:`transpose_weight` it multiplies with, 2 for the same with the cells mirrored.
``sum_outer_products(request, features, grad, triplets) -> Tensor``
    VVOR: ``out[k] = Σ over entries of cell k of features[index] ⊗ grad[row]``, [K, Cin / groups, Cout] likewise.
``build_triplets(neighbors, points, centers, grid, kernel_size) -> Triplets``
    Cells of neighbours (row offsets int64, indices int32) in float32 coordinates, and the rows sorted.
``transpose_triplets(triplets, columns, cells) -> Triplets``
    The rows of the other side.
``build_all_triplets(requests) -> list[Triplets]``, ``transpose_all_triplets(requests) ->
list[Triplets]``
    Where there are such: the same of several, in fewer launches. The first may write over the neighbours.

Features, weights and bias arrive contiguous, of one dtype, and may be empty. Autocast is off, no graph is recorded.
Results depend on the arguments alone, bit by bit. Backends never import each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield import _check
from fullfield.ops._backends import Backends
from fullfield.ops.point_conv.triplets import Triplets

FEATURES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class TripletRequest(NamedTuple):
    """Request of ``build_triplets``."""

    neighbors: tuple[Tensor, Tensor]
    points: Tensor
    centers: Tensor
    grid: float
    kernel_size: tuple[int, int, int]


class TranspositionRequest(NamedTuple):
    """Request of ``transpose_triplets``."""

    triplets: Triplets
    columns: int
    cells: int


class ConvRequest(NamedTuple):
    """Everything that decides which backend serves a call."""

    device: torch.device
    dtype: torch.dtype
    channels: tuple[int, int]
    """In, out."""
    groups: int
    cells: int
    """K: cells of the kernel."""
    rows: int
    columns: int
    """How many rows the indices point into."""
    entries: int
    """Triplets."""
    precision: str = "highest"
    """torch.get_float32_matmul_precision()"""

    @property
    def accumulate_dtype(self) -> torch.dtype:
        """Dtype of sums: float64 for float64, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


# ---- checks of callers' arguments

MAX_CELLS_PER_AXIS = 8  # so that a cell has nine bits


def check_and_expand_kernel_size(kernel_size: int | Sequence[int]) -> tuple[int, int, int]:
    """Return a kernel size, one number or one per axis, as three numbers."""
    sides = list(kernel_size) if isinstance(kernel_size, Iterable) else [kernel_size] * 3
    _check.require(len(sides) == 3, "kernel_size", "an integer or three", repr(kernel_size))
    for side in sides:
        _check.check_number(side, "kernel_size", integer=True, low=1, high=MAX_CELLS_PER_AXIS)
    return (int(sides[0]), int(sides[1]), int(sides[2]))


def check_conv_arguments(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    point_count: int,
    cell_count: int,
    device: torch.device,
    groups: int,
) -> None:
    """Check the arguments; cheap and traceable with symbolic sizes if they fit, else ``_check`` words the error."""
    if not isinstance(groups, int) or groups < 1:
        _check.check_number(groups, "groups", integer=True, low=1)
    if type(features) is Tensor and type(weight) in (Tensor, torch.nn.Parameter):  # the usual case, in little time
        rows, weight_shape, dtype = features.shape, weight.shape, features.dtype
        is_valid = (
            len(rows) == 2
            and len(weight_shape) == 3
            and is_equal_count(rows[0], point_count)
            and weight_shape[0] == cell_count
        )
        is_valid = is_valid and rows[1] == weight_shape[1] * groups and weight_shape[2] % groups == 0
        same = weight.dtype is dtype and dtype in FEATURES and features.device == weight.device == device
        if bias is not None:
            same = same and isinstance(bias, Tensor) and bias.shape == weight_shape[2:] and bias.dtype is dtype
            same = same and bias.device == device
        if is_valid and same:
            return
    check_feature_rows(features, point_count, device, "Cin")
    inputs = features.shape[1]
    _check.require(inputs % groups == 0, "groups", f"a divisor of {inputs} input channels", groups)
    shape = (cell_count, inputs // groups, "Cout")
    _check.check_tensor(weight, "weight", shape, dtypes=(features.dtype,), device=device)
    outputs = weight.shape[2]
    _check.require(outputs % groups == 0, "groups", f"a divisor of {outputs} output channels", groups)
    if bias is not None:
        _check.check_tensor(bias, "bias", (outputs,), dtypes=(features.dtype,), device=device)


def check_feature_rows(features: Tensor, point_count: int, device: torch.device, channels: str = "C") -> None:
    """Check that features have one row per point."""
    is_valid = isinstance(features, Tensor) and features.ndim == 2 and is_equal_count(features.shape[0], point_count)
    rows = None if is_valid else int(point_count)
    _check.check_tensor(features, "features", (rows, channels), dtypes=FEATURES, device=device)


def is_equal_count(row_count: int, point_count: int) -> bool:
    """Return whether the numbers are equal, by two inequalities.

    After an equation torch.compile would write sizes of other tensors as sums with ``point_count``, which Inductor then
    does not find among the inputs of its graph.
    """
    return point_count <= row_count <= point_count


# ---- choice, by preference

BACKENDS = ("cuda", "cpu", "reference")


class _TripletBackends(Backends):
    def explain_refusal(self, name: str, *request: torch.device) -> str | None:
        reason: str | None = self.load(name).explain_triplets_unsupported(*request)
        return reason


CONVOLUTIONS = Backends("point_conv", f"{__package__}.", BACKENDS)
_BUILDERS = _TripletBackends("point_conv", f"{__package__}.", BACKENDS)


def choose_triplet_backend_module(device: torch.device) -> Any:
    """Return the backend that builds triplets on ``device``; the reference can on any."""
    return _BUILDERS.load(_BUILDERS.choose(None, device))
