"""The inner iterations by the four schedules of Romera et al. 2023, for the engine in place of its own.

- ``global``: two kernels an iteration, one for the flow, one for the dual variable, in place.
- ``shared_fusion``: one kernel an iteration; blocks compute the flow again where their neighbours have it. A variant:
  the paper loads all inputs of a block into shared memory first, here threads read them from global memory, and only
  the new flow lies in shared memory.
- ``global_pipeline``: several iterations in one pass, line after line; lines between iterations in global memory. A
  variant: the paper's blocks work on whole lines in place, here a block works on a panel of columns with a halo on both
  sides, and keeps lines between iterations in scratch memory of its own.
- ``shared_pipeline``: the same panels, lines in shared memory.

``register_pipeline`` is the engine's own: the same, lines in registers. All five give the same flow.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops import _launching
from fullfield.ops._launching import (
    HALVES,
    GpuProperties,
    Launch,
    LoadedKernels,
    get_address,
    parse_structures,
    read_source,
)
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import passes, pipeline
from fullfield.ops.tvl1.cuda.engine import Engine, IterationSchedule
from fullfield.ops.tvl1.cuda.pipeline import (
    PipelineShape,
    RegisterPipeline,
    choose_strip_rows,
    split_iterations_into_passes,
)
from fullfield.ops.tvl1.cuda.state import DATA, DUAL, FLOW, ORIGIN, Level
from fullfield.ops.tvl1.persistent import PersistentSolver

AUTO = "auto"
"""In results: as the solver chooses by itself, level by level."""
OURS = "register_pipeline"
SCHEDULES = ("global", "shared_fusion", "global_pipeline", "shared_pipeline", OURS)
VARIANTS = {"shared_fusion": "inputs unstaged", "global_pipeline": "panels"}
"""Schedules that differ from the paper's, and how tables call what differs."""
ACROSS = 32  # words of a tile of shared_fusion
_Params = parse_structures(Path(__file__).with_name("iterate_rows.cuh"))["IterateParams"]


def shown(name: str) -> str:
    """Return the name of a version, such as ``global float16``, as tables show it: variants are marked."""
    schedule, *rest = name.split(" ")
    marked = f"{schedule} ({VARIANTS[schedule]})" if schedule in VARIANTS else schedule
    return " ".join([marked, *rest])


@dataclass(frozen=True)
class Cost:
    """Counted from the kernels' sources, per pixel and iteration; halos and borders left out."""

    operations: float
    """Arithmetic operations: a multiply-add is two; a square root, reciprocal, minimum or maximum one."""
    read: float
    """Bytes asked of global memory; caches serve some of them."""
    written: float
    """Bytes written to global memory."""


def cost(schedule: str, dtype: torch.dtype, iterations: int, shape: PipelineShape) -> Cost:
    """Of ``iterations`` that start in memory, averaged over them."""
    half = dtype == torch.float16
    origin = 6 if half else 0  # both components: here, right, below
    share = len(split_iterations_into_passes(iterations, shape.depth)) / iterations
    normalising, stepping = 9, 60 if half else 50
    if schedule == "global":  # flow: 2 and 4, of those 2 left, 2 up; then the flow at 3 places, and the dual again
        words, written = float((2 + 4 + 2 + 2 + DATA) + (3 * FLOW + DUAL) + origin), float(FLOW + DUAL)
    elif schedule == "shared_fusion":
        words, written = (2 + 4 + 2 + 2 + DATA) + DUAL + origin, float(FLOW + DUAL)
    elif schedule == OURS:
        return Cost(
            stepping + (normalising + (4 if half else 0)) * share,
            (FLOW + DUAL + DATA + (ORIGIN if half else 0)) * share * dtype.itemsize,
            (FLOW + DUAL) * share * dtype.itemsize,
        )
    else:
        lines = schedule == "global_pipeline"  # flow, dual, left, up; then flow here, right, below; dual again
        words = DATA + origin + (FLOW + DUAL) * share + ((2 + 4 + 2 + 2) + 3 * FLOW + DUAL if lines else 0)
        written = (FLOW + DUAL) * share + ((FLOW + DUAL) * (1 + share) if lines else 0)
    return Cost(normalising + stepping + (4 if half else 0), words * dtype.itemsize, written * dtype.itemsize)


# ---- the kernels


class Pass(NamedTuple):
    """One kernel of a pass over a level."""

    source: KernelSource
    name: str
    blocks: int
    threads: int
    shared: int = 0
    rows: int = 0
    columns: int = 0
    strips: int = 0
    scratch: int = 0
    """Bytes."""


@functools.cache
def _generate_source(file: str, half: bool, **options: int) -> KernelSource:
    own = (Path(__file__).with_name(name) for name in ("iterate_rows.cuh", file))
    text = read_source(HALVES, pipeline.COMMON, *own)
    return KernelSource(text, (f"-DHALF={int(half)}", *(f"-D{name}={value}" for name, value in options.items())))


