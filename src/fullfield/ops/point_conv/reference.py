"""Plain PyTorch, any floating dtype and device: defines the truth.

The products take a chunk of rows at a time, cell by cell: gather, multiply; then every row is summed in its order.
They hold one chunk besides arguments and result; what builds and sorts triplets holds them all. float32 on CUDA follows
``torch.get_float32_matmul_precision()``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fullfield.ops.point_conv.protocol import FEATURES, ConvRequest
from fullfield.ops.point_conv.triplets import (
    Triplets,
    convert_counts_to_offsets,
    expand_row_offsets,
    list_row_and_entry_chunk_bounds,
    pack_triplets,
    unpack_indices_and_cells,
)

# Gathered features and products worked on at a time; a row that alone needs more is still done at once.
CHUNK_BYTES = 16 << 20


def explain_unsupported(request: ConvRequest) -> str | None:
    """Return None if the features are floating point, else the reason."""
    if request.dtype not in FEATURES:
        return f"needs floating point features, got {request.dtype}"
    return None


def explain_triplets_unsupported(device: torch.device) -> str | None:  # noqa: ARG001 - anywhere
    """Return None: the reference builds triplets on any device."""
    return None


def _list_row_and_entry_chunk_bounds(request: ConvRequest, row_offsets: Tensor) -> list[tuple[int, int, int, int]]:
    width = (sum(request.channels) + 4) * request.accumulate_dtype.itemsize
    return list_row_and_entry_chunk_bounds(row_offsets, CHUNK_BYTES // width)


def _group_positions_by_cell(cells: Tensor, cell_count: int) -> list[tuple[int, Tensor]]:
    """Return (cell, positions) of the cells in use."""
    order = torch.argsort(cells, stable=True)
    counts = torch.bincount(cells, minlength=cell_count).tolist()
    groups = torch.split(order, counts)
    return [(k, group) for k, group in enumerate(groups) if counts[k]]


def _split_channels_into_groups(features: Tensor, group_count: int) -> Tensor:
    """Return [n, C] as [groups, n, C / groups]."""
    return features.view(features.shape[0], group_count, -1).transpose(0, 1)


def convolve_triplets(
    request: ConvRequest, features: Tensor, weight: Tensor, bias: Tensor | None, triplets: Triplets
) -> Tensor:
    """Multiply and add over the triplets of each row; the result is [rows, outputs]."""
    exact, groups = request.accumulate_dtype, request.groups
    out = features.new_empty(request.rows, request.channels[1])
    for first, last, start, end in _list_row_and_entry_chunk_bounds(request, triplets.rows):
        index, cell = unpack_indices_and_cells(triplets, request.cells, start, end)
        products = features.new_empty((end - start, request.channels[1]), dtype=exact)
        for k, at in _group_positions_by_cell(cell, request.cells):
            matrices = _split_channels_into_groups(weight[k].to(exact), groups)
            inputs = _split_channels_into_groups(features.index_select(0, index[at]).to(exact), groups)
            products[at] = torch.bmm(inputs, matrices).transpose(0, 1).flatten(1)
        bounds = triplets.rows[first : last + 1] - start
        sums = torch.segment_reduce(products, "sum", offsets=bounds, initial=0, unsafe=True)
        out[first:last] = sums if bias is None else sums + bias.to(exact)
    return out


def sum_outer_products(request: ConvRequest, features: Tensor, grad: Tensor, triplets: Triplets) -> Tensor:
    """Sum the outer products of features and gradients per cell: the gradient of the weight."""
    exact, groups = request.accumulate_dtype, request.groups
    shape = (request.cells, groups, request.channels[0] // groups, request.channels[1] // groups)
    out = features.new_zeros(shape, dtype=exact)
    for first, last, start, end in _list_row_and_entry_chunk_bounds(request, triplets.rows):
        index, cell = unpack_indices_and_cells(triplets, request.cells, start, end)
        row = expand_row_offsets(triplets.rows[first : last + 1] - start) + first
        for k, at in _group_positions_by_cell(cell, request.cells):
            inputs = _split_channels_into_groups(features.index_select(0, index[at]).to(exact), groups)
            outputs = _split_channels_into_groups(grad.index_select(0, row[at]).to(exact), groups)
            out[k] += torch.bmm(inputs.transpose(1, 2), outputs)
    return out.transpose(1, 2).flatten(2).to(features.dtype)


def build_triplets(
    neighbors: tuple[Tensor, Tensor],
    points: Tensor,
    centers: Tensor,
    grid: float,
    kernel_size: tuple[int, int, int],
) -> Triplets:
    """Return the triplets of neighbours: each with its kernel cell."""
    rows, indices = neighbors
    row, index = expand_row_offsets(rows), indices.to(torch.int64)
    # A tensor, for CUDA would multiply by the reciprocal of a number.
    step = torch.tensor(grid, dtype=torch.float32, device=points.device).expand(index.numel())
    cell = torch.zeros_like(index)
    for axis, size in enumerate(kernel_size):
        steps = torch.round((points[index, axis] - centers[row, axis]) / step)
        cell = cell * size + (steps + size // 2).clamp_(0, size - 1).to(torch.int64)
    return sort_and_pack_triplets(
        row, index, cell, (rows.numel() - 1, points.shape[0]), kernel_size[0] * kernel_size[1] * kernel_size[2]
    )


def transpose_triplets(triplets: Triplets, columns: int, cells: int) -> Triplets:
    """Return the triplets by point instead of by centre."""
    index, cell = unpack_indices_and_cells(triplets, cells)
    return sort_and_pack_triplets(
        index, expand_row_offsets(triplets.rows), cell, (columns, triplets.rows.numel() - 1), cells
    )


def sort_and_pack_triplets(
    row: Tensor, index: Tensor, cell: Tensor, shape: tuple[int, int], cell_count: int
) -> Triplets:
    """Sort int64 triplets in any order; ``shape``: rows, columns."""
    order = torch.argsort(index, stable=True)
    order = order[torch.argsort((row * cell_count + cell)[order], stable=True)]
    rows = convert_counts_to_offsets(torch.bincount(row, minlength=shape[0]))
    return pack_triplets(rows, index[order], cell[order], shape[1], cell_count)
