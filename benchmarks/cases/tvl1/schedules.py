"""TV-L1's inner iterations on the GPU by schedule: one scale, one warp, nothing but iterations.

Every version starts from the same made-up state, and after the first run is compared with the reference's iterations.
Times are of a CUDA graph of several runs one after the other.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import Note
from benchmarks.cases.tvl1.romera import SCHEDULES, cost, depth_of, passes_of, schedule_of
from benchmarks.cases.tvl1.tuning import shape_for
from benchmarks.energy import Meter, StillMeter, energy_of, idle_watts
from benchmarks.harness import Candidate, captured, clock_of, event_clock, first_line, interleaved, spread
from fullfield._kernels.nvrtc import Compiler, KernelSource
from fullfield.ops import _launching
from fullfield.ops._launching import GpuProperties
from fullfield.ops.tvl1 import TVL1Config
from fullfield.ops.tvl1.config import GRADIENT_FLOOR, PRESETS
from fullfield.ops.tvl1.cuda.pipeline import split_iterations_into_passes
from fullfield.ops.tvl1.cuda.state import Level
from fullfield.ops.tvl1.reference import update_flow_and_dual

Row = dict[str, Any]

ITERATIONS = 10
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
REFERENCE_SIDE = 2048
"""Of the square frame that depths, counted work and energy are measured on, as in the paper."""
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 15)
PRECISIONS = {"float32": torch.float32, "float16": torch.float16}
# Planes that an iteration reads (flow, dual, data) and writes (flow, dual), were all of a warp's done in one pass.
PLANES_READ, PLANES_WRITTEN = 9, 6
# Two divisions and two square roots per pixel and iteration, at 16 results a clock and multiprocessor.
SPECIAL = 4
# Distance from the reference's iterations in float64 that is allowed, px: the largest, and the root mean square.
ALLOWED = {"float32": (1e-4, 1e-5), "float16": (0.1, 5e-3)}
_EXACT_PIXELS = 2048 * 2048  # beyond, the reference's iterations are float32
_BURST_SECONDS, _MOST_RUNS = 2e-3, 64
_COPIED_BYTES = 2**31
_PLANES, _MEMORY_USED = 20, 0.8  # float32 planes of a version's state and scratch; of the memory that is free


@dataclass(frozen=True)
class State:
    """What the iterations start from, all on one device, float32."""

    flow: Tensor  # [2, H, W] px
    dual: Tensor  # [4, H, W]
    gradient: Tensor  # [2, H, W], of intensities 0 ... 255
    residual: Tensor  # [H, W]

    @property
    def size(self) -> tuple[int, int]:
        """Height, width."""
        return int(self.flow.shape[1]), int(self.flow.shape[2])


@dataclass(frozen=True)
class Work:
    """A version, ready for one state."""

    run: Callable[[], None]
    """All iterations once, from where the last run ended."""
    flow: Callable[[], Tensor]
    """The present flow, [2, H, W]."""
    operations: float | None = None
    """Arithmetic operations per pixel and run, counted from the source; bytes likewise."""
    read: float | None = None
    written: float | None = None


@dataclass(frozen=True)
class Version:
    """One way to iterate."""

    name: str
    precision: str
    begin: Callable[[State, int, TVL1Config], Work]
    """From a state, a number of iterations and a configuration."""
    schedule: str = ""
    depth: int | None = None
    """Iterations in one pass."""


def setting(iterations: int = ITERATIONS) -> TVL1Config:
    """Return the paper's parameters for its timings: one scale, one warp."""
    return PRESETS["paper"].replace(scales=1, warps=1, iterations=iterations)


def made_up(size: tuple[int, int], device: torch.device) -> State:
    """Return a state with the spread of a real one; a tenth of the pixels says nothing about motion."""
    generator = torch.Generator(device).manual_seed(0)

    def noise(*planes: int) -> Tensor:
        return torch.randn(*planes, *size, generator=generator, device=device)

    gradient = noise(2).mul_(12)
    gradient.mul_(noise().gt(-1.28))
    return State(noise(2).mul_(0.5), noise(4).mul_(0.3).clamp_(-0.7, 0.7), gradient, noise().mul_(8))


