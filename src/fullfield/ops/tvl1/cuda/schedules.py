"""The inner iterations on the GPU: five schedules that give the same flow.

- ``global``: two kernels an iteration, one for the flow, one for the dual variable, in place.
- ``shared_fusion``: one kernel an iteration; blocks compute the flow again where their neighbours have it.
- ``global_pipeline``: several iterations in one pass, line after line; lines between iterations in global memory.
- ``shared_pipeline``: the same, lines in shared memory.
- ``register_pipeline``: the same, lines in registers; rows in flight and what stages share in shared memory.

The first four are those of Romera et al. 2023.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fullfield._kernels.nvrtc import Libraries, Source
from fullfield.ops import launching
from fullfield.ops.launching import Device, Kernels, Launch, read_source, several, structures
from fullfield.ops.tvl1.config import SCHEDULES, TVL1Config
from fullfield.ops.tvl1.cuda.state import DATA, DUAL, FLOW, ORIGIN, Level
from fullfield.ops.tvl1.cuda.tuning import Shape, shape_for

DEFAULT = "register_pipeline"
LIBRARIES = Libraries("TV-L1 iterations")
ACROSS = 32  # words of a tile of shared_fusion
_LEAST_ROWS = 4  # of a strip that is chosen
_FOLDER = Path(__file__).parent
_Params = structures(_FOLDER / "iterate_common.cuh")["IterateParams"]


@dataclass(frozen=True)
class Start:
    """What the first iteration need not read: planes that are zero, whatever lies in memory."""

    zero_flow: bool = False
    zero_dual: bool = False


@dataclass(frozen=True)
class Cost:
    """Counted from the kernels' sources, per pixel and iteration; halos and borders left out."""

    operations: float
    """Arithmetic operations: a multiply-add is two; a square root, reciprocal, minimum or maximum one."""
    read: float
    """Bytes asked of global memory; caches serve some of them."""
    written: float
    """Bytes written to global memory."""


def cost(schedule: str, dtype: torch.dtype, iterations: int, shape: Shape) -> Cost:
    """Of ``iterations`` that start in memory, averaged over them."""
    half = dtype == torch.float16
    origin = 6 if half else 0  # both components: here, right, below
    passes = len(plan(iterations, shape.depth)) / iterations
    normalising, stepping = 9, 60 if half else 50
    if schedule == "global":  # flow: 2 and 4, of those 2 left, 2 up; then the flow at 3 places, and the dual again
        words, written = float((2 + 4 + 2 + 2 + DATA) + (3 * FLOW + DUAL) + origin), float(FLOW + DUAL)
    elif schedule == "shared_fusion":
        words, written = (2 + 4 + 2 + 2 + DATA) + DUAL + origin, float(FLOW + DUAL)
    elif schedule == "register_pipeline":
        return Cost(
            stepping + (normalising + (4 if half else 0)) * passes,
            (FLOW + DUAL + DATA + (ORIGIN if half else 0)) * passes * dtype.itemsize,
            (FLOW + DUAL) * passes * dtype.itemsize,
        )
    else:
        lines = schedule == "global_pipeline"  # flow, dual, left, up; then flow here, right, below; dual again
        words = DATA + origin + (FLOW + DUAL) * passes + ((2 + 4 + 2 + 2) + 3 * FLOW + DUAL if lines else 0)
        written = (FLOW + DUAL) * passes + ((FLOW + DUAL) * (1 + passes) if lines else 0)
    return Cost(normalising + stepping + (4 if half else 0), words * dtype.itemsize, written * dtype.itemsize)


