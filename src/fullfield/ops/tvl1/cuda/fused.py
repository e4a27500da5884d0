"""A whole warp of the solver in one kernel: linearised, iterated, filtered, in tiles held in registers.

Its neighbours' pixels are computed again around every tile, as far as the iterations reach, so it pays where launches
and the latency of a row pipeline cost more than that: on small and middle levels. Times are in microseconds.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import Library, Source
from fullfield.ops.launching import address, read_source, structure
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import passes
from fullfield.ops.tvl1.cuda.passes import Launch, Planes
from fullfield.ops.tvl1.cuda.state import Level
from fullfield.ops.tvl1.cuda.tuning import Device

_ptr, _i64, _i32, _f32 = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_float
SPAN = 16  # as in fused_warp.cu
# Field by field as fused_warp.cu declares them.
_Fused = structure(
    "FusedParams", ("first", _ptr), ("second", _ptr), ("from_", _ptr), ("target", _ptr), ("target_at", _ptr),
    ("dual", _ptr), ("dual_out", _ptr), ("image_plane", _i64), ("plane", _i64), ("item", _i64), ("from_item", _i64),
    ("target_plane", _i64), ("target_item", _i64), ("flags", _ptr), ("blend", _f32), ("slope", _f32), ("tau", _f32),
    ("bound", _f32), ("height", _i32), ("width", _i32), ("image_pitch", _i32), ("pitch", _i32),
    ("target_pitch", _i32), ("iterations", _i32), ("lead", _i32), ("columns", _i32), ("rows", _i32),
    ("tiles_x", _i32), ("tiles_y", _i32),
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Of a block: its warps, the rows that each holds, whether the data term stays in registers."""

    groups: int
    rows: int
    kept: bool
    each: int = 2
    """Columns that a lane holds: 1 or 2."""

    @property
    def wide(self) -> int:
        """Columns of a tile with all that it computes again."""
        return 32 * self.each

    @property
    def high(self) -> int:
        """Rows of a tile with all that it computes again."""
        return self.groups * self.rows

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        edges, still = 512 * self.each * self.groups, 4 * (self.wide + 2) * (self.high + 2)
        patch = 4 * (self.wide + 5 + SPAN) * (self.high + 5 + SPAN)
        return 16 * self.wide * self.high + edges + 16 * self.groups + still + patch


SHAPES = (
    Shape(16, 2, True, 1),
    Shape(16, 3, True, 1),
    Shape(16, 2, True),
    Shape(12, 3, True),
    Shape(16, 3, True),
    Shape(16, 4, True),
    Shape(16, 5, False),
    Shape(16, 6, False),
)


@dataclass(frozen=True)
class Tiling:
    """How a level is cut: tiles of ``columns`` × ``rows`` pixels of their own, and more at the borders."""

    shape: Shape
    lead: int
    """Columns and rows before a tile's own that its block computes again."""
    columns: int
    rows: int
    across: int
    down: int
    small: bool
    """Whether the level is narrower or lower than a tile with all that it computes again."""


