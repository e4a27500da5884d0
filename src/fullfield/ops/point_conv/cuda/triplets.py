"""Triplets made and transposed on the device. Never waits for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import get_address, parse_structures
from fullfield.ops.point_conv.protocol import TranspositionRequest, TripletRequest
from fullfield.ops.point_conv.triplets import Triplets, can_pack_index_and_cell, count_index_bits

LIBRARIES = LibraryCache("triplet kernels")
_SHARED_KEYS = 256  # keys of a row that a warp sorts in shared memory
_WARPS = 8

_SOURCE = Path(__file__).with_name("triplets.cu")
_Batch = _launching.build_batch_structure(parse_structures(_SOURCE)["TripletParams"])


def explain_triplets_unsupported(device: torch.device) -> str | None:
    """Return None if the kernels can build triplets of points on ``device``, else the reason."""
    return _launching.explain_unsupported_device(device)


@functools.cache
def generate_triplets_source(has_cells: bool, reads_cells: bool = False) -> KernelSource:
    """Return the source; whether written (``has_cells``) and read triplets keep cells apart from the words."""
    key = "unsigned long long" if has_cells else "unsigned"
    text = _launching.read_source(_launching.HALVES, _launching.BATCHES, _launching.SORT_ROWS, _SOURCE)
    return KernelSource.with_macros(text, KEY=key, ROOM=_SHARED_KEYS, BESIDE=has_cells, GIVEN=reads_cells)


def _allocate_cells_unless_packed(
    rows: Tensor, column_count: int, entry_count: int, cell_count: int, empty: Tensor
) -> Tensor:
    """Return memory for cells that are kept apart from the words; ``empty``, which holds nothing, if they are not."""
    return (
        empty if can_pack_index_and_cell(column_count, cell_count) else rows.new_empty(entry_count, dtype=torch.uint8)
    )


def _iterate_index_chunks_with_equal_keys(keys: Sequence[object]) -> Iterator[list[int]]:
    """Yield the places of equal keys, at most as many as fit a launch."""
    groups: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    for indices in groups.values():
        for start in range(0, len(indices), _launching.MAX_PROBLEMS):
            yield indices[start : start + _launching.MAX_PROBLEMS]


def build_all_triplets(requests: Sequence[TripletRequest], *, overwrites_neighbors: bool = True) -> list[Triplets]:
    """Run :func:`build_triplets` for each in few launches; by default over the neighbours' indices."""
    results, none = [], requests[0].points.new_empty(0, dtype=torch.uint8)
    for one in requests:
        rows, numbers = one.neighbors[0].contiguous(), one.neighbors[1]
        words = numbers if overwrites_neighbors else torch.empty_like(numbers, memory_format=torch.contiguous_format)
        cells = _allocate_cells_unless_packed(
            rows, one.points.shape[0], numbers.numel(), math.prod(one.kernel_size), none
        )
        results.append(Triplets(rows, words, cells))
    for indices in _iterate_index_chunks_with_equal_keys([bool(out.cells.numel()) for out in results]):
        batch, arguments, blocks = _Batch(), [], []
        for p, index in zip(batch.each, indices, strict=False):
            one, out = requests[index], results[index]
            inputs = (out.rows, *(t.contiguous() for t in (one.neighbors[1], one.points, one.centers)))
            arguments.append(inputs)
            p.from_, p.numbers, p.points, p.centers = map(get_address, inputs)
            p.rows, p.words, p.beside = map(get_address, out)
            p.count, p.entries, p.grid = out.rows.numel() - 1, out.entries.numel(), one.grid
            p.bits, p.sides[:] = count_index_bits(math.prod(one.kernel_size)), one.kernel_size
            blocks.append(-(-p.count // _WARPS) if p.entries else 0)
        first = results[indices[0]]
        kernels = _launching.load_kernels(
            LIBRARIES, generate_triplets_source(bool(first.cells.numel())), first.rows.get_device()
        )
        kernels.launch_batch("assemble_rows", batch, blocks)
    return results


def build_triplets(
    neighbors: tuple[Tensor, Tensor],
    points: Tensor,
    centers: Tensor,
    grid: float,
    kernel_size: tuple[int, int, int],
) -> Triplets:
    """Return the triplets of neighbours: each with its kernel cell."""
    return build_all_triplets(
        [TripletRequest(neighbors, points, centers, grid, kernel_size)], overwrites_neighbors=False
    )[0]


def transpose_all_triplets(requests: Sequence[TranspositionRequest]) -> list[Triplets]:
    """Run :func:`transpose_triplets` for each, in the same four launches where possible."""
    results, none = [], requests[0].triplets.rows.new_empty(0, dtype=torch.uint8)
    for t in requests:
        rows, entries, _ = t.triplets
        cells = _allocate_cells_unless_packed(rows, rows.numel() - 1, entries.numel(), t.cells, none)
        results.append(Triplets(rows.new_empty(t.columns + 1), torch.empty_like(entries), cells))
    variants = [
        (bool(out.cells.numel()), bool(t.triplets.cells.numel())) for out, t in zip(results, requests, strict=True)
    ]
    for indices in _iterate_index_chunks_with_equal_keys(variants):
        _launch_transposition(
            [requests[index] for index in indices],
            [results[index] for index in indices],
            generate_triplets_source(*variants[indices[0]]),
        )
    return results


def _launch_transposition(
    requests: Sequence[TranspositionRequest], results: Sequence[Triplets], source: KernelSource
) -> None:
    rows = results[0].rows
    sum_counts = [max(1, -(-one.columns // _launching.SUMMED)) for one in requests]
    words = len(requests) + sum(sum_counts)
    zeros = rows.new_zeros(words + -(-sum(one.columns for one in requests) // 2))
    batch, word, count = _Batch(), zeros.data_ptr(), zeros.data_ptr() + 8 * words
    for p, one, out, size in zip(batch.each, requests, results, sum_counts, strict=False):
        p.from_, p.numbers, p.numbers_beside = map(get_address, one.triplets)
        p.rows, p.words, p.beside = map(get_address, out)
        p.transposed, p.counts, p.passed = p.rows, count, word
        p.count, p.entries, p.columns = one.triplets.rows.numel() - 1, one.triplets.entries.numel(), one.columns
        p.bits = count_index_bits(one.cells)
        count, word = count + 4 * one.columns, word + 8 * (1 + size)
    kernels = _launching.load_kernels(LIBRARIES, source, rows.get_device())
    kernels.launch_batch("count_entries", batch, [-(-out.entries.numel() // 256) for out in results])
    kernels.launch_batch("start_rows", batch, sum_counts)
    each = [-(-(one.triplets.rows.numel() - 1) // _WARPS) for one in requests]
    kernels.launch_batch("scatter_entries", batch, each)
    kernels.launch_batch("sort_rows", batch, [-(-one.columns // _WARPS) for one in requests])


def transpose_triplets(triplets: Triplets, columns: int, cells: int) -> Triplets:
    """Return the triplets by point instead of by centre."""
    return transpose_all_triplets([TranspositionRequest(triplets, columns, cells)])[0]
