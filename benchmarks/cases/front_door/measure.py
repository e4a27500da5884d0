"""Times of the public calls, and of what they cannot do without."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.bench import Case, Cases, Note, Result
from benchmarks.harness import Candidate, CheckFailed, Timing, given_up, interleaved, wall_clock
from fullfield import Flow, estimate, estimate_batch
from fullfield.io import read_frame, write_flow, write_image
from fullfield.metrics import epe
from fullfield.models import Cascade, PreparedSizes, load_weights
from fullfield.testing import textured_scene

NETWORK = "fullfield-s"
_SCENE = 1024  # larger frames are an enlarged scene
_SAME = 1e-3  # pixels between two runs of one network
_LARGE = 8_000_000  # pixels from which on the tighter bar holds


@dataclass(frozen=True)
class Plan:
    """Options of one run."""

    device: torch.device
    repeats: int
    parts: Sequence[str]
    sizes: Sequence[tuple[int, int]]
    auto_size: tuple[int, int]
    batch: int
    batch_size: tuple[int, int]
    file_size: tuple[int, int]


@dataclass(frozen=True)
class Pair:
    """Frames [3, H, W] on the device and the true flow [2, H, W], valid where it can be estimated."""

    first: Tensor
    second: Tensor
    flow: Tensor
    seen: Tensor


def cases(plan: Plan, note: Note) -> Cases:
    """Yield one case per part and size."""
    make: list[tuple[str, str, Callable[[], Result]]] = []
    for size in plan.sizes:
        make.append(("estimate", f"estimate, {size[1]}x{size[0]}", partial(_estimate, size, plan, note)))
    height, width = plan.auto_size
    make.append(("auto", f"auto, {width}x{height}", partial(_auto, plan, note)))
    height, width = plan.batch_size
    make.append(("batch", f"{plan.batch} pairs, {width}x{height}", partial(_batch, plan, note)))
    height, width = plan.file_size
    make.append(("files", f"files, {width}x{height}", partial(_files, plan, note)))
    for part, label, run in make:
        if part in plan.parts:
            note(label)
            yield Case(label, partial(_caught, run))


def _caught(run: Callable[[], Result]) -> Result:
    """Return the result of a case; a failure becomes its one row."""
    try:
        return run()
    except CheckFailed as error:
        return {"rows": [{"name": "check", "status": "check failed", "reason": str(error)}]}
    except (RuntimeError, MemoryError) as error:
        return {"rows": [{"name": "all", **given_up(error)}]}


def pair_of(size: tuple[int, int], device: torch.device, seed: int = 3) -> Pair:
    """Return a scene with known motion on the device, enlarged to ``size``."""
    height, width = size
    shrink = max(1, -(-max(size) // _SCENE))
    made = textured_scene(max(height // shrink, 16), max(width // shrink, 16), seed=seed)
    first, second, flow = (
        interpolate(part[None], size=size, mode="bilinear", align_corners=False)[0].contiguous().to(device)
        for part in (made.frame1, made.frame2, made.flow)
    )
    scale = torch.tensor([width / made.flow.shape[-1], height / made.flow.shape[-2]], device=device).view(2, 1, 1)
    seen = interpolate((made.valid & ~made.occluded)[None, None].float(), size=size)[0, 0] > 0.5
    return Pair(first, second, flow * scale, seen.to(device))


def _clock(device: torch.device) -> Callable[[Callable[[], Any]], float]:
    """Return a clock of wall time from an idle device to an idle device."""

    def finished(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return run

    def clock(call: Callable[[], Any]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return wall_clock(finished(call))

    return clock


def _timed(plan: Plan, candidates: list[Candidate], note: Note) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return the rows and the medians by name."""
    timings: list[Timing] = interleaved(candidates, plan.repeats, note, _clock(plan.device))
    rows = [{**timing.as_dict(), **timing.in_full(), "ours": True, "status": "ok"} for timing in timings]
    return rows, {timing.name: timing.median for timing in timings}


def _same_as(expected: Tensor) -> Callable[[Any], str | None]:
    """Return a check of a flow, or of a batch of them, against the network's own."""

    def check(found: Any) -> str | None:
        if isinstance(found, list):
            found = torch.stack([flow.flow for flow in found])
        values = found.flow[None] if isinstance(found, Flow) else found
        apart = float((values.to(expected.device) - expected).abs().max())
        return None if apart <= _SAME else f"flow differs from the network's by {apart:.3g} px"

    return check


def _prepared(plan: Plan, sizes: int) -> PreparedSizes:
    return PreparedSizes(load_weights(NETWORK).to(plan.device), "fast", sizes=sizes)


