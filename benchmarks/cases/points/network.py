"""ResNet-18 on native points: time with and without its geometry, launches, the host's share, memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases.points.clouds import Scene
from benchmarks.harness import Candidate, clock_of, given_up, interleaved, issue_seconds, peak_bytes, spread
from fullfield.models.pointcnnpp import PointPyramid, PointResNet, PointResNetConfig

# Of the largest logit: float16 and bfloat16 against the same weights in float32.
_ALLOWED = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.2}
Case = dict[str, Any]


class _Work:
    """The network, and what one call does."""

    def __init__(self, scene: Scene, grid: float, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.scene, self.dtype = scene, dtype
        device = scene.points.device
        self.net = PointResNet(PointResNetConfig(grid=grid)).to(device=device, dtype=dtype)
        self.parameters = list(self.net.parameters())
        generator = torch.Generator(device).manual_seed(0)
        count = scene.points.shape[0]
        self.features = torch.randn(count, 3, generator=generator, device=device).to(dtype)
        self.labels = torch.arange(scene.offsets.numel() - 1, device=device) % 1000

    def prepare(self) -> PointPyramid:
        return self.net.prepare(self.scene.points, self.scene.offsets)

    def forward(self, pyramid: PointPyramid) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.net(self.features, pyramid)
        return logits

    def train(self, pyramid: PointPyramid) -> Tensor:
        """Forward and the gradients of all parameters, which are let go of before as an optimizer does."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = torch.nn.functional.cross_entropy(self.net(self.features, pyramid).float(), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def whole(self) -> Tensor:
        """Geometry, forward and backward."""
        return self.train(self.prepare())

    def wrong(self, pyramid: PointPyramid) -> str | None:
        """Logits against the same weights in float32, and gradients that are finite."""
        logits = self.forward(pyramid).float()
        exact = PointResNet(self.net.config).to(logits.device)
        exact.load_state_dict({name: value.float() for name, value in self.net.state_dict().items()})
        with torch.no_grad():
            right = exact(self.features.float(), pyramid)
        error, allowed = float((logits - right).abs().max() / right.abs().max()), _ALLOWED[self.dtype]
        if not error <= allowed:
            return f"the logits are off by {error:.2g} of the largest, allowed {allowed:.2g}"
        self.train(pyramid)
        finite = all(bool(p.grad.isfinite().all()) for p in self.net.parameters() if p.grad is not None)
        return None if finite else "a gradient has NaN or infinite values"


def timed(scene: Scene, grid: float, dtype: torch.dtype, repeats: int, note: Callable[[str], None]) -> Case:
    """All phases of a training step."""
    work = _Work(scene, grid, dtype)
    gpu = scene.points.is_cuda
    pyramid = work.prepare()
    note("checking ResNet-18")
    wrong = work.wrong(pyramid)
    row: Case = {"name": "ResNet-18", "ours": True, "status": "ok" if wrong is None else "check failed"}
    case: Case = {"dtype": str(dtype).removeprefix("torch."), "rows": [row]}
    case |= {"points": scene.points.shape[0], "levels": [len(points) for points in pyramid.points]}
    if wrong is not None:
        row["reason"] = wrong
        return case
    phases: dict[str, Callable[[], Any]] = {
        "geometry": work.prepare,
        "forward": lambda: work.forward(pyramid),
        "training": lambda: work.train(pyramid),
        "whole": work.whole,
    }
    clock = clock_of(scene.points.device)
    alone: Case = {"name": "ResNet-18, backward in the calling thread", "ours": True, "status": "ok"}
    case["rows"].append(alone)
    works = [(row, name, call) for name, call in phases.items()]
    works += [(alone, name, partial(_in_one_thread, phases[name])) for name in ("training", "whole")]
    candidates = [Candidate(f"{own['name']}, {name}", call, lambda _: None) for own, name, call in works]
    for (own, name, _), timing in zip(works, interleaved(candidates, repeats, note, clock), strict=True):
        own[name] = timing.in_full()
    if gpu:
        for name, call in phases.items():
            row[f"{name}_peak_bytes"] = peak_bytes(call)
            row[f"{name}_host_s"] = issue_seconds([call], 3)
            row[f"{name}_launches"], row[f"{name}_device_s"] = _on_device(call)
    return case


def _in_one_thread(call: Callable[[], Any]) -> None:
    """Call without the thread that PyTorch has for a device's backward pass.

    A small network waits for the host, which then hands nothing over.
    """
    with torch.autograd.set_multithreading_enabled(False):
        call()


def _on_device(call: Callable[[], Any]) -> tuple[int, float]:
    """Return the number of a call's kernels and copies, and the seconds that they took one after the other."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    events = [e for e in found.key_averages() if e.self_device_time_total > 0]
    return sum(e.count for e in events), sum(e.self_device_time_total for e in events) / 1e6


def once(make: Callable[[], Scene], size: int, grid: float, dtype: torch.dtype) -> Case:
    """Measure geometry, forward and training at a size: peak memory and seconds, or that it does not fit.

    Each runs again after a first call, which compiles kernels and allocates memory.
    """
    row: Case = {"name": "ResNet-18", "ours": True, "status": "ok"}
    case: Case = {"size": size, "rows": [row]}
    case["dtype"] = str(dtype).removeprefix("torch.")
    try:
        work = _Work(make(), grid, dtype)
        kept: list[PointPyramid] = []

        def prepare() -> None:
            kept.clear()
            kept.append(work.prepare())

        for name, call in (
            ("geometry", prepare),
            ("forward", lambda: work.forward(kept[0])),
            ("training", lambda: work.train(kept[0])),
        ):
            row |= _phase(name, call, work.features.device)
        case["levels"] = [len(points) for points in kept[0].points]
        case["triplets"] = sum(g.forward.entries.numel() for g in kept[0].geometries.values())
        if not all(bool(p.grad.isfinite().all()) for p in work.net.parameters() if p.grad is not None):
            row.update(status="check failed", reason="a gradient has NaN or infinite values")
    except (MemoryError, RuntimeError) as error:
        row.update(given_up(error))
    return case


def _phase(name: str, call: Callable[[], Any], device: torch.device) -> Case:
    seconds: list[float] = []
    clock = clock_of(device)

    def twice() -> None:
        for _ in range(2):
            seconds.append(clock(call))

    found: Case = {}
    if device.type == "cuda":
        found[f"{name}_peak_bytes"] = peak_bytes(twice)
        found[f"{name}_allocated_bytes"] = torch.cuda.max_memory_allocated()
    else:
        twice()
    return {**found, name: {**spread(seconds[1:]), "seconds": seconds[1:]}, f"{name}_first_s": seconds[0]}