def _words(level: Level) -> int:
    return -(-level.width // 2) if level.dtype == torch.float16 else level.width


def _global(level: Level, shape: PipelineShape) -> list[Pass]:
    source = _generate_source("iterate_global.cu", level.dtype == torch.float16, THREADS=shape.threads)
    blocks = level.batch * level.height * -(-_words(level) // shape.threads)
    return [Pass(source, name, blocks, shape.threads) for name in ("update_flow", "update_dual")]


def _fused(level: Level, shape: PipelineShape) -> Pass:
    source = _generate_source("iterate_fused.cu", level.dtype == torch.float16, THREADS=shape.threads)
    rows = shape.rows or 4 * shape.threads // ACROSS
    columns = -(-_words(level) // ACROSS)
    strips = level.batch * columns * -(-level.height // rows)
    return Pass(source, "iterate_fused", strips, shape.threads, 2 * (rows + 1) * (ACROSS + 1) * 4, rows, columns)


def _lines(level: Level, shape: PipelineShape, depth: int, shared: bool, device: GpuProperties) -> Pass:
    half = level.dtype == torch.float16
    source = _generate_source("iterate_lines.cu", half, THREADS=shape.threads, DEPTH=depth, SHARED=int(shared))
    useful = shape.threads - 2 * (-(-depth // (2 if half else 1)))
    if useful < 1:
        raise ValueError(f"expected more than {shape.threads - useful} threads for {depth} iterations a pass")
    columns = -(-_words(level) // useful)
    at_once = device.processors * shape.blocks
    rows = choose_strip_rows(level.height, shape.rows, columns * level.batch, at_once)
    strips = level.batch * columns * -(-level.height // rows)
    size, blocks = (depth + 1) * 2 * 6 * 4 * shape.threads, min(strips, at_once)
    places = {"shared": size} if shared else {"scratch": blocks * size}
    return Pass(source, "iterate_lines", blocks, shape.threads, rows=rows, columns=columns, strips=strips, **places)


def depth_of(schedule: str, shape: PipelineShape) -> int:
    """Most iterations in one pass."""
    return 1 if schedule in ("global", "shared_fusion") else shape.depth


def passes_of(schedule: str, level: Level, depth: int, shape: PipelineShape, device: GpuProperties) -> list[Pass]:
    """Return the kernels of one pass of ``depth`` iterations."""
    if schedule == "global":
        return _global(level, shape)
    if schedule == "shared_fusion":
        return [_fused(level, shape)]
    if schedule in ("global_pipeline", "shared_pipeline"):
        return [_lines(level, shape, depth, schedule == "shared_pipeline", device)]
    if schedule == OURS:
        ours = pipeline.plan_iteration_pass(level, shape, depth, device)
        return [Pass(ours.source, "iterate_registers", *ours[1:])]
    raise ValueError(f"expected one of {', '.join(SCHEDULES)}, got {schedule!r}")


def compile_all(runs: Sequence[tuple[str, Level, PipelineShape]], iterations: int, device: GpuProperties) -> None:
    """Compile what ``launch_iterations_and_update_front`` needs for every (schedule, level, shape), all at once."""
    sources = [
        one.source
        for schedule, level, shape in runs
        for depth in set(split_iterations_into_passes(iterations, depth_of(schedule, shape)))
        for one in passes_of(schedule, level, depth, shape, device)
    ]
    if sources:
        _launching.load_several_kernels(passes.LIBRARIES, sources, device.index)


# ---- running


class Romera:
    """One of the four, with the methods of :class:`fullfield.ops.tvl1.cuda.engine.IterationSchedule`."""

    def __init__(self, schedule: str, shape: PipelineShape) -> None:
        self._schedule, self._shape, self._depth = schedule, shape, depth_of(schedule, shape)
        self._scratch: Tensor | None = None

    def _launches(self, level: Level, depth: int) -> list[tuple[Pass, LoadedKernels]]:
        device = _launching.get_device_gpu_properties(level.device)
        result = passes_of(self._schedule, level, depth, self._shape, device)
        kernels = _launching.load_several_kernels(passes.LIBRARIES, [one.source for one in result], device.index)
        return list(zip(result, kernels, strict=True))

    def prepare_iterations(self, level: Level, iterations: int) -> None:
        """Compile, load and allocate what ``launch_iterations_and_update_front`` needs; before a capture."""
        for depth in set(split_iterations_into_passes(iterations, self._depth)):
            for one, kernels in self._launches(level, depth):
                kernels.get_kernel(one.name, one.shared)
                if one.scratch and (self._scratch is None or self._scratch.numel() < one.scratch):
                    self._scratch = torch.empty(one.scratch, dtype=torch.uint8, device=level.device)

    def launch_iterations_and_update_front(
        self, level: Level, iterations: int, config: TVL1Config, stream: int, *, zero_dual: bool = False
    ) -> None:
        """As :meth:`fullfield.ops.tvl1.cuda.pipeline.RegisterPipeline.launch_iterations_and_update_front`."""
        in_place = self._schedule == "global"
        for depth in split_iterations_into_passes(iterations, self._depth):
            to = level.front if in_place else 1 - level.front
            for one, kernels in self._launches(level, depth):
                if one.scratch and (self._scratch is None or self._scratch.numel() < one.scratch):
                    raise ValueError(f"prepare_iterations was not called for {self._schedule} of this level")
                params: Any = _Params()
                pipeline.fill_iteration_params(params, level, config, to, zero_dual=zero_dual)
                params.rows, params.columns, params.strips = one.rows, one.columns, one.strips
                params.scratch = get_address(self._scratch)
                Launch(kernels, one.name, one.blocks, one.threads, params, one.shared)(stream)
            level.front, zero_dual = to, False


def schedule_of(name: str, shape: PipelineShape) -> IterationSchedule:
    """Return the schedule of this name in ``SCHEDULES``."""
    if name not in SCHEDULES:
        raise ValueError(f"expected one of {', '.join(SCHEDULES)}, got {name!r}")
    return RegisterPipeline(shape) if name == OURS else Romera(name, shape)


class ScheduledSolver(PersistentSolver):
    """A persistent solver whose iterations run by a schedule, on every level."""

    def __init__(
        self, shape: tuple[int, int, int, int], config: TVL1Config, device: torch.device, schedule: IterationSchedule
    ) -> None:
        self._schedule = schedule
        super().__init__(shape, config, dtype=torch.uint8, device=device)

    def _create_engine(self, batch: int, height: int, width: int) -> Engine:
        return Engine(batch, height, width, self.config, self.device, self._schedule)