def _cut(size: int, held: int, again: int, step: int) -> tuple[int, int] | None:
    """Tiles along a side, and their own pixels each, a multiple of ``step``, of those that a block holds less what it
    computes ``again``."""
    if size <= held:
        return 1, 0
    most = (held - again) // step * step
    if most < 1:
        return None
    tiles = -(-(size - again) // most)
    return tiles, -(-(size - again) // tiles // step) * step


def tiling(height: int, width: int, config: TVL1Config, shape: Shape) -> Tiling | None:
    """None where iterations and median reach too far for the shape."""
    reach = config.median // 2
    lead = (config.iterations + reach + 1) // 2 * 2
    again = lead + config.iterations - 1 + max(reach, 1)
    across, down = _cut(width, shape.wide, again, 2), _cut(height, shape.high, again, 1)
    if across is None or down is None:
        return None
    small = width < shape.wide or height < shape.high
    return Tiling(shape, lead, across[1], down[1], across[0], down[0], small)


def source(config: TVL1Config, cut: Tiling, dtype: torch.dtype) -> Source:
    """``fused_warp`` for levels that ``cut`` is of."""
    return _source(cut.shape, cut.small, config.borders == "clamp", config.median // 2, dtype == torch.float16)


def load(kernels: Sequence[tuple[Tiling, TVL1Config, torch.dtype]], device: Device) -> list[Library]:
    """Compiled, all at once."""
    return passes.LIBRARIES.load(
        [source(config, cut, dtype) for cut, config, dtype in kernels], device.arch, device.index
    )


def best(batch: int, height: int, width: int, config: TVL1Config, device: Device) -> Tiling | None:
    """The fastest tiling of a level by what an H200 took, or None where warps are faster pass by pass."""
    found: list[tuple[float, Tiling]] = []
    for shape in SHAPES:
        cut = tiling(height, width, config, shape) if shape.shared <= device.shared else None
        if cut is not None:
            rounds = -(-batch * cut.across * cut.down // device.processors)
            time = 2.5 + shape.each * shape.high * (0.09 + 0.01 * config.iterations)
            found.append((rounds * time, cut))
    passes_over = -(-config.iterations // 10)
    pixels = batch * height * width / device.processors
    apart = 6 + 0.0047 * pixels + passes_over * (18 + 0.0079 * pixels)
    time, cut = min(found, key=lambda each: each[0], default=(apart, None))
    return cut if time < apart else None


@functools.cache
def _source(shape: Shape, small: bool, clamp: bool, reach: int, narrow: bool) -> Source:
    names = ("images.cuh", "iterate_common.cuh", "sampling.cuh", "medians.cuh", "fused_warp.cu")
    text = read_source(*(Path(__file__).parent / name for name in names))
    options = {
        "HALF": 0, "GROUPS": shape.groups, "ROWS": shape.rows, "EACH": shape.each, "KEPT": int(shape.kept),
        "SMALL": int(small), "CLAMP": int(clamp), "REACH": reach, "NARROW": int(narrow),
    }  # fmt: skip
    return Source(text, tuple(f"-D{name}={value}" for name, value in options.items()))


class Warp(NamedTuple):
    """What a warp reads and writes."""

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


def launch(cut: Tiling, level: Level, config: TVL1Config, device: Device, warp: Warp) -> Launch:
    """One warp. The dual variable goes from ``level.front`` to the other set, which the caller makes the front."""
    params = _Fused()
    params.first, params.second, params.from_ = warp.first.data_ptr(), warp.second.data_ptr(), warp.flow.data_ptr()
    params.target, params.target_plane, params.target_pitch = warp.target[0], warp.target.plane_step, warp.target.pitch
    params.from_item, params.target_item = warp.flow.stride(0), warp.target.item_step
    params.target_at, params.flags = address(warp.target_at), address(warp.flags)
    params.dual = None if warp.zero_dual else level.address(level.dual_plane(level.front))
    params.dual_out = level.address(level.dual_plane(1 - level.front)) if warp.keep_dual else None
    params.image_plane, params.plane, params.item = warp.first.stride(0), level.plane_step, level.item_step
    params.blend, params.slope, params.tau = config.gradient_blend, config.tau / config.theta, config.tau
    params.bound = config.lambda_ * config.theta
    params.height, params.width, params.pitch = level.height, level.width, level.pitch
    params.image_pitch = warp.first.stride(1)
    params.iterations, params.lead = config.iterations, cut.lead
    params.columns, params.rows = cut.columns, cut.rows
    params.tiles_x, params.tiles_y = cut.across, cut.down
    blocks = cut.across * cut.down * level.batch
    kernel = load([(cut, config, level.dtype)], device)[0]["fused_warp"]
    kernel.allow_shared(device.index, cut.shape.shared)
    early = int(re.sub(r"\D", "", device.arch)) >= 90
    return Launch(kernel, blocks, params, device.index, cut.shape.shared, 32 * cut.shape.groups, early)
