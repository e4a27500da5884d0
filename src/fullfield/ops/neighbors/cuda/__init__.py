"""Search and downsampling on NVIDIA GPUs, by kernels compiled on the user's machine; README.md says how they work."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import LoadedKernels, get_address, parse_structures
from fullfield.ops.neighbors.ragged import Cloud, Neighbors

Search = tuple[Tensor, Tensor, Tensor, Tensor, float]
"""What :func:`radius_search` takes."""
LIBRARIES = LibraryCache("neighbour kernels")
# Hash tables have at most so many slots.
_MAX_SLOTS = 1 << 31
# Cells are a little wider than the radius: float32 distances round, and what rounds into the ball must be seen.
_MARGIN = 1.0 + 1e-5
_SHARED_KEYS = 256  # keys of a row that a warp sorts in shared memory
_WARPS, _QUERIES, _BRANCHES = 8, 8, 32
_FOLDER = Path(__file__).parent
_DECLARED = parse_structures(*(_FOLDER / name for name in ("radius.cu", "knn.cu", "thin.cu")))
_Radius, _Tree, _Thin = (_DECLARED[f"{name}Params"] for name in ("Radius", "Tree", "Thin"))
_Radii = _launching.build_batch_structure(_Radius)


def explain_unsupported(device: torch.device) -> str | None:
    """Return None if the kernels run on ``device``, else the reason."""
    return _launching.explain_unsupported_device(device)


def _read_headers_and_sources(*files: Path) -> str:
    return _launching.read_source(_launching.HALVES, _FOLDER / "clouds.cuh", *files)


@functools.cache
def generate_radius_search_source() -> KernelSource:
    """Return the source of the radius search."""
    text = _read_headers_and_sources(_launching.BATCHES, _launching.SORT_ROWS, _FOLDER / "radius.cu")
    return KernelSource.with_macros(text, KEY="unsigned", ROOM=_SHARED_KEYS)


@functools.cache
def generate_tree_search_source(k: int) -> KernelSource:
    """Return the source of the search of at most ``k`` nearest neighbours."""
    slots = 1 << max(0, (-(-k // _BRANCHES) - 1).bit_length())
    return KernelSource.with_macros(_read_headers_and_sources(_launching.WARPS, _FOLDER / "knn.cu"), SLOTS=slots)


@functools.cache
def generate_downsampling_source() -> KernelSource:
    """Return the source of the grid downsampling."""
    return KernelSource(_read_headers_and_sources(_launching.BATCHES, _FOLDER / "thin.cu"))


def _count_table_slots(count: int) -> int:
    """Return the slots of a table for this number of entries: a power of two."""
    return min(_MAX_SLOTS, max(64, 1 << (2 * count - 1).bit_length()))


def _copy_offsets_or_none_if_single_cloud(offsets: Tensor, device: torch.device) -> Tensor | None:
    """Return the offsets on the device; None for a single cloud."""
    return offsets.to(device) if offsets.numel() > 2 else None


def _count_sum_blocks(summand_count: int) -> int:
    """Return the number of blocks that sum this many summands."""
    return -(-summand_count // _launching.SUMMED)


class _CellTables:
    """Points by cells as wide as a radius: a table for every pair of a cloud and a radius."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self.params: list[Any] = []

    def find_or_add_table_number(self, search: Search, params: Any) -> int:
        """Return the number of the table that a search reads; its first search's parameters define it."""
        points, _, offsets, _, radius = search
        key = (points.data_ptr(), points.shape[0], id(offsets), radius)
        if key not in self._numbers:
            self._numbers[key] = len(self.params)
            self.params.append(_Radius.from_buffer_copy(params))
        return self._numbers[key]

    def allocate_and_fill_tables(
        self, kernels: LoadedKernels, like: Tensor, leading_zero_count: int
    ) -> tuple[Tensor, ...]:
        """Fill the tables and return their memory, which begins with zeros and must live until it is read."""
        tables = self.params
        slots, points = [p.mask + 2 for p in tables], [p.count for p in tables]
        sum_counts = [_count_sum_blocks(size) for size in slots]
        zeros = like.new_zeros(
            leading_zero_count + len(tables) + sum(sum_counts) + -(-sum(slots) // 2), dtype=torch.int64
        )
        ordered = like.new_empty(sum(points), 4, dtype=torch.float32)
        point_slots = like.new_empty(sum(points), dtype=torch.int32)
        batch, point, word = _Radii(), 0, zeros.data_ptr() + 8 * leading_zero_count
        slot = word + 8 * (len(tables) + sum(sum_counts))
        for number, p in enumerate(tables):
            p.starts, p.sorted, p.places = slot, ordered.data_ptr() + 16 * point, point_slots.data_ptr() + 4 * point
            p.passed = word
            slot, point, word = slot + 4 * slots[number], point + points[number], word + 8 * (1 + sum_counts[number])
            batch.each[number] = p
        each = [-(-count // 256) for count in points]
        kernels.launch_batch("count_points", batch, each)
        kernels.launch_batch("start_buckets", batch, sum_counts)
        kernels.launch_batch("place_points", batch, each)
        return zeros, ordered


class _RadiusSearchLaunch:
    """At most so many searches as fit a launch."""

    def __init__(self, searches: Sequence[Search], sort_indices: bool) -> None:
        self.like = like = searches[0][0]
        self.kernels = _launching.load_kernels(LIBRARIES, generate_radius_search_source(), like.get_device())
        query_counts = [search[1].shape[0] for search in searches]
        sum_counts = [_count_sum_blocks(count + 1) for count in query_counts]
        self.rows = [like.new_empty(count + 1, dtype=torch.int64) for count in query_counts]
        self.totals = like.new_empty(len(query_counts), dtype=torch.int64)
        tables, self.batch = _CellTables(), _Radii()
        self._arguments: list[object] = []
        numbers = []
        for number, search in enumerate(searches):
            p = self.batch.each[number]
            self._fill_search_params(p, search)
            p.sort = sort_indices
            p.rows, p.total = self.rows[number].data_ptr(), self.totals.data_ptr() + 8 * number
            numbers.append(tables.find_or_add_table_number(search, p))
        filled = tables.allocate_and_fill_tables(self.kernels, like, len(query_counts) + sum(sum_counts))
        self._arguments.append(filled)
        word = filled[0].data_ptr()
        for number, table in enumerate(numbers):
            p = self.batch.each[number]
            p.sorted, p.starts, p.passed = tables.params[table].sorted, tables.params[table].starts, word
            word += 8 * (1 + sum_counts[number])
        self.blocks = [-(-count // (_WARPS * _QUERIES)) for count in query_counts]
        # a block without queries still writes the first offset
        self.kernels.launch_batch("count_neighbors", self.batch, [max(1, blocks) for blocks in self.blocks])
        self.kernels.launch_batch("start_rows", self.batch, sum_counts)

    def _fill_search_params(self, params: Any, search: Search) -> None:
        points, queries, offsets, query_offsets, radius = search
        own = queries is points
        clouds = _copy_offsets_or_none_if_single_cloud(offsets, points.device)
        queried = clouds if own else _copy_offsets_or_none_if_single_cloud(query_offsets, points.device)
        arguments = (points, queries, clouds, queried)
        self._arguments.append(arguments)
        params.points, params.queries, params.offsets, params.query_offsets = map(get_address, arguments)
        params.count, params.asked, params.batches, params.own = (
            points.shape[0],
            queries.shape[0],
            offsets.numel() - 1,
            own,
        )
        params.inverse, params.mask = 1.0 / (radius * _MARGIN), _count_table_slots(points.shape[0]) - 1
        params.limit = ctypes.c_float(radius).value ** 2

    def write_indices_and_get_neighbors(self, totals: Sequence[int]) -> list[Neighbors]:
        """Write the indices of so many pairs."""
        indices = [self.like.new_empty(total, dtype=torch.int32) for total in totals]
        for number, row in enumerate(indices):
            self.batch.each[number].indices = row.data_ptr()
        self.kernels.launch_batch("write_neighbors", self.batch, self.blocks)
        return [Neighbors(*pair) for pair in zip(self.rows, indices, strict=True)]


def run_radius_searches(searches: Sequence[Search], *, sort_indices: bool = True) -> list[Neighbors]:
    """Run several searches; waits for the device once for every 16, for the numbers of pairs."""
    results: list[Neighbors] = []
    for start in range(0, len(searches), _launching.MAX_PROBLEMS):
        some = _RadiusSearchLaunch(searches[start : start + _launching.MAX_PROBLEMS], sort_indices)
        results += some.write_indices_and_get_neighbors(some.totals.tolist())
    return results


def radius_search(
    points: Tensor, queries: Tensor, offsets: Tensor, query_offsets: Tensor, radius: float, *, sort_indices: bool = True
) -> Neighbors:
    """Find the points within a radius; waits for the device once, for the number of pairs."""
    return run_radius_searches([(points, queries, offsets, query_offsets, radius)], sort_indices=sort_indices)[0]


def _compute_knn_offsets(neighbor_counts: Tensor, query_offsets: Tensor, total: int, device: torch.device) -> Tensor:
    """Return row offsets [M + 1] for ``neighbor_counts[b]`` neighbours of every query of cloud b."""
    if neighbor_counts.numel() == 1 and not total:
        return torch.zeros(int(query_offsets[-1]) + 1, dtype=torch.int64, device=device)
    if neighbor_counts.numel() == 1:
        return torch.arange(0, total + 1, int(neighbor_counts[0]), device=device)
    each = torch.repeat_interleave(
        neighbor_counts.to(device), query_offsets.diff().to(device), output_size=int(query_offsets[-1])
    )
    return torch.cat([each.new_zeros(1), each.cumsum(0)])


def knn_search(points: Tensor, queries: Tensor, offsets: Tensor, query_offsets: Tensor, k: int) -> Neighbors:
    """Find the k nearest points; never waits for the device."""
    count, query_count = points.shape[0], queries.shape[0]
    sizes = offsets.diff().clamp(max=k)
    total = int((sizes * query_offsets.diff()).sum())
    rows = _compute_knn_offsets(sizes, query_offsets, total, points.device)
    indices = points.new_empty(total, dtype=torch.int32)
    if not total:
        return Neighbors(rows, indices)
    own = queries is points
    clouds = _copy_offsets_or_none_if_single_cloud(offsets, points.device)
    queried = clouds if own else _copy_offsets_or_none_if_single_cloud(query_offsets, points.device)
    p = _Tree()
    start, level = 0, count
    while p.levels == 0 or level > _BRANCHES:
        level = -(-level // _BRANCHES)
        p.begin[p.levels], p.size[p.levels] = start, level
        start += level
        p.levels += 1
    low, high = points.amin(0), points.amax(0)
    keys = points.new_empty(count, dtype=torch.int64)
    ordered, boxes = points.new_empty(count, 4), points.new_empty(start, 8)
    p.points, p.queries, p.offsets, p.query_offsets = map(get_address, (points, queries, clouds, queried))
    p.low, p.high, p.keys, p.sorted, p.boxes = map(get_address, (low, high, keys, ordered, boxes))
    p.rows, p.indices = rows.data_ptr(), indices.data_ptr()
    p.count, p.asked, p.batches, p.own, p.k = count, query_count, offsets.numel() - 1, own, k
    p.bits = min(21, (63 - (offsets.numel() - 2).bit_length()) // 3)
    kernels = _launching.load_kernels(LIBRARIES, generate_tree_search_source(k), points.get_device())
    kernels.launch("make_keys", -(-count // 256), 256, p)
    order = torch.argsort(keys, stable=True)
    p.order = order.data_ptr()
    kernels.launch("sort_points", -(-count // 256), 256, p)
    for number in range(p.levels):
        p.level = number
        below = p.size[number - 1] if number else count
        kernels.launch("make_boxes", -(-below // (_WARPS * 32)), 256, p)
    kernels.launch("find_nearest", -(-query_count // _WARPS), 256, p)
    return Neighbors(rows, indices)


class DownsampledCloud(NamedTuple):
    """A cloud that was thinned."""

    kept: Tensor  # [K] int64, rising: which points of the one before
    cloud: Cloud


def downsample_repeatedly_and_get_max_magnitude(
    cloud: Cloud, cells: Sequence[float]
) -> tuple[float, list[DownsampledCloud]]:
    """Thin the cloud repeatedly; also return the largest magnitude of a coordinate, NaN if one is NaN.

    Waits for the device once, for all numbers of points: what is returned lies in memory for ``cloud``'s.
    """
    points = cloud.points.contiguous()
    count, batches, slots = points.shape[0], cloud.batches, _count_table_slots(points.shape[0])
    table = points.new_empty(2 * slots, dtype=torch.int64)
    point_slots = points.new_empty(count, dtype=torch.int32)
    sum_count, size = _count_sum_blocks(count), len(cells) * (batches + 1) + 1
    counters = points.new_zeros(size + len(cells) * (1 + sum_count), dtype=torch.int64)
    clouds = _copy_offsets_or_none_if_single_cloud(cloud.offsets, points.device)
    p = _Thin()
    p.points, p.offsets, p.slots, p.nearest = map(get_address, (points, clouds, point_slots, table))
    p.owners, p.winners = p.nearest + 8 * slots, p.nearest + 12 * slots
    p.count, p.batches, p.mask, p.wide = count, batches, slots - 1, points.dtype == torch.float64
    p.largest = counters.data_ptr() + 8 * (size - 1)
    kernels = _launching.load_kernels(LIBRARIES, generate_downsampling_source(), points.get_device())
    levels = []
    for number, cell in enumerate(cells):
        table.fill_(-1)
        indices, fewer = points.new_empty(count, dtype=torch.int64), torch.empty_like(points)
        p.cell, p.kept, p.fewer = cell, indices.data_ptr(), fewer.data_ptr()
        p.ends = counters.data_ptr() + 8 * number * (batches + 1)
        p.passed = counters.data_ptr() + 8 * (size + number * (1 + sum_count))
        kernels.launch("claim_cells", -(-count // 256), 256, p)
        kernels.launch("choose_points", -(-count // 256), 256, p)
        kernels.launch("keep_points", sum_count, 256, p)
        if batches > 1:
            kernels.launch("cut_clouds", -(-batches // 256), 256, p)
        p.points, p.offsets, p.largest = p.fewer, p.ends, None
        levels.append((indices, fewer))
    ends = counters[:size].cpu()
    largest = float(ends[-1:].view(torch.float64))
    thinned = []
    for (indices, fewer), offsets in zip(levels, ends[:-1].view(len(cells), batches + 1), strict=True):
        size = int(offsets[-1])
        thinned.append(DownsampledCloud(indices[:size], Cloud(fewer[:size], offsets, largest)))
    return largest, thinned
