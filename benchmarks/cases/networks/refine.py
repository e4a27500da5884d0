"""The guided refinement at full resolution: time, memory, kernels, and its error against the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.harness import given_up, peak_bytes
from fullfield.ops.tvl1 import FlowRefiner, guided_cuda, refine_flow
from fullfield.ops.tvl1.config import PassPosition, RefinementConfig
from fullfield.testing import sample_textured_scene

# Planes of float32 a pixel if every kernel reads its inputs once and writes its results once: those that load; what
# starts a later pass; for each warp linearising, all iterations, the median; for the weighted ones the colours, how
# well the gradients fit (written and read), and the given flow.
LOADING, STARTING, LINEARISING, ITERATING, FILTERING, COLOURS, FIT, GIVEN = 8 + 17, 7, 14, 18, 4, 3, 2, 2
# What the reference is compared on: in float64 it holds the window's 225 neighbours of every pixel.
_LARGEST = {"cuda": (1080, 1920), "cpu": (120, 160)}
_SCENE, _PATCH = 2048, 32
_Inputs = dict[str, Any]


def planes_moved(config: RefinementConfig) -> int:
    """Return the floor, in float32 values a pixel."""
    warp = LINEARISING + ITERATING + FILTERING
    each = config.warps * warp + COLOURS + FIT
    first = LOADING + GIVEN - 4 + each  # the dual variable is zero at first
    if config.passes == 1:
        return first + (config.rounds - 1) * each
    last = config.rounds * (PassPosition(1, 2).count_warps(config) * warp + COLOURS + FIT)
    return first + (config.passes - 1) * (STARTING + GIVEN) + (config.passes - 2) * each + last


@dataclass(frozen=True)
class Plan:
    """One run of the benchmark."""

    sizes: Sequence[tuple[int, int]]
    """Height, width."""
    device: torch.device
    frames: int
    """Calls that are timed."""
    shapes: bool = False
    """On a GPU: every shape of the blocks that iterate."""
    passes: int = 1


def cases(plan: Plan, note: Note) -> Cases:
    """One a size."""
    for size in plan.sizes:
        note(f"refinement, {size[1]}×{size[0]}")
        yield Case(f"{size[1]}×{size[0]}", partial(_case, size, plan, note))


def inputs_of(size: tuple[int, int], device: torch.device) -> tuple[_Inputs, Tensor]:
    """Frames, a flow that is a third of a pixel off in patches of 32 pixels, one back, and the true flow."""
    height, width = size
    shrink = max(1, -(-max(size) // _SCENE))
    scene = sample_textured_scene(max(height // shrink, 16), max(width // shrink, 16), seed=3, max_motion=12 / shrink)
    large = partial(interpolate, size=size, mode="bilinear", align_corners=False)
    first, second, truth = (part[None].to(device) for part in (scene.frame1, scene.frame2, scene.flow))
    stretch = torch.tensor([width / truth.shape[-1], height / truth.shape[-2]], device=device).view(1, 2, 1, 1)
    truth = large(truth) * stretch
    noise = torch.Generator().manual_seed(0)
    wrong = torch.randn(1, 2, -(-height // _PATCH), -(-width // _PATCH), generator=noise).to(device) * 0.3
    flow = truth + large(wrong)
    frames = {"frame1": large(first), "frame2": large(second)}
    return {**frames, "flow": flow, "backward": -flow}, truth


def _case(size: tuple[int, int], plan: Plan, note: Note) -> Result:
    config, device = RefinementConfig(passes=plan.passes), plan.device
    inputs, truth = inputs_of(size, device)
    result: Result = {
        "size": list(size), "near_jumps": near_jumps(truth, config), "planes_moved": planes_moved(config),
    }  # fmt: skip
    if device.type == "cuda":
        rate = copy_rate(device)
        moved = planes_moved(config) * 4 * size[0] * size[1]
        result |= {"copy_tb_s": rate / 1e12, "floor_ms": moved / rate * 1e3}
    height, width = _LARGEST[device.type]
    corner = {name: value[..., :height, :width].contiguous() for name, value in inputs.items()}
    first, second, flow, back = (corner[name] for name in ("frame1", "frame2", "flow", "backward"))
    exact = refine_flow(first.double(), second.double(), flow.double(), back.double(), config, backend="reference")
    plain = (refine_flow(first, second, flow, back, config, backend="reference") - exact).abs().mean()
    rows = []
    backend = "cuda" if device.type == "cuda" else "cpu"
    wanted = guided_cuda.SHAPES if plan.shapes and backend == "cuda" else (guided_cuda.SHAPE,)
    for shape in wanted:
        name = f"cuda, {shape}" if len(wanted) > 1 else backend
        note(f"  {name}")
        try:
            row = _row(size, config, device, backend, shape, inputs, corner, (exact, truth, float(plain)), plan.frames)
        except (RuntimeError, MemoryError) as error:
            row = given_up(error)
        rows.append({"name": name, "ours": True, **row})
    return {**result, "rows": rows}


def _refiner(
    size: tuple[int, int],
    config: RefinementConfig,
    device: torch.device,
    backend: str,
    shape: guided_cuda.IterationTile,
) -> FlowRefiner:
    refiner = FlowRefiner(*size, config, device=device, backend=backend)
    if backend == "cuda" and shape != guided_cuda.SHAPE:
        refiner._cuda = guided_cuda.CudaRefiner(*size, config, refiner.device, shape)
    return refiner


def _row(
    size: tuple[int, int],
    config: RefinementConfig,
    device: torch.device,
    backend: str,
    shape: guided_cuda.IterationTile,
    inputs: _Inputs,
    corner: _Inputs,
    truths: tuple[Tensor, Tensor, float],
    frames: int,
) -> dict[str, Any]:
    exact, truth, plain = truths
    part = (corner["flow"].shape[-2], corner["flow"].shape[-1])
    error = (_refiner(part, config, device, backend, shape)(**corner) - exact).abs()
    row: dict[str, Any] = {"mean_error": float(error.mean()), "largest_error": float(error.max())}
    row |= {"reference_error": plain, "beyond_0.01": float((error > 0.01).float().mean())}
    if row["mean_error"] > 2 * plain + 1e-5 or row["beyond_0.01"] > 1e-4:
        reason = f"{row['mean_error']:.1e} px from the reference in float64, {row['beyond_0.01']:.1e} by over 0.01 px"
        return {**row, "status": "check failed", "reason": reason}
    held = _held(device)
    refiner = _refiner(size, config, device, backend, shape)
    refined = refiner(**inputs)
    row["before"], row["after"] = (float((one - truth).norm(dim=1).mean()) for one in (inputs["flow"], refined))
    if not row["after"] < row["before"]:
        return {**row, "status": "check failed", "reason": f"error {row['before']:.3f} -> {row['after']:.3f} px"}
    again = [refiner(**inputs) for _ in range(2)]  # the second and third call: recorded, replayed
    if not all(torch.equal(one, refined) for one in again):
        return {**row, "status": "check failed", "reason": "a second call gives another flow"}
    del refined, again
    if device.type == "cuda":
        row["kept_mib"] = (_held(device) - held) / 2**20
        row["peak_mib"] = row["kept_mib"] + peak_bytes(lambda: refiner(**inputs)) / 2**20
    seconds = sorted(_seconds(lambda: refiner(**inputs), device) for _ in range(frames))
    row |= {"median_ms": 1e3 * seconds[len(seconds) // 2], "p99_ms": 1e3 * seconds[int(0.99 * (len(seconds) - 1))]}
    row["repeats"] = frames
    if backend == "cuda":
        row["parts_ms"] = parts(refiner, inputs)
    return {**row, "status": "ok"}


def _held(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)


def _seconds(call: Callable[[], Tensor], device: torch.device) -> float:
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def parts(refiner: FlowRefiner, inputs: _Inputs, repeats: int = 5) -> dict[str, float]:
    """Milliseconds of every kind of kernel in one call, launched one by one; the median of some calls."""
    inner = refiner._cuda
    if inner is None:
        raise ValueError("expected a refiner on a GPU")
    flow = inputs["flow"].contiguous()
    refined, found = torch.empty_like(flow), list[dict[str, float]]()
    for _ in range(repeats):
        times: dict[str, float] = {}
        marks = [torch.cuda.Event(enable_timing=True)]  # type: ignore[no-untyped-call]
        marks[0].record()
        names = ["loading"]
        frames = (inputs["frame1"][0], inputs["frame2"][0])
        inner._launch_input_conversion(frames, flow[0], inputs["backward"][0].contiguous(), refined[0])
        launches = next(reversed(inner.launches.values()))  # of the last call
        stream = torch.cuda.current_stream().cuda_stream
        for name, launch in [(None, None), *launches]:
            if launch is not None:
                launch(stream)
                names.append(str(name))
            marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            marks[-1].record()
        torch.cuda.synchronize()
        for number, name in enumerate(names):
            times[name] = times.get(name, 0.0) + marks[number].elapsed_time(marks[number + 1])
        found.append(times)
    return {name: sorted(one[name] for one in found)[repeats // 2] for name in found[0]}


def near_jumps(flow: Tensor, config: RefinementConfig) -> float:
    """Share of the pixels that the weighted median changes, of such a flow."""
    across = (flow[..., 1:] - flow[..., :-1]).abs().amax(1)
    down = (flow[..., 1:, :] - flow[..., :-1, :]).abs().amax(1)
    jump = torch.zeros_like(flow[:, 0])
    jump[..., :-1] = across
    jump[..., :-1, :] = torch.maximum(jump[..., :-1, :], down)
    wide = max_pool2d(max_pool2d(jump[:, None], (1, 15), 1, (0, 7)), (15, 1), 1, (7, 0))
    return float((wide > config.filter_threshold).float().mean())


def copy_rate(device: torch.device) -> float:
    """Bytes a second, read and written together, of a large copy."""
    source = torch.zeros(2**28, dtype=torch.float32, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize(device)
        times.append(start.elapsed_time(end))
    return float(2 * source.numel() * 4 / (min(times) * 1e-3))