def plan(iterations: int, depth: int) -> list[int]:
    """Iterations of every pass, as even as they come: at most two different depths."""
    passes = -(-iterations // depth)
    least, more = divmod(iterations, passes)
    return [least + 1] * more + [least] * (passes - more)


# ---- the kernels


class _Launch(NamedTuple):
    """One kernel for a level and a number of iterations."""

    source: Source
    name: str
    blocks: int
    threads: int
    shared: int
    rows: int
    columns: int
    strips: int
    scratch: int
    """Bytes."""


@functools.cache
def _source(names: Sequence[str], level_half: bool, **options: int) -> Source:
    text = read_source(*(_FOLDER / name for name in ("iterate_common.cuh", *names)))
    return Source(text, (f"-DHALF={int(level_half)}", *(f"-D{name}={value}" for name, value in options.items())))


def _strips_down(height: int, rows: int, columns: int, at_once: int) -> int:
    """Rows of a strip: as asked, or so that all strips run at once."""
    if rows:
        return rows
    strips = max(1, at_once // columns)
    return max(min(_LEAST_ROWS, height), -(-height // strips))


def _global(level: Level, shape: Shape) -> list[_Launch]:
    half = level.dtype == torch.float16
    source = _source(("iterate_rows.cuh", "iterate_global.cu"), half, THREADS=shape.threads)
    chunks = -(-_words(level) // shape.threads)
    blocks = level.batch * level.height * chunks
    return [_Launch(source, name, blocks, shape.threads, 0, 0, 0, 0, 0) for name in ("update_flow", "update_dual")]


def _fused(level: Level, shape: Shape) -> _Launch:
    half = level.dtype == torch.float16
    source = _source(("iterate_rows.cuh", "iterate_fused.cu"), half, THREADS=shape.threads)
    rows = shape.rows or 4 * shape.threads // ACROSS
    columns = -(-_words(level) // ACROSS)
    strips = level.batch * columns * -(-level.height // rows)
    shared = 2 * (rows + 1) * (ACROSS + 1) * 4
    return _Launch(source, "iterate_fused", strips, shape.threads, shared, rows, columns, strips, 0)


def _lines(level: Level, shape: Shape, depth: int, shared: bool, device: Device) -> _Launch:
    half = level.dtype == torch.float16
    options = {"THREADS": shape.threads, "DEPTH": depth, "SHARED": int(shared)}
    source = _source(("iterate_rows.cuh", "iterate_lines.cu"), half, **options)
    useful = shape.threads - 2 * (-(-depth // (2 if half else 1)))
    if useful < 1:
        raise ValueError(f"expected more than {shape.threads - useful} threads for {depth} iterations a pass")
    columns = -(-_words(level) // useful)
    at_once = device.processors * shape.blocks
    rows = _strips_down(level.height, shape.rows, columns * level.batch, at_once)
    strips = level.batch * columns * -(-level.height // rows)
    size = (depth + 1) * 2 * 6 * 4 * shape.threads
    blocks = min(strips, at_once)
    scratch = 0 if shared else blocks * size
    return _Launch(
        source, "iterate_lines", blocks, shape.threads, size if shared else 0, rows, columns, strips, scratch
    )


def _registers(level: Level, shape: Shape, depth: int, device: Device) -> _Launch:
    half = level.dtype == torch.float16
    groups = shape.threads // 32
    while depth - (groups - 1) * -(-depth // groups) < 1:
        groups -= 1
    each, words = -(-depth // groups), shape.words
    options = {"DEPTH": depth, "GROUPS": groups, "WORDS": words, "AHEAD": shape.ahead, "BLOCKS": shape.blocks}
    source = _source(("iterate_registers.cu",), half, **options)
    strip = 32 * words * (2 if half else 1)
    chunk, unit = 2 if strip < 128 else 4, words if half else 2
    useful = (strip - -(-depth // unit) * unit - depth) // chunk * chunk
    columns = 1 + -(-max(0, level.width - strip) // useful)
    last = depth - (groups - 1) * each
    ring = ((groups - 1) * (each + 1) + last + 1 + half) * (8 if half else 4)
    slots, handed = (shape.ahead + 1, groups) if half or words == 2 else (shape.ahead + 2, groups - 1)
    shared = (ring + slots * (11 if half else 9) + handed * 12) * 32 * words * 4
    at_once = device.processors * max(1, min(shape.blocks, device.shared // shared))
    rows = _strips_down(level.height, shape.rows, columns * level.batch, at_once)
    strips = level.batch * columns * -(-level.height // rows)
    return _Launch(source, "iterate_registers", strips, 32 * groups, shared, rows, columns, strips, 0)


def _words(level: Level) -> int:
    return -(-level.width // 2) if level.dtype == torch.float16 else level.width


def pass_of(schedule: str, level: Level, depth: int, shape: Shape, device: Device) -> list[_Launch]:
    """What makes one pass of ``depth`` iterations."""
    if schedule == "global":
        return _global(level, shape)
    if schedule == "shared_fusion":
        return [_fused(level, shape)]
    if schedule == "register_pipeline":
        return [_registers(level, shape, depth, device)]
    if schedule in ("global_pipeline", "shared_pipeline"):
        return [_lines(level, shape, depth, schedule == "shared_pipeline", device)]
    raise ValueError(f"expected one of {', '.join(SCHEDULES)}, got {schedule!r}")


def _device(level: Level) -> Device:
    return launching.device_of(level.device)


def _with_shape(schedule: str, level: Level, shape: Shape | None, device: Device) -> Shape:
    shape = shape if shape is not None else shape_for(schedule, level.dtype, device)
    return replace(shape, depth=1) if schedule in ("global", "shared_fusion") else shape


def _kernels(launches: Sequence[_Launch], device: Device) -> list[Kernels]:
    return several(LIBRARIES, [launch.source for launch in launches], device.index)


# ---- running


def prepare(schedule: str, level: Level, iterations: int, shape: Shape | None = None) -> None:
    """Compile and load what ``iterate`` will launch on ``level``, and allocate its scratch; before a capture."""
    device = _device(level)
    shape = _with_shape(schedule, level, shape, device)
    depths = sorted(set(plan(iterations, shape.depth)))
    launches = [launch for depth in depths for launch in pass_of(schedule, level, depth, shape, device)]
    for launch, kernels in zip(launches, _kernels(launches, device), strict=True):
        kernels.kernel(launch.name, launch.shared)
    scratch = max(launch.scratch for launch in launches)
    if scratch and (level.scratch is None or level.scratch.numel() < scratch):
        level.scratch = torch.empty(scratch, dtype=torch.uint8, device=level.device)


def compile_all(runs: Sequence[tuple[str, Level, Shape]], iterations: int) -> None:
    """Compile what ``iterate`` would need for every (schedule, level, shape), all at once."""
    launches = [
        launch
        for schedule, level, shape in runs
        for depth in set(plan(iterations, _with_shape(schedule, level, shape, _device(level)).depth))
        for launch in pass_of(schedule, level, depth, shape, _device(level))
    ]
    if launches:
        _kernels(launches, _device(runs[0][1]))


def _params(level: Level, config: TVL1Config, in_place: bool, start: Start, launch: _Launch) -> Any:
    params = _Params()
    front, back = level.front, level.front if in_place else 1 - level.front
    params.flow, params.flow_out = level.address(level.flow_plane(front)), level.address(level.flow_plane(back))
    params.dual, params.dual_out = level.address(level.dual_plane(front)), level.address(level.dual_plane(back))
    params.data = level.address(level.data_plane)
    params.origin = level.address(level.origin_plane) if level.dtype == torch.float16 else None
    params.scratch = level.scratch.data_ptr() if launch.scratch and level.scratch is not None else None
    params.plane, params.item, params.pitch = level.plane_step, level.item_step, level.pitch
    params.width, params.height, params.batch = level.width, level.height, level.batch
    params.rows, params.columns, params.strips = launch.rows, launch.columns, launch.strips
    params.slope, params.tau = config.tau / config.theta, config.tau
    params.bound = config.lambda_ * config.theta
    params.clamp = int(config.borders == "clamp")
    params.zero_flow, params.zero_dual = int(start.zero_flow), int(start.zero_dual)
    return params


def iterate(
    schedule: str,
    level: Level,
    iterations: int,
    config: TVL1Config,
    stream: int,
    start: Start | None = None,
    shape: Shape | None = None,
) -> None:
    """Queue ``iterations`` inner iterations on ``level``; ``level.front`` tells where the result lies afterwards.

    Allocates nothing and waits for nothing once ``prepare`` has run with the same arguments: may be captured.

    Args:
        schedule: one of ``SCHEDULES``.
        config: ``lambda_``, ``theta``, ``tau`` and ``borders`` are used.
        stream: CUDA stream as an integer, of ``level.device``.
        start: planes that are zero at the start and therefore not read.
        shape: of the kernel; by default as tuned for this GPU, else a safe one.
    """
    device = _device(level)
    shape = _with_shape(schedule, level, shape, device)
    start = Start() if start is None else start
    in_place = schedule == "global"
    for depth in plan(iterations, shape.depth):
        launches = pass_of(schedule, level, depth, shape, device)
        for launch, kernels in zip(launches, _kernels(launches, device), strict=True):
            if launch.scratch and (level.scratch is None or level.scratch.numel() < launch.scratch):
                raise ValueError(f"schedules.prepare was not called for {schedule} of this level")
            params = _params(level, config, in_place, start, launch)
            Launch(kernels, launch.name, launch.blocks, launch.threads, params, launch.shared)(stream)
            if launch.name == "update_flow":
                start = replace(start, zero_flow=False)
        start = Start()
        if not in_place:
            level.front = 1 - level.front
