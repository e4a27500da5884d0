"""Triplets made and turned round on the device. Never waits for it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import address, structure
from fullfield.ops.point_conv.triplets import Triplets, fits, index_bits

LIBRARIES = Libraries("triplet kernels")
_ROOM = 256  # keys of a row that a warp sorts in shared memory
_WARPS = 8

_ptr, _i64, _i32 = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int
_Params: Any = structure(
    "TripletParams", ("from_", _ptr), ("numbers", _ptr), ("numbers_beside", _ptr), ("points", _ptr), ("centers", _ptr),
    ("rows", _ptr), ("counts", _ptr), ("words", _ptr), ("beside", _ptr), ("count", _i64), ("entries", _i64),
    ("grid", ctypes.c_float), ("sides", _i32 * 3), ("bits", _i32),
)  # fmt: skip


def builds(device: torch.device) -> str | None:
    """None where these kernels run on the device, else the reason that they do not."""
    return launching.why_not(device)


def source(beside: bool, given: bool = False) -> Source:
    """All of them; ``beside``: whether cells stand beside the words that are written, ``given``: that are read."""
    key = "unsigned long long" if beside else "unsigned"
    text = launching.read_source(launching.SORT_ROWS, Path(__file__).with_name("triplets.cu"))
    return Source(text, (f"-DKEY={key}", f"-DROOM={_ROOM}", f"-DBESIDE={int(beside)}", f"-DGIVEN={int(given)}"))


def _empty(rows: Tensor, columns: int, entries: int, cells: int) -> Triplets:
    beside = 0 if fits(columns, cells) else entries
    return Triplets(rows, rows.new_empty(entries, dtype=torch.int32), rows.new_empty(beside, dtype=torch.uint8))


def assemble(
    neighbors: tuple[Tensor, Tensor],
    points: Tensor,
    centers: Tensor,
    grid: float,
    kernel_size: tuple[int, int, int],
) -> Triplets:
    """As ``protocol.py`` says."""
    rows, indices = (t.contiguous() for t in neighbors)
    points, centers = points.contiguous(), centers.contiguous()
    cells = kernel_size[0] * kernel_size[1] * kernel_size[2]
    out = _empty(rows, points.shape[0], indices.numel(), cells)
    p = _Params()
    p.from_, p.numbers, p.points, p.centers = map(address, (rows, indices, points, centers))
    p.rows, p.words, p.beside = map(address, out)
    p.count, p.entries, p.grid, p.bits = rows.numel() - 1, indices.numel(), grid, index_bits(cells)
    p.sides[:] = kernel_size
    if indices.numel():
        launching.launch(LIBRARIES, source(bool(out.cells.numel())), "assemble_rows", p.count, _WARPS, p, rows)
    return out


def transpose(triplets: Triplets, columns: int, cells: int) -> Triplets:
    """As ``protocol.py`` says."""
    entries, count = triplets.entries.numel(), triplets.rows.numel() - 1
    counts = triplets.rows.new_zeros(columns, dtype=torch.int32)
    rows = triplets.rows.new_zeros(columns + 1)
    out = _empty(rows, count, entries, cells)
    if not entries:
        return out
    p = _Params()
    p.from_, p.numbers, p.numbers_beside = map(address, triplets)
    p.rows, p.words, p.beside = map(address, out)
    p.counts, p.count, p.entries, p.bits = counts.data_ptr(), count, entries, index_bits(cells)
    kernels_of = source(bool(out.cells.numel()), bool(triplets.cells.numel()))
    launching.launch(LIBRARIES, kernels_of, "count_entries", entries, 256, p, rows)
    torch.cumsum(counts, 0, dtype=torch.int64, out=rows[1:])
    launching.launch(LIBRARIES, kernels_of, "scatter_entries", count, _WARPS, p, rows)
    p.count = columns
    launching.launch(LIBRARIES, kernels_of, "sort_rows", columns, _WARPS, p, rows)
    return out
