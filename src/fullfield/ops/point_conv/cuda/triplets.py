"""Triplets made and transposed on the device. Never waits for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import _launching
from fullfield.ops._launching import address, structures
from fullfield.ops.point_conv.protocol import Transposition, Wanted
from fullfield.ops.point_conv.triplets import Triplets, fits, index_bits

LIBRARIES = Libraries("triplet kernels")
_ROOM = 256  # keys of a row that a warp sorts in shared memory
_WARPS = 8

_SOURCE = Path(__file__).with_name("triplets.cu")
_Batch = _launching.batch(structures(_SOURCE)["TripletParams"])


def builds(device: torch.device) -> str | None:
    """Return None if the kernels can build triplets of points on ``device``, else the reason."""
    return _launching.why_not(device)


@functools.cache
def source(beside: bool, given: bool = False) -> Source:
    """Return the source; ``beside``: whether written triplets keep cells apart from the words, ``given``: read ones."""
    key = "unsigned long long" if beside else "unsigned"
    text = _launching.read_source(_launching.HALVES, _launching.BATCHES, _launching.SORT_ROWS, _SOURCE)
    return Source.defining(text, KEY=key, ROOM=_ROOM, BESIDE=beside, GIVEN=given)


def _beside(rows: Tensor, columns: int, entries: int, cells: int, none: Tensor) -> Tensor:
    """Return memory for cells that are kept apart from the words; ``none``, which is empty, if they are not."""
    return none if fits(columns, cells) else rows.new_empty(entries, dtype=torch.uint8)


def _grouped(keys: Sequence[object]) -> Iterator[list[int]]:
    """Yield the places of equal keys, at most as many as fit a launch."""
    found: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    for places in found.values():
        for begin in range(0, len(places), _launching.MOST_PROBLEMS):
            yield places[begin : begin + _launching.MOST_PROBLEMS]


def assemble_all(wanted: Sequence[Wanted], *, reuse: bool = True) -> list[Triplets]:
    """Run :func:`assemble` for each in few launches; with ``reuse`` the result overwrites the neighbours' indices."""
    made, none = [], wanted[0].points.new_empty(0, dtype=torch.uint8)
    for one in wanted:
        rows, numbers = one.neighbors[0].contiguous(), one.neighbors[1]
        words = numbers if reuse else torch.empty_like(numbers, memory_format=torch.contiguous_format)
        beside = _beside(rows, one.points.shape[0], numbers.numel(), math.prod(one.kernel_size), none)
        made.append(Triplets(rows, words, beside))
    for places in _grouped([bool(out.cells.numel()) for out in made]):
        batch, kept, blocks = _Batch(), [], []
        for p, place in zip(batch.each, places, strict=False):
            one, out = wanted[place], made[place]
            given = (out.rows, *(t.contiguous() for t in (one.neighbors[1], one.points, one.centers)))
            kept.append(given)
            p.from_, p.numbers, p.points, p.centers = map(address, given)
            p.rows, p.words, p.beside = map(address, out)
            p.count, p.entries, p.grid = out.rows.numel() - 1, out.entries.numel(), one.grid
            p.bits, p.sides[:] = index_bits(math.prod(one.kernel_size)), one.kernel_size
            blocks.append(-(-p.count // _WARPS) if p.entries else 0)
        first = made[places[0]]
        kernels = _launching.kernels(LIBRARIES, source(bool(first.cells.numel())), first.rows.get_device())
        kernels.launch_batch("assemble_rows", batch, blocks)
    return made


def assemble(
    neighbors: tuple[Tensor, Tensor],
    points: Tensor,
    centers: Tensor,
    grid: float,
    kernel_size: tuple[int, int, int],
) -> Triplets:
    """Return the triplets of neighbours: each with its kernel cell."""
    return assemble_all([Wanted(neighbors, points, centers, grid, kernel_size)], reuse=False)[0]


def transpose_all(wanted: Sequence[Transposition]) -> list[Triplets]:
    """Run :func:`transpose` for each, in the same four launches where possible."""
    made, none = [], wanted[0].triplets.rows.new_empty(0, dtype=torch.uint8)
    for t in wanted:
        rows, entries, _ = t.triplets
        room = _beside(rows, rows.numel() - 1, entries.numel(), t.cells, none)
        made.append(Triplets(rows.new_empty(t.columns + 1), torch.empty_like(entries), room))
    beside = [(bool(out.cells.numel()), bool(t.triplets.cells.numel())) for out, t in zip(made, wanted, strict=True)]
    for places in _grouped(beside):
        _transpose([wanted[place] for place in places], [made[place] for place in places], source(*beside[places[0]]))
    return made


def _transpose(wanted: Sequence[Transposition], made: Sequence[Triplets], kernels_of: Source) -> None:
    rows = made[0].rows
    parts = [max(1, -(-one.columns // _launching.SUMMED)) for one in wanted]
    words = len(wanted) + sum(parts)
    zeros = rows.new_zeros(words + -(-sum(one.columns for one in wanted) // 2))
    batch, word, count = _Batch(), zeros.data_ptr(), zeros.data_ptr() + 8 * words
    for p, one, out, size in zip(batch.each, wanted, made, parts, strict=False):
        p.from_, p.numbers, p.numbers_beside = map(address, one.triplets)
        p.rows, p.words, p.beside = map(address, out)
        p.transposed, p.counts, p.passed = p.rows, count, word
        p.count, p.entries, p.columns = one.triplets.rows.numel() - 1, one.triplets.entries.numel(), one.columns
        p.bits = index_bits(one.cells)
        count, word = count + 4 * one.columns, word + 8 * (1 + size)
    kernels = _launching.kernels(LIBRARIES, kernels_of, rows.get_device())
    kernels.launch_batch("count_entries", batch, [-(-out.entries.numel() // 256) for out in made])
    kernels.launch_batch("start_rows", batch, parts)
    each = [-(-(one.triplets.rows.numel() - 1) // _WARPS) for one in wanted]
    kernels.launch_batch("scatter_entries", batch, each)
    kernels.launch_batch("sort_rows", batch, [-(-one.columns // _WARPS) for one in wanted])


def transpose(triplets: Triplets, columns: int, cells: int) -> Triplets:
    """Return the triplets by point instead of by centre."""
    return transpose_all([Transposition(triplets, columns, cells)])[0]
