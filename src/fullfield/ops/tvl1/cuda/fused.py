"""A whole warp of the solver in one kernel: linearised, iterated, filtered, in tiles held in registers.

Its neighbours' pixels are computed again around every tile, as far as the iterations reach, so it pays where launches
and the latency of a row pipeline cost more than that: on small and middle levels. Times are in microseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops._launching import (
    BARRIERS,
    COPIES,
    HALVES,
    VALUES,
    WARPS,
    GpuProperties,
    Launch,
    LoadedKernels,
    get_address,
    load_several_kernels,
    parse_structures,
    read_source,
)
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import passes
from fullfield.ops.tvl1.cuda.passes import Planes
from fullfield.ops.tvl1.cuda.state import Level

_FOLDER = Path(__file__).parent
_Fused = parse_structures(_FOLDER / "fused_warp.cu")["FusedParams"]


@dataclass(frozen=True)
class FusedBlockShape:
    """Shape of a block: its warps, the rows of each, and whether the data term stays in registers."""

    groups: int
    rows: int
    has_data_term_in_registers: bool
    columns_per_lane: int = 2
    """Columns that a lane holds: 1, 2 or 4."""
    cluster: int = 1
    """Blocks that hold a tile, one below the other."""

    @property
    def columns_per_tile(self) -> int:
        """Columns of a tile with all that it computes again."""
        return 32 * self.columns_per_lane

    @property
    def rows_per_block(self) -> int:
        """Rows of a block."""
        return self.groups * self.rows

    @property
    def rows_per_tile(self) -> int:
        """Rows of a tile with all that it computes again."""
        return self.cluster * self.rows_per_block

    @property
    def tile_column_alignment(self) -> int:
        """Tiles begin at multiples of this number of columns."""
        return max(2, self.columns_per_lane)

    @property
    def max_flow_span(self) -> int:
        """Pixels by which the flow of a block may differ for it to sample in shared memory."""
        return 16 if self.columns_per_tile * self.rows_per_block <= 6144 else 12

    @property
    def blocks_per_multiprocessor(self) -> int:
        """Blocks that a multiprocessor's registers suffice for."""
        return (
            max(1, 16 // self.groups)
            if self.rows * self.columns_per_lane * (10 if self.has_data_term_in_registers else 6) <= 80
            else 1
        )

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory."""
        edges, still = (
            512 * self.columns_per_lane * (self.groups + 1),
            4 * (self.columns_per_tile + 8) * (self.rows_per_block + 2),
        )
        patch = 4 * (self.columns_per_tile + 8 + self.max_flow_span) * (self.rows_per_block + 5 + self.max_flow_span)
        return 16 * self.columns_per_tile * self.rows_per_block + edges + 32 * self.groups + 16 + still + patch


SHAPES = (
    FusedBlockShape(16, 2, True, 1),
    FusedBlockShape(16, 3, True, 1),
    FusedBlockShape(16, 2, True),
    FusedBlockShape(12, 3, True),
    FusedBlockShape(16, 3, True),
    FusedBlockShape(16, 4, True),
    FusedBlockShape(16, 5, False),
    FusedBlockShape(16, 6, False),
    FusedBlockShape(4, 1, True, 1, 8),
    FusedBlockShape(8, 1, True, 1, 8),
    FusedBlockShape(8, 1, True, 2, 8),
    FusedBlockShape(12, 1, True, 2, 8),
    FusedBlockShape(12, 1, True, 4, 8),
    FusedBlockShape(16, 1, True, 4, 8),
    FusedBlockShape(12, 2, True, 4, 4),
    FusedBlockShape(14, 2, True, 4, 4),
    FusedBlockShape(16, 2, True, 4, 4),
    FusedBlockShape(10, 4, False, 4, 2),
    FusedBlockShape(11, 4, False, 4, 2),
    FusedBlockShape(12, 4, False, 4, 2),
    FusedBlockShape(12, 4, False, 4, 8),
    FusedBlockShape(11, 5, False, 4, 2),
    FusedBlockShape(12, 5, False, 4, 2),
    FusedBlockShape(12, 5, False, 4, 4),
)
CLUSTERS_FROM = 90  # compute capability times 10


@dataclass(frozen=True)
class LevelTiling:
    """Tiling of a level: tiles of ``columns`` × ``rows`` pixels, with a halo at the borders."""

    shape: FusedBlockShape
    lead: int
    """Columns and rows before a tile's own that its block computes again."""
    columns: int
    rows: int
    across: int
    down: int
    small: bool
    """Whether the level is narrower or lower than a tile with all that it computes again."""


def _divide_side_into_tiles_if_possible(
    size: int, size_in_tile: int, overlap: int, alignment: int
) -> tuple[int, int] | None:
    """Return the number of tiles along a side, and their own pixels, a multiple of ``alignment``.

    A tile's own pixels are ``size_in_tile`` minus ``overlap``, the pixels that its neighbours compute too.
    """
    if size <= size_in_tile:
        return 1, 0
    usable = (size_in_tile - overlap) // alignment * alignment
    if usable < 1:
        return None
    tiles = -(-(size - overlap) // usable)
    return tiles, -(-(size - overlap) // tiles // alignment) * alignment


def choose_tiling_if_possible(
    height: int, width: int, config: TVL1Config, shape: FusedBlockShape
) -> LevelTiling | None:
    """Return the tiling; None if iterations and median reach too far for the shape."""
    margin = config.median // 2
    lead = -(-(config.iterations + margin) // shape.tile_column_alignment) * shape.tile_column_alignment
    overlap = lead + config.iterations - 1 + max(margin, 1)
    across, down = (
        _divide_side_into_tiles_if_possible(width, shape.columns_per_tile, overlap, shape.tile_column_alignment),
        _divide_side_into_tiles_if_possible(height, shape.rows_per_tile, overlap, 1),
    )
    if across is None or down is None:
        return None
    small = width < shape.columns_per_tile or height < shape.rows_per_tile
    return LevelTiling(shape, lead, across[1], down[1], across[0], down[0], small)


def generate_fused_warp_source(config: TVL1Config, tiling: LevelTiling, dtype: torch.dtype) -> KernelSource:
    """Return the source of ``fused_warp`` for levels of this tiling."""
    return _generate_source(
        tiling.shape, tiling.small, config.borders == "clamp", config.median // 2, dtype == torch.float16
    )


def load_fused_kernels(
    tilings_configs_dtypes: Sequence[tuple[LevelTiling, TVL1Config, torch.dtype]], device: GpuProperties
) -> list[LoadedKernels]:
    """Return the tilings_configs_dtypes, compiled together."""
    return load_several_kernels(
        passes.LIBRARIES,
        [generate_fused_warp_source(config, tiling, dtype) for tiling, config, dtype in tilings_configs_dtypes],
        device.index,
    )


def _estimate_warp_time_us(tiling: LevelTiling, batch: int, iterations: int, device: GpuProperties) -> float:
    """Estimate the time of a warp of a level on an H200.

    Blocks of larger clusters reach 120 of its 132 multiprocessors.
    """
    shape = tiling.shape
    reached = device.processors if shape.cluster <= 2 else device.processors * 10 // 11
    rounds = -(-batch * tiling.across * tiling.down // max(1, reached // shape.cluster))
    rows = shape.columns_per_lane * shape.rows_per_block  # of 32 pixels
    if shape.cluster == 1:
        return rounds * (2.5 + rows * (0.08 + 0.01 * iterations))
    return rounds * (1 - 0.11 / shape.cluster) * (3 + 0.14 * rows + iterations * max(0.42, 0.0065 * rows))


def choose_tiling_if_faster(
    batch: int, height: int, width: int, config: TVL1Config, device: GpuProperties
) -> LevelTiling | None:
    """Return the fastest tiling of a level by times on an H200; None if warps are faster pass by pass."""
    candidates: list[tuple[float, LevelTiling]] = []
    for shape in SHAPES:
        if shape.shared_bytes > device.shared or (shape.cluster > 1 and device.capability < CLUSTERS_FROM):
            continue
        tiling = choose_tiling_if_possible(height, width, config, shape)
        if tiling is not None:
            candidates.append((_estimate_warp_time_us(tiling, batch, config.iterations, device), tiling))
    pixels = batch * height * width / device.processors
    pass_us = 24 + 0.0029 * pixels if config.precision == "float16" else 28 + 0.0036 * pixels  # ten iterations
    separate_us = 5 + 0.0044 * pixels + -(-config.iterations // 10) * pass_us
    time, tiling = min(candidates, key=lambda each: each[0], default=(separate_us, None))
    return tiling if time < separate_us else None


@functools.cache
def _generate_source(shape: FusedBlockShape, small: bool, clamp: bool, margin: int, narrow: bool) -> KernelSource:
    names = ("iterate_common.cuh", "sampling.cuh", "medians.cuh", "fused_warp.cu")
    text = read_source(HALVES, VALUES, COPIES, BARRIERS, WARPS, *(_FOLDER / name for name in names))
    return KernelSource.with_macros(
        text, HALF=0, IN=narrow, GROUPS=shape.groups, ROWS=shape.rows, EACH=shape.columns_per_lane,
        KEPT=shape.has_data_term_in_registers, CLUSTER=shape.cluster, RESIDENT=shape.blocks_per_multiprocessor,
        SPAN=shape.max_flow_span, SMALL=small, CLAMP=clamp, REACH=margin,
    )  # fmt: skip


class WarpBuffers(NamedTuple):
    """Inputs and outputs of a warp."""

    first: Tensor
    """Image [B, H, pitch]."""
    second: Tensor
    flow: Tensor
    """[B, 2, H, pitch], where the warp begins."""
    target: Planes
    """Where its flow goes, elsewhere."""
    target_at: Tensor | None
    """Where the target's address will lie, if not in ``target``."""
    flags: Tensor | None
    """To note in that a flow is not finite."""
    zero_dual: bool
    keep_dual: bool


def build_fused_warp_launch(
    tiling: LevelTiling, level: Level, config: TVL1Config, device: GpuProperties, warp: WarpBuffers
) -> Launch:
    """Return the launch of one warp; it writes the dual variable to the set that is not ``level.front``."""
    params = _Fused()
    params.first, params.second, params.from_ = warp.first.data_ptr(), warp.second.data_ptr(), warp.flow.data_ptr()
    params.target, params.target_plane, params.target_pitch = warp.target[0], warp.target.plane_step, warp.target.pitch
    params.from_item, params.target_item = warp.flow.stride(0), warp.target.item_step
    params.target_at, params.flags = get_address(warp.target_at), get_address(warp.flags)
    params.dual = None if warp.zero_dual else level.get_plane_address(level.get_first_dual_plane(level.front))
    params.dual_out = level.get_plane_address(level.get_first_dual_plane(1 - level.front)) if warp.keep_dual else None
    params.image_plane, params.plane, params.item = warp.first.stride(0), level.plane_step, level.item_step
    params.blend, params.slope, params.tau = config.gradient_blend, config.tau / config.theta, config.tau
    params.bound = config.lambda_ * config.theta
    params.height, params.width, params.pitch = level.height, level.width, level.pitch
    params.image_pitch = warp.first.stride(1)
    params.iterations, params.lead = config.iterations, tiling.lead
    params.columns, params.rows = tiling.columns, tiling.rows
    params.tiles_x, params.tiles_y = tiling.across, tiling.down
    blocks = tiling.across * tiling.down * level.batch * tiling.shape.cluster
    (kernels,) = load_fused_kernels([(tiling, config, level.dtype)], device)
    early = device.capability >= 90
    return Launch(
        kernels, "fused_warp", blocks, 32 * tiling.shape.groups, params, tiling.shape.shared_bytes, early=early
    )
