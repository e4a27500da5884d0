"""Search and downsampling on NVIDIA GPUs, by kernels compiled on the user's machine; README.md says how they work."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import address, structure
from fullfield.ops.neighbors.ragged import Cloud, Neighbors

Search = tuple[Tensor, Tensor, Tensor, Tensor, float]
"""What :func:`radius_search` takes."""
LIBRARIES = Libraries("neighbour kernels")
# Hash tables have at most so many slots.
_MOST_SLOTS = 1 << 31
# Cells are a little wider than the radius: float32 distances round, and what rounds into the ball must be seen.
_MARGIN = 1.0 + 1e-5
_ROOM = 256  # keys of a row that a warp sorts in shared memory
_WARPS, _QUERIES, _BRANCHES, _LEVELS = 8, 8, 32, 7
_HERE = Path(__file__).parent
_CLOUDS = _HERE / "clouds.cuh"

_ptr, _i64, _i32, _u32 = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_uint
_Radius: Any = structure(
    "RadiusParams", ("points", _ptr), ("queries", _ptr), ("offsets", _ptr), ("query_offsets", _ptr), ("sorted", _ptr),
    ("starts", _ptr), ("places", _ptr), ("rows", _ptr), ("indices", _ptr), ("count", _i64), ("asked", _i64),
    ("batches", _i64), ("inverse", ctypes.c_double), ("limit", ctypes.c_float), ("mask", _u32), ("own", _i32),
)  # fmt: skip
_Tree: Any = structure(
    "TreeParams", ("points", _ptr), ("queries", _ptr), ("offsets", _ptr), ("query_offsets", _ptr), ("low", _ptr),
    ("high", _ptr), ("keys", _ptr), ("order", _ptr), ("sorted", _ptr), ("boxes", _ptr), ("rows", _ptr),
    ("indices", _ptr), ("begin", _i64 * _LEVELS), ("size", _i64 * _LEVELS), ("count", _i64), ("asked", _i64),
    ("batches", _i64), ("levels", _i32), ("level", _i32), ("bits", _i32), ("k", _i32), ("own", _i32),
)  # fmt: skip
_Thin: Any = structure(
    "ThinParams", ("points", _ptr), ("offsets", _ptr), ("owners", _ptr), ("nearest", _ptr), ("winners", _ptr),
    ("slots", _ptr), ("kept", _ptr), ("cell", ctypes.c_double), ("count", _i64), ("batches", _i64), ("mask", _u32),
    ("wide", _i32),
)  # fmt: skip


def supports(device: torch.device) -> str | None:
    """None where the kernels run on the device, else the reason that they do not."""
    return launching.why_not(device)


@functools.cache
def radius_source() -> Source:
    """Radius search."""
    text = launching.read_source(_CLOUDS, launching.SORT_ROWS, _HERE / "radius.cu")
    return Source(text, ("-DKEY=unsigned", f"-DROOM={_ROOM}"))


@functools.cache
def tree_source(k: int) -> Source:
    """kNN search of at most ``k`` neighbours."""
    slots = 1 << max(0, (-(-k // _BRANCHES) - 1).bit_length())
    return Source(launching.read_source(_CLOUDS, _HERE / "knn.cu"), (f"-DSLOTS={slots}",))


@functools.cache
def thin_source() -> Source:
    """Grid downsampling."""
    return Source(launching.read_source(_HERE / "thin.cu"))


def _slots(count: int) -> int:
    """Of a table for so many entries: a power of two."""
    return min(_MOST_SLOTS, max(64, 1 << (2 * count - 1).bit_length()))


def _offsets(offsets: Tensor, device: torch.device) -> Tensor | None:
    """None where there is but one cloud."""
    return offsets.to(device) if offsets.numel() > 2 else None


@dataclass
class _Counted:
    """A search whose pairs are counted: everything but their indices."""

    params: Any
    rows: Tensor
    like: Tensor
    kept: tuple[Tensor | None, ...]
    """What the parameters point to, beside the buckets."""
    buckets: _Buckets | None = None
    """Read once more when the indices, in memory allocated since, are written."""

    def run(self, name: str, items: int, each: int) -> None:
        launching.launch(LIBRARIES, radius_source(), name, items, each, self.params, self.like)

    def finish(self, total: int) -> Neighbors:
        """Write the indices of so many pairs."""
        indices = self.like.new_empty(total, dtype=torch.int32)
        self.params.indices = indices.data_ptr()
        if total:
            self.run("write_neighbors", self.params.asked, _WARPS * _QUERIES)
        return Neighbors(self.rows, indices)


@dataclass
class _Buckets:
    """Points by cells as wide as a radius."""

    starts: Tensor
    ordered: Tensor


def _put_in_buckets(counted: _Counted, points: Tensor) -> _Buckets:
    p, count = counted.params, points.shape[0]
    buckets = _Buckets(
        points.new_zeros(_slots(count) + 1, dtype=torch.int32), points.new_empty(count, 4, dtype=torch.float32)
    )
    places = points.new_empty(count, dtype=torch.int32)
    p.sorted, p.starts, p.places = map(address, (buckets.ordered, buckets.starts, places))
    counted.run("count_points", count, 256)
    torch.cumsum(buckets.starts, 0, dtype=torch.int32, out=buckets.starts)
    counted.run("place_points", count, 256)
    return buckets


def _count(search: Search, known: dict[tuple[object, ...], _Buckets]) -> _Counted:
    points, queries, offsets, query_offsets, radius = search
    own = queries is points
    clouds = _offsets(offsets, points.device)
    queried = clouds if own else _offsets(query_offsets, points.device)
    rows = points.new_empty(queries.shape[0] + 1, dtype=torch.int64)
    p = _Radius()
    counted = _Counted(p, rows, points, (points, queries, clouds, queried))
    p.points, p.queries, p.offsets, p.query_offsets = map(address, counted.kept)
    p.count, p.asked, p.batches, p.own = points.shape[0], queries.shape[0], offsets.numel() - 1, own
    p.inverse, p.mask = 1.0 / (radius * _MARGIN), _slots(points.shape[0]) - 1
    p.limit = ctypes.c_float(radius).value ** 2
    p.rows = rows.data_ptr()
    if not p.count or not p.asked:
        rows.zero_()
        return counted
    key = (points.data_ptr(), points.shape[0], id(offsets), radius)
    buckets = known.get(key)
    if buckets is None:
        buckets = known[key] = _put_in_buckets(counted, points)
    counted.buckets = buckets
    p.sorted, p.starts = buckets.ordered.data_ptr(), buckets.starts.data_ptr()
    counted.run("count_neighbors", p.asked, _WARPS * _QUERIES)
    torch.cumsum(rows, 0, out=rows)
    return counted


def radius_searches(searches: Sequence[Search]) -> list[Neighbors]:
    """Several at a time. Waits for the device once, for the numbers of pairs."""
    known: dict[tuple[object, ...], _Buckets] = {}
    counted = [_count(search, known) for search in searches]
    totals = torch.stack([one.rows[-1] for one in counted]).tolist() if counted else []
    return [one.finish(total) for one, total in zip(counted, totals, strict=True)]


def radius_search(points: Tensor, queries: Tensor, offsets: Tensor, query_offsets: Tensor, radius: float) -> Neighbors:
    """Waits for the device once, for the number of pairs."""
    counted = _count((points, queries, offsets, query_offsets, radius), {})
    return counted.finish(int(counted.rows[-1]))


def _knn_rows(sizes: Tensor, asked: Tensor, total: int, device: torch.device) -> Tensor:
    """Row offsets [M + 1] where every query of cloud b has ``sizes[b]`` neighbours; ``asked``: offsets of queries."""
    if sizes.numel() == 1:
        return (
            torch.arange(0, total + 1, int(sizes[0]), device=device)
            if total
            else torch.zeros(int(asked[-1]) + 1, dtype=torch.int64, device=device)
        )
    each = torch.repeat_interleave(sizes.to(device), asked.diff().to(device), output_size=int(asked[-1]))
    return torch.cat([each.new_zeros(1), each.cumsum(0)])


def knn_search(points: Tensor, queries: Tensor, offsets: Tensor, query_offsets: Tensor, k: int) -> Neighbors:
    """Never waits for the device."""
    count, asked = points.shape[0], queries.shape[0]
    sizes = offsets.diff().clamp(max=k)
    total = int((sizes * query_offsets.diff()).sum())
    rows = _knn_rows(sizes, query_offsets, total, points.device)
    indices = points.new_empty(total, dtype=torch.int32)
    if not total:
        return Neighbors(rows, indices)
    own = queries is points
    clouds = _offsets(offsets, points.device)
    queried = clouds if own else _offsets(query_offsets, points.device)
    p = _Tree()
    begin, level = 0, count
    while p.levels == 0 or level > _BRANCHES:
        level = -(-level // _BRANCHES)
        p.begin[p.levels], p.size[p.levels] = begin, level
        begin += level
        p.levels += 1
    low, high = points.amin(0), points.amax(0)
    keys = points.new_empty(count, dtype=torch.int64)
    ordered, boxes = points.new_empty(count, 4), points.new_empty(begin, 8)
    p.points, p.queries, p.offsets, p.query_offsets = map(address, (points, queries, clouds, queried))
    p.low, p.high, p.keys, p.sorted, p.boxes = map(address, (low, high, keys, ordered, boxes))
    p.rows, p.indices = rows.data_ptr(), indices.data_ptr()
    p.count, p.asked, p.batches, p.own, p.k = count, asked, offsets.numel() - 1, own, k
    p.bits = min(21, (63 - (offsets.numel() - 2).bit_length()) // 3)
    source = tree_source(k)

    def run(name: str, items: int, each: int) -> None:
        launching.launch(LIBRARIES, source, name, items, each, p, points)

    run("make_keys", count, 256)
    order = torch.argsort(keys, stable=True)
    p.order = order.data_ptr()
    run("sort_points", count, 256)
    for number in range(p.levels):
        p.level = number
        run("make_boxes", p.size[number - 1] if number else count, _WARPS * 32)
    run("find_nearest", asked, _WARPS)
    return Neighbors(rows, indices)


def nearest_to_centres(cloud: Cloud, cell: float) -> Tensor:
    """Which points stay, int64, rising. Waits for the device once, for their number."""
    points = cloud.points.contiguous()
    count, slots = points.shape[0], _slots(points.shape[0])
    clouds = _offsets(cloud.offsets, points.device)
    owners = points.new_full((slots,), -1, dtype=torch.int32)
    nearest = points.new_full((slots,), -1, dtype=torch.int64)
    winners = points.new_full((slots,), 2**31 - 1, dtype=torch.int32)
    places = points.new_empty(count, dtype=torch.int32)
    kept = points.new_empty(count, dtype=torch.bool)
    p = _Thin()
    p.points, p.offsets, p.owners, p.nearest = map(address, (points, clouds, owners, nearest))
    p.winners, p.slots, p.kept = map(address, (winners, places, kept))
    p.cell, p.count, p.batches, p.mask = cell, count, cloud.batches, slots - 1
    p.wide = points.dtype == torch.float64
    for name in ("claim_cells", "choose_points", "keep_points"):
        launching.launch(LIBRARIES, thin_source(), name, count, 256, p, points)
    return kept.nonzero()[:, 0]
