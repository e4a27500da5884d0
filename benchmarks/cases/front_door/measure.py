"""Times of the public calls, and of what they cannot do without."""

from __future__ import annotations

import math
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
from benchmarks.harness import Candidate, CheckFailed, Timing, Unsupported, given_up, interleaved, wall_clock
from benchmarks.shared_pairs import shared_pairs
from fullfield import Flow, estimate, estimate_batch
from fullfield._check import InputError
from fullfield.estimators._devices import to_device
from fullfield.io import read_flow, read_frame, write_image
from fullfield.metrics import epe
from fullfield.models import load_weights
from fullfield.models.cascade import (
    compute_enlarged_size,
    list_quartered_sizes,
    resample_flow,
    resample_frame,
    resample_pair_to_sizes,
)
from fullfield.models.prepared.runner import PreparedFlowCache
from fullfield.testing import sample_textured_scene

NETWORK = "fullfield-s"
_SCENE = 1024  # larger frames are an enlarged scene
_SAME = 0.01  # pixels, mean, between two runs of one network; cuDNN may choose other algorithms for each
_LARGE = 8_000_000  # pixels from which on the tighter bar holds
_PATIENCE = 3.0  # seconds that one way from files to a flow is repeated for
_SCENES = 4  # different pairs of a batch; further ones repeat them


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
    data: Path


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
    make.append(("pairs", "auto and float32, shared pairs", partial(_pairs, plan, note)))
    make.append(("methods", "auto and TV-L1, a Sintel pair", partial(_methods, plan, note)))
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
    except (RuntimeError, MemoryError, InputError, OSError) as error:
        return {"rows": [{"name": "all", **given_up(error)}]}


