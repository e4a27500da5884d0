"""The inner iterations of a level: ten in one pass over the frame, line after line, in registers. See README.md."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops import _launching
from fullfield.ops._launching import COPIES, HALVES, GpuProperties, Launch, parse_structures, read_source
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import passes
from fullfield.ops.tvl1.cuda.state import Level

COMMON = Path(__file__).with_name("iterate_common.cuh")
"""Arithmetic of an iteration, for every kernel that iterates."""
_MIN_STRIP_ROWS = 4  # of a strip that is chosen
_FILE = COMMON.with_name("iterate_registers.cu")
_NAME = "iterate_registers"
_Params = parse_structures(_FILE)["IterateParams"]


@dataclass(frozen=True)
class PipelineShape:
    """Division of a level for the kernel."""

    threads: int
    """Threads of a block: 32 for every warp that the iterations of a pass are dealt to."""
    depth: int = 1
    """Most iterations in one pass over the frame."""
    rows: int = 0
    """Rows of a block's strip; 0: chosen so that all strips run at once."""
    words: int = 2
    """Columns (float16: pairs of columns) a thread, 2 or 4."""
    ahead: int = 2
    """Rows asked for before they are needed."""
    blocks: int = 4
    """Blocks that a multiprocessor is to run at once."""


# The fastest on an H200.
SHAPES = {
    torch.float32: PipelineShape(128, 10, words=4, blocks=3),
    torch.float16: PipelineShape(128, 10, words=2, blocks=4),
}


def split_iterations_into_passes(iterations: int, depth: int) -> list[int]:
    """Return the iterations of every pass, as equal as possible, with at most two different depths."""
    count = -(-iterations // depth)
    shorter, longer = divmod(iterations, count)
    return [shorter + 1] * longer + [shorter] * (count - longer)


def choose_strip_rows(height: int, requested_rows: int, column_count: int, max_concurrent_strips: int) -> int:
    """Return the height of a strip: the requested one if any, or the one with which all strips run at once."""
    if requested_rows:
        return requested_rows
    strips = max(1, max_concurrent_strips // column_count)
    return max(min(_MIN_STRIP_ROWS, height), -(-height // strips))


class IterationPass(NamedTuple):
    """One pass over a level."""

    source: KernelSource
    blocks: int
    threads: int
    shared: int
    rows: int
    columns: int


@functools.cache
def _generate_source(half: bool, **options: int) -> KernelSource:
    return KernelSource.with_macros(read_source(HALVES, COPIES, COMMON, _FILE), HALF=half, **options)


def plan_iteration_pass(level: Level, shape: PipelineShape, depth: int, device: GpuProperties) -> IterationPass:
    """Return the pass of ``depth`` iterations on ``level``."""
    half = level.dtype == torch.float16
    groups = shape.threads // 32
    while depth - (groups - 1) * -(-depth // groups) < 1:
        groups -= 1
    each, words = -(-depth // groups), shape.words
    source = _generate_source(half, DEPTH=depth, GROUPS=groups, WORDS=words, AHEAD=shape.ahead, BLOCKS=shape.blocks)
    strip = 32 * words * (2 if half else 1)
    chunk, unit = 2 if strip < 128 else 4, words if half else 2
    useful = (strip - -(-depth // unit) * unit - depth) // chunk * chunk
    columns = 1 + -(-max(0, level.width - strip) // useful)
    last = depth - (groups - 1) * each
    ring = ((groups - 1) * (each + 1) + last + 1 + half) * (8 if half else 4)
    slots, handed = (shape.ahead + 1, groups) if half or words == 2 else (shape.ahead + 2, groups - 1)
    shared = (ring + slots * (11 if half else 9) + handed * 12) * 32 * words * 4
    concurrent = device.processors * max(1, min(shape.blocks, device.shared // shared))
    rows = choose_strip_rows(level.height, shape.rows, columns * level.batch, concurrent)
    return IterationPass(source, level.batch * columns * -(-level.height // rows), 32 * groups, shared, rows, columns)


def fill_iteration_params(params: Any, level: Level, config: TVL1Config, target_set: int, *, zero_dual: bool) -> None:
    """Fill in the parameters of every iterating kernel: planes from the front to ``target_set``, sizes, constants."""
    front, address = level.front, level.get_plane_address
    params.flow, params.flow_out = (
        address(level.get_first_flow_plane(front)),
        address(level.get_first_flow_plane(target_set)),
    )
    params.dual, params.dual_out = (
        address(level.get_first_dual_plane(front)),
        address(level.get_first_dual_plane(target_set)),
    )
    params.data = level.get_plane_address(level.data_plane)
    params.origin = level.get_plane_address(level.origin_plane) if level.dtype == torch.float16 else None
    params.plane, params.item, params.pitch = level.plane_step, level.item_step, level.pitch
    params.width, params.height = level.width, level.height
    params.slope, params.tau, params.bound = config.tau / config.theta, config.tau, config.lambda_ * config.theta
    params.clamp, params.zero_dual = int(config.borders == "clamp"), int(zero_dual)


class RegisterPipeline:
    """The engine's schedule of iterations. ``shape``: by default the fastest known."""

    def __init__(self, shape: PipelineShape | None = None) -> None:
        self._shape = shape

    def _choose_shape(self, level: Level) -> PipelineShape:
        return SHAPES[level.dtype] if self._shape is None else self._shape

    def prepare_iterations(self, level: Level, iterations: int) -> None:
        """Compile and load what ``launch_iterations_and_update_front`` will launch on ``level``; before a capture."""
        device, shape = _launching.get_device_gpu_properties(level.device), self._choose_shape(level)
        plans = [
            plan_iteration_pass(level, shape, depth, device)
            for depth in sorted(set(split_iterations_into_passes(iterations, shape.depth)))
        ]
        loaded = _launching.load_several_kernels(passes.LIBRARIES, [one.source for one in plans], device.index)
        for one, kernels in zip(plans, loaded, strict=True):
            kernels.get_kernel(_NAME, one.shared)

    def launch_iterations_and_update_front(
        self, level: Level, iterations: int, config: TVL1Config, stream: int, *, zero_dual: bool = False
    ) -> None:
        """Queue ``iterations`` on ``level``; ``level.front`` then names the set with the result.

        Once ``prepare_iterations`` has run with the same arguments, the call neither allocates nor waits, so it may be
        captured.

        Args:
            level: level to iterate on.
            iterations: number of iterations.
            config: ``lambda_``, ``theta``, ``tau`` and ``borders`` are used.
            stream: CUDA stream as an integer, of ``level.device``.
            zero_dual: whether the dual variable starts from zero, for any values in memory.
        """
        device, shape = _launching.get_device_gpu_properties(level.device), self._choose_shape(level)
        for depth in split_iterations_into_passes(iterations, shape.depth):
            one = plan_iteration_pass(level, shape, depth, device)
            params: Any = _Params()
            fill_iteration_params(params, level, config, 1 - level.front, zero_dual=zero_dual)
            params.rows, params.columns = one.rows, one.columns
            kernels = _launching.load_kernels(passes.LIBRARIES, one.source, device.index)
            Launch(kernels, _NAME, one.blocks, one.threads, params, one.shared)(stream)
            level.front, zero_dual = 1 - level.front, False