def expected(state: State, config: TVL1Config) -> Tensor:
    """Return the flow by the reference's iterations, float64 where the frame is not too large."""
    exact = state.residual.numel() <= _EXACT_PIXELS
    kind = torch.float64 if exact else torch.float32
    flow, dual, gradient, residual = (t.to(kind) for t in (state.flow, state.dual, state.gradient, state.residual))
    squared = (gradient**2).sum(0)
    inverse = torch.where(squared > GRADIENT_FLOOR, 1 / squared.clamp_min(GRADIENT_FLOOR), 0)
    for _ in range(config.iterations):
        flow, dual = update_flow_and_dual(flow, dual, (gradient[0], gradient[1], residual, inverse), config)
    return flow.float()


def compared(version: Version, found: Tensor, right: Tensor) -> tuple[dict[str, Any], str | None]:
    """Return the distance from the reference's iterations, and what is wrong with it."""
    if not bool(found.isfinite().all()):
        return {"max_px": None, "rms_px": None}, "the flow has NaN or infinite values"
    off = (found.float() - right).norm(dim=0)
    largest, rms = float(off.max()), float(off.square().mean().sqrt())
    most, usual = ALLOWED[version.precision]
    check = {"max_px": largest, "rms_px": rms, "allowed_max_px": most, "allowed_rms_px": usual}
    if largest <= most and rms <= usual:
        return check, None
    return check, f"off by up to {largest:.2g} px (allowed {most:g}), {rms:.2g} px RMS (allowed {usual:g})"


# ---- ours


def versions(schedules: Sequence[str] | None = None, precisions: Sequence[str] = tuple(PRECISIONS)) -> list[Version]:
    """Return the GPU's schedules in both precisions, by default all, each in the shape tuned for this GPU."""
    return [_version(schedule, precision, None) for schedule in schedules or SCHEDULES for precision in precisions]


def pipelines(depths: Sequence[int] = DEPTHS, precisions: Sequence[str] = tuple(PRECISIONS)) -> list[Version]:
    """Return the schedules that do several iterations in one pass, at every depth they have."""
    names = [name for name in SCHEDULES if name.endswith("_pipeline")]
    return [_version(name, precision, depth) for name in names for precision in precisions for depth in depths]


def _version(schedule: str, precision: str, depth: int | None) -> Version:
    dtype = PRECISIONS[precision]

    def begin(state: State, iterations: int, config: TVL1Config) -> Work:
        device, (height, width) = state.flow.device, state.size
        shape = shape_for(schedule, dtype, _launching.get_device_gpu_properties(device))
        if depth is not None:
            shape = dataclasses.replace(shape, depth=depth)
        level = Level(1, height, width, dtype, device)
        level.current_flow.copy_(state.flow)
        level.current_dual.copy_(state.dual * config.theta)
        level.gradient.copy_(state.gradient)
        level.residual.copy_(state.residual)
        if dtype == torch.float16:
            level.origin.zero_()
        how = schedule_of(schedule, shape)
        how.prepare_iterations(level, iterations)

        def run() -> None:
            how.launch_iterations_and_update_front(
                level, iterations, config, torch.cuda.current_stream(device).cuda_stream
            )

        counted = cost(schedule, dtype, iterations, shape)
        each = (counted.operations, counted.read, counted.written)
        return Work(run, lambda: level.current_flow[0], *(iterations * value for value in each))

    return Version(f"{schedule} {precision}", precision, begin, schedule, depth)


def sources_of(
    contenders: Sequence[Version], iterations: Callable[[Version], int], here: GpuProperties
) -> list[KernelSource]:
    """Return the sources that the versions compile for a GPU."""
    levels = {name: Level(1, 64, 64, dtype, torch.device("cpu")) for name, dtype in PRECISIONS.items()}
    result: list[KernelSource] = []
    for version in contenders:
        name, level = version.schedule, levels[version.precision]
        shape = shape_for(name, level.dtype, here)
        shape = shape if version.depth is None else dataclasses.replace(shape, depth=version.depth)
        for depth in set(split_iterations_into_passes(iterations(version), depth_of(name, shape))):
            with suppress(ValueError):  # what a schedule refuses is told when its turn comes
                result += [one.source for one in passes_of(name, level, depth, shape, here)]
    return list(dict.fromkeys(result))