def _estimate(size: tuple[int, int], plan: Plan, note: Note) -> Result:
    device, pair = plan.device, pair_of(size, plan.device)
    call = partial(estimate, pair.first, pair.second, NETWORK, preset="fast", device=device)
    network = Cascade(_prepared(plan, 4))
    first, second = pair.first[None], pair.second[None]
    alone = partial(network, first, second)
    expected = alone().clone()
    there = torch.empty(expected.shape, pin_memory=device.type == "cuda")
    same = _same_as(expected)
    candidates = [
        Candidate("network alone", alone, same),
        Candidate("estimate", call, same),
        Candidate("estimate, result on the host", lambda: call().cpu(), same),
        Candidate("copy at the bus's rate", lambda: there.copy_(expected, non_blocking=True), lambda _: None),
    ]
    rows, median = _timed(plan, candidates, note)
    floor = median["network alone"] + median["copy at the bus's rate"]
    bar = 1.3 if size[0] * size[1] >= _LARGE else 1.5
    return {
        "size": list(size),
        "rows": rows,
        "facts": {"copy, GB/s": there.nbytes / median["copy at the bus's rate"] / 1e9},
        "bars": {
            "estimate / network": (median["estimate"] / median["network alone"], bar),
            "on the host / (network + copy)": (median["estimate, result on the host"] / floor, 1.3),
        },
    }


def _auto(plan: Plan, note: Note) -> Result:
    device, pair = plan.device, pair_of(plan.auto_size, plan.device)

    def right(flow: Flow) -> str | None:
        error = float(epe(flow.flow, pair.flow, pair.seen))
        return None if error < 1 + 0.5 * float(pair.flow.norm(dim=0)[pair.seen].mean()) else f"error {error:.3g} px"

    forms: dict[str, dict[str, Any]] = {
        "auto": {}, "auto, exact": {"precision": "exact"}, "auto, fast": {"precision": "fast"},
    }  # fmt: skip
    rows, errors = [], {}
    median: dict[str, float] = {}
    for name, more in forms.items():  # one after the other: estimate keeps one network by name
        call = partial(estimate, pair.first, pair.second, device=device, **more)
        found, taken = _timed(plan, [Candidate(name, call, right)], note)
        errors[name] = float(epe(call().flow, pair.flow, pair.seen))
        rows.append({**found[0], "epe": errors[name]})
        median |= taken
    return {
        "size": list(plan.auto_size),
        "rows": rows,
        "facts": {f"{name}, error in px": value for name, value in errors.items()},
        "bars": {
            "auto, ms": (1e3 * median["auto"], 30.0),
            "error of auto / of its exact form": (errors["auto"] / errors["auto, exact"], 1.01),
        },
    }


def _batch(plan: Plan, note: Note) -> Result:
    pairs = [pair_of(plan.batch_size, plan.device, seed) for seed in range(plan.batch)]
    first, second = (torch.stack([getattr(pair, name) for pair in pairs]) for name in ("first", "second"))
    network = _prepared(plan, 1).prepared(*plan.batch_size, plan.batch)
    alone = partial(network, first, second)
    expected = alone().clone()
    call = partial(estimate_batch, first, second, NETWORK, preset="fast", device=plan.device)
    same = _same_as(expected)
    candidates = [Candidate("network alone", alone, same), Candidate("estimate_batch", call, same)]
    rows, median = _timed(plan, candidates, note)
    return {
        "size": list(plan.batch_size),
        "pairs": plan.batch,
        "rows": rows,
        "bars": {"estimate_batch / network": (median["estimate_batch"] / median["network alone"], 1.2)},
    }


def _files(plan: Plan, note: Note) -> Result:
    """Time reading, copying, computing and writing one after the other."""
    device, pair = plan.device, pair_of(plan.file_size, plan.device)
    with tempfile.TemporaryDirectory() as folder:
        path1, path2 = (Path(folder) / f"{name}.png" for name in ("a", "b"))
        for path, frame in ((path1, pair.first), (path2, pair.second)):
            write_image(path, frame.cpu().clamp(0, 1))
        call = partial(estimate, method=NETWORK, preset="fast", device=device)
        frames = read_frame(path1), read_frame(path2)
        first, second = (frame.to(device) for frame in frames)
        flow = call(first, second)
        host, stored = flow.cpu(), Path(folder) / "flow.flo"

        def whole() -> None:
            call(path1, path2).save(stored)

        def done(_: object) -> str | None:
            return None

        candidates = [
            Candidate("read both frames", lambda: (read_frame(path1), read_frame(path2)), done),
            Candidate("copy them to the device", lambda: [frame.to(device) for frame in frames], done),
            Candidate("compute", lambda: call(first, second), done),
            Candidate("copy the flow to the host", lambda: flow.cpu(), done),
            Candidate("write", lambda: write_flow(stored, host.flow), done),
            Candidate("files to stored flow", whole, done),
        ]
        rows, median = _timed(plan, candidates, note)
        again = Flow.load(stored).flow
        if not torch.equal(again, call(path1, path2).cpu().flow):
            raise CheckFailed("the stored flow is not the one that was computed")
    parts = sum(value for name, value in median.items() if name != "files to stored flow")
    return {
        "size": list(plan.file_size),
        "rows": rows,
        "bars": {"whole / sum of the parts": (median["files to stored flow"] / parts, 1.1)},
    }