def pair_of(size: tuple[int, int], device: torch.device, seed: int = 3) -> Pair:
    """Return a scene with known motion on the device, enlarged to ``size``."""
    height, width = size
    shrink = max(1, -(-max(size) // _SCENE))
    made = sample_textured_scene(max(height // shrink, 16), max(width // shrink, 16), seed=seed)
    first, second, flow = (
        interpolate(part[None].to(device), size=size, mode="bilinear", align_corners=False)[0].contiguous()
        for part in (made.frame1, made.frame2, made.flow)
    )
    scale = torch.tensor([width / made.flow.shape[-1], height / made.flow.shape[-2]], device=device).view(2, 1, 1)
    seen = interpolate((made.valid & ~made.occluded)[None, None].to(device, torch.float32), size=size)[0, 0] > 0.5
    return Pair(first, second, flow * scale, seen)


def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _host_buffer(like: Tensor) -> Tensor:
    """Return uninitialised memory of the host, page-locked where a GPU copies to it."""
    return torch.empty(like.shape, pin_memory=_on_gpu(like.device))


def _clock(device: torch.device) -> Callable[[Callable[[], Any]], float]:
    """Return a clock of wall time from an idle device to an idle device."""

    def wait() -> None:
        if _on_gpu(device):
            torch.cuda.synchronize(device)

    def clock(call: Callable[[], Any]) -> float:
        def finished() -> None:
            call()
            wait()

        wait()
        return wall_clock(finished)

    return clock


def _timed(
    plan: Plan, candidates: list[Candidate], note: Note, patience: float = math.inf
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return the rows and the medians by name."""
    timings: list[Timing] = interleaved(candidates, plan.repeats, note, _clock(plan.device), patience)
    rows = [{**timing.as_dict(), **timing.in_full(), "ours": True, "status": "ok"} for timing in timings]
    return rows, {timing.name: timing.median for timing in timings}


def _same_as(expected: Tensor) -> Callable[[Any], str | None]:
    """Return a check of a flow, or of a batch of them, against the network's own."""

    def check(found: Any) -> str | None:
        if isinstance(found, list):
            found = torch.stack([flow.flow for flow in found])
        values = found.flow[None] if isinstance(found, Flow) else found
        apart = float((values.to(expected.device) - expected).norm(dim=1).mean())
        return None if apart <= _SAME else f"flow differs from the network's by {apart:.3g} px on average"

    return check


def _run_prepared_network(network: PreparedFlowCache, first: Tensor, second: Tensor) -> Tensor:
    """Estimate the flow of frames [B, 3, H, W] at the sizes and with the updates of the network's estimator."""
    height, width = first.shape[-2:]
    size = compute_enlarged_size(height, width)
    sizes = list_quartered_sizes(*size, enlarges_last=True)
    *finer, coarsest = resample_pair_to_sizes(resample_frame(first, size), resample_frame(second, size), sizes)
    flow = network(*coarsest)
    for frames in reversed(finer):
        flow = network(*frames, initial_flow=flow)
    return resample_flow(flow, height, width)


def _build_network_call(plan: Plan, first: Tensor, second: Tensor) -> Callable[[], Tensor]:
    network = load_weights(NETWORK).to(plan.device)
    if plan.device.type == "cpu":
        network.optimize_for_cpu()  # as the estimator does, which rounds the weights differently
    return partial(_run_prepared_network, PreparedFlowCache(network, "fast"), first, second)


def _estimate(size: tuple[int, int], plan: Plan, note: Note) -> Result:
    device, pair = plan.device, pair_of(size, plan.device)
    call = partial(estimate, pair.first, pair.second, NETWORK, preset="fast", device=device)
    alone = _build_network_call(plan, pair.first[None], pair.second[None])
    expected = alone().clone()
    there = _host_buffer(expected)
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


def _pairs(plan: Plan, note: Note) -> Result:
    """Compare the errors of the default method and of its float32 form on every shared pair."""
    pairs = shared_pairs(plan.data)
    if not pairs:
        raise Unsupported(f"no pairs with true flow under {plan.data / 'flow'}; name their folder with --data")
    errors: dict[str, dict[str, float]] = {}
    for form, precision in (("auto", "auto"), ("auto, exact", "exact")):  # estimate keeps one network by name
        for name, (first, second, truth) in pairs.items():
            note(f"{form}, {name}")
            known = read_flow(truth)
            found = estimate(first, second, device=plan.device, precision=precision).cpu()
            errors.setdefault(name, {})[form] = float(epe(found.flow, known.flow, known.valid))
    ratios = {name: both["auto"] / both["auto, exact"] for name, both in errors.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    return {
        "rows": [],
        "errors": errors,
        "facts": {
            f"{name}, float32 {errors[name]['auto, exact']:.3f} px, ratio": value for name, value in ratios.items()
        },
        "bars": {f"largest of {len(ratios)} ratios ({worst})": (ratios[worst], 1.01)},
    }


def _methods(plan: Plan, note: Note) -> Result:
    """Time the default method and TV-L1 on one real pair that has been read."""
    name = "sintel clean alley_1"
    pairs = shared_pairs(plan.data)
    if name not in pairs:
        raise Unsupported(f"{name} is not under {plan.data / 'flow'}; name the folder of the data with --data")
    *files, truth = pairs[name]
    first, second = (read_frame(path).to(plan.device) for path in files)
    known = read_flow(truth)
    errors: dict[str, float] = {}

    def right(method: str) -> Callable[[Flow], str | None]:
        def check(found: Flow) -> str | None:
            errors[method] = float(epe(found.cpu().flow, known.flow, known.valid))
            return None if errors[method] < 1 else f"error {errors[method]:.3g} px"

        return check

    forms: dict[str, dict[str, Any]] = {
        "auto": {"method": "auto"},
        "auto, exact": {"method": "auto", "precision": "exact"},
        "tvl1": {"method": "tvl1"},
    }
    rows = []
    for method, form in forms.items():  # one after the other: estimate keeps one network by name
        call = partial(estimate, first, second, device=plan.device, **form)
        rows += _timed(plan, [Candidate(method, call, right(method))], note)[0]
    return {
        "size": list(first.shape[-2:]),
        "frames": name,
        "threads": torch.get_num_threads(),
        "rows": [{**row, "epe": errors[row["name"]]} for row in rows],
        "facts": {f"{method}, error in px": error for method, error in errors.items()},
    }


def _batch(plan: Plan, note: Note) -> Result:
    scenes = [pair_of(plan.batch_size, plan.device, seed) for seed in range(min(plan.batch, _SCENES))]
    pairs = [scenes[at % len(scenes)] for at in range(plan.batch)]
    first, second = (torch.stack([getattr(pair, name) for pair in pairs]) for name in ("first", "second"))
    alone = _build_network_call(plan, first, second)
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
    """Time reading, copying, computing and writing one after the other, then all of it in one call."""
    device, pair = plan.device, pair_of(plan.file_size, plan.device)
    with tempfile.TemporaryDirectory() as folder:
        path1, path2 = (Path(folder) / f"{name}.png" for name in ("a", "b"))
        for path, frame in ((path1, pair.first), (path2, pair.second)):
            write_image(path, frame.cpu().clamp(0, 1))
        call = partial(estimate, method=NETWORK, preset="fast", device=device)
        frames = read_frame(path1), read_frame(path2)
        first, second = (frame.to(device) for frame in frames)
        flow = call(first, second)
        host, part, stored = flow.cpu(), Path(folder) / "part.flo", Path(folder) / "whole.flo"
        same = _same_as(flow.flow[None])

        def done(_: object) -> None:
            return None

        candidates = [
            Candidate("read both frames", lambda: (read_frame(path1), read_frame(path2)), done),
            Candidate("copy them to the device", lambda: [to_device(frame, device) for frame in frames], done),
            Candidate("compute", lambda: call(first, second), same),
            Candidate("copy the flow to the host", lambda: flow.cpu(), same),
            Candidate("write", lambda: host.save(part), done),
            Candidate("files to stored flow", lambda: call(path1, path2).save(stored), done),
        ]
        rows, median = _timed(plan, candidates, note, _PATIENCE)
        for name in (part, stored):
            wrong = same(Flow.load(name))
            if wrong is not None:
                raise CheckFailed(f"{name.name}: {wrong}")
    parts = sum(value for name, value in median.items() if name != "files to stored flow")
    return {
        "size": list(plan.file_size),
        "rows": rows,
        "facts": {"all but reading, ms": 1e3 * (parts - median["read both frames"])},
        "bars": {"whole / sum of the parts": (median["files to stored flow"] / parts, 1.1)},
    }
