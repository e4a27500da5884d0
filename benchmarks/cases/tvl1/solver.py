"""TV-L1 on the GPU as a whole, from frames on the device to flow.

Presets, the largest real-time frame, error against time, and OpenCV's solvers.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarks.bench import Note, Result
from benchmarks.cases.networks.models import Plan, frames
from benchmarks.cases.tvl1.cpu import Pair, _grey8, _opencv, _skimage, peers
from benchmarks.cases.tvl1.romera import AUTO, ScheduledSolver, schedule_of
from benchmarks.cases.tvl1.schedules import PRECISIONS, SPECIAL
from benchmarks.cases.tvl1.tuning import shape_for
from benchmarks.energy import Meter, StillMeter, energy_of
from benchmarks.harness import Candidate, clock_of, first_line, interleaved, release, spread, wall_clock
from fullfield.metrics import aae, epe
from fullfield.ops import _launching
from fullfield.ops.tvl1 import PersistentSolver, TVL1Config, TVL1Solver, persistent
from fullfield.ops.tvl1.config import PRESETS
from fullfield.ops.tvl1.frames import compute_level_sizes

Row = dict[str, Any]


class Whole(NamedTuple):
    """A setting for whole frames: a preset with some of its parameters changed."""

    preset: str
    size: tuple[int, int]
    changes: Mapping[str, Any] = {}


# From the fastest to the best; after the first preset what an H200 does at about 200 frames a second.
WHOLE = (
    Whole("fast", (1080, 1920)),
    Whole("default", (1080, 1920), {"scale_factor": 0.8, "warps": 8}),
    Whole("realtime", (1080, 1920)),
    Whole("default", (1080, 1920)),
    Whole("default", (3432, 8192)),
)
LIMITS = (5e-3, 10e-3, 20e-3, 40e-3)
"""Seconds a frame, the paper's table 3."""
STEPS = (3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
"""Iterations a warp, the paper's figure 13."""
QUALITY_SCHEDULES = (AUTO, "global")
"""The fastest way to iterate, whose small levels are float32 inside, and the paper's first, which memory limits."""
QUALITY_SCALES = {"middlebury": 3, "sintel": 5}
BATCH = 24
"""Pairs at a time where the GPU is to be full: one Middlebury pair leaves most of an H200 idle."""
_PATIENCE = 0.5  # seconds of one measurement, unless three calls take longer
_QUICK, _QUICK_CALLS = 0.02, 20  # a call that takes less seconds is timed so often in a round
_TILE = 1024
_STEP = 16  # pixels, of the sides tried for table 3
_TRIES, _NEAR = 4, 0.99
# From the reference at the checked size: mean distance allowed, px.
_CHECKED = (135, 240)
_ALLOWED = {"float32": 2e-3, "float16": 0.1}
# Planes that a warp moves at the least, (in the configuration's precision, in float32). Stage by stage, each reading
# its inputs and writing its results once: linearise 2 of flow and 2 frames to 3, all iterations in one pass 9 to 6, the
# median 2 to 2. All of it in one kernel: flow 2 to 2, dual 4 to 4, and the frames.
STAGES, FUSED = (3 + 9 + 6, 2 + 2 + 2 + 2), (4 + 4, 2 + 2 + 2)
MEDIAN = 2 + 2


class Solver(Protocol):
    """Solver that is measured; :class:`fullfield.ops.tvl1.PersistentSolver` is one."""

    def __call__(self, frame1: Tensor, frame2: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the flow of a pair."""

    def step(self, frame: Tensor, out: Tensor | None = None) -> Tensor | None:
        """Return the flow from the frame before; None for the first."""


def make_solver(
    shape: tuple[int, int, int, int], config: TVL1Config, device: torch.device, schedule: str = AUTO
) -> Solver:
    """Return a solver for uint8 frames [B, C, H, W] on the device, with this schedule on every level."""
    if schedule == AUTO:
        return PersistentSolver(shape, config, dtype=torch.uint8, device=device)
    tuned = shape_for(schedule, PRECISIONS[config.precision], _launching.get_device_gpu_properties(device))
    return ScheduledSolver(shape, config, device, schedule_of(schedule, tuned))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def latencies(call: Callable[[], Any], device: torch.device, count: int) -> list[float]:
    """Seconds of single calls, each alone on the device: ``count``, or fewer where they take long, at least three."""
    clock = clock_of(device)
    call()
    once = clock(call)
    return [clock(call) for _ in range(_few(once, count))]


def throughput(call: Callable[[], Any], device: torch.device, count: int, once: float) -> float:
    """Return calls per second, one queued after the other; ``once``: seconds that one takes."""
    number = _few(once, count)
    _finish(device)
    start = time.perf_counter()
    for _ in range(number):
        call()
    _finish(device)
    return number / (time.perf_counter() - start)


def _few(once: float, count: int) -> int:
    return max(3, min(count, int(_PATIENCE / once)))


def tail(seconds: Sequence[float]) -> Row:
    """Return the spread, and the 99th percentile."""
    return {**spread(seconds), "p99_s": persistent.summarize_times(seconds).p99}


# ---- whole frames


def floors(size: tuple[int, int], config: TVL1Config, limits: Result) -> dict[str, float] | None:
    """Seconds that a frame takes at least: every level and warp at the larger of memory and special functions.

    ``floor_s``: each stage of a warp reads its inputs once and writes its results once; ``fused_floor_s``: a whole
    warp in one kernel. Iterations move their planes in the configuration's precision, everything else is float32.
    """
    if "bytes_per_s" not in limits:
        return None
    itemsize = PRECISIONS[config.precision].itemsize
    stages = STAGES[0] * itemsize + (STAGES[1] if config.median else STAGES[1] - MEDIAN) * 4
    bytes_moved = {"floor_s": stages, "fused_floor_s": FUSED[0] * itemsize + FUSED[1] * 4}
    result = dict.fromkeys(bytes_moved, 0.0)
    for height, width in compute_level_sizes(*size, config.scales, config.scale_factor):
        special = SPECIAL * config.iterations / limits["special_per_s"] if limits.get("special_per_s") else 0.0
        for name, moved in bytes_moved.items():
            result[name] += config.warps * height * width * max(moved / limits["bytes_per_s"], special)
    return result


def agreement(config: TVL1Config, device: torch.device, schedule: str = AUTO) -> tuple[dict[str, Any], str | None]:
    """Return the mean distance from the reference in float32 on a small pair, and what is wrong with it."""
    first, second, right = _checked(config.replace(precision="float32"), device, _CHECKED)
    result = make_solver((1, 3, *_CHECKED), config, device, schedule)(first, second)
    off = float((result - right).norm(dim=1).mean())
    allowed = _ALLOWED[config.precision]
    check = {"mean_px": off, "allowed_px": allowed, "size": list(_CHECKED)}
    return check, None if off <= allowed else f"{off:.2g} px from the reference (allowed {allowed:g})"


@lru_cache(maxsize=16)
def _checked(config: TVL1Config, device: torch.device, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a small pair of bytes and its flow by the reference."""
    first, second = (_bytes(frame) for frame in frames(Plan((), (), device), size))
    reference = TVL1Solver(*size, config, device=device, backend="reference")
    return first, second, reference(first.float() / 255, second.float() / 255)


def _bytes(frame: Tensor) -> Tensor:
    return (frame * 255).round().to(torch.uint8)


def _explains(first: Tensor, second: Tensor, flow: Tensor) -> str | None:
    """Check that a flow makes the second frame more like the first than it is."""
    if not bool(flow.isfinite().all()):
        return "the flow has NaN or infinite values"
    height, width = flow.shape[-2:]
    ys = torch.arange(height, device=flow.device)[:, None] + flow[0, 1]
    xs = torch.arange(width, device=flow.device) + flow[0, 0]
    at = torch.stack((2 * xs / max(width - 1, 1) - 1, 2 * ys / max(height - 1, 1) - 1), -1)[None]
    moved = torch.nn.functional.grid_sample(second[:, :1].float(), at, padding_mode="border", align_corners=True)
    off, still = (float((frame - first[:, :1].float()).abs().mean()) for frame in (moved, second[:, :1].float()))
    return None if off < 0.9 * still else f"the warped frame differs by {off:.3g} grey levels, no flow by {still:.3g}"


def whole_frames(
    plan: Sequence[Whole],
    groups: Mapping[str, Sequence[Pair]],
    device: torch.device,
    count: int,
    limits: Result,
    note: Note,
) -> Result:
    """Measure frames per second of the presets in both precisions: pairs, and the next frame of a sequence.

    Mean end-point errors are those on the pairs of ``groups``; the last pair is enlarged to the frames' size.
    """
    rows: list[Row] = []
    given = [pair for pairs in groups.values() for pair in pairs]
    pair = (given[-1].frame1, given[-1].frame2) if given else None
    known: dict[TVL1Config, dict[str, float]] = {}
    for preset, size, changes in plan:
        first, second = (_bytes(frame) for frame in frames(Plan((), (), device, pair=pair), size))
        for precision in PRECISIONS:
            called = ", ".join((preset, *(f"{key} {value}" for key, value in changes.items())))
            name = f"{called}, {precision}, {size[1]}×{size[0]}"
            note(name)
            config = PRESETS[preset].replace(precision=precision, **changes)
            row: Row = {"name": name, "preset": preset, "changes": dict(changes), "precision": precision}
            row |= {"size": list(size), "status": "ok"}
            rows.append(row)
            levels = len(compute_level_sizes(*size, config.scales, config.scale_factor))
            row |= {"scales": levels, "warps": config.warps, "iterations": config.iterations, "channels": 3}
            row["check"], problem = agreement(config, device)
            solver = make_solver((1, 3, *size), config, device)
            out = solver(first, second)
            problem = problem or _explains(first, second, out)
            if problem is not None:
                row |= {"status": "check failed", "reason": problem}
                continue
            call = partial(solver, first, second, out)
            row |= tail(latencies(call, device, count))
            row["frames_per_s"] = throughput(call, device, count, row["median_s"])
            row["sequence"] = _sequence(solver, (first, second), out, device, count)
            row["memory_bytes"] = getattr(solver, "memory_bytes", None)
            if config not in known:
                known[config] = errors(groups, config, device)
            row["epe"] = known[config]
            result = floors(size, config, limits)
            if result is not None:
                row |= {**result, "over_floor": row["median_s"] / result["floor_s"]}
            del solver, out, call
            release(device)
    return {"case": "whole frames", "frames": "uint8, 3 channels, on the device", "rows": rows}


def errors(groups: Mapping[str, Sequence[Pair]], config: TVL1Config, device: torch.device) -> dict[str, float]:
    """Mean end-point error of every group's pairs, px."""
    result = {}
    for name, pairs in groups.items():
        of_pairs = []
        for same, first, second in _stacks(pairs, device):
            flow = make_solver((len(same), 3, *same[0].size), config, device)(first, second).cpu()
            of_pairs += [float(epe(one, pair.flow, pair.valid)) for one, pair in zip(flow, same, strict=True)]
        result[name] = statistics.fmean(of_pairs)
    return result


def _stacks(pairs: Sequence[Pair], device: torch.device) -> Iterator[tuple[list[Pair], Tensor, Tensor]]:
    """Return the pairs of one size, and their frames as bytes [B, 3, H, W], for every size."""
    for size in dict.fromkeys(pair.size for pair in pairs):
        same = [pair for pair in pairs if pair.size == size]
        first, second = (_bytes(torch.stack([getattr(p, f) for p in same])).to(device) for f in ("frame1", "frame2"))
        yield same, first, second


def _sequence(
    solver: Solver, pair: tuple[Tensor, Tensor], out: Tensor, device: torch.device, count: int
) -> dict[str, Any]:
    """Measure a sequence that goes to and fro between two frames, each started from the last flow."""
    number = 0

    def call() -> None:
        nonlocal number
        number += 1
        solver.step(pair[number % 2], out)

    call()
    result = tail(latencies(call, device, count))
    return {**result, "frames_per_s": throughput(call, device, count, result["median_s"])}


# ---- the largest real-time frame


def tiled(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a square pair [1, 1, side, side] uint8 from one tile that is repeated."""
    tile = [_bytes(frame[:, :1]) for frame in frames(Plan((), (), device), (_TILE, _TILE))]
    times = -(-side // _TILE)
    first, second = (frame.repeat(1, 1, times, times)[..., :side, :side].contiguous() for frame in tile)
    return first, second


def real_time(
    limits: Sequence[float], device: torch.device, count: int, meter: Meter | None, note: Note, start: int = 2048
) -> Result:
    """Find the largest square frame within each time limit: 3 scales, 1 warp, 10 iterations, grey bytes to flow."""
    setting = PRESETS["paper"].replace(iterations=10)
    rows: list[Row] = []
    for precision in PRECISIONS:
        config = setting.replace(precision=precision)
        check, problem = agreement(config, device)
        if problem is not None:
            rows.append({"name": precision, "status": "check failed", "reason": problem, "check": check})
            continue
        known: dict[int, Row] = {}

        def measure(side: int, config: TVL1Config = config, known: dict[int, Row] = known) -> Row:
            if side not in known:
                note(f"{side}×{side}, {config.precision}")
                known[side] = _one_frame(side, config, device, count)
                release(device)
            return known[side]

        for limit in limits:
            best = largest(limit, measure, start, _STEP)
            name = f"{precision}, {1e3 * limit:g} ms"
            row: Row = {"name": name, "precision": precision, "limit_s": limit, "check": check, "status": "ok"}
            wrong = next((result for result in known.values() if result.get("status") == "check failed"), None)
            if wrong is not None:
                rows.append(row | wrong)
                continue
            if best is None:
                rows.append(row | {"status": "not possible", "reason": "no size is fast enough"})
                continue
            if meter is not None and "watts" not in best:
                with suppress(StillMeter):
                    best["watts"] = _watts(best["side"], config, device, meter)
            rows.append(row | best)
            start = best["side"]
    return {"case": "real time", "setting": setting.as_dict(), "rows": rows}


def largest(limit: float, measure: Callable[[int], Row], start: int, step: int) -> Row | None:
    """Return the largest side tried, a multiple of ``step``, whose median is within ``limit``.

    Goes from ``start`` in the proportion of time to pixels, at most four times, until 1 % of the time is left.
    """
    side, best, worst = max(step, start // step * step), None, None
    for _ in range(_TRIES):
        row = measure(side)
        if "median_s" not in row or row["median_s"] > limit:
            worst = side if worst is None else min(worst, side)
        elif best is None or side > best["side"]:
            best = row
            if row["median_s"] > _NEAR * limit:
                break
        scale = (limit / row["median_s"]) ** 0.5 if "median_s" in row else 0.7
        side = int(side * scale) // step * step
        if best is not None:
            side = max(side, best["side"] + step)
        if worst is not None:
            side = min(side, worst - step)
        if side < step or (best is not None and side <= best["side"]):
            break
    return best


def _watts(side: int, config: TVL1Config, device: torch.device, meter: Meter) -> float:
    first, second = tiled(side, device)
    solver = make_solver((1, 1, side, side), config, device)
    call = partial(solver, first, second, solver(first, second))
    result = energy_of(call, meter, lambda: _finish(device), 0.3)["watts"]
    del solver, call
    release(device)
    return result


def _one_frame(side: int, config: TVL1Config, device: torch.device, count: int) -> Row:
    first, second = tiled(side, device)
    try:
        solver = make_solver((1, 1, side, side), config, device)
        out = solver(first, second)
    except (RuntimeError, MemoryError) as error:
        return {"side": side, "reason": first_line(error)}
    problem = _explains(first, second, out)
    if problem is not None:
        return {"side": side, "status": "check failed", "reason": f"{side}×{side}: {problem}"}
    call = partial(solver, first, second, out)
    return {"side": side, **tail(latencies(call, device, count))}


# ---- error against time


def quality(
    groups: Mapping[str, Sequence[Pair]], device: torch.device, count: int, note: Note, steps: Sequence[int] = STEPS
) -> Result:
    """Errors and time per pair over the number of iterations, in batches and alone: the paper's figure 13, table 2.

    Scenes of one size run together; the time per pair of a set is the mean over its scenes. ``count``: batches behind a
    median; of single pairs, whose launching is most of their time, five times as many.
    """
    rows: list[Row] = []
    for name, schedule, precision, iterations in product(groups, QUALITY_SCHEDULES, PRECISIONS, steps):
        note(f"{name}, {schedule}, {precision}, {iterations} iterations")
        scales = QUALITY_SCALES[name]
        config = PRESETS["paper"].replace(scales=scales, iterations=iterations, precision=precision)
        row: Row = {"name": f"{name} {schedule} {precision} {iterations}", "set": name, "schedule": schedule}
        row |= {"precision": precision, "iterations": iterations, "scales": scales, "warps": 1, "batch": BATCH}
        row["check"], problem = agreement(config, device, schedule)
        if problem is not None:
            rows.append(row | {"status": "check failed", "reason": problem})
        else:
            rows.append({**row, "status": "ok", **_quality(groups[name], config, device, count, schedule)})
    return {"case": "quality", "rows": rows}


def _quality(pairs: Sequence[Pair], config: TVL1Config, device: torch.device, count: int, schedule: str) -> Row:
    scenes: list[Row] = []
    for same, *stacks in _stacks(pairs, device):
        many = [stack.repeat(-(-BATCH // len(same)), 1, 1, 1)[:BATCH] for stack in stacks]
        full, flow = _timed_batch(many, config, device, count, schedule)
        times: Row = {"seconds": statistics.median(full), "seconds_range": [min(full), max(full)]}
        if schedule == AUTO:
            alone, _ = _timed_batch([stack[:1] for stack in stacks], config, device, 5 * count, schedule)
            times |= {"seconds_alone": statistics.median(alone), "seconds_alone_range": [min(alone), max(alone)]}
        for pair, result in zip(same, flow.cpu(), strict=False):
            errors = {
                "epe": float(epe(result, pair.flow, pair.valid)),
                "aae": float(aae(result, pair.flow, pair.valid)),
            }
            still = float(epe(torch.zeros_like(result), pair.flow, pair.valid))
            scenes.append({"scene": pair.name, "size": list(pair.size), **errors, "still_epe": still, **times})
    keys = ("epe", "aae", "still_epe", "seconds", "seconds_alone")
    means = {key: statistics.fmean(scene[key] for scene in scenes) for key in keys if key in scenes[0]}
    row: Row = {**means, "scenes": scenes}
    if not means["epe"] < means["still_epe"]:
        reason = f"end-point error {means['epe']:.3f} px, no flow has {means['still_epe']:.3f}"
        row |= {"status": "check failed", "reason": reason}
    return row


def _timed_batch(
    pair: Sequence[Tensor], config: TVL1Config, device: torch.device, count: int, schedule: str
) -> tuple[list[float], Tensor]:
    """Seconds per pair of some batches, and their flow."""
    first, second = pair
    shape = (len(first), int(first.shape[1]), int(first.shape[2]), int(first.shape[3]))
    solver = make_solver(shape, config, device, schedule)
    flow = solver(first, second)
    times = latencies(partial(solver, first, second, torch.empty_like(flow)), device, count)
    return [seconds / len(first) for seconds in times], flow


def curve_of(case: Result, name: str, precision: str, schedule: str) -> list[Row]:
    """Return the rows of a set that have errors, by iterations."""
    requested = {"set": name, "precision": precision, "schedule": schedule}
    rows = (row for row in case["rows"] if "epe" in row and all(row[key] == value for key, value in requested.items()))
    return sorted(rows, key=lambda row: int(row["iterations"]))


def at_equal_time(case: Result, name: str, schedule: str, marks: Sequence[int] = (5, 10, 20)) -> list[Row]:
    """Return errors of both precisions in the time that float32 takes for ``marks`` iterations, linear in between."""
    key = "seconds"
    curves = {
        precision: sorted(curve_of(case, name, precision, schedule), key=lambda row: float(row[key]))
        for precision in PRECISIONS
    }
    result = []
    for mark in marks:
        here = next((row for row in curves["float32"] if row["iterations"] == mark), None)
        if here is None:
            continue
        row: Row = {"set": name, "seconds": here[key], "iterations_float32": mark}
        for precision, curve in curves.items():
            for scene in range(len(here["scenes"])):
                for error in ("epe", "aae"):
                    points = [(r[key], r["scenes"][scene][error]) for r in curve]
                    row[f"{here['scenes'][scene]['scene']} {error} {precision}"] = _between(points, here[key])
            for error in ("epe", "aae", "iterations"):
                row[f"{error} {precision}"] = _between([(r[key], r[error]) for r in curve], here[key])
        result.append(row)
    return result


def _between(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """Linear between the points; the last value beyond them, None before the first."""
    if not points or at < points[0][0] * (1 - 1e-9):
        return None
    for (t0, v0), (t1, v1) in pairwise(points):
        if at <= t1:
            return v1 if t1 == t0 else v0 + (v1 - v0) * (at - t0) / (t1 - t0)
    return points[-1][1]


# ---- peers


def against_opencv(pair: Pair, device: torch.device, repeats: int, note: Note) -> Result:
    """Compare the whole solver, with the paper's settings of table 3, with OpenCV's solvers and scikit-image's.

    OpenCV's run on the CPU and, where it has one, on the GPU; scikit-image's pyramid goes on halving. Ours and
    OpenCV's GPU solver have their frames on the device; none stops early. A round of a quick solver is the median of
    20 calls.
    """
    setting = PRESETS["paper"].replace(iterations=10)
    result: dict[str, float] = {}
    calls: dict[str, Callable[[], Tensor]] = {}
    for precision in PRECISIONS:
        calls[f"fullfield {precision}"] = _ours(pair, setting.replace(precision=precision), device)
    settings = {"ScalesNumber": 3, "ScaleStep": 0.5, "WarpingsNumber": 1, "Epsilon": 0.0, "MedianFiltering": 1}
    if "opencv" in peers():
        calls["opencv cpu"] = _opencv(pair, **settings, InnerIterations=10, OuterIterations=1)
    if "scikit-image" in peers():
        calls["scikit-image cpu"] = _skimage(pair, num_warp=1, num_iter=10, tol=0)
    cuda, reason = opencv_cuda(pair, setting)
    if cuda is not None:
        calls["opencv cuda"] = cuda
    still = float(epe(torch.zeros_like(pair.flow), pair.flow, pair.valid))

    def check(name: str, flow: Tensor) -> str | None:
        result[name] = float(epe(flow.cpu().float(), pair.flow, pair.valid))
        return (
            None if result[name] < 0.95 * still else f"end-point error {result[name]:.3f} px, no flow has {still:.3f}"
        )

    candidates = [Candidate(name, call, partial(check, name)) for name, call in calls.items()]

    def clock(call: Callable[[], Any]) -> float:
        def finished() -> None:
            call()
            _finish(device)

        _finish(device)
        once = wall_clock(finished)
        # A device that stood still while another candidate had its turn needs a call to get going.
        return once if once > _QUICK else statistics.median(wall_clock(finished) for _ in range(_QUICK_CALLS))

    rows: list[Row] = [
        {**t.as_dict(), "epe": result[t.name]} for t in interleaved(candidates, repeats, note, clock, 3.0)
    ]
    for row in rows:
        row["ours_faster"] = row["median_s"] / rows[0]["median_s"]
    return {
        "case": "peers",
        "pair": pair.name,
        "size": list(pair.size),
        "setting": setting.as_dict(),
        "opencv_cuda": reason,
        "rows": rows,
    }


def _ours(pair: Pair, config: TVL1Config, device: torch.device) -> Callable[[], Tensor]:
    first, second = (_bytes(frame)[None].to(device) for frame in (pair.frame1, pair.frame2))
    solver = make_solver((1, 3, *pair.size), config, device)
    out = solver(first, second)
    return lambda: solver(first, second, out)[0]


def opencv_cuda(pair: Pair, config: TVL1Config) -> tuple[Callable[[], Tensor] | None, str]:
    """OpenCV's CUDA solver, or why there is none."""
    try:
        cv2: Any = importlib.import_module("cv2")
    except ImportError:
        return None, "OpenCV is not installed"
    if not hasattr(cv2, "cuda") or cv2.cuda.getCudaEnabledDeviceCount() < 1:
        return None, "this OpenCV was built without CUDA"
    kind = getattr(cv2, "cuda_OpticalFlowDual_TVL1", None)
    if kind is None:
        return None, "this OpenCV has no CUDA TV-L1"
    solver = kind.create(
        config.tau, config.lambda_, config.theta, config.scales, config.warps, 0.0, config.iterations,
        config.scale_factor, 0.0, False,
    )  # fmt: skip
    sent = []
    for frame in (pair.frame1, pair.frame2):
        matrix = cv2.cuda_GpuMat()
        matrix.upload(_grey8(frame))
        sent.append(matrix)

    def call() -> Tensor:
        return torch.from_numpy(solver.calc(*sent, None).download()).permute(2, 0, 1)

    return call, "measured"
