"""Interface of the point convolution's backends: two products and the assembly of triplets.

A backend is a module with

``supports(request) -> str | None``
    As :class:`fullfield.ops.backends.Backends` asks.
``builds(device) -> str | None``
    The same question about making triplets there.
``multiply(request, features, weight, bias, triplets) -> Tensor``
    MVMR: ``out[r] = bias + Σ over row r of features[index] @ weight[cell]``, [R, Cout] of the features' dtype, summed
    in ``request.accumulate_dtype``.
``TRANSPOSES``
    True where ``multiply`` takes ``transposed`` beside: 1 for the weights of the other direction, whose
    :func:`adjoint_weight` it multiplies with, 2 for the same with the cells mirrored.
``outer(request, features, grad, triplets) -> Tensor``
    VVOR: ``out[k] = Σ over entries of cell k of features[index] ⊗ grad[row]``, [K, Cin / groups, Cout] likewise.
``assemble(neighbors, points, centers, grid, kernel_size) -> Triplets``
    Cells of neighbours (row offsets int64, indices int32) in float32 coordinates, and the rows sorted.
``transpose(triplets, columns, cells) -> Triplets``
    The rows of the other side.
``assemble_all(wanted) -> list[Triplets]``, ``transpose_all(wanted) -> list[Triplets]``
    Where there are such: the same of several, in fewer launches. The first may write over the neighbours.

Features, weights and bias arrive contiguous, of one dtype, and may be empty. Autocast is off, no graph is recorded.
Results depend on the arguments alone, bit by bit. Backends never import each other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fullfield.ops.point_conv.triplets import Triplets

FEATURES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Wanted(NamedTuple):
    """Request of ``assemble``."""

    neighbors: tuple[Tensor, Tensor]
    points: Tensor
    centers: Tensor
    grid: float
    kernel_size: tuple[int, int, int]


class Transposition(NamedTuple):
    """Request of ``transpose``."""

    triplets: Triplets
    columns: int
    cells: int


class Request(NamedTuple):
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
