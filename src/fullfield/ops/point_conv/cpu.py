"""Compiled kernels for the CPU: all cores (``torch.set_num_threads``), results that do not depend on their number.

Products and sums are float32; 16-bit features are widened once a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._kernels.numba_cache import KernelModule, explain_missing_numba
from fullfield._kernels.threads import run_task_on_ranges_and_wait
from fullfield.ops.point_conv.protocol import ConvRequest
from fullfield.ops.point_conv.triplets import (
    Triplets,
    can_pack_index_and_cell,
    convert_counts_to_offsets,
    count_index_bits,
)

LANES = 16
# The weight gradient is summed in so many segments of rows at most, of no fewer tiles, in no more bytes.
_SEGMENTS, _SEGMENT_TILES, _SEGMENT_BYTES = 16, 64, 64 << 20


def explain_unsupported(request: ConvRequest) -> str | None:
    """Return None if the CPU kernels can serve the request, else the reason."""
    if request.device.type != "cpu":
        return f"runs on the CPU, the features are on {request.device}"
    if request.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"needs float32, float16 or bfloat16 features, got {request.dtype}"
    return explain_missing_numba()


def explain_triplets_unsupported(device: torch.device) -> str | None:
    """Return None if the CPU kernels can build triplets of points on ``device``, else the reason."""
    return f"runs on the CPU, the points are on {device}" if device.type != "cpu" else explain_missing_numba()


_kernels = KernelModule(f"{__package__}._cpu_kernels", "point convolution kernels")


def _run_range_task_in_threads(item_count: int, min_range_items: int, range_task: Any) -> None:
    run_task_on_ranges_and_wait(item_count, min_range_items, torch.get_num_threads(), range_task)


def _convert_to_float32_array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().to(torch.float32).contiguous().numpy()
    return array


def _get_arrays_and_index_bits(triplets: Triplets, cells: int) -> tuple[Any, Any, Any, int]:
    rows, entries, side_cells = (t.numpy() for t in triplets)
    return rows, entries.view(np.uint32), side_cells, count_index_bits(cells)


def _choose_joined_group_count_and_size(request: ConvRequest) -> tuple[int, int]:
    """Return the number of groups, and how many of the request's form one: enough to fill a vector."""
    each = request.channels[1] // request.groups
    joined = 1
    while joined < request.groups and (joined * each < LANES or request.groups % joined):
        joined += 1
    return request.groups // joined, joined


