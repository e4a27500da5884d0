"""Pooling on the device: one pass over the rows, nothing stored beside the results. Never waits for it."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, get_address, parse_structures
from fullfield.ops.point_conv.triplets import Triplets, count_index_bits

LIBRARIES = LibraryCache("pooling kernels")
_CODES = {**CODES, torch.float64: 3}
_SOURCE = Path(__file__).with_name("pooling.cu")
_Params = parse_structures(_SOURCE)["PoolParams"]


def explain_unsupported(features: Tensor) -> str | None:
    """Return None if the kernels can pool the features, else the reason."""
    return (
        _launching.explain_unsupported_device(features.device)
        if features.dtype in _CODES
        else f"has no kernels for {features.dtype}"
    )


@functools.cache
def generate_pooling_source(dtype: torch.dtype, has_cells: bool) -> KernelSource:
    """Return the source of all kernels; ``has_cells``: whether triplets keep cells apart from the words."""
    text = _launching.read_source(_launching.HALVES, _launching.VALUES, _SOURCE)
    return KernelSource.with_macros(text, IN=_CODES[dtype], BESIDE=has_cells)


def _launch_pooling_and_get_output(
    kernel_name: str, features: Tensor, winners_in_or_out: Tensor | None, triplets: Triplets, cells: int
) -> Tensor:
    features = features.contiguous()
    out = features.new_empty(triplets.rows.numel() - 1, features.shape[1])
    p = _Params()
    p.rows, p.words, _ = map(get_address, triplets)
    p.features, p.winners, p.out = map(get_address, (features, winners_in_or_out, out))
    p.count, p.channels, p.bits = out.numel(), features.shape[1], count_index_bits(cells)
    code = generate_pooling_source(features.dtype, bool(triplets.cells.numel()))
    _launching.load_kernels(LIBRARIES, code, features.get_device()).launch(kernel_name, -(-p.count // 256), 256, p)
    return out


def sum_features_per_row(features: Tensor, triplets: Triplets, cells: int) -> Tensor:
    """Sum over every row, in its order."""
    return _launch_pooling_and_get_output("pool_sum", features, None, triplets, cells)


def compute_row_maxima_and_winners(features: Tensor, triplets: Triplets, cells: int) -> tuple[Tensor, Tensor]:
    """Return the maxima over every row and, int32, the first point that has each; 0 and −1 for empty rows."""
    winners = features.new_empty(triplets.rows.numel() - 1, features.shape[1], dtype=torch.int32)
    return _launch_pooling_and_get_output("pool_max", features, winners, triplets, cells), winners


def backpropagate_max(grad: Tensor, winners: Tensor, triplets: Triplets, cells: int) -> Tensor:
    """Return for every point the sum of the gradients of the centres whose maximum it is."""
    return _launch_pooling_and_get_output("pool_max_backward", grad, winners.contiguous(), triplets, cells)
