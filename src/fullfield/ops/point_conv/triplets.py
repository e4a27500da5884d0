"""Triplets (i, j, k) in rows: what centre i reads from point j through kernel cell k.

A row holds the triplets of one centre, sorted by cell and then by point, so those that share a bucket (i, k) lie
together. A triplet is one 32-bit word, ``cell << index_bits | index`` without sign; where the indices need more bits
than the cells leave, the word holds the index and, as its sign, the cell's ninth bit, and the other eight stand beside.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Triplets(NamedTuple):
    """One direction: rows of centres that list points, or the other way round."""

    rows: Tensor  # [R + 1] int64: row r is entries[rows[r]:rows[r + 1]]
    entries: Tensor  # [T] int32
    cells: Tensor  # [T] uint8; empty where the entries hold the cells


def count_index_bits(cell_count: int) -> int:
    """Return the bits of a word for the index, for a kernel of ``cell_count`` cells."""
    return min(31, 32 - (cell_count - 1).bit_length())


def can_pack_index_and_cell(column_count: int, cell_count: int) -> bool:
    """Return whether a word holds a cell and an index below ``column_count``."""
    return column_count <= 1 << count_index_bits(cell_count)


def pack_triplets(row_offsets: Tensor, index: Tensor, cell: Tensor, column_count: int, cell_count: int) -> Triplets:
    """Pack int64 indices and cells that are already sorted."""
    if can_pack_index_and_cell(column_count, cell_count):
        entries = (cell << count_index_bits(cell_count) | index).to(torch.int32)
        return Triplets(row_offsets, entries, torch.empty(0, dtype=torch.uint8, device=row_offsets.device))
    return Triplets(row_offsets, (cell >> 8 << 31 | index).to(torch.int32), (cell & 0xFF).to(torch.uint8))


def unpack_indices_and_cells(
    triplets: Triplets, cell_count: int, first: int = 0, last: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return indices and cells, int64, of entries ``first:last``."""
    words = triplets.entries[first:last].to(torch.int64) & 0xFFFFFFFF
    if triplets.cells.numel():
        return words & 0x7FFFFFFF, words >> 31 << 8 | triplets.cells[first:last].to(torch.int64)
    bits = count_index_bits(cell_count)
    return words & ((1 << bits) - 1), words >> bits


def expand_row_offsets(row_offsets: Tensor) -> Tensor:
    """Return the row of every entry, [T] int64."""
    return torch.repeat_interleave(torch.arange(row_offsets.numel() - 1, device=row_offsets.device), row_offsets.diff())


def convert_counts_to_offsets(counts: Tensor) -> Tensor:
    """Return row offsets [R + 1] from the number of entries of each row [R]."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def list_row_and_entry_chunk_bounds(row_offsets: Tensor, entries_per_chunk: int) -> list[tuple[int, int, int, int]]:
    """Return (first row, last, first entry, last) of chunks of about that many entries; a row is never cut."""
    count, step = row_offsets.numel() - 1, max(1, entries_per_chunk)
    marks = torch.arange(step, int(row_offsets[-1]) + step, step, device=row_offsets.device)
    cuts = torch.searchsorted(row_offsets, marks, right=True).sub_(1).clamp_(max=count).tolist()
    edges = sorted({0, *cuts, count})
    ends = row_offsets[torch.tensor(edges, device=row_offsets.device)].tolist()
    return list(zip(edges, edges[1:], ends, ends[1:], strict=False))