def _join_weight_groups_with_zeros(weight: Tensor, groups: int, joined: int) -> Tensor:
    """Convert [K, Cin / g, Cout] of g = groups * joined to [groups, K, joined inputs, joined outputs]."""
    cells, inputs, outputs = weight.shape
    split = weight.detach().to(torch.float32).view(cells, inputs, groups, joined, outputs // (groups * joined))
    out = split.new_zeros(groups, cells, joined, inputs, joined, split.shape[4])
    for group in range(joined):
        out[:, :, group, :, group] = split[:, :, :, group].permute(2, 0, 1, 3)
    return out.view(groups, cells, joined * inputs, -1)


def _pack_weight_into_panels(weight: Tensor) -> Tensor:
    """Return the weight flat, [groups, K, inputs, outputs], in the kernels' order."""
    from fullfield.ops.point_conv._cpu_simd import PANEL

    short = -weight.shape[3] % LANES
    padded = torch.nn.functional.pad(weight, (0, short)) if short else weight
    panels = [panel.flatten(2) for panel in torch.split(padded, PANEL * LANES, dim=3)]
    return torch.cat(panels, dim=2).flatten()


def convolve_triplets(
    request: ConvRequest, features: Tensor, weight: Tensor, bias: Tensor | None, triplets: Triplets
) -> Tensor:
    """Multiply and add over the triplets of each row; the result is [rows, outputs]."""
    from fullfield.ops.point_conv._cpu_kernels import TILE

    kernel = _kernels().convolve_row_tiles
    outputs = request.channels[1]
    out = torch.empty(request.rows, outputs, dtype=torch.float32)
    if not request.rows or not outputs:
        return out.to(request.dtype)
    groups, joined = _choose_joined_group_count_and_size(request)
    flat = _pack_weight_into_panels(_join_weight_groups_with_zeros(weight, groups, joined)).numpy()
    added = _convert_to_float32_array(torch.zeros(outputs, dtype=torch.float32) if bias is None else bias)
    arrays = (_convert_to_float32_array(features), flat, added, *_get_arrays_and_index_bits(triplets, request.cells))
    sizes = (request.cells, groups, request.channels[0] // groups, outputs // groups)
    result = out.numpy()
    _run_range_task_in_threads(-(-request.rows // TILE), 1, lambda a, b: kernel(*arrays, *sizes, result, a, b))
    return out.to(request.dtype)


def sum_outer_products(request: ConvRequest, features: Tensor, grad: Tensor, triplets: Triplets) -> Tensor:
    """Sum the outer products of features and gradients per cell: the gradient of the weight."""
    from fullfield.ops.point_conv._cpu_kernels import BLOCK, TILE

    kernel = _kernels().add_tile_outer_products
    groups, joined = _choose_joined_group_count_and_size(request)
    inputs, outputs = request.channels[0] // groups, request.channels[1] // groups
    height, pitch = -(-inputs // LANES) * LANES, -(-outputs // LANES) * LANES
    tiles = -(-request.rows // TILE)
    output_bytes = 4 * groups * request.cells * height * pitch
    segments = max(1, min(_SEGMENTS, tiles // _SEGMENT_TILES, _SEGMENT_BYTES // max(output_bytes, 1)))
    sums = torch.zeros(segments, groups, request.cells, height, pitch, dtype=torch.float32)
    arrays = (
        _convert_to_float32_array(features),
        _convert_to_float32_array(grad),
        *_get_arrays_and_index_bits(triplets, request.cells),
        request.cells,
    )
    blocks = -(-inputs // BLOCK)

    def add_row_range(first: int, last: int) -> None:
        for number in range(first, last):
            segment, g, block = number // (groups * blocks), number // blocks % groups, number % blocks
            ends = (segment * tiles // segments, (segment + 1) * tiles // segments)
            kernel(*arrays, g, inputs, outputs, block, sums[segment, g].view(-1).numpy(), *ends)

    if sums.numel():
        _run_range_task_in_threads(segments * groups * blocks, 1, add_row_range)
    total = sums.sum(0)[:, :, :inputs, :outputs]
    split = total.reshape(groups, request.cells, joined, inputs // joined, joined, outputs // joined)
    own = torch.stack([split[:, :, group, :, group] for group in range(joined)], dim=1)
    return own.permute(2, 3, 0, 1, 4).flatten(2).to(request.dtype)


def build_triplets(
    neighbors: tuple[Tensor, Tensor],
    points: Tensor,
    centers: Tensor,
    grid: float,
    kernel_size: tuple[int, int, int],
) -> Triplets:
    """Return the triplets of neighbours: each with its kernel cell."""
    kernel = _kernels().compute_and_write_sorted_row_entries
    rows, indices = neighbors
    count = kernel_size[0] * kernel_size[1] * kernel_size[2]
    triplets = _allocate_triplets(rows.contiguous(), points.shape[0], indices.numel(), count)
    _, entries, cells, bits = _get_arrays_and_index_bits(triplets, count)
    arguments = (
        triplets.rows.numpy(),
        indices.contiguous().numpy(),
        _convert_to_float32_array(points),
        _convert_to_float32_array(centers),
        np.float32(grid),
    )
    sides = np.array(kernel_size, np.int64)
    _run_range_task_in_threads(
        rows.numel() - 1, 256, lambda a, b: kernel(*arguments, sides, bits, entries, cells, a, b)
    )
    return triplets


def transpose_triplets(triplets: Triplets, columns: int, cells: int) -> Triplets:
    """Return the triplets by point instead of by centre."""
    kernels = _kernels()
    rows, entries, cell_array, bits = _get_arrays_and_index_bits(triplets, cells)
    counts = torch.zeros(columns, dtype=torch.int64)
    kernels.count_entries_per_index(entries, cell_array, bits, counts.numpy())
    out = _allocate_triplets(convert_counts_to_offsets(counts), len(rows) - 1, len(entries), cells)
    others = _get_arrays_and_index_bits(out, cells)
    kernels.scatter_entries_into_transposed_rows(
        rows, entries, cell_array, bits, out.rows[:-1].clone().numpy(), *others[1:3]
    )
    _run_range_task_in_threads(columns, 256, lambda a, b: kernels.sort_row_entries_inplace(*others, a, b))
    return out


def _allocate_triplets(rows: Tensor, column_count: int, entry_count: int, cells: int) -> Triplets:
    cell_count = 0 if can_pack_index_and_cell(column_count, cells) else entry_count
    return Triplets(rows, torch.empty(entry_count, dtype=torch.int32), torch.empty(cell_count, dtype=torch.uint8))