def compile_ahead(contenders: Sequence[Version], iterations: Callable[[Version], int], device: torch.device) -> None:
    """Compile what the versions will launch, all at once: one after the other it takes minutes."""
    if device.type != "cuda":
        return
    here = _launching.get_device_gpu_properties(device)
    Compiler(here.arch, "TV-L1 iterations").compile(sources_of(contenders, iterations, here))


# ---- measuring


def _many(work: Work, device: torch.device) -> tuple[Callable[[], Any], int]:
    """Several runs as one call, and how many: as one CUDA graph, so that launching costs nothing."""
    if device.type != "cuda":
        return work.run, 1
    work.run()
    once = statistics.median(event_clock(work.run) for _ in range(3))
    # An even number: a run may leave its result in the other half of the state, from where a replay must not start.
    runs = 2 * max(1, min(_MOST_RUNS, round(_BURST_SECONDS / once)) // 2)

    def call() -> None:
        for _ in range(runs):
            work.run()

    return captured(call), runs


def timed(
    size: tuple[int, int],
    contenders: Sequence[Version],
    device: torch.device,
    repeats: int,
    note: Note,
    iterations: Callable[[Version], int] = lambda _: ITERATIONS,
) -> list[Row]:
    """Check all versions at one size, then time those that are right, in turns: all of them, or as many as fit."""
    state = made_up(size, device)
    rights: dict[int, Tensor] = {}
    rows: list[Row] = []
    compile_ahead(contenders, iterations, device)
    at_once = _at_once(size, device, len(contenders))
    for first in range(0, len(contenders), at_once):
        rows += _in_turns(state, rights, contenders[first : first + at_once], repeats, note, iterations)
    return rows


def _at_once(size: tuple[int, int], device: torch.device, most: int) -> int:
    """How many versions' states the device holds, an even number so that a schedule's precisions meet."""
    if device.type != "cuda":
        return most
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(2, int(_MEMORY_USED * free) // (_PLANES * 4 * size[0] * size[1]) // 2 * 2)


def _in_turns(
    state: State,
    rights: dict[int, Tensor],
    contenders: Sequence[Version],
    repeats: int,
    note: Note,
    iterations: Callable[[Version], int],
) -> list[Row]:
    """``rights``: the flow by the reference's iterations, by their number; grows."""
    device, size = state.flow.device, state.size
    rows: list[Row] = []
    candidates = []
    for version in contenders:
        count = iterations(version)
        note(f"{size[1]}×{size[0]}, {version.name}{'' if version.depth is None else f', depth {version.depth}'}")
        config = setting(count)
        if count not in rights:
            rights[count] = expected(state, config)
        row: Row = {
            "name": version.name,
            "schedule": version.schedule,
            "precision": version.precision,
            "depth": version.depth,
            "iterations": count,
            "size": list(size),
            "status": "ok",
        }
        rows.append(row)
        try:
            work = version.begin(state, count, config)
            work.run()
            row["check"], problem = compared(version, work.flow(), rights[count])
            if problem is not None:
                row |= {"status": "check failed", "reason": problem}
                continue
            call, runs = _many(work, device)
        except (ValueError, RuntimeError, MemoryError) as error:
            # A depth that a schedule does not have, or a frame that does not fit.
            row |= {"status": "not possible", "reason": first_line(error)}
            continue
        row |= {"operations": work.operations, "bytes_read": work.read, "bytes_written": work.written}
        candidates.append(Candidate(str(len(rows) - 1), call, lambda _: None, {"runs": runs}))
    for timing in interleaved(candidates, repeats, lambda _: None, clock_of(device)) if candidates else []:
        row, runs = rows[int(timing.name)], timing.facts["runs"]
        seconds = [value / runs for value in timing.seconds]
        row |= spread(seconds)
        median, pixels = row["median_s"], size[0] * size[1]
        row |= {"runs_in_a_graph": runs, "ns_per_pixel": 1e9 * median / pixels}
        if row["operations"] is not None:
            row["gflops"] = row["operations"] * pixels / median / 1e9
            row["gbytes_per_s"] = (row["bytes_read"] + row["bytes_written"]) * pixels / median / 1e9
    return rows


def by_size(
    sides: Sequence[int], contenders: Sequence[Version], device: torch.device, repeats: int, note: Note
) -> dict[str, Any]:
    """Time per pixel of every version on square frames: the paper's figures 8 to 10, and table 1 at 2048×2048."""
    rows = [row for side in sides for row in timed((side, side), contenders, device, repeats, note)]
    return {"case": "schedules", "setting": setting().as_dict(), "rows": rows}


def by_depth(
    side: int, contenders: Sequence[Version], device: torch.device, repeats: int, note: Note
) -> dict[str, Any]:
    """Time per iteration over the depth of the pipeline, the paper's figure 11; two passes a run."""
    rows = timed((side, side), contenders, device, repeats, note, lambda version: 2 * (version.depth or ITERATIONS))
    for row in rows:
        if "median_s" in row:
            row["ms_per_iteration"] = 1e3 * row["median_s"] / row["iterations"]
    return {"case": "depths", "setting": setting().as_dict(), "rows": rows}


def energy(
    side: int,
    contenders: Sequence[Version],
    device: torch.device,
    meter: Meter | None,
    told: str,
    note: Note,
    seconds: float = 0.6,
) -> dict[str, Any]:
    """Energy per pixel of every version, the paper's figure 12, from ``seconds`` of work; without a meter only why."""
    case: dict[str, Any] = {"case": "energy", "meter": told, "setting": setting().as_dict(), "rows": []}
    if meter is None:
        return case
    finish = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    try:
        case["idle_watts"] = idle_watts(meter)
    except StillMeter as still:
        case["meter"] = str(still)
        return case
    state = made_up((side, side), device)
    right = expected(state, setting())
    compile_ahead(contenders, lambda _: ITERATIONS, device)
    for version in contenders:
        note(f"energy of {version.name}")
        row: Row = {"name": version.name, "precision": version.precision, "size": [side, side], "status": "ok"}
        case["rows"].append(row)
        work = version.begin(state, ITERATIONS, setting())
        work.run()
        row["check"], problem = compared(version, work.flow(), right)
        if problem is not None:
            row |= {"status": "check failed", "reason": problem}
            continue
        call, runs = _many(work, device)
        try:
            result = energy_of(call, meter, finish, seconds)
        except StillMeter as still:
            row |= {"status": "not available", "reason": str(still)}
            continue
        row |= {"watts": result["watts"], "joules": result["joules"] / runs, "seconds": result["seconds"]}
        row["nj_per_pixel"] = 1e9 * row["joules"] / side**2
        row["ns_per_pixel"] = 1e9 * result["seconds"] / (result["calls"] * runs) / side**2
    return case


def ceilings(device: torch.device) -> dict[str, Any]:
    """Return the hardware's limits: a large copy, measured; special functions, from its clock."""
    if device.type != "cuda":
        return {"case": "ceilings", "rows": []}
    source = torch.empty(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    source.normal_()
    target.copy_(source)
    seconds = statistics.median(event_clock(lambda: target.copy_(source)) for _ in range(5))
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    result = {"case": "ceilings", "bytes_per_s": 2 * _COPIED_BYTES / seconds, "special_per_s": None, "rows": []}
    try:
        clock = 1e6 * torch.cuda.clock_rate(device)  # as it runs just now, after the copies; needs nvidia-ml-py
    except (ModuleNotFoundError, RuntimeError):
        return result
    return result | {"special_per_s": 16 * multiprocessors * clock, "clock_hz": clock}


def floor(pixels: int, iterations: int, precision: str, limits: dict[str, Any]) -> dict[str, float] | None:
    """Seconds that the iterations take at least: memory if all run in one pass, and special functions."""
    if "bytes_per_s" not in limits:
        return None
    planes = (PLANES_READ + PLANES_WRITTEN) * PRECISIONS[precision].itemsize
    result = {"memory_s": planes * pixels / limits["bytes_per_s"]}
    if limits["special_per_s"]:
        result["special_s"] = SPECIAL * pixels * iterations / limits["special_per_s"]
    return result
