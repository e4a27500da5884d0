"""The kernels over frames and flow: their parameters and launches. The iterations are in ``pipeline``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, FRAMES, HALVES, VALUES, Launch, get_address, parse_structures, read_source
from fullfield.ops.tvl1.config import GRADIENT_FLOOR
from fullfield.ops.tvl1.cuda.state import FLOW, Level
from fullfield.ops.tvl1.frames import (
    BRIGHTEST,
    FirstTapsAndWeights,
    compute_gaussian_first_taps_and_weights,
    compute_linear_first_taps_and_weights,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIBRARIES = LibraryCache("TV-L1 kernels")
BAD_FRAMES = (1, 2)
BAD_FLOW = 4
"""Bits of the flags: a value of frame 1 or 2 is not within ±BRIGHTEST; the flow is not finite."""
_THREADS = 256
_MEDIAN_THREADS = 128
_WARPS = 8  # of a block of ``resample``: each makes rows of its own
_SUMS = 8192  # in shared memory
_FOLDER = Path(__file__).parent
_DECLARED = parse_structures(*(_FOLDER / name for name in ("pyramid.cu", "warp.cu", "median.cu")))


# ---- sources


def _read_headers_and_sources(*names: str) -> str:
    return read_source(HALVES, VALUES, *(_FOLDER / name for name in names))


def generate_pyramid_source() -> KernelSource:
    """Return the source of ``grey`` and ``resample``."""
    return KernelSource(read_source(HALVES, _FOLDER / "pyramid.cu"))


def generate_linearise_source(dtype: torch.dtype) -> KernelSource:
    """Return the source of ``linearise`` for levels of ``dtype``."""
    text = _read_headers_and_sources("sampling.cuh", "warp.cu")
    return KernelSource.with_macros(text, IN=CODES[dtype], FLOOR=f"{GRADIENT_FLOOR!r}f")


def generate_median_source(dtype: torch.dtype) -> KernelSource:
    """Return the source of ``median0``, which filters nothing, ``median3`` and ``median5`` for levels of ``dtype``."""
    return KernelSource.with_macros(_read_headers_and_sources("medians.cuh", "median.cu"), IN=CODES[dtype])


class Planes(NamedTuple):
    """Planes [items, planes, height, width] somewhere in memory, in elements of ``dtype``."""

    address: int | None
    items: int
    planes: int
    height: int
    width: int
    pitch: int
    plane_step: int
    item_step: int
    dtype: torch.dtype = torch.float32


def build_plane_descriptor(tensor: Tensor, width: int | None = None) -> Planes:
    """Return the planes of a tensor [items, planes, height, pitch]; ``width`` if it is less than the pitch."""
    items, planes, height, pitch = tensor.shape
    item_step, plane_step, row, _ = tensor.stride()
    width = pitch if width is None else width
    return Planes(tensor.data_ptr(), items, planes, height, width, row, plane_step, item_step, tensor.dtype)


# ---- launches


class _DeviceTapTable(NamedTuple):
    first: Tensor
    weight: Tensor
    begins: NDArray[np.int64]

    @property
    def taps(self) -> int:
        return int(self.weight.shape[1])

    def count_max_inputs_per_run(self, columns: int) -> int:
        """Return the most inputs that a run of ``columns`` outputs needs; runs begin at multiples of ``columns``."""
        last = np.minimum(np.arange(0, len(self.begins), columns) + columns, len(self.begins)) - 1
        return int((self.begins[last] - self.begins[::columns]).max()) + self.taps


def _check_sizes_and_compute_identity_taps(size_in: int, size_out: int) -> FirstTapsAndWeights:
    if size_in != size_out:
        raise ValueError(f"expected as many pixels, got {size_in} and {size_out}")
    return np.arange(size_in), np.ones((size_in, 1))


_TAP_FUNCTIONS_BY_FILTER = {
    "gaussian": compute_gaussian_first_taps_and_weights,
    "linear": compute_linear_first_taps_and_weights,
    "none": _check_sizes_and_compute_identity_taps,
}


class KernelLaunches:
    """Makes launches for one device and one precision; keeps the resampling tables."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, index = device, _launching.get_device_gpu_properties(device).index
        sources = [generate_pyramid_source(), generate_linearise_source(dtype), generate_median_source(dtype)]
        self._pyramid, self._warp, self._median = _launching.load_several_kernels(LIBRARIES, sources, index)
        self._tables: dict[tuple[str, int, int], _DeviceTapTable] = {}

    def iterate_table_tensors(self) -> Iterator[Tensor]:
        """Yield the resampling tables that exist so far."""
        for table in self._tables.values():
            yield from (table.first, table.weight)

    def _get_or_compute_resampling_table(self, filter_name: str, size_in: int, size_out: int) -> _DeviceTapTable:
        key = (filter_name, size_in, size_out)
        table = self._tables.get(key)
        if table is None:
            first, weight = _TAP_FUNCTIONS_BY_FILTER[filter_name](size_in, size_out)
            index = torch.from_numpy(first.astype(np.int32)).to(self._device)
            table = _DeviceTapTable(index, torch.from_numpy(weight.astype(np.float32)).to(self._device), first)
            self._tables[key] = table
        return table

    def build_grey_launch(
        self,
        frames: tuple[Tensor, ...],  # one or two [B, C, H, W]
        planes_out: tuple[Tensor, ...],  # for each a plane [B, H, pitch]
        flags: Tensor | None = None,
        flow: Tensor | None = None,
        flow_address_out: Tensor | None = None,
    ) -> Launch:
        """Convert frames of one shape and dtype, with any strides, to grey planes.

        The address of ``flow``, which later kernels write, is written to ``flow_address_out``.
        """
        batch, channels, height, width = frames[0].shape
        params = _DECLARED["GreyParams"]()
        for number, (frame, plane) in enumerate(zip(frames, planes_out, strict=True)):
            params.frames[number], params.out[number] = frame.data_ptr(), plane.data_ptr()
            params.b[number], params.c[number], params.y[number], params.x[number] = frame.stride()
        params.item, params.pitch = planes_out[0].stride(0), planes_out[0].stride(1)
        params.flags = get_address(flags)
        params.flow = get_address(flow)
        params.flow_at = get_address(flow_address_out)
        params.limit, params.count, params.channels = BRIGHTEST, len(frames), channels
        params.kind, params.height, params.width = FRAMES[frames[0].dtype], height, width
        params.tiles = -(-width // _THREADS)
        blocks = params.tiles * height * batch * len(frames)
        return Launch(self._pyramid, "grey", blocks, _THREADS, params)

    def build_resample_launch(
        self,
        source: Planes,
        target: Planes,
        vertical_filter: str,
        horizontal_filter: str | None = None,
        *,
        scale: tuple[float, float] = (1.0, 1.0),
        source_at: Tensor | None = None,
    ) -> Launch:
        """Resample planes.

        Args:
            source: planes to read.
            target: planes to write.
            vertical_filter: filter along columns: gaussian, linear or none.
            horizontal_filter: filter along rows, by default the same.
            scale: factors of even and odd planes.
            source_at: holds the source's address, if that is not ``source``'s own.
        """
        vertical = self._get_or_compute_resampling_table(vertical_filter, source.height, target.height)
        horizontal = self._get_or_compute_resampling_table(
            horizontal_filter or vertical_filter, source.width, target.width
        )
        params = _DECLARED["ResampleParams"]()
        params.source, params.target = source.address, target.address
        params.source_at = get_address(source_at)
        params.first_y, params.weight_y = vertical.first.data_ptr(), vertical.weight.data_ptr()
        params.first_x, params.weight_x = horizontal.first.data_ptr(), horizontal.weight.data_ptr()
        params.taps_y, params.taps_x = vertical.taps, horizontal.taps
        params.source_plane, params.source_item = source.plane_step, source.item_step
        params.target_plane, params.target_item = target.plane_step, target.item_step
        params.scale[0], params.scale[1] = scale
        params.planes = target.planes
        params.source_height, params.source_width, params.source_pitch = source.height, source.width, source.pitch
        params.height, params.width, params.pitch = target.height, target.width, target.pitch
        params.rows, params.columns, params.span = _choose_resampling_tile_and_input_count(horizontal)
        params.tiles_y, params.tiles_x = -(-target.height // params.rows), -(-target.width // params.columns)
        blocks = params.tiles_y * params.tiles_x * target.items * target.planes
        shared = 4 * params.rows * params.span
        return Launch(self._pyramid, "resample", blocks, _THREADS, params, shared)

    def build_linearise_launch(
        self, first: Tensor, second: Tensor, flow: Tensor, level_out: Level, blend: float
    ) -> Launch:
        """Return the launch that fills ``level_out`` from images [B, H, pitch] and flow [B, 2, H, pitch]."""
        params = _DECLARED["WarpParams"]()
        params.first, params.second, params.from_ = first.data_ptr(), second.data_ptr(), flow.data_ptr()
        params.flow = level_out.get_plane_address(level_out.get_first_flow_plane(level_out.front))
        params.data = level_out.get_plane_address(level_out.data_plane)
        params.origin = (
            level_out.get_plane_address(level_out.origin_plane) if level_out.dtype == torch.float16 else None
        )
        params.image_plane, params.plane, params.item = first.stride(0), level_out.plane_step, level_out.item_step
        params.blend, params.height, params.width = blend, level_out.height, level_out.width
        params.image_pitch, params.pitch, params.tiles = first.stride(1), level_out.pitch, -(-level_out.width // 32)
        blocks = params.tiles * -(-level_out.height // 8) * level_out.batch
        return Launch(self._warp, "linearise", blocks, _THREADS, params)

    def build_median_launch(
        self, level: Level, side: int, target: Planes, *, target_at: Tensor | None = None, flags: Tensor | None = None
    ) -> Launch:
        """Filter the flow of ``level`` into float32 ``target`` [B, 2, H, W]; with ``side`` 0 copy it."""
        params = _DECLARED["MedianParams"]()
        params.flow = level.get_plane_address(level.get_first_flow_plane(level.front))
        params.origin = level.get_plane_address(level.origin_plane) if level.dtype == torch.float16 else None
        params.target, params.target_plane, params.target_pitch = target.address, target.plane_step, target.pitch
        params.target_at = get_address(target_at)
        params.plane, params.item = level.plane_step, level.item_step
        params.flags = get_address(flags)
        params.height, params.width, params.pitch = level.height, level.width, level.pitch
        params.tiles_y, params.tiles_x = -(-level.height // 8), -(-level.width // 64)
        blocks = params.tiles_y * params.tiles_x * FLOW * level.batch
        return Launch(self._median, f"median{side}", blocks, _MEDIAN_THREADS, params)


def _choose_resampling_tile_and_input_count(horizontal_table: _DeviceTapTable) -> tuple[int, int, int]:
    """Return rows and columns of a block's tile, and the inputs that its columns need."""
    rows, columns = 2 * _WARPS, 4 if horizontal_table.taps > 32 else 32
    while columns > 1 and _WARPS * horizontal_table.count_max_inputs_per_run(columns) > _SUMS:
        columns //= 2
    while rows > 1 and rows * horizontal_table.count_max_inputs_per_run(columns) > _SUMS:
        rows //= 2
    return rows, columns, horizontal_table.count_max_inputs_per_run(columns)
